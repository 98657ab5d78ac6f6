"""Estimates over seeds, splits and test samples at once.

An :class:`Estimate` is a value with a standard error and Student's degrees of freedom. Its
interval and its p-value come from the same distribution, so an interval at level 1 - a excludes 0
exactly where p < a.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require, require_number
from evenhand.metrics.ledger import MANY, Judged
from evenhand.metrics.student import beyond, quantile
from evenhand.metrics.uncertainty import Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Estimate(NamedTuple):
    """A value and its uncertainty."""

    value: float  # as observed
    middle: float  # of its interval
    error: float  # standard error; NaN where it is not known
    freedom: float = MANY  # Student's degrees

    def interval(self, level: float) -> Interval:
        """The middle and Student's quantile times the error on both sides."""
        require_number("level", level, "(0, 1)")
        half = float(quantile((1 + level) / 2, self.freedom)) * self.error
        return Interval(self.value, self.middle - half, self.middle + half)

    @property
    def p(self) -> float:
        """The p-value for a true value of 0; never 0 itself."""
        if math.isnan(self.error) or math.isnan(self.middle):
            return math.nan
        if self.error == 0:
            return 1.0 if self.middle == 0 else sys.float_info.min
        tail = 2 * float(beyond(abs(self.middle) / self.error, self.freedom))
        return max(tail, sys.float_info.min)

    def at_least(self, error: float) -> Estimate:
        """The same with an error of no less than this."""
        return self._replace(error=max(self.error, error))


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one value per seed, with Student's distribution.

    >>> mean, _, error, freedom = over_seeds([0.5, 0.7])
    >>> round(mean, 3), round(error, 3), freedom
    (0.6, 0.1, 1.0)
    """
    given = np.asarray(values, np.float64)
    mean = float(given.mean())
    if len(given) < 2:
        return Estimate(mean, mean, math.nan)
    return Estimate(
        mean, mean, float(given.std(ddof=1)) / math.sqrt(len(given)), float(len(given) - 1)
    )


def over_seeds_and_samples(of_samples: Estimate, values: Sequence[float]) -> Estimate:
    """A mean over seeds, with uncertainty from seeds and test samples.

    The variance is that over samples, plus that between S seeds over S. Residual variance counts in
    both, so intervals err on the wide side.

    If seeds have the share w of the variance, Student's degrees of freedom are (S - 1) / w.
    Satterthwaite's would be (S - 1) / w^2, which trusts seeds that agree by chance: simulated 95 %
    intervals cover the truth in 92 % of cases with three seeds and w = 0.8, and in 89 % with two;
    ours in 95 % and 92 %.

    Args:
        of_samples: the mean over these seeds, with the uncertainty from its test samples.
        values: one for each seed, on the same test samples.
    """
    of_seeds = over_seeds(values)
    if math.isnan(of_seeds.error):
        return of_samples
    error = math.hypot(of_samples.error, of_seeds.error)
    share = of_seeds.error**2 / error**2 if error else 0.0
    freedom = 1 / (share / of_seeds.freedom + (1 - share) / of_samples.freedom)
    return Estimate(of_samples.value, of_samples.middle, error, freedom)


def over_splits(splits: Sequence[Estimate], ratio: float) -> Estimate:
    """A mean over random splits of the same data, each with its own models and test samples.

    Splits share samples, so they differ less than new data would: Student's variance uses
    1/S + ratio instead of 1/S (Nadeau and Bengio, 2003). It is at least the variance from test
    samples of splits that share none.

    Args:
        splits: one estimate per split, with the uncertainty from its test samples (0 if unknown).
        ratio: test samples over training samples.
    """
    require_number("ratio", ratio, "[0, inf)")
    seeds = over_seeds([split.value for split in splits])
    middle = float(np.mean([split.middle for split in splits]))
    of_samples = math.sqrt(float(np.mean([split.error**2 for split in splits])) / len(splits))
    if math.isnan(seeds.error):
        return Estimate(seeds.value, middle, of_samples)
    corrected = seeds.error * math.sqrt(1 + len(splits) * ratio)
    return Estimate(seeds.value, middle, max(corrected, of_samples), seeds.freedom)


def gains_over_splits(
    gains: Sequence[Floats],
    cells: Sequence[Ints],
    ratio: Floats,
    level: float = 0.95,
    bounded: bool = True,
    reach: float = 1.0,
) -> Judged:
    """Mean gains of the same clients or groups over several splits, as in :func:`over_splits`.

    Args:
        gains, cells: for each split the gain (N,) and the cell (N,) of each test sample.
        ratio: (K,) test samples over training samples of each cell.
        bounded: whether gains lie in [-1, 1]; two pseudo-samples are then added to each split, see
            :meth:`evenhand.metrics.ledger.Gains.judged`.
        reach: how much these gain or lose.
    """
    require(len(gains) == len(cells) > 1, "gains over splits need at least two, got {}", len(gains))
    count, added = len(ratio), 2.0 if bounded else 0.0
    means, centres, variances = [], [], []
    for gain, cell in zip(gains, cells, strict=True):
        m, total, square = (
            np.bincount(cell, weights=weights, minlength=count).astype(np.float64)
            for weights in (np.ones(len(gain)), gain, gain**2)
        )
        enough = m >= (1 if bounded else 2)
        m = np.where(enough, m, np.nan)
        centre = total / (m + added)
        spread = np.maximum(0.0, (square + added * reach**2) / (m + added) - centre**2)
        means.append(total / m)
        centres.append(centre)
        variances.append(spread / (m + added if bounded else m - 1))
    mean, centre = np.mean(means, 0), np.mean(centres, 0)
    found = [
        over_splits(
            [Estimate(*one) for one in zip(seen, middle, np.sqrt(variance), strict=True)], share
        )
        for seen, middle, variance, share in zip(
            np.transpose(means),
            np.transpose(centres),
            np.transpose(variances),
            ratio.tolist(),
            strict=True,
        )
    ]
    ends = np.array([one.interval(level)[1:] for one in found]).reshape(-1, 2)
    bound = 1.0 if bounded else np.inf
    return Judged(
        np.asarray(mean),
        np.maximum(-bound, np.minimum(ends[:, 0], mean)),
        np.minimum(bound, np.maximum(ends[:, 1], mean)),
        np.array([one.p for one in found]),
    )
