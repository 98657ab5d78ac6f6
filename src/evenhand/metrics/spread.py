"""How a value is spread over clients: plain functions of one value per client, larger being better.

Clients without a value (NaN) are left out; where none is left, everything is NaN. With leading axes, the last one is that of the
clients. Shares of a total (Jain, Gini, entropy, cosine) are for values that are not negative; where all are 0, they are as even as can
be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require_number

Floats = NDArray[np.float64]


def mean(values: ArrayLike) -> Floats:
    """The plain mean: every client counts once."""
    return _over_clients(np.mean, values)


def pooled(values: ArrayLike, counts: ArrayLike) -> Floats:
    """The mean over samples: client i counts for its ``counts[i]`` samples."""
    given = np.asarray(values, np.float64)
    weight = np.where(np.isnan(given), 0.0, np.asarray(counts, np.float64))
    total = weight.sum(-1)
    return np.where(total > 0, (np.nan_to_num(given) * weight).sum(-1) / np.where(total > 0, total, 1.0), np.nan)


def worst(values: ArrayLike, share: float = 0.1) -> Floats:
    """The mean over the floor(share * n) clients with the smallest values, at least one."""
    require_number("share", share, "(0, 1]")
    return _over_clients(lambda row: np.sort(row)[: tenth(len(row), share)].mean(), values)


def best(values: ArrayLike, share: float = 0.1) -> Floats:
    """The mean over the floor(share * n) clients with the largest values, at least one."""
    require_number("share", share, "(0, 1]")
    return _over_clients(lambda row: np.sort(row)[-tenth(len(row), share) :].mean(), values)


def tenth(clients: int, share: float = 0.1) -> int:
    """How many clients a share of them is: rounded down, at least one.

    >>> tenth(9), tenth(10), tenth(23), tenth(1101)
    (1, 1, 2, 110)
    """
    return max(1, math.floor(share * clients + 1e-9))


def smallest(values: ArrayLike) -> Floats:
    return _over_clients(np.min, values)


def largest(values: ArrayLike) -> Floats:
    return _over_clients(np.max, values)


def variance(values: ArrayLike) -> Floats:
    """Of the population: squared differences from the mean, divided by n."""
    return _over_clients(np.var, values)


def std(values: ArrayLike) -> Floats:
    """Standard deviation of the population."""
    return _over_clients(np.std, values)


def variation(values: ArrayLike) -> Floats:
    """Coefficient of variation: standard deviation over mean; 0 where all values are 0."""
    return _over_clients(lambda row: _ratio(row.std(), row.mean(), 0.0), values)


def jain(values: ArrayLike) -> Floats:
    """Jain's index (sum a)^2 / (n sum a^2): 1 where all are equal, 1/n where one has everything."""
    return _over_clients(lambda row: _ratio(row.sum() ** 2, len(row) * (row**2).sum(), 1.0), values)


def cosine(values: ArrayLike) -> Floats:
    """Cosine of the angle between the values and equal ones: the square root of Jain's index."""
    return np.sqrt(jain(values))


def gini(values: ArrayLike) -> Floats:
    """Gini coefficient: the mean difference of two clients over twice the mean; 0 where all are equal, 1 - 1/n at most."""

    def of(row: Floats) -> float:
        ordered, n = np.sort(row), len(row)
        return _ratio(2 * (np.arange(1, n + 1) * ordered).sum(), n * ordered.sum(), (n + 1) / n) - (n + 1) / n

    return _over_clients(of, values)


def entropy(values: ArrayLike) -> Floats:
    """Entropy of the shares a_i / sum a, over its largest value log n: 1 where all are equal, 0 where one has everything."""

    def of(row: Floats) -> float:
        share = row[row > 0] / row.sum() if row.sum() > 0 else np.full(len(row), 1 / len(row))
        return _ratio(-(share * np.log(share)).sum(), math.log(len(row)), 1.0)

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


def _over_clients(function: Callable[[Floats], Any], values: ArrayLike) -> Floats:
    given = np.asarray(values, np.float64)
    rows = given.reshape(math.prod(given.shape[:-1]), given.shape[-1])
    found = np.empty(len(rows))
    for place, row in enumerate(rows):
        kept = row[~np.isnan(row)]
        found[place] = function(kept) if len(kept) else math.nan
    return found.reshape(given.shape[:-1])


def _ratio(above: float, below: float, otherwise: float) -> float:
    return float(above / below) if below else otherwise
