"""Who gains and who loses: what clients, groups or teams gain with one model instead of another.

Both models are evaluated on the same samples, so what counts is the gain of each sample: for a
classifier, 1 if only the new model is correct, -1 if only the other is, and else 0. :class:`Gains`
holds sums of gains, which can be added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require, require_number
from evenhand.metrics.student import beyond, quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MANY = 1e9  # degrees of freedom with which Student's quantiles are the normal ones


class Judged(NamedTuple):
    """The mean gain of each cell, its interval, and the p-value for no gain."""

    gain: Floats  # (K,)
    low: Floats
    high: Floats
    p: Floats


def reach_of(gains: Floats) -> float:
    """How much a sample gains or loses if it does: the root mean square of gains that are not 0.

    It is 1 for gains of -1, 0 and 1, and if there are no others to tell.
    """
    changed = gains[(gains != 0) & ~np.isnan(gains)]
    return float(np.sqrt((changed**2).mean())) if len(changed) else 1.0


@dataclass(frozen=True)
class Gains:
    """Sums of the gains of samples in each of K cells (clients, groups or teams), with S seeds.

    Sums of disjoint samples add.
    """

    count: Floats  # (K,) samples
    total: Floats  # (S, K) summed gains, for each seed
    square: Floats  # (K,) summed squares of a sample's mean gain over seeds

    @classmethod
    def of(cls, gain: Floats, cell: Ints, cells: int) -> Gains:
        """From the gain of each sample with each seed (N, S) and the cell of each sample (N,)."""
        fits = gain.ndim == 2 and len(gain) == len(cell)
        require(
            fits,
            "gains must be (samples, seeds) with a cell for each sample, got {} and {}",
            gain.shape,
            cell.shape,
        )

        def summed(values: Floats) -> Floats:
            return np.bincount(cell, weights=values, minlength=cells).astype(np.float64)

        return cls(
            summed(np.ones(len(cell))),
            np.stack([summed(column) for column in gain.T]),
            summed(gain.mean(1) ** 2),
        )

    def __add__(self, other: Gains) -> Gains:
        require(
            self.total.shape == other.total.shape, "gains can be added for the same cells and seeds"
        )
        return Gains(self.count + other.count, self.total + other.total, self.square + other.square)

    def judged(self, level: float = 0.95, bounded: bool = True, reach: float = 1.0) -> Judged:
        """Mean gains with intervals over other samples and, with several seeds, over other seeds.

        The variance of a mean over m samples and S seeds is estimated as that of the samples' mean
        gains over m, plus that of the seeds' mean gains over S, with Satterthwaite's degrees of
        freedom. Residual variance counts in both, so intervals err on the wide side. With one seed,
        they are about these two models, not about their methods.

        Args:
            bounded: whether gains lie in [-1, 1]. Two pseudo-samples, one that gains and one that
                loses, are then added, so that intervals of small cells keep their level even if no
                sample gains or loses (Bonett and Price, 2012).
            reach: how much these gain or lose, see :func:`reach_of`.
        """
        require_number("level", level, "(0, 1)")
        seeds, added = len(self.total), 2.0 if bounded else 0.0
        enough = self.count >= (1 if bounded else 2)
        m = np.where(enough, self.count, 2.0)
        mean, centre = (
            self.total.sum(0) / (seeds * samples)
            for samples in (np.maximum(self.count, 1.0), m + added)
        )
        # means over seeds of the two added samples are smaller by the root of S
        spread = np.maximum(0.0, (self.square + reach**2 * added / seeds) / (m + added) - centre**2)
        of_samples = spread / (m + added if bounded else m - 1)
        of_seeds = (self.total / m).var(0, ddof=1) / seeds if seeds > 1 else np.zeros(len(m))
        uncertain = of_seeds**2 / max(1, seeds - 1) + (0.0 if bounded else of_samples**2 / (m - 1))
        error = np.sqrt(of_samples + of_seeds)
        freedom = np.where(uncertain > 0, error**4 / np.where(uncertain > 0, uncertain, 1.0), MANY)
        half = quantile((1 + level) / 2, freedom) * error
        certain = error == 0
        p = np.where(
            certain,
            centre == 0,
            2 * beyond(np.abs(centre) / np.where(certain, 1.0, error), freedom),
        )
        bound = 1.0 if bounded else np.inf
        low = np.maximum(-bound, np.minimum(centre - half, mean))
        high = np.minimum(bound, np.maximum(centre + half, mean))
        none = np.full(len(m), np.nan)
        return Judged(
            np.where(self.count > 0, mean, none),
            *(np.where(enough, values, none) for values in (low, high, p)),
        )
