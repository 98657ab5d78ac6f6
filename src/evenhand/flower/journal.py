"""Files with one JSON object per line, appended by a server while others read them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

PROGRESS = "progress.jsonl"  # in the run directory: each start of the server, each round, the end


def utc() -> str:
    """The present time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Lines(NamedTuple):
    """The contents of a file."""

    records: list[dict[str, Any]]
    damaged: int = 0  # unreadable lines, except the last one, which may be half-written


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a line. If that fails, the run continues: these files are only for observers."""
    line = json.dumps(dict(record)).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a single write at the current end keeps lines of several processes intact
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, line if _ends_a_line(descriptor) else b"\n" + line)
        finally:
            os.close(descriptor)
    except OSError as error:
        log.warning("%s cannot be written: %s; training continues without it", path, error.strerror)


def _ends_a_line(descriptor: int) -> bool:
    """Whether the file is empty or ends with a line break; a killed process may have left half a
    line."""
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def read(path: Path) -> Lines:
    """All complete lines; none if there is no file. Raises an OSError if it cannot be read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Lines([])
    *whole, last = content.split(b"\n")
    found = [_object(line) for line in whole if line.strip()]
    if last.strip() and (record := _object(last)) is not None:
        found.append(record)
    records = [record for record in found if record is not None]
    return Lines(records, len(found) - len(records))


def read_from(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """Complete lines from a position on, and the position after them; none if the file cannot be
    read."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            content = file.read()
    except OSError:
        return [], start
    whole = content[: content.rfind(b"\n") + 1]
    found = [_object(line) for line in whole.split(b"\n") if line.strip()]
    return [record for record in found if record is not None], start + len(whole)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
