"""Limits how much clients count to what the operator approved, whatever they claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.population import Census, Extent, Population
from evenhand.data.samples import PARTS
from evenhand.flower.admission import Admission
from evenhand.messages import Reply
from evenhand.metrics.measuring import metric_keys
from evenhand.metrics.tallies import BY_LABEL, COUNTS
from evenhand.tree import Tree

Floats = NDArray[np.float64]

# sums over samples in a tally that are not counts, by what they are means over
OF_COUNT = ("loss", "share_correct", "brier", "absolute", "squared")
MEANS = {**dict.fromkeys(OF_COUNT, "count"), "score": "scored"}


class WeighedPopulation(Population):
    """A population whose census counts at most the approved samples of a client."""

    def __init__(self, known: Population, admission: Admission) -> None:
        super().__init__(
            {part: known.counts(part) for part in PARTS},
            known.form,
            known.teams,
            known.team_names,
            known.group_names,
            known.names,
            known.label_names,
        )
        self.admission = admission

    def weighed(self, part: str) -> Tensor:
        """(n,) the number of samples of a split that each client counts for."""
        names = [self.name(client) for client in range(self.clients)]
        return self.admission.weighed(names, self.sizes(part))

    def capped(self) -> dict[str, int]:
        """Names of clients that count for less than they claim, with the samples they count for."""
        sizes, most = self.sizes("train").tolist(), self.weighed("train").tolist()
        return {
            self.name(client): most[client]
            for client in range(self.clients)
            if most[client] < sizes[client]
        }

    def census(self, weights: str = "data") -> Census:
        known, most = super().census(weights), self.weighed("train")
        if torch.equal(most, known.sizes):
            return known
        counts = known.group_counts
        return known._replace(
            sizes=most,
            weight=most.double() / most.sum() if weights == "data" else known.weight,
            group_counts=None if counts is None else counts * (most / known.sizes)[:, None],
        )

    def first(self, extent: Extent) -> Population:
        earlier = super().first(extent)
        return self if earlier is self else WeighedPopulation(earlier, self.admission)


def weighed_reply(reply: Reply, population: Population, part: str, client: int) -> Reply:
    """A client's evaluation as it counts in sums over samples: reduced to the approved number of
    samples, with the same means. What it adds to metrics over clients stays."""
    if not isinstance(population, WeighedPopulation):
        return reply
    most, size = int(population.weighed(part)[client]), int(population.sizes(part)[client])
    if most >= size:
        return reply
    both = _fewer({**reply.total, **reply.each}, most / size)
    return Reply(
        {name: both[name] for name in reply.total}, {name: both[name] for name in reply.each}
    )


def _fewer(tally: Tree, share: float) -> Tree:
    """Reduce a tally (A, ...) to a share of the samples: integers stay integers, and tables still
    add up to the counts."""
    found: dict[str, Any] = dict(tally)
    count = tally["count"].numpy()
    fewer = {"count": np.maximum(np.rint(count * share), count > 0)}
    for name in ("confusion", "scored"):
        if name in tally:
            fewer[name] = _apportioned(tally[name].numpy(), count, fewer["count"])
    if "correct" in tally:
        right = tally["correct"].numpy()
        rate = np.divide(right, count, out=np.zeros(count.shape), where=count > 0)
        fewer["correct"] = np.rint(fewer["count"] * rate)
        if "confusion" in tally and np.array_equal(right, _diagonal(tally["confusion"].numpy())):
            fewer["correct"] = _diagonal(fewer["confusion"])
    if BY_LABEL[0] in tally:
        numbers = [tally[name].numpy() for name in BY_LABEL]
        fewer |= _fewer_by_label(numbers, count, fewer["count"])
        if np.array_equal(tally["correct"].numpy(), _right(*numbers)):
            fewer["correct"] = _right(*(fewer[name] for name in BY_LABEL))
    for name, values in fewer.items():
        found[name] = torch.from_numpy(values).to(tally[name].dtype)
    for name, over in MEANS.items():
        if name in tally:
            had = tally[over].double()
            found[name] = tally[name] * torch.where(had > 0, found[over] / had, 0.0)
    part = torch.where(tally["count"] > 0, found["count"] / tally["count"].double(), 0.0)
    for key, _ in metric_keys(tally).values():  # (A, 2, L)
        found[key] = tally[key] * part[:, None, None]
    assert all(name in fewer for name in COUNTS if name in tally)
    return found


def _fewer_by_label(numbers: list[Floats], count: Floats, fewer: Floats) -> dict[str, Floats]:
    """The numbers in BY_LABEL (A,) of ``count`` samples, for ``fewer``."""
    positives, negatives, right, wrong = numbers
    cells = np.stack([right, positives - right, wrong, negatives - wrong], 1)
    right, missed, wrong, refused = _apportioned(cells, count, fewer).T
    found = (right + missed, wrong + refused, right, wrong)
    return dict(zip(BY_LABEL, found, strict=True))


def _right(positives: Floats, negatives: Floats, right: Floats, wrong: Floats) -> Floats:
    """Correct predictions, if no prediction is missing."""
    return right + negatives - wrong


def _diagonal(table: Floats) -> Floats:
    return np.asarray(np.diagonal(table, axis1=-2, axis2=-1).sum(-1))


def _apportioned(table: Floats, count: Floats, fewer: Floats) -> Floats:
    """Tables (A, ...) of ``count`` samples in the proportions they have, for ``fewer``: whole
    numbers by largest remainders."""
    cells = table.reshape(len(table), -1)
    found = np.zeros(cells.shape)
    for row in range(len(cells)):
        if not count[row]:
            continue
        exact = cells[row] * (fewer[row] / count[row])
        found[row] = np.floor(exact)
        lacking = round(float(exact.sum() - found[row].sum()))
        found[row][np.argsort(found[row] - exact, kind="stable")[:lacking]] += 1
    return found.reshape(table.shape)
