"""Prices of bounds on the differences between groups, from sums over cells.

A cell is a group and a label. An event is a set of cells whose mean statistic is bounded: a group
(demographic parity), or a group's samples of one label. Everything is a sum over clients, or one
client's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand.tree import Tree

# rates of predictions move in steps of a sample around a bound: this much more still keeps it
NEAR = 1.05, 0.001
# the labels whose cells form an event, one row for each condition of a notion: (K, 2)
LABELS = {
    "demographic_parity": ((1.0, 1.0),),
    "equal_opportunity": ((0.0, 1.0),),
    "equalised_odds": ((1.0, 0.0), (0.0, 1.0)),
    "group_loss": ((1.0, 1.0),),
    "loss_parity": ((1.0, 1.0),),
}


class Measured(NamedTuple):
    """The events of a round: (K, E) for K conditions of the notion and E compared sets of groups.

    Attributes:
        part: an event's share of the data.
        excess: (K, E, E) by how much each bound is exceeded.
        counts: (K, E, E) which bounds apply.
        small: the number of events that are left out.
    """

    part: Tensor
    excess: Tensor
    counts: Tensor
    small: Tensor


@dataclass(frozen=True)
class Dual:
    """The rule by which prices follow the gaps.

        tilt <- [tilt + lr / sqrt(1 + k) (gap - bound)]_+
        used:   [tilt + damping / sqrt(1 + k) (gap - bound)]_+

    A tilt is the price between two events: what a sample of the one pays and one of the other gets
    sums to it. Times n_a n_b / (n_a + n_b), with the events' shares n of the data, it is the
    multiplier of the bound. Steps in tilts are as long for small events as for large ones. They
    shrink with the number of times k that the gap has fallen from above its bound to below it
    (after Kesten, 1958): a gap that answers strongly to its price would swing for ever otherwise.

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
            "side": pairs,
            "overshot": pairs,
            "price": zero,
            "scale": torch.ones_like(none),
            "sum": zero,
            "share": zero,
            "ever": zero,
            "gap": none,
            "small": none,
        }

    def risen(self, own: Tree, new: Tensor, share: Tensor, sizes: Tensor, scope: Scope) -> Tree:
        """Return the tilts and prices after a round.

        Args:
            own: what ``first`` or this function returned.
            new: (A, 2) the sum of the statistic in each cell.
            share: (A, 2) the number of samples in each cell, in any unit.
            sizes: (A,) the number of samples of each group.
            scope: which groups are compared.
        """
        there = share > 0  # a cell that is absent keeps its last known mean
        total = torch.where(there, self.smoothing * own["sum"] + new, own["sum"])
        count = torch.where(there, self.smoothing * own["share"] + share, own["share"])
        ever = own["ever"] + share
        part, excess, counts, small = self.measured(total, count, ever, sizes, scope)

        side = torch.where(counts & (excess != 0), excess.sign(), own["side"])
        overshot = own["overshot"] + ((own["side"] > 0) & (side < 0)).to(excess.dtype)
        move = excess / (1 + overshot).sqrt()
        tilt = torch.where(counts, self._capped(own["tilt"] + self.lr * move, part), own["tilt"])
        now = self._capped(tilt + self.damping * move, part)
        used = torch.where(counts, now, 0.0)
        paid = used * self._mass(part)
        net = paid.sum(2) if self.notion == "group_loss" else paid.sum(2) - paid.sum(1)  # (K, E)
        price = torch.where(net != 0, net / part.clamp(min=1e-300), 0.0)
        if self.notion == "loss_parity":
            price = price.clamp(min=-1)  # a sample's loss never counts with a negative weight
        labels = self._labels(total)
        return {
            "tilt": tilt,
            "side": side,
            "overshot": overshot,
            "price": (scope.members.T @ price.T) @ labels,
            # weights of losses sum to one, so that steps stay as long as without prices
            "scale": 1 / (1 + net.sum()) if self.notion == "group_loss" else own["scale"],
            "sum": total,
            "share": count,
            "ever": ever,
            "gap": self.largest(excess, counts),
            "small": small,
        }

    def measured(
        self, total: Tensor, count: Tensor, ever: Tensor, sizes: Tensor, scope: Scope
    ) -> Measured:
        """Compare the events' means, from sums of the statistic and of samples by cell, (A, 2).

        ``ever`` has the samples of all rounds, which say how large the events are.
        """
        labels = self._labels(total)

        def of_events(cells: Tensor) -> Tensor:
            return labels @ (scope.members @ cells).T  # (K, E)

        mean = of_events(total) / of_events(count).clamp(min=1e-300)
        part = of_events(ever) / ever.sum().clamp(min=1e-300)
        # the labels' shares are known from rounds only; half a sample allows for their rounding
        samples = sizes[:, None] * ever / ever.sum(1, keepdim=True).clamp(min=1e-300)
        large = (part > 0) & (of_events(samples) >= self.smallest - 0.5)
        if self.notion == "group_loss":
            excess, counts = torch.diag_embed(mean) - self.bound, torch.diag_embed(large)
        else:
            excess = mean[:, :, None] - mean[:, None, :] - self.bound
            counts = large[:, :, None] & large[:, None, :] & (scope.pairs > 0)
        small = (scope.members @ sizes > 0) & ~large
        return Measured(part, excess, counts, small.sum().double())

    def largest(self, excess: Tensor, counts: Tensor) -> Tensor:
        """Return the largest gap, or mean loss, among those that a bound applies to; 0 without
        any."""
        return torch.where(counts, excess + self.bound, 0.0).amax()

    def _capped(self, tilt: Tensor, part: Tensor) -> Tensor:
        """Return tilts (K, E, E) that are at least 0, and at most ``cap``.

        For "group_loss", their mean over samples is at most ``cap``: if no bound can be kept, all
        would be at the cap otherwise, and the group with the largest loss would count no more than
        the others.
        """
        if self.notion != "group_loss":
            return tilt.clamp(0, self.cap)
        prices = tilt.diagonal(dim1=1, dim2=2)
        ordered, order = prices.sort(dim=1, descending=True)
        weight = part.gather(1, order)
        # subtract what brings the mean of those that stay above 0 to the cap
        excess = (weight * ordered).cumsum(1) - self.cap
        level = (excess / weight.cumsum(1).clamp(min=1e-300)).amax(1, keepdim=True).clamp(min=0)
        return torch.diag_embed((prices - level).clamp(min=0))

    def _labels(self, like: Tensor) -> Tensor:
        return torch.tensor(LABELS[self.notion], dtype=like.dtype, device=like.device)

    def _mass(self, part: Tensor) -> Tensor:
        """Return (K, E, E) what turns the price between two events into a multiplier."""
        if self.notion == "group_loss":
            return torch.diag_embed(part)
        a, b = part[:, :, None], part[:, None, :]
        return a * b / (a + b).clamp(min=1e-300)


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
