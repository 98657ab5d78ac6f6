"""The posterior distribution of the clients' true values, given a test set of each.

What is observed of many clients is more spread than the truth: the client that looks worst is
partly unlucky. All clients together show how much of it is luck. The true values are taken to come
from up to three kinds of clients, each kind with a centre and a width of its own (one kind may have
no width at all: its clients are equal); which kinds there are, how wide, and which client is of
which kind is drawn again and again in proportion to how well it explains what was observed, and
then each client's true value given its kind and its own samples. This is a mixture model with a
Gibbs sampler (Diebolt and Robert, 1994), on a grid of centres and widths. With many samples a
client's truth is near what was observed, with few it leans on clients like it. Whether a client is
large says nothing about its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KINDS = 3
SPARSE = 1.0  # Dirichlet's parameter of the shares of the kinds
EQUAL = 0.3  # prior chance that the clients of a kind are equal
CENTRES, WIDTHS = 40, 25
CHAINS, WARM_UP = 25, 16


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

    def truth(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
        """(..., n) true values given each client's kind (..., n)."""

    def member(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
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
        right, wrong = self.right[first, None], (self.samples - self.right)[first, None]
        mean, equal = _share(centre), width == 0
        a, b = _beta(mean, np.where(equal, 0.1, width))
        spread = _log_beta(right + a, wrong + b) - _log_beta(a, b)
        return np.where(equal, right * np.log(mean) + wrong * np.log1p(-mean), spread)

    def truth(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
        a, b = _beta(_share(centre), np.where(width == 0, 0.1, width))
        return np.where(
            width == 0, _share(centre), rng.beta(self.right + a, self.samples - self.right + b)
        )

    def member(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
        a, b = _beta(_share(centre), np.where(width == 0, 0.1, width))
        return np.where(width == 0, _share(centre), rng.beta(a, b))


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
        size = 1 / np.where(width == 0, 0.1, width) ** 2
        spread = size * (np.log(size) + centre) - (shape + size) * np.log(
            shape * mean + size * np.exp(centre)
        )
        return np.where(
            width == 0,
            -shape * (centre + mean * np.exp(-centre)),
            spread + gammaln(shape + size) - gammaln(size),
        )

    def truth(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
        size = 1 / np.where(width == 0, 0.1, width) ** 2
        drawn = (self.shape * self.mean + size * np.exp(centre)) / rng.standard_gamma(
            self.shape + size
        )
        return np.where(width == 0, np.exp(centre), drawn)

    def member(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
        size = 1 / np.where(width == 0, 0.1, width) ** 2
        return np.where(
            width == 0, np.exp(centre), size * np.exp(centre) / rng.standard_gamma(size)
        )


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

    def truth(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
        share = width**2 / (width**2 + self.error**2)
        middle = centre + share * (self.place - centre)
        drawn = middle + np.sqrt(share) * self.error * rng.standard_normal(np.shape(middle))
        return np.asarray(drawn * self.unit)

    def member(self, centre: Floats, width: Floats, rng: np.random.Generator) -> Floats:
        drawn = centre + width * rng.standard_normal(np.shape(centre))
        return np.asarray(drawn * self.unit)


class Drawn(NamedTuple):
    """What may be true."""

    clients: Floats  # (draws, n) true values of the clients at hand
    population: Floats  # (draws, size) of as many new clients from where these came from


def posterior(observed: Observations, draws: int, rng: np.random.Generator, size: int = 0) -> Drawn:
    """Draw true values of the clients, and of ``size`` new clients like them."""
    alike = observed.alike
    first, times = np.unique(alike, return_index=True)[1], np.bincount(alike)
    edges = _edges(observed.place[first], observed.error[first], times)
    middles, cells = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    # the smallest spread between clients that these samples could show
    finest = float((2 / (1 / observed.error**4).sum()) ** 0.25)
    steps = np.concatenate(
        [
            [0.0],
            np.geomspace(min(0.25 * finest, 0.5 * observed.widest), observed.widest, WIDTHS - 1),
        ]
    )
    widths = np.concatenate([[0.0], (steps[1:] + steps[:-1]) / 2])
    chance = np.concatenate([[EQUAL], (1 - EQUAL) * np.diff(steps) / steps[-1]])
    centre, width = np.repeat(middles, WIDTHS), np.tile(widths, CENTRES)
    cell = np.repeat(cells, WIDTHS)
    prior = (np.log(cells / cells.sum())[:, None] + np.log(chance)).ravel()  # (G,)
    fit = observed.fit(first, centre, width)  # (u, G)
    fit -= fit.max(1, keepdims=True)

    def one_of(log_chance: Floats, alike: Any = ...) -> Ints:
        """A column for each row, by its chance; ``alike``: the rows of these, some the same."""
        cumulated = np.cumsum(np.exp(log_chance - log_chance.max(-1, keepdims=True)), -1)[alike]
        return np.asarray(
            (cumulated < rng.random(cumulated.shape[:-1])[..., None] * cumulated[..., -1:]).sum(-1)
        )

    chains = min(CHAINS, draws)
    kinds = one_of(np.broadcast_to(prior, (chains, KINDS, len(prior))))
    # a start with everyone of one kind
    kinds[:, 0] = one_of(np.broadcast_to(times @ fit + prior, (chains, len(prior))))
    share = np.log(rng.dirichlet(np.ones(KINDS), chains))  # (chains, K)
    rows, clients, population = np.arange(chains)[:, None], [], []
    for step in range(WARM_UP + -(-draws // chains)):
        mine = fit[:, kinds].transpose(1, 0, 2) + share[:, None]  # (chains, u, K)
        kind = one_of(mine, np.s_[:, alike])  # (chains, n)
        place = (rows * KINDS + kind) * len(first) + alike
        members = np.bincount(place.ravel(), minlength=chains * KINDS * len(first)).reshape(
            -1, len(first)
        )
        kinds = one_of(members.astype(np.float64) @ fit + prior).reshape(chains, KINDS)
        weight = rng.standard_gamma(SPARSE + members.sum(1)).reshape(chains, KINDS)
        share = np.log(np.maximum(weight, 1e-300) / weight.sum(1, keepdims=True))
        if step < WARM_UP:
            continue
        shift = (rng.random(kinds.shape) - 0.5) * cell[kinds]  # anywhere in a centre's cell
        new = one_of(np.broadcast_to(share[:, None], (chains, size, KINDS)))
        clients.append(
            observed.truth((centre[kinds] + shift)[rows, kind], width[kinds][rows, kind], rng)
        )
        population.append(
            observed.member((centre[kinds] + shift)[rows, new], width[kinds][rows, new], rng)
        )
    return Drawn(np.concatenate(clients)[:draws], np.concatenate(population)[:draws])


def _edges(place: Floats, error: Floats, times: Ints) -> Floats:
    """Edges of cells for centres of kinds: narrow where clients are, relative to their errors."""
    from scipy.special import ndtr

    low, high = (place - 4 * error).min(), (place + 4 * error).max()
    some = slice(None, None, max(1, len(place) // 200))
    fine = np.unique(
        np.concatenate(
            [
                np.linspace(low, high, 101),
                (place[some, None] + error[some, None] * np.linspace(-4, 4, 9)).ravel(),
            ]
        )
    )
    crowd = (
        times[some] @ ndtr((fine - place[some, None]) / (2 * error[some, None])) / times[some].sum()
    )
    crowd = 0.8 * (crowd - crowd[0]) / (crowd[-1] - crowd[0]) + 0.2 * (fine - low) / (high - low)
    return np.asarray(np.interp(np.linspace(0, 1, CENTRES + 1), crowd, fine))


def _share(place: Floats) -> Floats:
    """The share at a place; past the ends, the nearest that is possible."""
    return np.asarray(np.clip(np.sin(np.clip(place, 0, np.pi / 2)) ** 2, 1e-4, 1 - 1e-4))


def _beta(mean: Floats, width: Floats) -> tuple[Floats, Floats]:
    size = 0.25 / width**2 - 1
    return mean * size, (1 - mean) * size


def _log_beta(a: Floats, b: Floats) -> Floats:
    from scipy.special import gammaln

    return np.asarray(gammaln(a) + gammaln(b) - gammaln(a + b))
