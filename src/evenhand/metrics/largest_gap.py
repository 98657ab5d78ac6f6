"""The largest difference between groups, with an interval that holds for all pairs at once.

Every group has an estimate and an interval that depends on a critical value z. The difference of
two groups has the interval d - sqrt(f_i^2 + r_j^2) to d + sqrt(r_i^2 + f_j^2), where f and r are
the distances of an estimate to its own lower and upper end (Newcombe, 1998; with correlation: Zou,
2007). With Tukey's critical value the intervals of all pairs hold together, and then the largest
difference lies between the largest lower end and the largest upper end. Each group's own error
counts, so a small group widens only its own pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require_number
from evenhand.metrics.student import beyond, quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FARTHEST = 37.0  # critical value with the smallest chance that is still a normal number
CLOSEST = 0.95  # correlation of two groups: they are never taken to be the same


class Largest(NamedTuple):
    """The largest difference of each of m comparisons."""

    value: Floats  # (m,)
    low: Floats
    high: Floats
    p: Floats  # of no difference
    least: Ints  # (m,) the group with the smallest estimate
    most: Ints

    def of(self, rows: Ints) -> Largest:
        """Some of the comparisons."""
        value, low, high, p = (one[rows] for one in (self.value, self.low, self.high, self.p))
        return Largest(value, low, high, p, self.least[rows], self.most[rows])


def largest_gaps(
    value: Floats,
    bounds: Callable[[Floats], tuple[Floats, Floats]],
    level: ArrayLike = 0.95,
    freedom: float = math.inf,
    correlation: Floats | None = None,
    test: bool = True,
) -> Largest:
    """Compare groups in each of m comparisons; NaN with fewer than two groups.

    Args:
        value: (m, A) estimates; NaN for a group that has none.
        bounds: from critical values (m, 1) to the ends (m, A) of the groups' intervals.
        level: of all comparisons, or (m,) of each.
        freedom: degrees of freedom of Student's distribution; infinite for the normal distribution.
        correlation: (m, A, A) of the groups' estimates; None if they are independent.
        test: compute p, which is slow for many comparisons; otherwise p is NaN.
    """
    there = ~np.isnan(value)
    groups = there.sum(1)
    pair = there[:, :, None] & there[:, None] & ~np.eye(value.shape[1], dtype=bool)
    shared = 0.0 if correlation is None else 2 * np.minimum(correlation, CLOSEST)

    def largest(z: Floats, upper: bool) -> Floats:
        """(m,) largest of the ends of all pairs."""
        low, high = bounds(z[:, None])
        ends = (value - low, high - value)  # (m, A) how far the truth may be below and above
        mine, other = ends[upper][:, :, None], ends[not upper][:, None]
        half = np.sqrt(np.maximum(mine**2 + other**2 - shared * mine * other, 0.0))
        apart = value[:, :, None] - value[:, None] + (half if upper else -half)
        return np.asarray(np.where(pair, apart, -np.inf).max((1, 2)))

    levels = np.broadcast_to(level, groups.shape).tolist()
    z = np.array(
        [critical(n, one, freedom) for n, one in zip(groups.tolist(), levels, strict=True)]
    )
    low, high = np.maximum(largest(z, upper=False), 0.0), largest(z, upper=True)
    p = np.full(len(value), np.nan)
    if test:
        p = _chances(lambda z: largest(z, upper=False), groups, freedom)
    least = np.where(there, value, np.inf).argmin(1)
    # the last of equal ones, so that it is another group than the first
    most = value.shape[1] - 1 - np.where(there, value, -np.inf)[:, ::-1].argmax(1)
    rows = np.arange(len(value))
    gap = value[rows, most] - value[rows, least]
    gap, low, high, p = (np.where(groups >= 2, found, np.nan) for found in (gap, low, high, p))
    return Largest(gap, low, high, p, least, most)


def _chances(low: Callable[[Floats], Floats], groups: Ints, freedom: float) -> Floats:
    """(m,) of a difference as large if there is none: 1 - the level at which ``low`` reaches 0."""
    start, end = np.zeros(len(groups)), np.full(len(groups), FARTHEST)
    for _ in range(40):
        middle = (start + end) / 2
        above = low(middle) > 0
        start, end = np.where(above, middle, start), np.where(above, end, middle)
    return np.array([chance(int(n), float(z), freedom) for n, z in zip(groups, end, strict=True)])


@lru_cache(maxsize=4096)
def critical(groups: int, level: float, freedom: float = math.inf) -> float:
    """Tukey's critical value: with this probability, all standardised differences are within it.

    >>> round(critical(2, 0.95), 3), round(critical(4, 0.95), 3)
    (1.96, 2.569)
    """
    require_number("level", level, "(0, 1)")
    if groups < 2:
        return 0.0
    if groups == 2:
        return -float(quantile((1 - level) / 2, freedom))
    from scipy import stats

    return float(stats.studentized_range.ppf(level, groups, freedom)) / math.sqrt(2)


def chance(groups: int, z: float, freedom: float = math.inf) -> float:
    """That some standardised difference of ``groups`` equal groups is beyond z."""
    if groups < 2:
        return math.nan
    # far out, where the sum over pairs is exact and an integral is not
    most = groups * (groups - 1) * float(beyond(z, freedom))
    if groups == 2 or most < 1e-6:
        return min(1.0, most)
    from scipy import stats

    return float(np.clip(stats.studentized_range.sf(math.sqrt(2) * z, groups, freedom), 0.0, 1.0))
