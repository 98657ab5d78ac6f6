"""Downloads that can be interrupted at any time: they are resumed and verified.

NAME.partial holds what has arrived. NAME.partial.json says which version it belongs to, so that two
versions are never mixed.
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

# bytes received, and in total (None if the server does not say)
Watch = Callable[[int, int | None], None]

# seconds before a retry; the list restarts whenever more bytes have arrived
PAUSES = (0.5, 1.0, 2.0)
TIMEOUT = (10.0, 30.0)  # seconds to wait for a connection, and for the next bytes
CHUNK = 1 << 16
PASSING = (408, 429, 500, 502, 503, 504)  # status codes that may be temporary


class _Cut(Exception):
    """The connection was lost or the server is busy; a retry may help."""


def digest(path: Path, like: str | None) -> str | None:
    """Return the file's checksum, of the same kind as ``like``; None for None."""
    if like is None:
        return None
    kind = like.partition(":")[0]
    return f"{kind}:{file_hash(path, kind)}"


@dataclass(frozen=True)
class Partial:
    """The part of ``target`` that has been downloaded so far."""

    target: Path
    url: str
    checksum: str | None = None

    @property
    def path(self) -> Path:
        """The file with the bytes received so far."""
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def note(self) -> Path:
        """The file that says which version the bytes belong to."""
        return self.target.with_name(f"{self.target.name}.partial.json")

    def size(self) -> int:
        """Return the number of bytes received so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def origin(self) -> dict[str, Any]:
        """Return "validator" (the server's mark of a version) and "length"; empty if unknown."""
        try:
            known = json.loads(self.note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) and known.get("url") == self.url else {}

    def begin(self, validator: str | None, length: int | None) -> None:
        """Discard what is there, and note which version will come."""
        self.path.write_bytes(b"")  # before the note, which must never describe other bytes
        self.note.write_text(
            json.dumps({"url": self.url, "validator": validator, "length": length}),
            encoding="utf-8",
        )

    def remove(self) -> None:
        """Delete the partial file and its note."""
        self.note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def bring(partial: Partial, watch: Watch) -> None:
    """Download until ``partial`` is complete and has the right checksum, resuming earlier attempts.

    Raises a DataError if the server refuses, cannot be reached or keeps failing; what has arrived
    is kept for the next attempt. A file with a wrong checksum is deleted.
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
        # perhaps the parts did not fit together: try once more from the start
        furthest, failures, resumed = 0, 0, False


def _transfer(partial: Partial, watch: Watch) -> None:
    """Request the bytes that are still missing."""
    import requests
    from urllib3.exceptions import HTTPError

    known, size = partial.origin(), partial.size()
    if size and size == known.get("length"):
        return  # stopped after the last byte, before the file was renamed
    # the published bytes, not compressed for transfer
    headers = {"Accept-Encoding": "identity"}
    # otherwise a change of version would go unnoticed
    if size and known and (known.get("validator") or partial.checksum):
        headers["Range"] = f"bytes={size}-"
        if known.get("validator"):
            headers["If-Range"] = known[
                "validator"
            ]  # another version is sent in full, with status 200
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
                    raise _Cut("the server did not send the requested part")
            else:
                _require_success(partial, response)
                length, size = _length(response), 0
                partial.begin(_validator(response), length)
            with partial.path.open("ab") as file:
                watch(size, length)
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    file.write(chunk)
                    file.flush()  # so that a killed process loses nothing it received
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
    """Return what identifies this version of the file: a strong ETag, or the modification date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _length(response: Response) -> int | None:
    """Return the length of a file that is sent in full."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _total(response: Response) -> int | None:
    """Return the length of a file of which a part is sent."""
    found = re.search(r"/(\d+)$", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _reason(error: BaseException) -> str:
    """Describe the innermost cause; the outer ones only repeat the address."""
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
    """Show a progress bar on a terminal, nothing elsewhere."""
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
