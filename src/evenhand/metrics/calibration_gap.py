"""The gap between groups in calibration errors, corrected for small samples.

The calibration error is a sum of distances, so it is above 0 even for perfect scores: by chance, a
bin of a few samples is always off. We simulate the error of perfect scores with as many samples and
subtract it. If a group's error exceeds 95 % of the simulated ones, less is subtracted, since chance
adds little to bins that are far off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_whole
from evenhand.metrics.calibration import BINS, coarse
from evenhand.metrics.group_rates import Gap
from evenhand.metrics.largest_gap import largest_gaps
from evenhand.metrics.uncertainty import Interval

Floats = NDArray[np.float64]

EXPLAINED = 0.95  # share of simulated perfect scores with a smaller error


class Estimate(NamedTuple):
    """The calibration error of each group, with its uncertainty."""

    seen: Floats  # (A,)
    value: Floats  # corrected for chance
    chance: Floats  # the expected error of perfect scores
    error: Floats  # standard errors of the observed value

    def bounds(self, z: Floats) -> tuple[Floats, Floats]:
        """Ends of (m, A) intervals at critical values (m, 1).

        The lower end assumes that chance adds the most possible, the upper end that it adds
        nothing.
        """
        low = np.clip(self.seen - self.chance - z * self.error, 0.0, self.value)
        return low, np.clip(self.seen + z * self.error, self.value, 1.0)


def calibration_errors(histogram: ArrayLike, scores: ArrayLike, draws: int, seed: int) -> Estimate:
    """Calibration errors of groups, from histograms (A, 2, BINS) and summed scores per bin."""
    counts, summed = np.asarray(histogram), np.asarray(scores, np.float64)
    require(
        counts.shape == summed.shape and counts.shape[1:] == (2, BINS),
        "histogram and scores must be (A, 2, {}), got {} and {}",
        BINS,
        counts.shape,
        summed.shape,
    )
    require_whole("draws", draws, 1)
    rng = np.random.default_rng([seed, 14])
    fine = counts.sum(1)
    mean = np.clip(summed.sum(1) / np.maximum(fine, 1), 0.0, 1.0)
    samples, expected, found = coarse(fine), coarse(summed.sum(1)), coarse(counts[:, 1])
    size, there = np.maximum(samples, 1), samples > 0
    everyone = np.maximum(samples.sum(1), 1)

    def off(outcomes: NDArray[Any]) -> Floats:
        return np.asarray(np.abs(outcomes - expected).sum(-1) / everyone)

    def drawn(share: Floats) -> Floats:
        """(draws, A) errors where outcomes have these chances."""
        chance = np.clip(np.where(there, share, 0.0), 0.0, 1.0)
        return off(rng.binomial(samples.astype(np.int64), chance, (draws, *samples.shape)))

    perfect = coarse(rng.binomial(fine.astype(np.int64), mean, (draws, *fine.shape)))
    usual, squares = off(perfect), ((perfect - expected) ** 2 / size).sum(-1)  # (draws, A)
    square = ((found - expected) ** 2 / size).sum(-1)
    explained = np.quantile(squares, EXPLAINED, axis=0) / np.where(square > 0, square, 1.0)
    kept = np.sqrt(np.clip(1 - explained, 0.0, 1.0))[:, None]
    nearer = expected + kept * (found - expected)
    seen, chance = off(found), usual.mean(0)
    added = np.where(kept[:, 0] > 0, drawn(nearer / size).mean(0) - off(nearer), chance)
    # one correct and one wrong sample are added to each bin, so that every bin has an error
    error = np.maximum(usual.std(0), drawn((found + 1) / (size + 2)).std(0))
    return Estimate(seen, np.clip(seen - added, 0.0, 1.0), chance, error)


def calibration_gap(
    histogram: ArrayLike,
    scores: ArrayLike,
    groups: Sequence[str],
    level: float = 0.95,
    least: int = 10,
    draws: int = 400,
    seed: int = 0,
) -> Gap | None:
    """The largest gap between groups of at least ``least`` samples; None with fewer than two."""
    counts = np.asarray(histogram)
    kept = counts.sum((1, 2)) >= max(1, least)
    if kept.sum() < 2:
        return None
    found = calibration_errors(counts[kept], np.asarray(scores)[kept], draws, seed)
    gap = largest_gaps(found.value[None], found.bounds, level)
    names = [group for group, there in zip(groups, kept.tolist(), strict=True) if there]
    return Gap(
        "calibration",
        "calibration error",
        "",
        names[gap.least[0]],
        names[gap.most[0]],
        Interval(float(gap.value[0]), float(gap.low[0]), float(gap.high[0])),
        float(gap.p[0]),
        tuple(group for group in groups if group not in names),
    )
