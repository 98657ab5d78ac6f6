"""Metrics across clients of several trials on the same test samples, and their differences.

Trials tested on the same samples are lucky or unlucky together, so a difference is more certain
than its two values. Their correlation is estimated by resampling, with the same draws for all
trials; the uncertainty of each value comes from :mod:`evenhand.metrics.across`, which corrects for
small test sets that make clients look too different. The two are combined as if errors were normal:
with half-widths h and correlations r, a sum with weights c has the half-width
sqrt(sum c_i c_j r_ij h_i h_j) (Zou, 2007).

Two models that agree on every sample here would not agree on every other sample. So, as in
:mod:`evenhand.metrics.ledger`, two pseudo-samples are added, one that gains and one that loses:
each trial has its own, and a drawn mean of m samples moves by the root of 1 / (m (M + 2)) with M
samples in all. Correlations are then below 1, and every difference has an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require
from evenhand.metrics.across import OF_SHARES, accuracy_intervals, mean_intervals, merit_intervals
from evenhand.metrics.influence import effective_counts, relative_spread
from evenhand.metrics.spread import SPREAD, pooled, together_and_sizes
from evenhand.metrics.uncertainty import LEAST_CHANCE, Interval, client_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# numbers that move with all merits
PLACES = ("mean", "pooled", "worst10", "best10", "min", "max")
ENOUGH = 400  # draws, for correlations


@dataclass(frozen=True)
class Trials:
    """R trials on the same samples."""

    intervals: Sequence[Mapping[str, Interval]]  # of each trial
    correlation: Mapping[str, Floats]  # (R, R) by number
    level: float

    def moved(self, by: float) -> Trials:
        """The same with every merit larger by a number; numbers of spread stay."""
        intervals = [
            {
                name: Interval(*(end + by for end in found)) if name in PLACES else found
                for name, found in trial.items()
            }
            for trial in self.intervals
        ]
        return replace(self, intervals=intervals)

    def combined(self, name: str, weight: Sequence[float]) -> tuple[Interval, float]:
        """The sum over trials with weights (R,), and the p-value for a sum of 0.

        Weights 1/S give a mean over S seeds, 1 and -1 a difference of two methods. The middle of
        the interval may differ from the observed sum.
        """
        c = np.asarray(weight, np.float64)
        require(
            c.shape == (len(self.intervals),),
            "weights must be one for each of {} trials, got {}",
            len(self.intervals),
            c.shape,
        )
        found = np.array([trial[name] for trial in self.intervals])  # (R, 3)
        used = c != 0
        middle = float(c[used] @ (found[used, 1] + found[used, 2]) / 2)
        half = c[used] * (found[used, 2] - found[used, 1]) / 2
        width = math.sqrt(max(0.0, float(half @ self.correlation[name][np.ix_(used, used)] @ half)))
        interval = Interval(float(c @ found[:, 0]), middle - width, middle + width)
        if used.sum() == 1 and c.sum() == 1:
            interval = self.intervals[int(c.argmax())][name]
        if math.isnan(width):
            return interval, math.nan
        # a number that has no error is 0 by its definition: how far one client is from itself
        z = NormalDist().inv_cdf((1 + self.level) / 2) / width if width > 0 else 0.0
        return interval, max(2 * NormalDist().cdf(-abs(middle) * z), LEAST_CHANCE)


def trials(
    values: Floats,
    client: Ints,
    clients: int,
    squared: bool = False,
    over: str = "samples",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    whole: bool = True,
    shares: bool = True,
    fractions: bool = False,
) -> Trials:
    """Metrics across clients of R trials, from values (N, R) and clients (N,) of N samples.

    See :func:`merit_intervals`. ``whole``: False for values that are not 0 or 1 but whose mean is a
    share, see :mod:`evenhand.metrics.influence`. ``shares``: False for means of any numbers.
    ``fractions``: whether values are shares themselves, such as of a sample's pixels.
    """
    apart = [relative_spread(v, client, clients) if fractions else None for v in values.T]

    def intervals(v: Floats, d: float | None) -> dict[str, Interval]:
        settings = (over, draws, level, seed)
        if not (shares or squared):
            return mean_intervals(v, client, clients, *settings)
        if whole or fractions:
            return merit_intervals(v, client, clients, squared, *settings, d)
        right, samples = effective_counts(v, client, clients)
        return accuracy_intervals(right, samples, *settings)

    one = [intervals(np.asarray(v, np.float64), d) for v, d in zip(values.T, apart, strict=True)]
    rng, reach = np.random.default_rng([seed, 15]), _reach(values, squared, shares)
    if fractions:
        reach = np.sqrt(np.array(apart, np.float64))
    drawn: dict[str, list[Floats]] = {name: [] for name in (*SPREAD, "pooled")}
    # (k, n, R), (k, n)
    for means, held in client_means(values, client, clients, over, min(draws, ENOUGH), seed):
        size = held[:, None].astype(np.float64)
        of_trials = np.moveaxis(means, -1, 1)  # (k, R, n)
        of_trials = of_trials + rng.standard_normal(of_trials.shape) * reach[:, None] / np.sqrt(
            np.maximum(size, 1.0) * (len(values) + 2)
        )
        merits = -np.sqrt(np.maximum(of_trials, 0.0)) if squared else of_trials
        given, sizes = together_and_sizes(merits)
        for name, number in SPREAD.items():
            drawn[name].append(number(sizes if name in OF_SHARES else given))
        drawn["pooled"].append(pooled(of_trials, size))  # its root would not change correlations
    return Trials(
        one, {name: _correlation(np.concatenate(parts)) for name, parts in drawn.items()}, level
    )


def _reach(values: Floats, squared: bool, shares: bool) -> Floats:
    """(R,) by how much the value of a sample in thought is another: right or wrong, or as squared
    errors or other values are."""
    rows = values.shape[1]
    if not (shares or squared) and len(values):
        return np.asarray(values.std(0))
    return np.sqrt((values**2).mean(0)) if squared and len(values) else np.ones(rows)


def _correlation(drawn: Floats) -> Floats:
    """(R, R) of (draws, R); 0 with a number that never changes."""
    apart = drawn - drawn.mean(0)
    size = np.sqrt((apart**2).sum(0))
    apart = apart / np.where(size > 0, size, 1.0)
    found: Floats = apart.T @ apart
    np.fill_diagonal(found, 1.0)
    return found
