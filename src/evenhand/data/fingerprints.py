"""A text that changes when data do: SHA-256 of every byte, in order.

Equal data have equal fingerprints whatever the number of threads, the device, or the memory that
they lie in.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evenhand.data.samples import View

# before the hexadecimal digits; fingerprints of earlier versions, hashes of sums, have none
KIND = "sha256:"
CHUNK = 1 << 24  # bytes that are gathered, or copied from a GPU, at a time


class Fingerprint:
    """Takes named values one by one; no two sequences of values give the same text."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def plain(self, name: str, value: Any) -> None:
        """Add texts, numbers, None, or lists and tuples of them."""
        self._hash.update(f"{json.dumps([name, value])}\n".encode())

    def array(self, name: str, values: Tensor | View | None) -> None:
        """Add an array: type, shape, and all bytes.

        Of a view, the rows that it shows: it has the fingerprint of a copy of these rows. Scale and
        shift are added as they are, so it does not have that of a copy with scaled numbers.
        """
        if values is None:
            self.plain(name, None)
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
        """The fingerprint of all that was added."""
        return KIND + self._hash.hexdigest()


def _chunks(values: Tensor | View) -> Iterator[slice]:
    """Rows that are taken together."""
    wide = values.element_size() * math.prod(values.shape[1:])
    rows = max(1, CHUNK // max(1, wide))
    for first in range(0, len(values), rows):
        yield slice(first, first + rows)
