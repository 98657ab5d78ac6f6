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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.kinds import Kinds, Observations

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KINDS = 3
SPARSE = 1.0  # Dirichlet's parameter of the shares of the kinds
EQUAL = 0.3  # prior chance that the clients of a kind are equal
CENTRES, WIDTHS = 40, 25
CHAINS, WARM_UP = 25, 16
SPAN = 100  # of 1000 places on the grid; 50 leave errors that matter, 200 no smaller ones


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
    by_kind, (few, of_few) = np.ascontiguousarray(fit.T), _thin(fit)

    chains = min(CHAINS, draws)
    kinds = _columns(np.broadcast_to(prior, (chains * KINDS, len(prior))), rng).reshape(chains, -1)
    # a start with everyone of one kind
    kinds[:, 0] = _columns(np.broadcast_to(times @ fit + prior, (chains, len(prior))), rng)
    share = np.log(rng.dirichlet(np.ones(KINDS), chains)).T  # (K, chains)
    rows, clients, population = np.arange(chains)[:, None] * KINDS, [], []
    for step in range(WARM_UP + -(-draws // chains)):
        mine = _ends(by_kind[kinds.T] + share[..., None])  # (K - 1, chains, u)
        kind = rows + _between(mine[..., alike], rng)  # (chains, n)
        place = kind * len(first) + alike
        members = np.bincount(place.ravel(), minlength=chains * KINDS * len(first)).reshape(
            -1, len(first)
        )
        kinds = _columns(members.astype(np.float64) @ few @ of_few + prior, rng)
        kinds = kinds.reshape(chains, KINDS)
        weight = rng.standard_gamma(SPARSE + members.sum(1)).reshape(chains, KINDS)
        share = np.log(np.maximum(weight, 1e-300) / weight.sum(1, keepdims=True)).T
        if step < WARM_UP:
            continue
        shift = (rng.random(kinds.shape) - 0.5) * cell[kinds]  # anywhere in a centre's cell
        new = rows + _between(np.repeat(_ends(share)[..., None], size, 2), rng)
        known = Kinds((centre[kinds] + shift).ravel(), width[kinds].ravel())
        clients.append(observed.truth(known, kind, rng))
        population.append(observed.member(known, new, rng))
    return Drawn(np.concatenate(clients)[:draws], np.concatenate(population)[:draws])


def _columns(log_chance: Floats, rng: np.random.Generator) -> Ints:
    """(R,) a place on the grid for each row of (R, G), by its chance: a centre, then a width."""
    rows = np.arange(len(log_chance))
    chance = _chance(log_chance, -1).reshape(len(rows), -1, WIDTHS)
    of_centres = chance.sum(2)
    ends = of_centres.cumsum(1)
    drawn = rng.random(len(rows)) * ends[:, -1]
    centre = np.minimum((ends < drawn[:, None]).sum(1), ends.shape[1] - 1)
    drawn -= ends[rows, centre] - of_centres[rows, centre]
    width = (chance[rows, centre].cumsum(1) < drawn[:, None]).sum(1)
    return np.asarray(centre * WIDTHS + np.minimum(width, WIDTHS - 1))


def _ends(log_chance: Floats) -> Floats:
    """(K - 1, ...) where each of K possibilities but the last ends if all share [0, 1]."""
    sums = _chance(log_chance, 0)
    for place in range(1, len(sums)):  # several times as fast as cumsum on a first axis
        sums[place] += sums[place - 1]
    return np.asarray(sums[:-1] / sums[-1])


def _chance(log_chance: Floats, axis: int) -> Floats:
    """Chances over the largest; exp is slow where its result would be less than a float can be."""
    relative = log_chance - log_chance.max(axis, keepdims=True)
    return np.asarray(np.exp(np.maximum(relative, -700.0, out=relative), out=relative))


def _between(ends: Floats, rng: np.random.Generator) -> Ints:
    """Which of K possibilities, with :func:`_ends` (K - 1, ...)."""
    return np.asarray((ends < rng.random(ends.shape[1:])).sum(0))


def _thin(fit: Floats) -> tuple[Floats, Floats]:
    """Two thin matrices (u, r), (r, G) whose product is ``fit`` but for rounding.

    Kinds that are near each other explain clients alike, so a few sums of columns, with signs drawn
    once and for all, span all columns.
    """
    if len(fit) <= SPAN:
        return np.eye(len(fit)), fit
    signs = np.random.default_rng(SPAN).choice([-1.0, 1.0], fit.shape[1])
    basis = np.linalg.qr((fit * signs).reshape(len(fit), -1, SPAN).sum(1))[0]
    return basis, basis.T @ fit


def _edges(place: Floats, error: Floats, times: Ints) -> Floats:
    """Edges of cells for centres of kinds: narrow where clients are, relative to their errors."""
    from scipy.special import ndtr

    low, high = (place - 4 * error).min(), (place + 4 * error).max()
    some = slice(None, None, max(1, len(place) // 100))
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
