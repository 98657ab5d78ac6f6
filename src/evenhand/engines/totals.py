"""Totals of clients as arrays to be masked, and sums as trees again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand import tree
from evenhand.engines.work import Named, Train
from evenhand.secure.context import digest
from evenhand.tree import Tree

# rows of a task's own part that every task has
COEFFICIENT, SHARE = "weight", "share"


def question(work: Named) -> str:
    """What is asked, in the context of masks: a kind of work on a part of the data."""
    return "/".join(filter(None, (work.name, work.part, getattr(work, "moment", ""))))


def arrays(total: Tree) -> dict[str, Any]:
    """A client's total in the types that sums have: float64 and int64."""

    def array(leaf: Tensor) -> NDArray[Any]:
        kind = torch.float64 if leaf.is_floating_point() else torch.int64
        return leaf.detach().to("cpu", kind).numpy()

    return {
        name: arrays(value) if isinstance(value, dict) else array(value)
        for name, value in total.items()
    }


def tensors(total: Mapping[str, Any], like: Mapping[str, Any], device: torch.device) -> Tree:
    """A sum in float64, in the form of ``like``, whose empty branches no vector has.

    Trees like the model are moved to ``device``, and numbers stay on the CPU.
    """

    def branch(total: Mapping[str, Any], like: Mapping[str, Any], device: torch.device) -> Tree:
        return {
            name: branch(total.get(name, {}), value, device)
            if isinstance(value, Mapping)
            else torch.from_numpy(np.array(total[name], dtype=np.float64)).to(device)
            for name, value in like.items()
        }

    cpu = torch.device("cpu")
    trees = {name for name, value in like.items() if isinstance(value, Mapping)}
    return {
        name: found
        for key in like
        for name, found in branch(total, {key: like[key]}, device if key in trees else cpu).items()
    }


def own_weight(total: Mapping[str, Any]) -> float | None:
    """The weight that a client gives its own reply, by which others can judge how many count."""
    weight = total.get("weight")
    return float(weight) if isinstance(weight, np.ndarray) and weight.size == 1 else None


def coefficients(work: Named, task_own: Tree, place: int) -> tuple[float, tuple[float, ...]]:
    """A client's coefficient, and the factors by which other numbers of its own scale what it adds.

    A number that the work does not declare may be a factor or a divisor. ``place`` is the client's
    row of ``task_own``.
    """
    mine = tree.map(lambda leaf: leaf.detach().cpu(), tree.row(task_own, place))
    own, declared = tree.flatten(mine), work.scales(mine)
    scales: list[float] = []
    for name, value in own.items():
        if name in declared:
            scales += declared[name].abs().double().flatten().tolist()
        elif name not in (COEFFICIENT, SHARE) and value.is_floating_point() and value.numel() == 1:
            size = abs(float(value))
            scales += [size, 1 / size if size else 0.0]
    return float(own.get(COEFFICIENT, torch.ones(()))), tuple(scales)


def noise_of(work: Named, total: Tree) -> dict[str, Any]:
    """By path, the standard deviation of the noise that the sum must carry."""
    if not isinstance(work, Train):
        return {}
    noise = work.algorithm.local_work().noise
    if noise is None:
        return {}
    flat = tree.flatten(noise(total))
    return {
        path: np.asarray(std, np.float64) for path, std in flat.items() if bool((std != 0).any())
    }


def digest_of(values: Tree) -> bytes:
    """Digest of a tree of tensors: names, types, shapes and numbers."""
    parts: list[bytes | str] = []
    for name, leaf in tree.flatten(values).items():
        content = leaf.detach().cpu().contiguous()
        numbers = content.reshape(-1).view(torch.uint8).numpy()
        parts += [
            name,
            str(leaf.dtype),
            str(list(leaf.shape)),
            hashlib.sha256(numbers.data).digest(),
        ]
    return digest(*parts)
