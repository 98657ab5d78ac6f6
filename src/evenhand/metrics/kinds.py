"""Kinds of clients, and what the test samples of a client say about its kind and its true value.

For shares, squared errors and other means; see :mod:`evenhand.metrics.posterior`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Kinds(NamedTuple):
    """Kinds of clients (J,)."""

    centre: Floats
    width: Floats

    @property
    def equal(self) -> NDArray[np.bool_]:
        return np.asarray(self.width == 0)

    @property
    def spread(self) -> Floats:
        """The widths; of a kind that has none, any other."""
        return np.where(self.equal, 0.1, self.width)


class Observations(Protocol):
    """What is known of each client, on a scale where its error hardly depends on the truth."""

    @property
    def place(self) -> Floats: ...  # (n,)

    @property
    def error(self) -> Floats: ...  # (n,) standard errors of the places

    @property
    def widest(self) -> float: ...  # width of a kind

    @property
    # (n,) clients with the same observation have the same number, 0, 1, ...
    def alike(self) -> Ints: ...

    def fit(self, first: Ints, centre: Floats, width: Floats) -> Floats:
        """(u, G) log-likelihood of kinds for the clients ``first`` (u,)."""

    def truth(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        """(..., n) true values given each client's kind (..., n)."""

    def member(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        """True values of new clients of these kinds."""


@dataclass(frozen=True)
class Shares:
    """Binomial counts: ``right`` (n,) of ``samples`` (n,) of each client.

    A kind's shares have a beta distribution. Places are arcsines of roots, where a share of m
    samples has an error of about 1 / (2 sqrt m) and a beta distribution a width of about 1 / (2
    sqrt(a + b + 1)).
    """

    right: Ints | Floats
    samples: Ints | Floats

    @property
    def place(self) -> Floats:
        return np.asarray(np.arcsin(np.sqrt((self.right + 0.375) / (self.samples + 0.75))))

    @property
    def error(self) -> Floats:
        return np.asarray(0.5 / np.sqrt(self.samples + 0.5))

    @property
    def widest(self) -> float:
        return 0.4

    @property
    def alike(self) -> Ints:
        return np.unique(np.stack([self.right, self.samples]), axis=1, return_inverse=True)[
            1
        ].reshape(-1)

    def fit(self, first: Ints, centre: Floats, width: Floats) -> Floats:
        right, samples = self.right[first], self.samples[first]
        wrong, mean, kinds = samples - right, _share(centre), Kinds(centre, width)
        a, b = _beta(mean, kinds.spread)
        none = np.zeros(1)
        spread = _log_gamma(right, a) + _log_gamma(wrong, b) - _log_gamma(samples, a + b)
        spread -= _log_gamma(none, a) + _log_gamma(none, b) - _log_gamma(none, a + b)
        together = right[:, None] * np.log(mean) + wrong[:, None] * np.log1p(-mean)
        return np.where(kinds.equal, together, spread)

    def truth(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        mean = _share(kinds.centre)
        a, b = _beta(mean, kinds.spread)
        drawn = rng.beta(self.right + a[kind], (self.samples - self.right) + b[kind])
        return np.where(kinds.equal[kind], mean[kind], drawn)

    def member(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        mean = _share(kinds.centre)
        a, b = _beta(mean, kinds.spread)
        return np.where(kinds.equal[kind], mean[kind], rng.beta(a[kind], b[kind]))


@dataclass(frozen=True)
class Squares:
    """The ``mean`` (n,) of each client's squared errors, with gamma distributions.

    Their ``shape`` (n,) is half the samples for normal errors. A kind's true means have an inverse
    gamma distribution. Places are logarithms.
    """

    mean: Floats
    shape: Floats

    @property
    def place(self) -> Floats:
        # here and below: takes longer to load than all of evenhand, which seldom needs it
        from scipy.special import digamma

        return np.asarray(np.log(self.mean) + np.log(self.shape) - digamma(self.shape))

    @property
    def error(self) -> Floats:
        from scipy.special import polygamma

        return np.asarray(np.sqrt(polygamma(1, self.shape)))

    @property
    def widest(self) -> float:
        return 1.5

    @property
    def alike(self) -> Ints:
        return np.arange(len(self.mean))

    def fit(self, first: Ints, centre: Floats, width: Floats) -> Floats:
        from scipy.special import gammaln

        mean, shape = self.mean[first, None], self.shape[first, None]
        size = 1 / Kinds(centre, width).spread ** 2
        spread = size * (np.log(size) + centre) - (shape + size) * np.log(
            shape * mean + size * np.exp(centre)
        )
        return np.where(
            width == 0,
            -shape * (centre + mean * np.exp(-centre)),
            spread + gammaln(shape + size) - gammaln(size),
        )

    def truth(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        size, middle = 1 / kinds.spread**2, np.exp(kinds.centre)
        total = self.shape * self.mean + (size * middle)[kind]
        drawn = total / rng.standard_gamma(self.shape + size[kind])
        return np.where(kinds.equal[kind], middle[kind], drawn)

    def member(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        size, middle = 1 / kinds.spread**2, np.exp(kinds.centre)
        drawn = (size * middle)[kind] / rng.standard_gamma(size[kind])
        return np.where(kinds.equal[kind], middle[kind], drawn)


@dataclass(frozen=True)
class Normals:
    """Means (n,) with normal errors (n,) of known size.

    A kind's true means have a normal distribution. Places are means over ``unit``, a size that
    makes differences between clients comparable to those of shares.
    """

    mean: Floats
    known: Floats

    @property
    def unit(self) -> float:
        reach = float(np.ptp(self.mean)) + 2 * float(self.known.max())
        return reach if reach > 0 else 1.0

    @property
    def place(self) -> Floats:
        return self.mean / self.unit

    @property
    def error(self) -> Floats:
        return self.known / self.unit

    @property
    def widest(self) -> float:
        return 0.5

    @property
    def alike(self) -> Ints:
        return np.arange(len(self.mean))

    def fit(self, first: Ints, centre: Floats, width: Floats) -> Floats:
        variance = self.error[first, None] ** 2 + width**2
        return np.asarray(
            -((self.place[first, None] - centre) ** 2) / (2 * variance) - np.log(variance) / 2
        )

    def truth(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        centre, variance = kinds.centre[kind], kinds.width[kind] ** 2
        share = variance / (variance + self.error**2)
        middle = centre + share * (self.place - centre)
        drawn = middle + np.sqrt(share) * self.error * rng.standard_normal(np.shape(middle))
        return np.asarray(drawn * self.unit)

    def member(self, kinds: Kinds, kind: Ints, rng: np.random.Generator) -> Floats:
        drawn = kinds.centre[kind] + kinds.width[kind] * rng.standard_normal(np.shape(kind))
        return np.asarray(drawn * self.unit)


def _share(place: Floats) -> Floats:
    """The share at a place; past the ends, the nearest that is possible."""
    return np.asarray(np.clip(np.sin(np.clip(place, 0, np.pi / 2)) ** 2, 1e-4, 1 - 1e-4))


def _beta(mean: Floats, width: Floats) -> tuple[Floats, Floats]:
    size = 0.25 / width**2 - 1
    return mean * size, (1 - mean) * size


def _log_gamma(counts: Ints | Floats, more: Floats) -> Floats:
    """(u, G) log gamma of counts (u,) plus numbers (G,); many clients have the same count."""
    from scipy.special import gammaln

    once, where = np.unique(counts, return_inverse=True)
    return np.asarray(gammaln(once[:, None] + more)[where])
