"""Trees of tensors, summed or gathered over the processes of a run."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from evenhand import tree
from evenhand.engines.processes.meeting import Met, ProcessError, carrier, delivered, gather_objects
from evenhand.tree import Tree


class _Leaf(NamedTuple):
    """The form of a tensor in a message."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str  # "cpu" or "cuda"

    def empty(self, own: torch.device, rows: tuple[int, ...]) -> Tensor:
        return torch.zeros(
            rows + self.shape,
            dtype=self.dtype,
            device=own if self.device == own.type else self.device,
        )


class Form(NamedTuple):
    """The form of the values of a process: sums, and its rows."""

    total: Tree
    rows: Tree

    @classmethod
    def of(cls, rows: Tree, total: Tree | None = None) -> Form:
        whole: Any = tree.map(lambda leaf: _leaf(leaf, leaf.shape), total or {})
        return cls(whole, tree.map(lambda leaf: _leaf(leaf, leaf.shape[1:]), rows))

    def zeros(self, device: torch.device) -> Tree:
        return tree.map(lambda leaf: leaf.empty(device, ()), self.total)

    def no_rows(self, device: torch.device) -> Tree:
        return tree.map(lambda leaf: leaf.empty(device, (0,)), self.rows)


def _leaf(tensor: Tensor, shape: torch.Size) -> Any:
    return _Leaf(tuple(shape), tensor.dtype, tensor.device.type)


def common_form(form: Form | None, met: Met) -> Form:
    """The form of all processes' values; a process without any learns it from the others."""
    if form is not None and bool((met.digest == met.digest[0]).all()):
        return form
    forms: list[Form] = [other for other in gather_objects(form) if other is not None]
    if len({repr(other) for other in forms}) > 1:  # as text, since the order of names matters
        raise ProcessError(
            "replies of different processes differ in form; a method must reply in the same"
            " form for every client"
        )
    return forms[0]


def pick(stacked: Tree, rows: Tensor) -> Tree:
    """Some rows of a stacked tree."""
    return tree.map(lambda leaf: leaf[rows.to(leaf.device)], stacked)


@delivered()
def add_up(addend: Tree) -> Tree:
    """The sum over processes, in one message for each kind of device."""
    leaves = tree.leaves(addend)
    sums: dict[int, Tensor] = {}
    for kind in sorted({leaf.device.type for leaf in leaves}):
        here = [i for i, leaf in enumerate(leaves) if leaf.device.type == kind]
        device = leaves[here[0]].device
        message = torch.cat([leaves[i].reshape(-1).double() for i in here]).to(carrier(device))
        dist.all_reduce(message)
        pieces = torch.split(message.to(device), [leaves[i].numel() for i in here])
        sums |= {i: piece.reshape(leaves[i].shape) for i, piece in zip(here, pieces, strict=True)}
    ordered = (sums[i] for i in range(len(leaves)))
    return tree.map(lambda _: next(ordered), addend)


@delivered()
def gather_rows(rows: Tree, counts: Tensor) -> Tree:
    """The rows of all processes, in their order, in one message for each device."""
    leaves = tree.leaves(rows)
    gathered: dict[int, Tensor] = {}
    for kind in sorted({leaf.device.type for leaf in leaves}):
        here = [i for i, leaf in enumerate(leaves) if leaf.device.type == kind]
        flat = [_as_bytes(leaves[i]) for i in here]
        mine = torch.cat(flat, dim=1)  # (k, B)
        message = mine.new_zeros(int(counts.max()), mine.shape[1], device=carrier(mine.device))
        message[: len(mine)] = mine
        received = [torch.empty_like(message) for _ in counts]
        dist.all_gather(received, message)
        everyone = torch.cat(
            [part[:count] for part, count in zip(received, counts.tolist(), strict=True)]
        ).to(mine.device)
        for i, piece in zip(
            here, torch.split(everyone, [part.shape[1] for part in flat], dim=1), strict=True
        ):
            gathered[i] = leaves[i].new_empty(len(everyone), *leaves[i].shape[1:])
            _as_bytes(gathered[i]).copy_(piece)
    ordered = (gathered[i] for i in range(len(leaves)))
    return tree.map(lambda _: next(ordered), rows)


def _as_bytes(rows: Tensor) -> Tensor:
    """(k, B) the bytes of each row; a view of rows that are contiguous."""
    return rows.contiguous().reshape(len(rows), math.prod(rows.shape[1:])).view(torch.uint8)
