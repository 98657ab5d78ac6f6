"""Trees of tensors as forms of a masked vector, and sums as trees again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand import tree
from evenhand.engines.work import Work
from evenhand.messages import Reply, Task
from evenhand.secure import Format
from evenhand.tree import Tree

# the two parts of a vector; a message without an evaluation has only the first
WORK, LOOK = "work", "look"
# rows of a task's own part that every task has
COEFFICIENT, SHARE = "weight", "share"
# what methods do with other numbers that a client is told alone; they may do either with names that
# are not here
MULTIPLIES, DIVIDES = "multiplies", "divides"
EFFECTS: dict[str, tuple[str, ...]] = {
    "alpha": (DIVIDES,),  # FAFL
    "floor": (),  # FAFL
    "scale": (MULTIPLIES,),  # GIFAIR
    "base": (DIVIDES,),  # FairFed
    "mean_distance": (DIVIDES,),  # FedHEAL
}


def form(work: Reply, look: Reply | None = None) -> dict[str, Any]:
    """What is masked together: a client's totals, as arrays."""
    parts = {WORK: work} if look is None else {WORK: work, LOOK: look}
    return {name: _arrays(reply.total) for name, reply in parts.items()}


def format_of(
    found: Mapping[str, Any], clients: int, exponents: Mapping[str, int], noised: Mapping[str, Any]
) -> Format:
    """How a vector of this form is laid out; both sides compute it."""
    weights = own_weight(found) is not None
    paths = [f"{WORK}/{path}" for path in noised]
    return Format.of(found, clients, exponents, weights, paths, depth=2)


def own_weight(found: Mapping[str, Any]) -> float | None:
    """The weight that a client gives its own reply, by which others can judge how many count."""
    weight = found[WORK].get("weight")
    return float(weight) if isinstance(weight, np.ndarray) and weight.size == 1 else None


def tensors(total: Mapping[str, Any], like: Tree) -> Tree:
    """A sum in float64, in the form of ``like``, whose empty branches no vector has."""
    return {
        name: tensors(total.get(name, {}), value)
        if isinstance(value, dict)
        else torch.from_numpy(np.array(total[name], dtype=np.float64)).reshape(value.shape)
        for name, value in like.items()
    }


def noise_of(work: Work, total: Tree) -> dict[str, Any]:
    """By path, the standard deviation of the noise that the sum must carry."""
    algorithm = getattr(work, "algorithm", None)
    noise = getattr(algorithm.local_work(), "noise", None) if algorithm is not None else None
    if noise is None or work.name != "train":
        return {}
    flat = tree.flatten(noise(total))
    return {path: np.asarray(std, np.float64) for path, std in flat.items()}


def coefficients(
    task: Task, place: int, looks: bool | None = None
) -> tuple[float, tuple[float, ...]]:
    """A client's coefficient, and other numbers that can scale what it adds.

    Args:
        place: the client's row of ``task.own``.
        looks: whether it evaluates in the same message; None without an evaluation.
    """
    own = tree.flatten(tree.map(lambda leaf: leaf[place], task.own))
    scales: list[float] = [] if looks is None else [float(looks)]
    for name, value in own.items():
        if name in (COEFFICIENT, SHARE) or not value.is_floating_point() or value.numel() != 1:
            continue
        size = abs(float(value))
        for effect in EFFECTS.get(name.split("/")[-1], (MULTIPLIES, DIVIDES)):
            scales.append(size if effect == MULTIPLIES or not size else 1 / size)
    return float(own.get(COEFFICIENT, torch.ones(()))), tuple(scales)


def _arrays(values: Tree) -> dict[str, Any]:
    return {
        name: _arrays(value) if isinstance(value, dict) else _array(value)
        for name, value in values.items()
    }


def _array(leaf: Tensor) -> np.ndarray[Any, Any]:
    kind = torch.float64 if leaf.is_floating_point() else torch.int64
    return leaf.detach().to("cpu", kind).numpy()
