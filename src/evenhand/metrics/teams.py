"""Metrics of teams of clients in which every client counts once.

This is how we read the group accuracies of GIFAIR-FL's paper, which does not say how they are
pooled. Rows of teams in scores pool samples instead: there a client counts for its test samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require
from evenhand.metrics import parity, spread

Floats = NDArray[np.float64]


class BetweenTeams(NamedTuple):
    """Differences between teams."""

    gap: Floats  # largest minus smallest; NaN for fewer than two teams
    variance: Floats  # of the population of teams


def team_means(values: ArrayLike, teams: ArrayLike) -> Floats:
    """(..., T) the plain mean over the clients of each team.

    Args:
        values: (..., n) one for each client; clients without a value (NaN) are skipped.
        teams: (n,) the code of each client's team, 0 to T - 1; -1 for none.

    >>> team_means([0.9, 0.7, 0.5], [0, 0, 1]).tolist()
    [0.8, 0.5]
    """
    given, codes = np.asarray(values, np.float64), np.asarray(teams)
    require(
        codes.shape == given.shape[-1:] and codes.dtype.kind in "iu",
        "teams must be a whole number for each of {} clients, got shape {} of {}",
        given.shape[-1] if given.ndim else 0,
        list(codes.shape),
        codes.dtype,
    )
    count = int(codes.max(initial=-1)) + 1
    means = [spread.mean(given[..., codes == code]) for code in range(count)]
    return np.stack(means, -1) if means else np.empty((*given.shape[:-1], 0))


def between_teams(values: ArrayLike, teams: ArrayLike) -> BetweenTeams:
    """The largest difference and the variance of :func:`team_means`; teams without a value are
    skipped.

    >>> found = between_teams([0.9, 0.7, 0.5], [0, 0, 1])
    >>> round(float(found.gap), 6), round(float(found.variance), 6)
    (0.3, 0.0225)
    """
    means = team_means(values, teams)
    return BetweenTeams(parity.gap(means), spread.variance(means))
