"""Numbers across clients of several trials on the same test samples, and their differences.

Trials that are tested on the same samples are lucky and unlucky together, so a difference is surer
than its two numbers. What they have in common is measured by drawing samples anew, the same for all
trials; how sure each number is comes from :mod:`evenhand.metrics.across`, which allows for test
sets that make clients look more different than they are. The two are put together as if errors were
normal: with half-widths h and correlations r, a sum of numbers with weights c has the half-width
sqrt(sum c_i c_j r_ij h_i h_j) (Zou, 2007).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require
from evenhand.metrics.across import OF_SHARES, accuracy_intervals, merit_intervals
from evenhand.metrics.influence import effective_counts
from evenhand.metrics.spread import SPREAD, pooled
from evenhand.metrics.uncertainty import Interval, client_means

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ENOUGH = 400  # draws, for correlations


@dataclass(frozen=True)
class Trials:
    """R trials on the same samples."""

    intervals: Sequence[Mapping[str, Interval]]  # of each trial
    correlation: Mapping[str, Floats]  # (R, R) by number
    level: float

    def combined(self, name: str, weight: Sequence[float]) -> tuple[Interval, float]:
        """The sum of the trials' numbers with weights (R,), and the p-value of its being 0.

        Weights 1/S give a mean over S seeds, 1 and -1 a difference of two methods. The interval is
        about its own middle, which may not be the sum of what was observed.
        """
        c = np.asarray(weight, np.float64)
        require(
            c.shape == (len(self.intervals),),
            "weights must be one for each of {} trials, got {}",
            len(self.intervals),
            c.shape,
        )
        found = np.array([trial[name] for trial in self.intervals])  # (R, 3)
        value = float(c @ found[:, 0])
        if (c != 0).sum() == 1 and c.sum() == 1:
            return self.intervals[int(c.argmax())][name], math.nan
        used = c != 0
        middle = float(c[used] @ (found[used, 1] + found[used, 2]) / 2)
        half = c[used] * (found[used, 2] - found[used, 1]) / 2
        width = math.sqrt(max(0.0, float(half @ self.correlation[name][np.ix_(used, used)] @ half)))
        z = NormalDist().inv_cdf((1 + self.level) / 2)
        p = (
            2 * NormalDist().cdf(-abs(middle) * z / width)
            if width > 0
            else 1.0
            if middle == 0
            else math.nan
        )
        return Interval(value, middle - width, middle + width), p


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
) -> Trials:
    """Numbers across clients of R trials, from values (N, R) and clients (N,) of N samples.

    See :func:`merit_intervals`. ``whole``: False for values that are not right or wrong, but whose
    mean is a share: see :mod:`evenhand.metrics.influence`.
    """
    one = [
        merit_intervals(
            np.asarray(v, np.float64), client, clients, squared, over, draws, level, seed
        )
        if whole
        else accuracy_intervals(*effective_counts(v, client, clients), over, draws, level, seed)
        for v in values.T
    ]
    counts = np.bincount(client, minlength=clients).astype(np.float64)
    # the last says how many samples a drawn client has
    columns = np.concatenate([values, counts[client, None]], 1)
    drawn: dict[str, list[Floats]] = {name: [] for name in (*SPREAD, "pooled")}
    # (k, n, R + 1)
    for means in client_means(columns, client, clients, over, min(draws, ENOUGH), seed):
        # (k, R, n), (k, 1, n)
        of_trials, size = (
            np.moveaxis(means[..., :-1], -1, 1),
            np.nan_to_num(means[..., -1])[:, None],
        )
        merits = -np.sqrt(of_trials) if squared else of_trials
        for name, number in SPREAD.items():
            drawn[name].append(number(np.abs(merits) if name in OF_SHARES else merits))
        drawn["pooled"].append(pooled(of_trials, size))  # its root would not change correlations
    return Trials(
        one, {name: _correlation(np.concatenate(parts)) for name, parts in drawn.items()}, level
    )


def _correlation(drawn: Floats) -> Floats:
    """(R, R) of (draws, R); 0 with a number that never changes."""
    apart = drawn - drawn.mean(0)
    size = np.sqrt((apart**2).sum(0))
    apart = apart / np.where(size > 0, size, 1.0)
    found: Floats = apart.T @ apart
    np.fill_diagonal(found, 1.0)
    return found
