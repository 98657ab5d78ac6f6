"""Checks of a masked sum, in place of those of single replies.

A fault cannot be traced to a client: the round is then void.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data.population import Population
from evenhand.engines.work import Evaluate, Named, Work
from evenhand.flower.checks import LARGEST
from evenhand.flower.claims import entries_of
from evenhand.flower.masked.totals import HiddenPopulation
from evenhand.messages import Entries, Entry, Task
from evenhand.tree import Tree

ROUNDING = 1e-6  # relative, of what clients compute in float32


def faults_in(
    work: Named, total: Tree, clients: list[int], entries: Mapping[int, Entries], known: Population
) -> list[str]:
    """What is wrong with the sum over ``clients``, in words."""
    if isinstance(work, Evaluate):
        return _evaluation(work, total, clients, known)
    faults = []
    if work.must_be_finite and not all(
        bool((leaf.isfinite() & (leaf.abs() <= LARGEST * max(1, len(clients)))).all())
        for leaf in tree.leaves(total)
    ):
        faults.append("values are not finite")
    for name, value in total.items():
        declared = [entries[client].get(name) for client in clients]
        if any(entry is None for entry in declared):
            continue
        lows, highs, knowns = zip(
            *((entry.low, entry.high, entry.known) for entry in declared if entry is not None),
            strict=True,
        )
        if isinstance(value, dict):
            continue
        if all(one is not None for one in knowns):
            if not _close(value, _total(one for one in knowns if one is not None)):
                faults.append(f"{name} is not what the server sent")
            continue
        low, high = _total(lows), _total(highs)
        slack = ROUNDING * (low.abs().nan_to_num(posinf=0) + high.abs().nan_to_num(posinf=0) + 1)
        if bool((value < low - slack).any()) or bool((value > high + slack).any()):
            faults.append(f"{name} is out of range")
    return faults


def known_entries(
    work: Work, task: Task, place: int, population: Population, client: int
) -> Entries:
    """What a client's reply can be, as far as it does not depend on counts that are hidden."""
    found = entries_of(work, task, place, population, client)
    if not isinstance(population, HiddenPopulation):
        return found
    other = entries_of(work, task, place, population.otherwise, client)
    return {name: entry for name, entry in found.items() if _same(entry, other[name])}


def _same(one: Entry, other: Entry) -> bool:
    if any(
        torch.as_tensor(value).numel() != 1
        for value in (one.low, one.high, one.known)
        if value is not None
    ):
        return False  # by team, the server knows no sum of sizes
    pairs = ((one.known, other.known), (one.low, other.low), (one.high, other.high))
    return all(
        a is b or (a is not None and b is not None and torch.equal(*map(torch.as_tensor, (a, b))))
        for a, b in pairs
    )


def _evaluation(work: Evaluate, total: Tree, clients: list[int], known: Population) -> list[str]:
    counts = known.counts(work.part)[clients].sum(0).double()
    if isinstance(known, HiddenPopulation) and not known.knows(work.part, clients):
        if bool((total["count"] < 0).any()) or float(total["count"].sum()) < len(clients):
            return ["count is out of range"]
    elif not torch.equal(total["count"].reshape(counts.shape), counts):
        return ["count is not what the nodes reported at the start"]
    there = sum(int(known.sizes(work.part)[client]) > 0 for client in clients)
    if "clients" in total and float(total["clients"].sum()) != there:
        return ["clients is not the number of clients that have data for it"]
    return []


def _total(values: Iterable[Tensor | float]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for value in values:
        total = total + torch.as_tensor(value).double()
    return total


def _close(value: Tensor, expected: Tensor) -> bool:
    scale = max(1.0, math.sqrt(max(1, value.numel())))
    return bool(
        torch.allclose(
            value.double().reshape(-1),
            expected.reshape(-1).expand(value.numel()),
            rtol=ROUNDING * scale,
            atol=1e-30,
        )
    )
