"""Messages as Flower records, exactly and without pickle.

A tree travels as one Flower array, not as one per tensor: each array costs two more requests in
either direction. Its bytes are

    8 bytes        length of the header, little-endian header         JSON: a branch is an object, a
    tensor is [type, shape], keys in the order of the tree the tensors    one after another in the
    order of the header, as they lie in memory

so structure, order and bits come back as they were, and nothing is decoded that could run code. A
message is a record "trees" with two such arrays, the compartments of a task or a reply, and a
record "about" with a few plain values (round, work, client ...).

Whoever reads a message has not made it: all that can be wrong with it raises a ValueError of one
line.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from evenhand.messages import Reply, Task
from evenhand.tree import Tree

Scalar = bool | int | float | str | bytes
About = Mapping[str, Scalar | list[bool] | list[int] | list[float] | list[str] | list[bytes]]

FORMAT = 1  # of messages; another one is refused
LIMIT = 1 << 30  # bytes of a message: 256 million float32 values, half of what Flower can carry
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
_WHOLE = range(-(2**63), 2**64)  # what Flower can carry


class TooLarge(ValueError):
    """A message has more bytes than the limit."""


# ---- trees


def pack(tree: Tree) -> Array:
    """A tree as one Flower array."""
    parts: list[memoryview] = []
    header = json.dumps(_describe(tree, parts, 0), separators=(",", ":")).encode()
    if len(header) > _HEADER_LIMIT:
        raise ValueError(
            f"a tree of {len(parts)} tensors cannot be sent: the names take {_bytes(len(header))};"
            " use fewer or shorter keys"
        )
    data = b"".join([len(header).to_bytes(_PREFIX, "little"), header, *parts])
    return Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)


def unpack(array: Array) -> Tree:
    """The tree that :func:`pack` was given; every tensor has memory of its own."""
    data = array.data
    if array.stype != STYPE:
        raise ValueError(f"an array is encoded as {_shown(array.stype)}, expected '{STYPE}'")
    if array.dtype != "uint8" or tuple(array.shape) != (len(data),):
        raise ValueError(f"an array of {len(data)} bytes says that it has another type or length")
    body = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    if len(data) < body:
        raise ValueError("an array ends before its header does")
    if body - _PREFIX > _HEADER_LIMIT:
        raise ValueError(
            f"the header of an array has {_bytes(body - _PREFIX)}, the limit is"
            f" {_bytes(_HEADER_LIMIT)}"
        )
    leaves: list[_Leaf] = []
    outline = _outline(_parsed(data[_PREFIX:body]), leaves, 0)
    told, there = sum(leaf.size for leaf in leaves), len(data) - body
    if told != there:  # before memory is taken for them
        raise ValueError(f"an array has {there} bytes of tensors, its header tells of {told}")
    for leaf in leaves:
        leaf.read(data, body)
        body += leaf.size
    return _filled(outline)


class _Leaf:
    """A tensor that a header tells of, and then the tensor itself."""

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
    """What the header says of a tree; the bytes of its tensors are added to ``parts``."""
    if depth > _DEPTH_LIMIT:
        raise ValueError(
            f"a tree with more than {_DEPTH_LIMIT} branches inside each other cannot be sent"
        )
    told: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ValueError(f"a tree has strings as keys, got {key!r}")
        if isinstance(value, dict):
            told[key] = _describe(value, parts, depth + 1)
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
        told[key] = [_NAMES[value.dtype], list(value.shape)]
        parts.append(_as_bytes(value.detach().cpu().contiguous()).data)
    return told


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


def _outline(told: Any, leaves: list[_Leaf], depth: int) -> dict[str, Any]:
    """The tree that a header tells of, with leaves that are not read yet."""
    if not isinstance(told, dict) or depth > _DEPTH_LIMIT:
        raise ValueError("the header of an array does not tell of a tree")
    found: dict[str, Any] = {}
    for key, value in told.items():
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


# ---- messages


def task_content(
    task: Task, about: About, shared: Array | None = None, limit: int = LIMIT
) -> RecordDict:
    """A task for one client.

    Args:
        about: plain values that go with it.
        shared: ``pack(task.shared)``, where the same goes to many clients: it is then packed,
            hashed and uploaded once.
        limit: bytes of the whole message.
    """
    return _content(
        {"shared": pack(task.shared) if shared is None else shared, "own": pack(task.own)},
        about,
        limit,
    )


def read_task(content: RecordDict, limit: int = LIMIT) -> tuple[Task, dict[str, Any]]:
    """The task in a message, and the values that go with it."""
    (shared, own), about = _read(content, ("shared", "own"), limit)
    return Task(shared, own), about


def reply_content(reply: Reply, about: About, limit: int = LIMIT) -> RecordDict:
    """One client's reply."""
    return _content({"total": pack(reply.total), "each": pack(reply.each)}, about, limit)


