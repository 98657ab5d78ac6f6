"""Downloads that may be interrupted at any moment: resumed where they stopped, and verified.

What has arrived lies in NAME.partial. NAME.partial.json says what it is a part of, so that two
versions are never glued together.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.data.storage.file import file_hash
from evenhand.errors import DataError

if TYPE_CHECKING:
    from requests import Response

# bytes that have arrived, of how many (None where the server does not say)
Watch = Callable[[int, int | None], None]

# seconds before a new try; one that brings the download further begins them afresh
PAUSES = (0.5, 1.0, 2.0)
TIMEOUT = (10.0, 30.0)  # seconds to wait for a connection, and for the next bytes
CHUNK = 1 << 16
PASSING = (408, 429, 500, 502, 503, 504)  # answers that may be different a moment later


class _Cut(Exception):
    """The connection was lost or the server is busy; another try may help."""


def digest(path: Path, like: str | None) -> str | None:
    """The file's checksum, of the kind that ``like`` is; None for None."""
    if like is None:
        return None
    kind = like.partition(":")[0]
    return f"{kind}:{file_hash(path, kind)}"


@dataclass(frozen=True)
class Partial:
    """What has arrived so far of the file that is to become ``target``."""

    target: Path
    url: str
    checksum: str | None = None

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def note(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def origin(self) -> dict[str, Any]:
        """What this is a part of: "validator" (the server's mark of a version) and "length"; empty
        where that is not known."""
        try:
            known = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) and known.get("url") == self.url else {}

    def begin(self, validator: str | None, length: int | None) -> None:
        """Throw away what is there and note what will come."""
        self.path.write_bytes(b"")  # before the note, which must never speak of other bytes
        self.note.write_text(
            json.dumps({"url": self.url, "validator": validator, "length": length}),
            encoding="utf-8",
        )

    def remove(self) -> None:
        self.note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def bring(partial: Partial, watch: Watch) -> None:
    """Download until ``partial`` is whole and has its checksum, going on where an earlier try
    stopped.

    Raises a DataError where the server refuses, cannot be reached or goes on failing; what has
    arrived is kept for the next time. A file with another checksum is not kept.
    """
    by_hand = f"put the file at {partial.target} by hand"
    furthest, failures = partial.size(), 0
    resumed = furthest > 0
    while True:
        try:
            _transfer(partial, watch)
        except _Cut as error:
            size = partial.size()
            failures = 1 if size > furthest else failures + 1
            furthest = max(furthest, size)
            if failures > len(PAUSES):
                kept = f" ({size} bytes are kept)" if size else ""
                raise DataError(
                    f"{partial.url} cannot be downloaded: {error}{kept}; try again later or"
                    f" {by_hand}"
                ) from error
            resumed = True
            time.sleep(PAUSES[failures - 1])
            continue
        got = digest(partial.path, partial.checksum)
        if got == partial.checksum:
            return
        partial.remove()
        if not resumed:
            raise DataError(
                f"{partial.url} is not the published file: expected {partial.checksum}, got {got};"
                f" it was not kept, {by_hand}"
            )
        # perhaps the parts did not fit together: once more, from the start
        furthest, failures, resumed = 0, 0, False


def _transfer(partial: Partial, watch: Watch) -> None:
    """One request for what is still to come."""
    import requests
    from urllib3.exceptions import HTTPError

    known, size = partial.origin(), partial.size()
    if size and size == known.get("length"):
        return  # stopped after the last byte, before it was placed
    # the bytes that are published, not bytes packed for the journey
    headers = {"Accept-Encoding": "identity"}
    # else nobody would notice that the rest is of another version
    if size and known and (known.get("validator") or partial.checksum):
        headers["Range"] = f"bytes={size}-"
        if known.get("validator"):
            headers["If-Range"] = known["validator"]  # another version comes whole, with status 200
    try:
        with requests.get(partial.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code in (
                HTTPStatus.PARTIAL_CONTENT,
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            ):
                length = known.get("length") or _total(response)
                if not response.headers.get("Content-Range", "").startswith(
                    f"bytes {size}-"
                ) or _total(response) not in (None, length):
                    partial.remove()
                    raise _Cut("the server sent another part than the one that was asked for")
            else:
                _require_success(partial, response)
                length, size = _length(response), 0
                partial.begin(_validator(response), length)
            with partial.path.open("ab") as file:
                watch(size, length)
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    file.write(chunk)
                    file.flush()  # what a killed process has received is there for the next one
                    size += len(chunk)
                    watch(size, length)
    except (requests.RequestException, HTTPError) as error:
        raise _Cut(_reason(error)) from error
    if length is not None and size != length:
        raise _Cut(f"the connection was closed after {size} of {length} bytes")


def _require_success(partial: Partial, response: Response) -> None:
    if response.status_code == HTTPStatus.OK:
        return
    answer = f"the server answered {response.status_code} {response.reason or ''}".rstrip()
    if response.status_code in PASSING:
        raise _Cut(answer)
    raise DataError(
        f"{partial.url} cannot be downloaded: {answer}; put the file at {partial.target} by hand"
    )


def _validator(response: Response) -> str | None:
    """What tells this version of the file from others: a strong ETag, or else the date of its last
    change."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _length(response: Response) -> int | None:
    """Length of a file that comes whole."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _total(response: Response) -> int | None:
    """Length of the file of which a part comes."""
    found = re.search(r"/(\d+)$", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words; the outer ones only repeat the address."""
    import requests
    from urllib3.exceptions import TimeoutError as NoAnswer

    if isinstance(error, requests.Timeout | NoAnswer):
        return (
            "no answer within"
            f" {TIMEOUT[0 if isinstance(error, requests.ConnectTimeout) else 1]:g} s"
        )
    reason, inner = "the connection was lost", error.__cause__ or error.__context__
    while inner is not None:
        reason = getattr(inner, "strerror", None) or reason
        inner = inner.__cause__ or inner.__context__
    return reason


@contextmanager
def progress_bar(name: str) -> Iterator[Watch]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
