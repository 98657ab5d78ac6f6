"""A hash that changes when the data change: SHA-256 of every byte, in order.

Equal data have equal fingerprints, whatever the number of threads, the device or the memory layout.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evenhand.data.nested import Nested
from evenhand.data.views import View

# prefix of the hexadecimal digits; fingerprints of earlier versions (hashes of sums) have none
KIND = "sha256:"
CHUNK = 1 << 24  # bytes gathered, or copied from a GPU, at a time


class Fingerprint:
    """Hash of named values added one by one; different sequences of values give different
    hashes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def plain(self, name: str, value: Any) -> None:
        """Add texts, numbers, None, or lists and tuples of them."""
        self._hash.update(f"{json.dumps([name, value])}\n".encode())

    def array(self, name: str, values: Tensor | View | Nested | None) -> None:
        """Add an array: type, shape, and all bytes.

        A view has the same fingerprint as a copy of the rows it shows. Its scale and shift are
        added separately, so the fingerprint differs from that of a scaled copy.
        """
        if values is None:
            self.plain(name, None)
            return
        if isinstance(values, Nested):
            self.plain(name, values.form)
            for inner, array in values.arrays().items():
                self.array(f"{name}.{inner}", array)
            return
        source = values.source if isinstance(values, View) else values
        self.plain(name, [str(source.dtype), list(values.shape)])
        for rows in _chunks(values) if source.ndim else ():
            if isinstance(values, View) and values.rows is not None:
                self._bytes(source[values.rows[rows].to(source.device)])
            else:
                self._bytes(source[rows])
        if not source.ndim:
            self._bytes(source)
        if isinstance(values, View) and values.scale is not None:
            self.array(f"{name}.scale", values.scale)
            self.array(f"{name}.shift", values.shift)

    def _bytes(self, values: Tensor) -> None:
        flat = values.detach().cpu().contiguous().reshape(-1)
        self._hash.update(flat.view(torch.uint8).numpy().data)

    def text(self) -> str:
        """Return the fingerprint of everything added so far."""
        return KIND + self._hash.hexdigest()


def _chunks(values: Tensor | View) -> Iterator[slice]:
    """Yield slices of rows that are hashed together."""
    wide = values.element_size() * math.prod(values.shape[1:])
    rows = max(1, CHUNK // max(1, wide))
    for first in range(0, len(values), rows):
        yield slice(first, first + rows)
