"""Samples in one place, before they are dealt to clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand.data.federation import Federation
from evenhand.data.samples import Part, View

TRAIN, VAL, TEST = 0, 1, 2  # codes of the parts


class Deal(NamedTuple):
    """Which client each sample goes to."""

    owner: Tensor  # (N,) int64 client numbers, 0..n-1; -1 leaves a sample out
    names: tuple[str, ...] | None = None  # of the clients
    teams: Tensor | None = None  # (n,) int64 codes
    team_names: tuple[str, ...] = ()


Partition = Callable[..., "Deal | Tensor | np.ndarray[Any, Any]"]  # (pool, seed=...) -> owners


@dataclass(frozen=True)
class Pool:
    """Samples with everything that is known of them: label, group, natural client, official split.

    What is attached to a sample stays with it through every partition and split.
    """

    x: Tensor | View  # (N, ...)
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
        return len(self.x)

    def select(self, rows: Tensor) -> Pool:
        """Some of the samples, by index or by a mask (N,)."""
        index = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        x = self.x.pick(index) if isinstance(self.x, View) else self.x[index]
        group, client, held_out = (
            None if column is None else column[index]
            for column in (self.group, self.client, self.held_out)
        )
        return replace(self, x=x, y=self.y[index], group=group, client=client, held_out=held_out)

    def natural(self) -> Deal:
        """The clients that the data come with."""
        if self.client is None:
            raise ValueError(
                "these data come without clients; choose a partition, such as dirichlet"
            )
        return Deal(self.client, self.client_names or None, self.team, self.team_names)

    def federation(self, deal: Deal, part: Tensor) -> Federation:
        """The federation in which sample i belongs to client ``deal.owner[i]`` and to part
        ``part[i]`` (TRAIN, VAL or TEST).

        Within a client, samples keep their order. Where teams of natural clients get mixed, they
        become the samples' groups, unless those have groups already.
        """
        owner, names = deal.owner, deal.names
        clients = len(names) if names is not None else int(owner.max()) + 1
        pool = self
        teams, team_names = deal.teams, deal.team_names
        if teams is None and self.team is not None and self.client is not None:
            of_sample = self.team[self.client]
            teams, team_names = _common(of_sample, owner, clients), self.team_names
            if teams is None:
                team_names = ()
                if self.group is None:
                    pool = replace(self, group=of_sample, group_names=self.team_names)

        # NumPy sorts whole numbers on one core faster than torch on several
        owners, codes = owner.numpy(), part.numpy()

        def piece(code: int) -> Part:
            rows = np.flatnonzero((codes == code) & (owners >= 0))
            whose = owners[rows]
            # natural clients often lie in order: millions of windows need no sorting
            if (np.diff(whose) < 0).any():
                rows = rows[np.argsort(whose, kind="stable")]
            offsets = np.concatenate([[0], np.bincount(whose, minlength=clients).cumsum()])
            chosen = pool.select(torch.from_numpy(rows))
            return Part(chosen.x, chosen.y, torch.from_numpy(offsets), chosen.group)

        val, test = (piece(code) if code in codes[owners >= 0] else None for code in (VAL, TEST))
        return Federation(
            train=piece(TRAIN),
            val=val,
            test=test,
            teams=teams,
            team_names=team_names,
            group_names=pool.group_names,
            names=names,
            label_names=self.label_names,
        )


def _common(values: Tensor, owner: Tensor, clients: int) -> Tensor | None:
    """(n,) the value that all samples of each client share; None where those of some client
    differ."""
    kept = owner >= 0
    values, owner = values[kept], owner[kept]
    first = torch.zeros(clients, dtype=torch.int64)
    first[owner] = values  # some sample's
    return first if bool((first[owner] == values).all()) else None
