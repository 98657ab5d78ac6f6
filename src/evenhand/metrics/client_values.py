"""What test samples reveal about clients' true merits: accuracies, squared errors, other means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.kinds import Normals, Observations, Shares, Squares
from evenhand.metrics.spread import pooled
from evenhand.metrics.uncertainty import reached, score_interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ends = tuple[float, float]
# prior samples that shrink a client's variance towards that of all clients, and that towards the
# variance of normal errors
LEANING = 8


class Clients(Protocol):
    """Clients, each with its own samples."""

    @property
    def samples(self) -> Ints | Floats: ...  # (n,)

    @property
    def merit(self) -> Floats: ...  # (n,) observed

    @property
    def total(self) -> float: ...  # the merit over all samples

    @property
    def possible(self) -> Ends: ...  # merits

    @property
    def observed(self) -> Observations: ...

    def of_truth(self, drawn: Floats) -> Floats:
        """Merits from true values as they are in :attr:`observed` them."""

    def bounds(self, miss: float) -> tuple[Floats, Floats]:
        """(n,) ends below and above which each client's true merit is, with this chance."""

    def mean(self, level: float) -> Ends:
        """Of the mean of the clients' true merits."""

    def together(self, level: float) -> Ends:
        """Of the true merit over all samples."""

    def around(self, mean: float, weight: Floats, half: float, z: float) -> Ends:
        """Of a mean with weights (n,) over clients like these.

        ``half`` its width from how much clients differ; z times the error from their samples at
        least.
        """

    def maybe_equal(self, miss: float, rng: np.random.Generator) -> bool:
        """Whether equal clients would differ as much with at least this chance."""


@dataclass(frozen=True)
class Accuracies:
    """Accuracies: binomial shares. Counts that are no whole numbers are as certain as such."""

    right: Ints | Floats
    samples: Ints | Floats

    @property
    def merit(self) -> Floats:
        return self.right / self.samples

    @property
    def total(self) -> float:
        return float(pooled(self.merit, self.samples))

    @property
    def possible(self) -> Ends:
        return 0.0, 1.0

    @property
    def observed(self) -> Observations:
        return Shares(self.right, self.samples)

    def of_truth(self, drawn: Floats) -> Floats:
        return drawn

    def bounds(self, miss: float) -> tuple[Floats, Floats]:
        """Clopper and Pearson's."""
        from scipy.special import betaincinv

        wrong = self.samples - self.right
        some, others = (np.where(count > 0, count, 1) for count in (self.right, wrong))
        low = np.where(self.right > 0, betaincinv(some, wrong + 1, miss), 0.0)
        return low, np.where(wrong > 0, betaincinv(self.right + 1, others, 1 - miss), 1.0)

    def mean(self, level: float) -> Ends:
        return self._weighted(np.full(len(self.samples), 1 / len(self.samples)), level)

    def together(self, level: float) -> Ends:
        return self._weighted(self.samples / self.samples.sum(), level)

    def _weighted(self, weight: Floats, level: float) -> Ends:
        mean, everyone = float(weight @ self.merit), self.total * (1 - self.total)
        own = (self.samples * self.merit * (1 - self.merit) + LEANING * everyone) / (
            self.samples - 1 + LEANING
        )
        variance = float((weight**2 * own / self.samples).sum())
        z = NormalDist().inv_cdf((1 + level) / 2)
        return self._score(mean, variance, 1 / float((weight**2 / self.samples).sum()), z)

    def around(self, mean: float, weight: Floats, half: float, z: float) -> Ends:
        most = 1 / float((weight**2 / self.samples).sum())
        return self._score(mean, max((half / z) ** 2, mean * (1 - mean) / most), most, z)

    def _score(self, mean: float, variance: float, otherwise: float, z: float) -> Ends:
        """Wilson's, with the samples that would give this variance; ``otherwise`` if it is 0."""
        size = mean * (1 - mean) / variance if variance > 0 else otherwise
        low, high = score_interval(mean * size, size, z)
        return float(low), float(high)

    def maybe_equal(self, miss: float, rng: np.random.Generator) -> bool:
        share = self.right.sum() / self.samples.sum()

        def spread(rate: Floats) -> Floats:
            middle = (rate @ self.samples)[..., None] / self.samples.sum()
            apart = (rate - middle) ** 2 * self.samples
            return np.asarray(apart.sum(-1) / np.maximum(middle * (1 - middle), 1e-12)[..., 0])

        whole = np.rint(self.samples).astype(np.int64)
        return reached(
            float(spread(self.merit)) * (1 - 1e-9),
            lambda draws: spread(rng.binomial(whole, share, (draws, len(whole))) / whole),
            miss,
        )


