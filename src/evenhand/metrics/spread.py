"""The spread of a value over clients: functions of one value per client, larger is better.

Clients without a value (NaN) are skipped; without any values, results are NaN. The last axis is
that of the clients. Jain, Gini, entropy and cosine are for non-negative values; if all values are
0, they count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require_number

Floats = NDArray[np.float64]


def mean(values: ArrayLike) -> Floats:
    """The plain mean: every client counts once."""
    return _over_clients(lambda a: a.mean(-1), values)


def pooled(values: ArrayLike, counts: ArrayLike) -> Floats:
    """The mean over samples: client i counts for its ``counts[i]`` samples."""
    given = np.asarray(values, np.float64)
    weight = np.where(np.isnan(given), 0.0, np.asarray(counts, np.float64))
    total = weight.sum(-1)
    return np.where(
        total > 0, (np.nan_to_num(given) * weight).sum(-1) / np.where(total > 0, total, 1.0), np.nan
    )


def worst(values: ArrayLike, share: float = 0.1) -> Floats:
    """The mean over the floor(share * n) clients with the smallest values, at least one."""
    require_number("share", share, "(0, 1]")
    return _over_clients(lambda a: np.sort(a)[..., : tenth(a.shape[-1], share)].mean(-1), values)


def best(values: ArrayLike, share: float = 0.1) -> Floats:
    """The mean over the floor(share * n) clients with the largest values, at least one."""
    require_number("share", share, "(0, 1]")
    return _over_clients(lambda a: np.sort(a)[..., -tenth(a.shape[-1], share) :].mean(-1), values)


def tenth(clients: int, share: float = 0.1) -> int:
    """The number of clients in a share of them, rounded down, at least one.

    >>> tenth(9), tenth(10), tenth(23), tenth(1101)
    (1, 1, 2, 110)
    """
    return max(1, math.floor(share * clients + 1e-9))


def smallest(values: ArrayLike) -> Floats:
    """The value of the worst client."""
    return _over_clients(lambda a: a.min(-1), values)


def largest(values: ArrayLike) -> Floats:
    """The value of the best client."""
    return _over_clients(lambda a: a.max(-1), values)


def variance(values: ArrayLike) -> Floats:
    """Of the population: squared differences from the mean, divided by n."""
    return _over_clients(lambda a: a.var(-1), values)


def std(values: ArrayLike) -> Floats:
    """Standard deviation of the population."""
    return _over_clients(lambda a: a.std(-1), values)


def variation(values: ArrayLike) -> Floats:
    """Coefficient of variation: standard deviation over mean; 0 if all values are 0."""
    return _over_clients(lambda a: _ratio(a.std(-1), a.mean(-1), 0.0), values)


def jain(values: ArrayLike) -> Floats:
    """Jain's index (sum a)^2 / (n sum a^2): 1 if all are equal, 1/n if one has everything."""
    return _over_clients(
        lambda a: _ratio(a.sum(-1) ** 2, a.shape[-1] * (a**2).sum(-1), 1.0), values
    )


def cosine(values: ArrayLike) -> Floats:
    """Cosine of the angle between the values and equal ones: the square root of Jain's index."""
    return np.sqrt(jain(values))


def gini(values: ArrayLike) -> Floats:
    """Gini coefficient: the mean difference of two clients over twice the mean.

    0 if all are equal, at most 1 - 1/n.
    """

    def of(a: Floats) -> Floats:
        n = a.shape[-1]
        return np.asarray(
            _ratio(2 * (np.arange(1, n + 1) * np.sort(a)).sum(-1), n * a.sum(-1), (n + 1) / n)
            - (n + 1) / n
        )

    return _over_clients(of, values)


def entropy(values: ArrayLike) -> Floats:
    """Entropy of the shares a_i / sum a, over its largest value log n.

    1 if all are equal, 0 if one has everything.
    """

    def of(a: Floats) -> Floats:
        n = a.shape[-1]
        share = _ratio(a, a.sum(-1, keepdims=True), 1 / n)
        surprise = -np.log(np.where(share > 0, share, 1.0))
        return (
            np.asarray((share * surprise).sum(-1) / math.log(n)) if n > 1 else np.ones(a.shape[:-1])
        )

    return _over_clients(of, values)


def percentiles(values: ArrayLike, at: ArrayLike = (0, 5, 10, 25, 50, 75, 90, 95, 100)) -> Floats:
    """Values at these percentiles over clients, with straight lines between ranks."""
    given = np.asarray(values, np.float64)
    kept = given[~np.isnan(given)]
    return np.percentile(kept, np.asarray(at)) if len(kept) else np.full(np.shape(at), math.nan)


SPREAD: dict[str, Callable[[ArrayLike], Floats]] = {
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


def _over_clients(function: Callable[[Floats], Floats], values: ArrayLike) -> Floats:
    """Apply a function of (rows, clients) to rows without NaN, rows with the same gaps at once."""
    given = np.asarray(values, np.float64)
    rows = given.reshape(math.prod(given.shape[:-1]), given.shape[-1])
    there = ~np.isnan(rows)
    found = np.full(len(rows), np.nan)
    if there.size and there.all():
        found = function(rows)
    else:
        patterns, which = np.unique(there, axis=0, return_inverse=True)
        for place, kept in enumerate(patterns):
            alike = which.reshape(-1) == place
            if kept.any():
                found[alike] = function(rows[alike][:, kept])
    return np.asarray(found, np.float64).reshape(given.shape[:-1])


def _ratio(above: Floats, below: Floats, otherwise: float) -> Floats:
    return np.where(below != 0, above / np.where(below != 0, below, 1.0), otherwise)
