"""The spread of a value over clients: functions of one value per client, larger is better.

Clients without a value (NaN) are skipped; without any values, results are NaN. The last axis is
that of the clients. Jain, Gini, entropy and cosine are for non-negative values; if all values are
0, they count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require_number

Floats = NDArray[np.float64]


class Rows:
    """Values (rows, clients) without NaN, and what several measures need, computed once."""

    def __init__(self, values: Floats) -> None:
        self.values, self.clients = values, values.shape[-1]

    @cached_property
    def ordered(self) -> Floats:
        return np.sort(self.values)

    @cached_property
    def sum(self) -> Floats:
        return np.asarray(self.values.sum(-1))

    @cached_property
    def mean(self) -> Floats:
        return np.asarray(self.values.mean(-1))

    @cached_property
    def variance(self) -> Floats:
        return np.asarray(self.values.var(-1))

    @cached_property
    def jain(self) -> Floats:
        return _ratio(self.sum**2, self.clients * (self.values**2).sum(-1), 1.0)


def mean(values: ArrayLike | Together) -> Floats:
    """The plain mean: every client counts once."""
    return _over_clients(lambda a: a.mean, values)


def pooled(values: ArrayLike, counts: ArrayLike) -> Floats:
    """The mean over samples: client i counts for its ``counts[i]`` samples."""
    given = np.asarray(values, np.float64)
    weight = np.where(np.isnan(given), 0.0, np.asarray(counts, np.float64))
    total = weight.sum(-1)
    return np.where(
        total > 0, (np.nan_to_num(given) * weight).sum(-1) / np.where(total > 0, total, 1.0), np.nan
    )


def worst(values: ArrayLike | Together, share: float = 0.1) -> Floats:
    """The mean over the floor(share * n) clients with the smallest values, at least one."""
    require_number("share", share, "(0, 1]")
    return _over_clients(lambda a: a.ordered[..., : tenth(a.clients, share)].mean(-1), values)


def best(values: ArrayLike | Together, share: float = 0.1) -> Floats:
    """The mean over the floor(share * n) clients with the largest values, at least one."""
    require_number("share", share, "(0, 1]")
    return _over_clients(lambda a: a.ordered[..., -tenth(a.clients, share) :].mean(-1), values)


def tenth(clients: int, share: float = 0.1) -> int:
    """The number of clients in a share of them, rounded down, at least one.

    >>> tenth(9), tenth(10), tenth(23), tenth(1101)
    (1, 1, 2, 110)
    """
    return max(1, math.floor(share * clients + 1e-9))


def smallest(values: ArrayLike | Together) -> Floats:
    """The value of the worst client."""
    return _over_clients(lambda a: a.values.min(-1), values)


def largest(values: ArrayLike | Together) -> Floats:
    """The value of the best client."""
    return _over_clients(lambda a: a.values.max(-1), values)


def variance(values: ArrayLike | Together) -> Floats:
    """Of the population: squared differences from the mean, divided by n."""
    return _over_clients(lambda a: a.variance, values)


def std(values: ArrayLike | Together) -> Floats:
    """Standard deviation of the population."""
    return _over_clients(lambda a: np.sqrt(a.variance), values)


def variation(values: ArrayLike | Together) -> Floats:
    """Coefficient of variation: standard deviation over mean; 0 if all values are 0."""
    return _over_clients(lambda a: _ratio(np.sqrt(a.variance), a.mean, 0.0), values)


def jain(values: ArrayLike | Together) -> Floats:
    """Jain's index (sum a)^2 / (n sum a^2): 1 if all are equal, 1/n if one has everything."""
    return _over_clients(lambda a: a.jain, values)


def cosine(values: ArrayLike | Together) -> Floats:
    """Cosine of the angle between the values and equal ones: the square root of Jain's index."""
    return _over_clients(lambda a: np.sqrt(a.jain), values)


def gini(values: ArrayLike | Together) -> Floats:
    """Gini coefficient: the mean difference of two clients over twice the mean.

    0 if all are equal, at most 1 - 1/n.
    """

    def of(a: Rows) -> Floats:
        n = a.clients
        ranked = np.einsum("rn,n->r", a.ordered, np.arange(1.0, n + 1))
        return np.asarray(_ratio(2 * ranked, n * a.sum, (n + 1) / n) - (n + 1) / n)

    return _over_clients(of, values)


def entropy(values: ArrayLike | Together) -> Floats:
    """Entropy of the shares a_i / sum a, over its largest value log n.

    1 if all are equal, 0 if one has everything.
    """

    def of(a: Rows) -> Floats:
        n = a.clients
        share = _ratio(a.values, a.sum[..., None], 1 / n)
        surprise = -np.log(np.where(share > 0, share, 1.0))
        if n == 1:
            return np.ones(len(a.values))
        return np.asarray((share * surprise).sum(-1) / math.log(n))

    return _over_clients(of, values)


def percentiles(values: ArrayLike, at: ArrayLike = (0, 5, 10, 25, 50, 75, 90, 95, 100)) -> Floats:
    """Values at these percentiles over clients, with straight lines between ranks."""
    given = np.asarray(values, np.float64)
    kept = given[~np.isnan(given)]
    return np.percentile(kept, np.asarray(at)) if len(kept) else np.full(np.shape(at), math.nan)


SPREAD: dict[str, Callable[[ArrayLike | Together], Floats]] = {
    "mean": mean,
    "worst10": worst,
    "best10": best,
    "min": smallest,
    "max": largest,
    "variance": variance,
    "std": std,
    "variation": variation,
    "jain": jain,
    "gini": gini,
    "entropy": entropy,
    "cosine": cosine,
}


class Together:
    """The same values for several of these functions, which share what they compute."""

    def __init__(self, values: ArrayLike) -> None:
        given = np.asarray(values, np.float64)
        self.shape = given.shape[:-1]
        rows = given.reshape(math.prod(self.shape), given.shape[-1])
        there = ~np.isnan(rows)
        self.parts: list[tuple[Any, Rows]] = []  # rows with the same gaps, and their values
        if there.size and there.all():
            self.parts.append((slice(None), Rows(rows)))
            return
        patterns, which = np.unique(there, axis=0, return_inverse=True)
        for place, kept in enumerate(patterns):
            alike = which.reshape(-1) == place
            if kept.any():
                self.parts.append((alike, Rows(rows[alike][:, kept])))


def together_and_sizes(values: Floats) -> tuple[Together, Together]:
    """The values, and their absolute ones, which are the same if none is negative."""
    given = Together(values)
    return given, Together(np.abs(values)) if bool((values < 0).any()) else given


def _over_clients(function: Callable[[Rows], Floats], values: ArrayLike | Together) -> Floats:
    """Apply a function to the rows without their NaN."""
    given = values if isinstance(values, Together) else Together(values)
    found = np.full(math.prod(given.shape), np.nan)
    for rows, part in given.parts:
        found[rows] = function(part)
    return found.reshape(given.shape)


def _ratio(above: Floats, below: Floats, otherwise: float) -> Floats:
    return np.where(below != 0, above / np.where(below != 0, below, 1.0), otherwise)
