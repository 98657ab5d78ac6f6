"""Replies that wait for the others, in memory as far as they fit and on disk beyond.

A reply can count when the last one of the round is in: only then is the median known that it is
compared with, and sums are taken in the order of the clients' numbers. So that the server's memory
does not grow with the number of clients, replies beyond a few MiB wait in a file that has no name
and is gone with the process.
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
        folder: where the file lies, on a disk that is large enough; None is the system's folder.
        in_memory: bytes that are kept in memory; None is IN_MEMORY.
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
                f"replies cannot be kept in {self._folder or tempfile.gettempdir()}:"
                f" {error.strerror}; free some space and start the server again"
            ) from error

    def take(self, client: int) -> Reply:
        """A client's reply, which is then no longer kept."""
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
