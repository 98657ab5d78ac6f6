"""Counts of predictions by client, group and label. Counts can be added; rates come last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import gibibytes, require

Ints = NDArray[np.int64]
MOST_CELLS = 1 << 27  # of a table of counts: 1 GiB


@dataclass(frozen=True)
class Counts:
    """Predictions of a classifier, counted.

    ``table[i, a, y, p]`` is how many samples client i has of group a with label y that were
    predicted as p; the last p, one more than there are labels, stands for a missing or NaN
    prediction, which is never correct.
    """

    table: Ints  # (n, A, C, C + 1)
    clients: Sequence[str]
    groups: tuple[str, ...]  # one empty name without groups
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        shape = (len(self.clients), len(self.groups), len(self.labels), len(self.labels) + 1)
        require(
            self.table.shape == shape,
            "counts must have shape {} (client, group, label, prediction), got {}",
            shape,
            self.table.shape,
        )
        require(
            self.table.dtype.kind in "iu", "counts must be whole numbers, got {}", self.table.dtype
        )
        require(bool((self.table >= 0).all()), "counts must not be negative")

    @classmethod
    def of(
        cls,
        client: Ints,
        group: Ints,
        label: Ints,
        prediction: Ints,
        clients: Sequence[str],
        groups: Sequence[str],
        labels: Sequence[str],
        times: Ints | None = None,
    ) -> Counts:
        """Count (N,) codes; a prediction of -1 is none.

        ``times``: how many samples each entry stands for, by default one.
        """
        shape = (len(clients), len(groups), len(labels), len(labels) + 1)
        require(
            math.prod(shape) <= MOST_CELLS,
            "{:,} clients, {:,} groups and {:,} labels would make a table of {}: is the label a"
            " number, or the client an identifier of single samples?",
            *shape[:3],
            gibibytes(8 * math.prod(shape)),
        )
        cell = np.ravel_multi_index(
            (client, group, label, np.where(prediction < 0, len(labels), prediction)), shape
        )
        table = (
            np.bincount(cell, weights=times, minlength=int(np.prod(shape))).round().astype(np.int64)
        )
        return cls(table.reshape(shape), tuple(clients), tuple(groups), tuple(labels))

    def __add__(self, other: Counts) -> Counts:
        same = (self.clients, self.groups, self.labels) == (
            other.clients,
            other.groups,
            other.labels,
        )
        require(same, "counts can be added for the same clients, groups and labels")
        return replace(self, table=self.table + other.table)

    def with_groups(self, names: Sequence[str], of_client: Ints) -> Counts:
        """The same counts with groups of clients, such as teams, instead of groups of samples.

        ``of_client`` (n,) has the code of each client's group, -1 for none.
        """
        table = np.zeros((len(self.clients), len(names), *self.table.shape[2:]), np.int64)
        member = np.flatnonzero(of_client >= 0)
        table[member, of_client[member]] = self.by_client[member]
        return replace(self, table=table, groups=tuple(names))

    @property
    def by_client(self) -> Ints:
        """(n, C, C + 1)"""
        return np.asarray(self.table.sum(1))

    @property
    def by_group(self) -> Ints:
        """(A, C, C + 1)"""
        return np.asarray(self.table.sum(0))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cell that is not empty; the prediction is "" for none."""
        predictions = (*self.labels, "")
        return [
            {
                "client": self.clients[i],
                "group": self.groups[a],
                "label": self.labels[y],
                "prediction": predictions[p],
                "count": int(self.table[i, a, y, p]),
            }
            for i, a, y, p in np.argwhere(self.table > 0).tolist()
        ]
