"""AUC and calibration from the scores themselves.

:mod:`evenhand.metrics.calibration` computes the same from histograms, which can be added over
clients.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.metrics.pairwise import NOTHING, kish
from evenhand.metrics.student import quantile
from evenhand.metrics.uncertainty import Interval, wilson

Floats = NDArray[np.float64]


class Bin(NamedTuple):
    """Samples with similar scores: their mean score, and the share that is positive."""

    samples: int
    size: float  # effective samples
    score: float  # mean
    share: Interval  # of positive samples


def auc(score: ArrayLike, positive: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Probability that a positive sample scores higher than a negative one; ties count half.

    >>> auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """
    given, found, weights = _samples(score, positive, weight)
    _, place = np.unique(given, return_inverse=True)
    ups, downs = (
        np.bincount(place, weights=weights * kind, minlength=1) for kind in (found, ~found)
    )
    pairs = float(ups.sum() * downs.sum())
    return float(ups @ (downs.cumsum() - downs / 2)) / pairs if pairs > 0 else math.nan


def auc_interval(value: float, positives: float, negatives: float, level: float = 0.95) -> Interval:
    """An AUC with Newcombe's interval (2006, method 5).

    It inverts Hanley and McNeil's variance at the ends, so it stays in [0, 1] and has a width even
    at an AUC of 1. The numbers of samples may be effective ones.
    """
    from scipy import optimize, special

    if not (positives > 0 and negatives > 0) or math.isnan(value):
        return NOTHING
    z = float(special.ndtri((1 + level) / 2))
    more = max(0.0, (positives + negatives) / 2 - 1)

    def error(theta: float) -> float:
        shared = (1 - theta) / (2 - theta) + theta / (1 + theta)
        return math.sqrt(theta * (1 - theta) * (1 + more * shared) / (positives * negatives))

    def below(theta: float) -> float:
        return value - theta - z * error(theta)

    def above(theta: float) -> float:
        return value - theta + z * error(theta)

    # at 0 and 1 the variance is 0, so a value there solves the equation itself: not that root
    low = 0.0 if value <= 0 else float(optimize.brentq(below, 0.0, min(value, 1 - 1e-9)))
    high = 1.0 if value >= 1 else float(optimize.brentq(above, max(value, 1e-9), 1.0))
    return Interval(value, low, high)


def bias(
    score: ArrayLike, positive: ArrayLike, weight: ArrayLike | None = None, level: float = 0.95
) -> Interval:
    """Mean score minus share of positive samples, with Student's interval; + is too high."""
    given, found, weights = _samples(score, positive, weight)
    if not len(given):
        return NOTHING
    apart = given - found
    total, size = weights.sum(), float(kish(weights.sum(), (weights**2).sum()))
    value = float(weights @ apart / total)
    seen = float(weights @ (apart - value) ** 2 / total) * size / max(1.0, size - 1)
    # scores without any error still leave the variance of a share of 0 among so many
    spread = max(seen, (size + 1) / (size + 2) ** 2)
    half = float(quantile((1 + level) / 2, max(1.0, size - 1))) * math.sqrt(spread / size)
    return Interval(value, max(-1.0, value - half), min(1.0, value + half))


def reliability(
    score: ArrayLike,
    positive: ArrayLike,
    weight: ArrayLike | None = None,
    level: float = 0.95,
    bins: int = 10,
) -> list[Bin]:
    """Up to ``bins`` bins of equally many samples, from low to high scores; equal scores share a
    bin."""
    given, found, weights = _samples(score, positive, weight)
    if not len(given):
        return []
    edges = np.unique(np.quantile(given, np.arange(1, bins) / bins, method="higher"))
    place = np.searchsorted(edges, given, side="right")
    made = []
    for code in np.unique(place):
        inside = place == code
        w = weights[inside]
        total, size = float(w.sum()), float(kish(w.sum(), (w**2).sum()))
        if total <= 0:
            continue
        share = float(w @ found[inside]) / total
        low, high = wilson(share * size, size, level)
        made.append(
            Bin(
                int(inside.sum()),
                size,
                float(w @ given[inside]) / total,
                Interval(share, float(low), float(high)),
            )
        )
    return made


def calibration_error(
    score: ArrayLike, positive: ArrayLike, weight: ArrayLike | None = None, bins: int = 10
) -> float:
    """Root mean squared distance between scores and frequencies over bins, corrected for bias.

    A bin of calibrated scores misses its frequency by chance; that variance is subtracted (Kumar,
    Liang and Ma, 2019), so calibrated scores have an error of about 0 whatever their number. Bins
    with a single effective sample are skipped.
    """
    squares, sizes = 0.0, 0.0
    for one in reliability(score, positive, weight, bins=bins):
        if one.size <= 1:
            continue
        chance = one.share.value * (1 - one.share.value) / (one.size - 1)
        squares += one.size * ((one.score - one.share.value) ** 2 - chance)
        sizes += one.size
    return math.sqrt(max(0.0, squares / sizes)) if sizes else math.nan


def _samples(
    score: ArrayLike, positive: ArrayLike, weight: ArrayLike | None
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Samples that have a score and a weight."""
    given, found = np.asarray(score, np.float64), np.asarray(positive, np.bool_)
    weights = np.ones(len(given)) if weight is None else np.asarray(weight, np.float64)
    kept = ~np.isnan(given) & (weights > 0)
    return given[kept], found[kept], weights[kept]
