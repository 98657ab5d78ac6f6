"""Prices of bounds on the differences between groups, from sums over cells.

A cell is a group and a label. An event is a set of cells whose mean statistic is bounded: a group
(demographic parity), or a group's samples of one label. Everything is a sum over clients, or one
client's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.tree import Tree

# the labels whose cells form an event, one row for each condition of a notion: (K, 2)
LABELS = {
    "demographic_parity": ((1.0, 1.0),),
    "equal_opportunity": ((0.0, 1.0),),
    "equalised_odds": ((1.0, 0.0), (0.0, 1.0)),
    "group_loss": ((1.0, 1.0),),
    "loss_parity": ((1.0, 1.0),),
}


@dataclass(frozen=True)
class Dual:
    """The rule by which prices follow the gaps.

        tilt <- [tilt + lr (gap - bound)]_+
        used:   [tilt + damping (gap - bound)]_+

    A tilt is the price between two events: what a sample of the one pays and one of the other gets
    sums to it. Times n_a n_b / (n_a + n_b), with the events' shares n of the data, it is the
    multiplier of the bound. Steps in tilts are as long for small events as for large ones.

    Attributes:
        notion: a key of ``LABELS``.
        bound: on every difference M_a - M_b of two events' means; of "group_loss", on every mean.
        lr, damping, cap: step of the ascent, weight of the current excess, largest tilt.
        smallest: events with fewer samples are left out.
        smoothing: how much of the sums of earlier rounds counts, in [0, 1).
    """

    notion: str
    bound: float
    lr: float
    damping: float
    cap: float
    smallest: float
    smoothing: float

    def first(self, groups: int, events: int) -> Tree:
        """Return tilts of 0, and no sums yet."""
        zero = torch.zeros(groups, 2, dtype=torch.float64)
        pairs = torch.zeros(len(LABELS[self.notion]), events, events, dtype=torch.float64)
        none = torch.zeros((), dtype=torch.float64)
        return {
            "tilt": pairs,
            "price": zero,
            "sum": zero,
            "share": zero,
            "ever": zero,
            "gap": none,
            "small": none,
        }

    def risen(self, own: Tree, new: Tensor, share: Tensor, samples: Tensor, scope: Scope) -> Tree:
        """Return the tilts and prices after a round.

        Args:
            own: what ``first`` or this function returned.
            new: (A, 2) the sum of the statistic in each cell.
            share: (A, 2) the number of samples in each cell, in any unit.
            samples: the number of samples overall.
            scope: which groups are compared.
        """
        there = share > 0  # a cell that is absent keeps its last known mean
        total = torch.where(there, self.smoothing * own["sum"] + new, own["sum"])
        count = torch.where(there, self.smoothing * own["share"] + share, own["share"])
        ever = own["ever"] + share
        labels = torch.tensor(LABELS[self.notion], dtype=total.dtype, device=total.device)

        def of_events(cells: Tensor) -> Tensor:
            return labels @ (scope.members @ cells).T  # (K, E)

        mean = of_events(total) / of_events(count).clamp(min=1e-300)
        part = of_events(ever) / ever.sum().clamp(min=1e-300)
        large = (part > 0) & (part * samples >= self.smallest)
        excess, counts = self._excess(mean, large, scope.pairs)
        nothing = torch.zeros_like(excess)
        tilt = torch.where(counts, (own["tilt"] + self.lr * excess).clamp(0, self.cap), nothing)
        used = torch.where(counts, (tilt + self.damping * excess).clamp(0, self.cap), nothing)
        paid = used * self._mass(part)
        net = paid.sum(2) if self.notion == "group_loss" else paid.sum(2) - paid.sum(1)  # (K, E)
        price = torch.where(large, net / part.clamp(min=1e-300), 0.0)
        if self.notion == "loss_parity":
            price = price.clamp(min=-1)  # a sample's loss never counts with a negative weight
        return {
            "tilt": tilt,
            "price": (scope.members.T @ price.T) @ labels,
            "sum": total,
            "share": count,
            "ever": ever,
            "gap": torch.where(counts, excess + self.bound, nothing).amax(),
            "small": ((part > 0) & ~large).sum().double(),
        }

    def _mass(self, part: Tensor) -> Tensor:
        """Return (K, E, E) what turns the price between two events into a multiplier."""
        if self.notion == "group_loss":
            return torch.diag_embed(part)
        a, b = part[:, :, None], part[:, None, :]
        return a * b / (a + b).clamp(min=1e-300)

    def _excess(self, mean: Tensor, large: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (K, E, E) by how much each bound is exceeded, and which of them count."""
        if self.notion == "group_loss":
            return torch.diag_embed(mean) - self.bound, torch.diag_embed(large)
        excess = mean[:, :, None] - mean[:, None, :] - self.bound
        return excess, large[:, :, None] & large[:, None, :] & (pairs > 0)


@dataclass(frozen=True)
class Scope:
    """Which groups are compared.

    Attributes:
        members: (E, A) whether the samples of group a belong to the compared set e.
        pairs: (E, E) whether two sets are compared.
    """

    members: Tensor
    pairs: Tensor

    @classmethod
    def of_groups(cls, groups: int) -> Scope:
        """Compare every two groups; with several columns, groups are their intersections."""
        apart = 1 - torch.eye(groups, dtype=torch.float64)
        return cls(torch.eye(groups, dtype=torch.float64), apart)

    @classmethod
    def of_columns(cls, names: tuple[str, ...]) -> Scope:
        """Compare the values of each column, over all values of the others."""
        parts = [name.split(" & ") for name in names]
        if not parts or len({len(part) for part in parts}) != 1 or len(parts[0]) < 2:
            raise ValueError(
                'compare="columns" needs groups of several columns, named "a & b" for their values;'
                f" these are {', '.join(names[:5]) or 'without names'}"
            )
        values = [(k, value) for k in range(len(parts[0])) for value in
                  dict.fromkeys(part[k] for part in parts)]  # fmt: skip
        members = [[float(part[k] == value) for part in parts] for k, value in values]
        pairs = [[float(k == other and v != w) for other, w in values] for k, v in values]
        return cls(*(torch.tensor(rows, dtype=torch.float64) for rows in (members, pairs)))
