"""Samples in one place, before they are distributed over clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from evenhand.data.samples import Features

TRAIN, VAL, TEST = 0, 1, 2  # codes of the parts


class Deal(NamedTuple):
    """Which client each sample goes to; what a partition returns.

    Attributes:
        owner: (N,) int64 client numbers, 0..n-1; -1 for samples that no client gets.
        names: of the clients, optionally.
        teams: (n,) int64 codes into ``team_names``.
        team_names: of the teams.
    """

    owner: Tensor
    names: tuple[str, ...] | None = None
    teams: Tensor | None = None
    team_names: tuple[str, ...] = ()


Partition = Callable[..., "Deal | Tensor | np.ndarray[Any, Any]"]  # (pool, seed=...) -> owners


@dataclass(frozen=True)
class Rows:
    """Everything about samples except their features: label, group, natural client, official split.

    Partitions and splits only use this. All of it stays with a sample through every partition and
    split.

    Attributes:
        y: (N,) int64 classes, or float targets.
        label_names: of the classes.
        group: (N,) int64 codes into ``group_names``.
        group_names: of the groups.
        client: (N,) int64 codes of the clients that the data come with.
        client_names: of these clients.
        team: int64 codes into ``team_names``, one per entry of ``client_names``.
        team_names: of the teams.
        held_out: (N,) bool, True for samples of the official test set.
    """

    y: Tensor
    label_names: tuple[str, ...] = ()
    group: Tensor | None = None
    group_names: tuple[str, ...] = ()
    client: Tensor | None = None
    client_names: tuple[str, ...] = ()
    team: Tensor | None = None
    team_names: tuple[str, ...] = ()
    held_out: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def select(self, rows: Tensor) -> Self:
        """Return some of the samples, by index or by a mask (N,)."""
        group, client, held_out = (
            None if column is None else column[rows]
            for column in (self.group, self.client, self.held_out)
        )
        return replace(self, y=self.y[rows], group=group, client=client, held_out=held_out)

    def natural(self) -> Deal:
        """Return the clients that the data come with."""
        if self.client is None:
            raise ValueError(
                "these data come without clients; choose a partition, such as dirichlet"
            )
        return Deal(self.client, self.client_names or None, self.team, self.team_names)


@dataclass(frozen=True)
class _Features:
    x: Features  # (N, ...)


@dataclass(frozen=True)
class Pool(Rows, _Features):  # in this order, so that x is the first field
    """Samples in one place: features, and everything else that is known about them.

    Build one from your own arrays and pass it to ``evenhand.deal``; the fields are those of
    ``Rows``, after the features ``x`` (N, ...).
    """

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: Tensor) -> Self:
        """Return some of the samples, by index or by a mask (N,)."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        return replace(super().select(index), x=self.pick(index))

    def pick(self, rows: Tensor) -> Features:
        """Return the features of some samples; a view if the features are a view."""
        return self.x[rows] if isinstance(self.x, Tensor) else self.x.pick(rows)