@dataclass(frozen=True)
class Errors:
    """Mean squared errors: gamma distributions with one relative variance for all clients."""

    square: Floats  # (n,) mean of each client's squared errors
    samples: Ints
    relative: float  # variance of a squared error over its squared mean; 2 for normal errors

    @property
    def shape(self) -> Floats:
        return self.samples / self.relative

    @property
    def merit(self) -> Floats:
        return np.asarray(-np.sqrt(self.square))

    @property
    def total(self) -> float:
        return -math.sqrt(float(pooled(self.square, self.samples)))

    @property
    def possible(self) -> Ends:
        return -math.inf, 0.0

    @property
    def observed(self) -> Observations:
        return Squares(self.square, self.shape)

    def of_truth(self, drawn: Floats) -> Floats:
        return np.asarray(-np.sqrt(drawn))

    def bounds(self, miss: float) -> tuple[Floats, Floats]:
        from scipy.special import gammaincinv

        low, high = (
            -np.sqrt(self.square * self.shape / gammaincinv(self.shape, share))
            for share in (miss, 1 - miss)
        )
        return low, high

    def mean(self, level: float) -> Ends:
        from scipy.special import gammaln

        # the root of a mean is too small by this
        short = np.exp(gammaln(self.shape + 0.5) - gammaln(self.shape)) / np.sqrt(self.shape)
        root = np.sqrt(self.square) / short
        half = (
            NormalDist().inv_cdf((1 + level) / 2)
            * math.sqrt(float((root**2 * (1 / short**2 - 1)).sum()))
            / len(root)
        )
        return -float(root.mean()) - half, -float(root.mean()) + half

    def around(self, mean: float, weight: Floats, half: float, z: float) -> Ends:
        # of a root, half of the relative error of its square
        own = math.sqrt(float((weight**2 * self.square / (4 * self.shape)).sum()))
        half = max(half, z * own)
        return mean - half, min(0.0, mean + half)

    def together(self, level: float) -> Ends:
        from scipy.special import gammaincinv

        part = self.samples * self.square / (self.samples @ self.square)
        shape = 1 / float((part**2 / self.shape).sum())
        low, high = (
            self.total * math.sqrt(shape / gammaincinv(shape, share))
            for share in ((1 - level) / 2, (1 + level) / 2)
        )
        return low, high

    def maybe_equal(self, miss: float, rng: np.random.Generator) -> bool:
        """Bartlett's statistic."""

        def spread(square: Floats) -> Floats:
            share = self.shape / self.shape.sum()
            return np.asarray(np.log((square * share).sum(-1)) - (np.log(square) * share).sum(-1))

        return reached(
            float(spread(self.square)),
            lambda draws: spread(
                rng.standard_gamma(self.shape, (draws, len(self.shape))) / self.shape
            ),
            miss,
        )


@dataclass(frozen=True)
class Means:
    """Means of real numbers, with errors that are nearly normal."""

    merit: Floats  # (n,)
    samples: Ints
    deviation: Floats  # (n,) standard deviations of single values

    @classmethod
    def of(cls, samples: Ints, total: Floats, square: Floats) -> Means:
        """From sums of values and of their squares.

        A client's variance leans on that within all clients, as if ``LEANING`` samples had it. To
        the latter, one sample more is added that is as far from its client's mean as all values are
        from theirs: samples that agree do not prove that all would.
        """
        mean = total / samples
        apart = np.maximum(square - samples * mean**2, 0.0)
        pooled = float(apart.sum() + _typical(samples, total, square)) / (
            max(1, int((samples - 1).sum())) + 1
        )
        variance = (apart + LEANING * pooled) / (samples - 1 + LEANING)
        return cls(mean, samples, np.sqrt(variance))

    @property
    def total(self) -> float:
        return float(pooled(self.merit, self.samples))

    @property
    def error(self) -> Floats:
        return np.asarray(self.deviation / np.sqrt(self.samples))

    @property
    def possible(self) -> Ends:
        return -math.inf, math.inf

    @property
    def observed(self) -> Observations:
        return Normals(self.merit, self.error)

    def of_truth(self, drawn: Floats) -> Floats:
        return drawn

    def bounds(self, miss: float) -> tuple[Floats, Floats]:
        from scipy.special import stdtrit

        half = -stdtrit(self.samples - 1 + LEANING, miss) * self.error
        return self.merit - half, self.merit + half

    def mean(self, level: float) -> Ends:
        return self._weighted(np.full(len(self.samples), 1 / len(self.samples)), level)

    def together(self, level: float) -> Ends:
        return self._weighted(self.samples / self.samples.sum(), level)

    def _weighted(self, weight: Floats, level: float) -> Ends:
        z = NormalDist().inv_cdf((1 + level) / 2)
        return self.around(float(weight @ self.merit), weight, 0.0, z)

    def around(self, mean: float, weight: Floats, half: float, z: float) -> Ends:
        half = max(half, z * math.sqrt(float((weight**2 * self.error**2).sum())))
        return mean - half, mean + half

    def maybe_equal(self, miss: float, rng: np.random.Generator) -> bool:
        """Cochran's statistic."""
        from scipy.special import chdtrc

        weight = 1 / self.error**2
        middle = float(weight @ self.merit / weight.sum())
        return bool(chdtrc(len(weight) - 1, float(weight @ (self.merit - middle) ** 2)) >= miss)


def _typical(samples: Ints, total: Floats, square: Floats) -> float:
    """The variance of all values together; a tiny one if all are equal."""
    count = float(samples.sum())
    mean, mean_square = float(total.sum()) / count, float(square.sum()) / count
    return max(mean_square - mean**2, 1e-12 * mean_square, 1e-300)
