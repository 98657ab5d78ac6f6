"""A tree of tensors as one Flower array, exactly and without pickle.

One array instead of one per tensor, because each array costs two more requests in either direction.
Its bytes are

    8 bytes    length of the header, little-endian
    header     JSON: a branch is an object, a tensor is [type, shape], keys in the order of the tree
    tensors    one after another in the order of the header, as they lie in memory

so structure, order and bits are preserved, and decoding runs no code. Any fault in a received array
raises a one-line ValueError.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from evenhand.tree import Tree

# a machine that orders bytes the other way refuses the array instead of misreading it
STYPE = f"evenhand.tree.{sys.byteorder}"

_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_PREFIX = 8  # bytes that hold the length of the header
_HEADER_LIMIT = 1 << 24  # bytes; far more than any model needs, and parsed in less than a second
_DEPTH_LIMIT = 64  # branches inside each other, and dimensions of a tensor


def pack(tree: Tree) -> Array:
    """A tree as one Flower array."""
    parts: list[memoryview] = []
    header = json.dumps(_describe(tree, parts, 0), separators=(",", ":")).encode()
    if len(header) > _HEADER_LIMIT:
        raise ValueError(
            f"a tree of {len(parts)} tensors cannot be sent: the names take"
            f" {byte_count(len(header))}; use fewer or shorter keys"
        )
    data = b"".join([len(header).to_bytes(_PREFIX, "little"), header, *parts])
    return Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)


def packed_size(tree: Tree) -> int:
    """Bytes of the array that :func:`pack` would make."""
    parts: list[memoryview] = []
    header = json.dumps(_describe(tree, parts, 0), separators=(",", ":")).encode()
    return _PREFIX + len(header) + sum(part.nbytes for part in parts)


def unpack(array: Array) -> Tree:
    """Undo :func:`pack`; every tensor has its own memory."""
    data = array.data
    if array.stype != STYPE:
        raise ValueError(f"an array is encoded as {_shown(array.stype)}, expected '{STYPE}'")
    if array.dtype != "uint8" or tuple(array.shape) != (len(data),):
        raise ValueError(f"an array of {len(data)} bytes declares another type or length")
    body = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    if len(data) < body:
        raise ValueError("an array ends before its header does")
    if body - _PREFIX > _HEADER_LIMIT:
        raise ValueError(
            f"the header of an array has {byte_count(body - _PREFIX)}, the limit is"
            f" {byte_count(_HEADER_LIMIT)}"
        )
    leaves: list[_Leaf] = []
    outline = _outline(_parsed(data[_PREFIX:body]), leaves, 0)
    declared, found = sum(leaf.size for leaf in leaves), len(data) - body
    if declared != found:  # before memory is taken for them
        raise ValueError(f"an array has {found} bytes of tensors, its header declares {declared}")
    for leaf in leaves:
        leaf.read(data, body)
        body += leaf.size
    return _filled(outline)


class _Leaf:
    """A tensor described by a header, and later the tensor itself."""

    def __init__(self, name: Any, shape: Any) -> None:
        dtype = _TYPES.get(name) if isinstance(name, str) else None
        if dtype is None:
            raise ValueError(
                f"the header of an array names the type {_shown(name)}; known are"
                f" {', '.join(_TYPES)}"
            )
        if (
            not isinstance(shape, list)
            or len(shape) > _DEPTH_LIMIT
            or not all(type(length) is int and length >= 0 for length in shape)
        ):
            raise ValueError(
                "the header of an array gives a shape that is not a short list of whole numbers"
                " >= 0"
            )
        # also where another length is zero
        if math.prod(length for length in shape if length) * dtype.itemsize >= 2**62:
            raise ValueError("the header of an array gives a shape that no machine can hold")
        self.dtype, self.shape = dtype, shape
        self.size = math.prod(shape) * dtype.itemsize
        self.tensor: Tensor

    def read(self, data: bytes, start: int) -> None:
        self.tensor = torch.empty(self.shape, dtype=self.dtype)
        content = np.frombuffer(data, np.uint8, self.size, start)
        if self.dtype is torch.bool and content.max(initial=0) > 1:
            raise ValueError("an array has truth values that are neither 0 nor 1")
        _as_bytes(self.tensor)[:] = content


def _describe(tree: Tree, parts: list[memoryview], depth: int) -> dict[str, Any]:
    """Describe a tree for the header; appends the bytes of its tensors to ``parts``."""
    if depth > _DEPTH_LIMIT:
        raise ValueError(
            f"a tree with more than {_DEPTH_LIMIT} branches inside each other cannot be sent"
        )
    described: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ValueError(f"a tree has strings as keys, got {key!r}")
        if isinstance(value, dict):
            described[key] = _describe(value, parts, depth + 1)
            continue
        if not isinstance(value, Tensor):
            raise ValueError(
                f"a tree holds tensors, got {type(value).__name__} in {key!r}; wrap it with"
                " torch.tensor"
            )
        if value.dtype not in _NAMES or value.layout is not torch.strided:
            raise ValueError(
                f"{key!r} is a tensor of {value.dtype}, {value.layout}; only dense ones of"
                f" {', '.join(_TYPES)} can be sent"
            )
        described[key] = [_NAMES[value.dtype], list(value.shape)]
        parts.append(_as_bytes(value.detach().cpu().contiguous()).data)
    return described


def _as_bytes(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The memory of a contiguous tensor on the CPU."""
    if not tensor.numel():  # its stride may be one that cannot be viewed
        return np.empty(0, np.uint8)
    found: np.ndarray[Any, np.dtype[np.uint8]] = tensor.reshape(-1).view(torch.uint8).numpy()
    return found


def _parsed(header: bytes) -> Any:
    try:
        return json.loads(header, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise ValueError("the header of an array is not the JSON it should be") from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _outline(header: Any, leaves: list[_Leaf], depth: int) -> dict[str, Any]:
    """The tree described by a header, with unread leaves."""
    if not isinstance(header, dict) or depth > _DEPTH_LIMIT:
        raise ValueError("the header of an array does not describe a tree")
    found: dict[str, Any] = {}
    for key, value in header.items():
        if isinstance(value, list) and len(value) == 2:
            found[key] = _Leaf(*value)
            leaves.append(found[key])
        else:
            found[key] = _outline(value, leaves, depth + 1)
    return found


def _filled(outline: dict[str, Any]) -> Tree:
    return {
        key: value.tensor if isinstance(value, _Leaf) else _filled(value)
        for key, value in outline.items()
    }


def byte_count(size: int) -> str:
    """A number of bytes in readable form."""
    return f"{size} bytes" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"


def _shown(value: Any) -> str:
    """A few characters of foreign text, on one line."""
    return ascii(value if isinstance(value, str) else type(value).__name__)[:40]
