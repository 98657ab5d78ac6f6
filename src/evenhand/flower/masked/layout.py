"""Totals of one message as the form of a masked vector, and sums as trees again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from evenhand.engines import totals
from evenhand.engines.work import Named
from evenhand.messages import Reply, Task
from evenhand.secure import Format
from evenhand.tree import Tree

# the two parts of a vector; a message without an evaluation has only the first
WORK, LOOK = "work", "look"
CPU = torch.device("cpu")


def form(work: Reply, look: Reply | None = None) -> dict[str, Any]:
    """What is masked together: a client's totals, as arrays."""
    parts = {WORK: work} if look is None else {WORK: work, LOOK: look}
    return {name: totals.arrays(reply.total) for name, reply in parts.items()}


def format_of(
    found: Mapping[str, Any], clients: int, exponents: Mapping[str, int], noised: Mapping[str, Any]
) -> Format:
    """How a vector of this form is laid out; both sides compute it.

    Args:
        exponents: by path in the vector.
        noised: by path in the work's total, what gets noise.
    """
    # with noise, the weights' sums would be a release without
    weights, paths = own_weight(found) is not None and not noised, list(in_vector(noised))
    return Format.of(found, clients, exponents, weights, paths, depth=2)


def in_vector(by_path: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path in the work's total, by path in the vector."""
    return {f"{WORK}/{path}": value for path, value in by_path.items()}


def own_weight(found: Mapping[str, Any]) -> float | None:
    """The weight that a client gives its own reply, by which others can judge how many count."""
    return totals.own_weight(found[WORK])


def tensors(total: Mapping[str, Any], like: Tree) -> Tree:
    """A sum in float64, in the form of ``like``."""
    return totals.tensors(total, like, CPU)


def coefficients(
    work: Named, task: Task, place: int, looks: bool | None = None
) -> tuple[float, tuple[float, ...]]:
    """A client's coefficient, and the factors by which other numbers scale what it adds.

    Args:
        place: the client's row of ``task.own``.
        looks: whether it evaluates in the same message; None without an evaluation.
    """
    coefficient, scales = totals.coefficients(work, task.own, place)
    return coefficient, scales if looks is None else (float(looks), *scales)
