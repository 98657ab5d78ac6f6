"""Samples in one place, before they are dealt to clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from evenhand.data.samples import View

TRAIN, VAL, TEST = 0, 1, 2  # codes of the parts


class Deal(NamedTuple):
    """Which client each sample goes to."""

    owner: Tensor  # (N,) int64 client numbers, 0..n-1; -1 leaves a sample out
    names: tuple[str, ...] | None = None  # of the clients
    teams: Tensor | None = None  # (n,) int64 codes
    team_names: tuple[str, ...] = ()


Partition = Callable[..., "Deal | Tensor | np.ndarray[Any, Any]"]  # (pool, seed=...) -> owners


@dataclass(frozen=True)
class Rows:
    """What is known of samples apart from their features: label, group, natural client, official
    split. Partitions and splits look at nothing else.

    What is attached to a sample stays with it through every partition and split.
    """

    y: Tensor  # (N,) int64 classes, or float targets
    label_names: tuple[str, ...] = ()
    group: Tensor | None = None  # (N,) int64 codes into group_names
    group_names: tuple[str, ...] = ()
    client: Tensor | None = None  # (N,) int64 codes of the clients that the data come with
    client_names: tuple[str, ...] = ()
    # (clients,) int64 codes into team_names, one for each of client_names
    team: Tensor | None = None
    team_names: tuple[str, ...] = ()
    held_out: Tensor | None = None  # (N,) bool: samples of the official test set

    def __len__(self) -> int:
        return len(self.y)

    def select(self, rows: Tensor) -> Self:
        """Some of the samples, by index or by a mask (N,)."""
        group, client, held_out = (
            None if column is None else column[rows]
            for column in (self.group, self.client, self.held_out)
        )
        return replace(self, y=self.y[rows], group=group, client=client, held_out=held_out)

    def natural(self) -> Deal:
        """The clients that the data come with."""
        if self.client is None:
            raise ValueError(
                "these data come without clients; choose a partition, such as dirichlet"
            )
        return Deal(self.client, self.client_names or None, self.team, self.team_names)


@dataclass(frozen=True)
class _Features:
    x: Tensor | View  # (N, ...)


@dataclass(frozen=True)
class Pool(Rows, _Features):  # in this order, so that x is the first field
    """Samples: features, and everything else that is known of them."""

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: Tensor) -> Self:
        """Some of the samples, by index or by a mask (N,)."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        return replace(super().select(index), x=self.pick(index))

    def pick(self, rows: Tensor) -> Tensor | View:
        """The features of some of the samples; a view of them where they are a view."""
        return self.x.pick(rows) if isinstance(self.x, View) else self.x[rows]
