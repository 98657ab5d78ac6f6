"""Checks a client's reply against what the server knows beforehand.

A method declares what its replies can contain (:meth:`evenhand.Algorithm.entries`): a coefficient
that the server sent, a range, an update, a loss. Impossible values are refused here;
disproportionate ones are scaled down in :mod:`evenhand.flower.proportion`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data.population import Population
from evenhand.engines.work import Ask, Train, Work
from evenhand.local import LocalSolver
from evenhand.losses import LOSSES
from evenhand.messages import Asked, Entries, Entry, Reply, Task
from evenhand.tree import Tree

# evenhand's losses are never negative; below this it is not rounding
LEAST_LOSS = -1e-3


def entries_of(work: Work, task: Task, place: int, population: Population, client: int) -> Entries:
    """What the reply of ``client``, whose row of ``task.own`` is at ``place``, can be."""
    if not isinstance(work, Train | Ask):
        return {}
    counts = population.counts(work.part)[client].double()
    samples = int(counts.sum())
    asked = Asked(
        Task(task.shared, tree.map(lambda leaf: leaf[place], task.own)),
        counts / max(samples, 1) if population.groups else None,
        steps_of(work.local, samples) if work.local else 0.0,
    )
    if isinstance(work, Train):
        return work.algorithm.entries(asked)
    question = work.algorithm.question(work.moment)
    return {} if question is None else question.answer_entries(asked)


def steps_of(local: LocalSolver, samples: int) -> float:
    """Local steps of a client with this many samples, each counted with the effect of momentum."""
    each = 1 if local.batch_size is None else max(1, math.ceil(samples / local.batch_size))
    return local.reach(local.steps or each * (local.epochs or 1))


def check_claims(reply: Reply, entries: Entries, who: str, loss: str) -> list[str]:
    """What is wrong with a reply of the right form, in one line for each kind of fault."""
    faults: dict[str, list[str]] = {}
    for path, value, entry, part in declared(reply, entries):
        if fault := _fault(value, entry, part, loss in LOSSES):
            faults.setdefault(fault, []).append(path)
    return [f"{who}: {fault}: {', '.join(paths)}" for fault, paths in faults.items()]


def declared(reply: Reply, entries: Entries) -> Iterator[tuple[str, Tensor | Tree, Entry, Tree]]:
    """Path, value and declaration of each declared entry, and the entries it may be divided by:
    those of its part of the reply, and for a part seen one by one also the sums."""
    for part, values, known in (
        ("total", reply.total, reply.total),
        ("each", reply.each, {**reply.total, **reply.each}),
    ):
        for name, value in values.items():
            if name in entries:
                yield f"{part}/{name}", value, entries[name], known


def losses_in(value: Tensor, entry: Entry, part: Tree) -> Tensor:
    """The losses that an entry reports, NaN where there is none."""
    value = value.double()
    if entry.to_loss is not None:
        return torch.where(value > 0, entry.to_loss(value), torch.nan)
    per = divisor(entry, part)
    return torch.where(per > 0, value / torch.where(per > 0, per, 1.0), torch.nan)


def divisor(entry: Entry, part: Tree) -> Tensor:
    """What an entry is divided by before it is compared."""
    if isinstance(entry.per, str):
        found = part[entry.per]
    else:
        found = entry.per(part) if callable(entry.per) else entry.per
    return torch.as_tensor(found).double()


def _fault(value: Tensor | Tree, entry: Entry, part: Tree, never_negative: bool) -> str:
    if isinstance(value, dict):
        below = entry.low == 0 and any(bool((leaf < 0).any()) for leaf in tree.leaves(value))
        return "negative" if below else ""
    value, rounding = value.double(), _rounding(value)
    if entry.known is not None:
        known = entry.known.double().reshape(value.shape)
        same = (value - known).abs() <= rounding * known.abs() + torch.finfo(torch.float32).tiny
        return "" if bool(same.all()) else "not what the server sent"
    if entry.kind == "loss":
        if entry.to_loss is not None:  # a weight
            if bool((value < 0).any()):
                return "negative"
        elif bool((value[_nobody(entry, part, value)] != 0).any()):
            return "a loss without samples"
        losses = losses_in(value, entry, part)
        return "a negative loss" if never_negative and bool((losses < LEAST_LOSS).any()) else ""
    low, high = (torch.as_tensor(end).double() for end in (entry.low, entry.high))
    width = torch.where((high - low).isfinite(), high - low, 0.0)
    inside = (value >= low - rounding * width) & (value <= high + rounding * width)
    if bool(inside.all()):
        return ""
    return "negative" if bool(((low == 0) & (value < 0)).any()) else "out of range"


def _nobody(entry: Entry, part: Tree, value: Tensor) -> Tensor:
    """Where an entry is about no sample of the client's."""
    return (divisor(entry, part) <= 0).expand(value.shape)


def _rounding(value: Tensor) -> float:
    """The relative rounding error to allow for numbers of this type."""
    return math.sqrt(torch.finfo(value.dtype).eps) if value.is_floating_point() else 0.0
