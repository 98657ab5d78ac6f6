"""GIFAIR's aggregate: the average loss, and how far apart the teams' losses are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.errors import require, require_number, require_whole
from evenhand.theory.aggregates import Aggregate
from evenhand.theory.inputs import plain
from evenhand.theory.numerics import ROUND_OFF, mass, zero_if


@dataclass(frozen=True)
class RankSpread(Aggregate):
    """The average loss and the distances between the losses of teams: GIFAIR.

    A(f) = sum_i w_i f_i + c sum_{a<b} |L_a - L_b|,   lam_i = w_i + c rho_a / |A_a|
                                                              (Yue, Nouiehed, Al Kontar, 2021)

    L_a is the plain mean over the clients of team a, rho_a = (teams of lower loss) - (teams of
    higher loss), ties counting 0, and c = strength * c_max with c_max = min_i w_i |A_a(i)| / (teams
    - 1), up to which no weight is negative.

    A* = 0 on the convex hull of the weights that the orders of the teams give: lam_i - w_i the same
    for all of a team, and any k teams together at most c k (teams - k) above their base weights.

    Args:
        strength: c as a fraction of c_max, in [0, 1]; 0 gives the mean.
        teams: the team of each client, whole numbers; None makes every client its own.

    >>> RankSpread(1.0).value([1.0, 2.0], [0.5, 0.5]).item()
    2.0
    """

    strength: float
    teams: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_number("strength", self.strength, "[0, 1]", "0 gives the mean")
        object.__setattr__(self, "teams", plain(self.teams))
        for team in self.teams or ():
            require_whole("a team", team, 0)

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        return self._weights(f, w) @ f

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        team, members = self._teams(len(w))
        return w + (self._factor(w) * _rank(_team_sums(f, team, members) / members) / members)[team]

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        team, members = self._teams(len(w))
        raised = _team_sums(lam - w, team, members)  # (d,)
        uneven = (lam - w - (raised / members)[team]).abs().sum()
        first = torch.arange(1, len(members) + 1, dtype=w.dtype)
        excess = raised.sort(descending=True).values.cumsum(0) - self._factor(w) * first * (
            len(members) - first
        )
        return zero_if(
            (uneven <= ROUND_OFF) & (excess.max() <= ROUND_OFF) & (raised.sum().abs() <= ROUND_OFF)
        )

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        return mass(lam)

    def _teams(self, clients: int) -> tuple[Tensor, Tensor]:
        """Return (n,) each client's team, counted from 0 without gaps, and (d,) the clients of
        each."""
        teams = range(clients) if self.teams is None else self.teams
        require(
            len(teams) == clients,
            "teams has {} entries for {} clients; pass one per client",
            len(teams),
            clients,
        )
        _, team, members = torch.unique(
            torch.tensor(list(teams)), return_inverse=True, return_counts=True
        )
        return team, members.double()

    def _factor(self, w: Tensor) -> Tensor:
        """Return c."""
        team, members = self._teams(len(w))
        return self.strength * (w * members[team]).min() / max(len(members) - 1, 1)


def _team_sums(x: Tensor, team: Tensor, members: Tensor) -> Tensor:
    """Return (d,) sums over teams."""
    # sorted, so that teams with the same values tie whatever the order of clients
    order = x.argsort()
    return torch.zeros_like(members).index_add(0, team[order], x[order])


def _rank(loss: Tensor) -> Tensor:
    """Return (d,) the number of entries with lower loss minus those with higher."""
    ordered = loss.sort().values
    lower = torch.searchsorted(ordered, loss, right=False)
    higher = len(loss) - torch.searchsorted(ordered, loss, right=True)
    return (lower - higher).double()