def read_reply(content: RecordDict, limit: int = LIMIT) -> tuple[Reply, dict[str, Any]]:
    """The reply in a message, and the values that go with it."""
    (total, each), about = _read(content, ("total", "each"), limit)
    return Reply(total, each), about


def whole(about: Mapping[str, Any], name: str) -> int:
    """A whole number that goes with a message."""
    value = about.get(name)
    if type(value) is not int:
        raise ValueError(f"a message does not say its {name}")
    return value


def text(about: Mapping[str, Any], name: str) -> str:
    """A text that goes with a message."""
    value = about.get(name)
    if not isinstance(value, str):
        raise ValueError(f"a message does not say its {name}")
    return value


def size_of(content: RecordDict) -> int:
    """Bytes of all names and values of a message; what Flower puts around them is not counted."""
    return sum(
        _length(name) + sum(_length(key) + _length(value) for key, value in record.items())
        for name, record in content.items()
    )


def check_size(content: RecordDict, limit: int) -> None:
    """Raise where a message has more bytes than ``limit``."""
    size = size_of(content)
    if size > limit:
        raise TooLarge(
            f"a message has {_bytes(size)}, the limit is {_bytes(limit)}; make the model smaller or"
            " raise the limit"
        )


def _content(trees: dict[str, Array], about: About, limit: int) -> RecordDict:
    if "format" in about:
        raise ValueError('"format" goes with every message by itself; use another name')
    values = ConfigRecord({"format": FORMAT})
    for key, value in about.items():
        if any(
            type(number) is int and number not in _WHOLE
            for number in (value if isinstance(value, list) else [value])
        ):
            raise ValueError(
                f"{key} has a whole number of more than 64 bits, which Flower cannot carry; send it"
                " as text"
            )
        values[key] = value
    record = ArrayRecord()
    for key, array in trees.items():
        # the constructor would copy the Array, and forget what Flower has hashed already
        record[key] = array
    content = RecordDict({"trees": record, "about": values})
    check_size(content, limit)
    return content


def _read(
    content: RecordDict, names: tuple[str, ...], limit: int
) -> tuple[list[Tree], dict[str, Any]]:
    about = content.get("about")
    if not isinstance(about, ConfigRecord):
        raise ValueError("a message is not one of evenhand's: it has no values about itself")
    found = about.get("format")
    if found != FORMAT or type(found) is not int:
        shown = found if type(found) is int else "no number"
        raise ValueError(
            f"a message has format {shown}, this evenhand reads format {FORMAT}; install the same"
            " version on all sides"
        )
    check_size(content, limit)
    trees = content.get("trees")
    if not isinstance(trees, ArrayRecord) or trees.keys() != set(names) or len(content) != 2:
        raise ValueError(f"a message must hold the trees {' and '.join(names)}, and nothing else")
    return [unpack(trees[name]) for name in names], {
        key: value for key, value in about.items() if key != "format"
    }


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_length, value))
    if isinstance(value, Array):
        return sum(map(_length, (value.data, value.shape, value.dtype, value.stype)))
    return 8  # a number


def _bytes(size: int) -> str:
    return f"{size} bytes" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"


def _shown(value: Any) -> str:
    """A few characters of what somebody else has written, in one line."""
    return ascii(value if isinstance(value, str) else type(value).__name__)[:40]
