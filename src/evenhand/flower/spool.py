"""Stores replies that wait for others, in memory as far as they fit, then on disk.

A reply counts only when the last one of the round has arrived: only then is the median known, and
sums are taken in the order of client numbers. To keep the server's memory independent of the number
of clients, replies beyond a few MiB wait in an unnamed file that disappears with the process.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from flwr.app import Array

from evenhand import tree
from evenhand.errors import RunError
from evenhand.flower.packing import STYPE, pack, unpack
from evenhand.messages import Reply
from evenhand.tree import Tree

IN_MEMORY = 64 << 20  # bytes of replies


class Spool:
    """Replies by client.

    Args:
        folder: where to put the file, on a large enough disk; None for the system's folder.
        in_memory: bytes to keep in memory; None for IN_MEMORY.
    """

    def __init__(self, folder: Path | None = None, in_memory: int | None = None) -> None:
        self._folder, self._room = folder, IN_MEMORY if in_memory is None else in_memory
        self._kept: dict[int, Reply] = {}
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def __contains__(self, client: int) -> bool:
        return client in self._kept or client in self._places

    def put(self, client: int, reply: Reply) -> None:
        """Keep a client's reply."""
        size = sum(leaf.nbytes for part in reply for leaf in tree.leaves(part))
        if size <= self._room:
            self._room -= size
            self._kept[client] = reply
            return
        try:
            self._places[client] = [self._write(part) for part in reply]
        except OSError as error:
            raise RunError(
                f"replies cannot be stored in {self._folder or tempfile.gettempdir()}:"
                f" {error.strerror}; free some space and start the server again"
            ) from error

    def take(self, client: int) -> Reply:
        """Remove and return a client's reply."""
        if client in self._kept:
            return self._kept.pop(client)
        return Reply(*(self._read(*place) for place in self._places.pop(client)))

    def _write(self, part: Tree) -> tuple[int, int]:
        if self._file is None:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (see __exit__)
        start, data = self._file.seek(0, 2), pack(part).data
        self._file.write(data)
        return start, len(data)

    def _read(self, start: int, size: int) -> Tree:
        assert self._file is not None, "only what was written is read"
        self._file.seek(start)
        return unpack(Array("uint8", (size,), STYPE, self._file.read(size)))
