"""GIFAIR: how large its strength can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.errors import require
from evenhand.theory.inputs import Vector, read_weights


class GIFAIRLimit(NamedTuple):
    """The largest strength of GIFAIR, and the client that limits it."""

    c_max: float
    client: int  # the one that limits it (the first of several)
    weight: float  # its weight w_i
    # c_max without it; None if fewer than two teams would remain
    without: float | None
    # the lightest other client of its team (without teams: of all); None if there is none
    partner: int | None
    merged: float | None  # c_max if it were pooled with that client; None if that is impossible

    def __str__(self) -> str:
        text = (
            f"client {self.client} with {self.weight:.3g} of the weight limits c to below"
            f" {self.c_max:.3g}"
        )
        text += "" if self.without is None else f"; left out: {self.without:.3g}"
        return text + (
            "" if self.merged is None else f"; pooled with client {self.partner}: {self.merged:.3g}"
        )


def gifair_limit(
    weight: Vector, teams: Sequence[int] | Sequence[str] | Tensor | npt.NDArray[Any] | None = None
) -> GIFAIRLimit:
    """Return the largest strength c that keeps all weights positive, and the client that limits it.

        c_max = min_i w_i |A_i| / (d - 1),  A_i the team of client i, d teams
                                                                      (Yue et al., 2021, Section 2)

    The smallest client decides; the result also shows c_max without it, and with it pooled with
    another client of its team.

    Args:
        weight: w_i, summing to 1, as in ``federation.census().weight``.
        teams: a label per client, as in ``federation.census().teams``; None makes every client its
            own team.

    >>> str(gifair_limit([0.5, 0.4, 0.1])).split("; ")  # doctest: +NORMALIZE_WHITESPACE
    ['client 2 with 0.1 of the weight limits c to below 0.05', 'left out: 0.444',
     'pooled with client 1: 0.5']
    """
    w = read_weights("weight", weight)
    n = len(w)
    labels = (
        np.arange(n)
        if teams is None
        else np.unique(np.asarray(teams), return_inverse=True)[1].reshape(-1)
    )
    require(len(labels) == n, "teams must have one label per client, {}, got {}", n, len(labels))
    team = torch.from_numpy(labels)
    found = _c_max(w, team)
    if found is None:
        raise ValueError(
            "GIFAIR compares teams of clients (without teams, clients), there is 1; it needs at"
            " least two"
        )
    c_max, client = found
    others = torch.arange(n) != client
    left_out = _c_max(w[others] / w[others].sum(), team[others])
    mates = torch.nonzero(others if teams is None else others & (team == team[client])).flatten()
    partner = int(mates[w[mates].argmin()]) if len(mates) else None
    pooled = None
    if partner is not None:
        joined = w.clone()
        joined[partner] += w[client]
        pooled = _c_max(joined[others], team[others])
    return GIFAIRLimit(
        c_max, client, float(w[client]), left_out and left_out[0], partner, pooled and pooled[0]
    )


def _c_max(weight: Tensor, team: Tensor) -> tuple[float, int] | None:
    """Return c_max and the client that limits it; None if there are fewer than two teams."""
    members = torch.bincount(team)
    teams = int((members > 0).sum())
    if teams < 2:
        return None
    room = weight * members[team]
    client = int(room.argmin())
    return float(room[client]) / (teams - 1), client
