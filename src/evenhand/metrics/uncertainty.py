"""Intervals and tests over samples, clients and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_choice, require_number, require_whole
from evenhand.metrics.student import beyond, quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OVER = ("samples", "clients", "both")
LEAST_CHANCE = float(np.finfo(np.float64).tiny)  # a p-value is never 0
DRAWS, AT_A_TIME = 1000, 50  # of a number if there is no difference
AT_ONCE = 1 << 24  # bytes of drawn means, of which several copies are made


class Interval(NamedTuple):
    """A value with the ends of its interval; NaN if they are unknown."""

    value: float
    low: float
    high: float


def wilson(right: ArrayLike, samples: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Wilson's score interval of a share, such as the accuracy of one client; NaN without samples.

    >>> low, high = wilson(9, 10)
    >>> print(f"{low:.3f} {high:.3f}")
    0.596 0.982
    """
    require_number("level", level, "(0, 1)")
    return score_interval(right, samples, NormalDist().inv_cdf((1 + level) / 2))


def score_interval(right: ArrayLike, samples: ArrayLike, z: ArrayLike) -> tuple[Floats, Floats]:
    """:func:`wilson` with a critical value instead of a level."""
    k, n, z = (np.asarray(given, np.float64) for given in (right, samples, z))
    there = n > 0
    n = np.where(there, n, 1.0)
    middle = (k + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(np.maximum(k * (n - k) / n, 0.0) + z**2 / 4)
    return np.where(there, np.clip(middle - half, 0, 1), np.nan), np.where(
        there, np.clip(middle + half, 0, 1), np.nan
    )


def over_seeds(values: Sequence[float], level: float = 0.95, floor: float = 0.0) -> Interval:
    """Student's interval of a mean over seeds; the ends are NaN with fewer than two.

    Args:
        floor: the smallest standard error of the mean to assume, for seeds that agree by chance or
            because they share test samples. Without it, the ends are NaN if all seeds agree.
    """
    require_number("level", level, "(0, 1)")
    given = np.asarray(values, np.float64)
    mean = float(given.mean()) if len(given) else np.nan
    error = _error_of_mean(given, floor)
    if np.isnan(error):
        return Interval(mean, np.nan, np.nan)
    half = float(quantile((1 + level) / 2, len(given) - 1)) * error
    return Interval(mean, mean - half, mean + half)


def paired(
    values: Sequence[float],
    reference: Sequence[float],
    level: float = 0.95,
    floor: float = 0.0,
) -> tuple[Interval, float]:
    """The mean difference from a reference on the same seeds, Student's interval, and a p-value.

    See :func:`over_seeds` for ``floor``. Without spread and floor, the p-value is NaN, or 1 for no
    difference.
    """
    require(
        len(values) == len(reference),
        "paired values need one for each seed of both, got {} and {}",
        len(values),
        len(reference),
    )
    differences = np.asarray(values, np.float64) - np.asarray(reference, np.float64)
    interval = over_seeds(list(differences), level, floor)
    error = _error_of_mean(differences, floor)
    if np.isnan(error):
        return interval, 1.0 if len(differences) > 1 and interval.value == 0 else np.nan
    p = 2 * beyond(abs(interval.value) / error, len(differences) - 1)
    return interval, max(float(p), LEAST_CHANCE)


def _error_of_mean(values: Floats, floor: float) -> float:
    """The standard error of a mean, at least ``floor``; NaN if unknown."""
    require_number("floor", floor, "[0, inf)")
    if len(values) < 2:
        return np.nan
    # equal values may differ by rounding, which is no spread
    spread = float(values.std(ddof=1))
    seen = spread if spread > 1e-12 * float(np.abs(values).max()) else 0.0
    return max(seen / np.sqrt(len(values)), floor) or np.nan


def holm(p: Sequence[float]) -> Floats:
    """Holm's adjusted p-values, which bound the probability of any false rejection.

    >>> [round(float(value), 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, np.float64)
    there = np.flatnonzero(~np.isnan(given))
    order = there[np.argsort(given[there], kind="stable")]
    adjusted = np.full(len(given), np.nan)
    adjusted[order] = np.minimum(
        1.0, np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1))
    )
    return adjusted


def reached(seen: float, draw: Callable[[int], Floats], miss: float) -> bool:
    """Whether at least the share ``miss`` of many drawn numbers reach the one that was seen.

    It draws no more than the answer needs. Of N + 1 numbers from one distribution, at most one is
    further above the mean of the others than (N + 1) / sqrt(N) of their standard deviations; which
    one is chance. So if the seen number is that far above N drawn ones, the chance to reach it is
    at most 1 / (N + 1).
    """
    drawn = np.zeros(0)
    while len(drawn) < DRAWS:
        drawn = np.concatenate([drawn, draw(AT_A_TIME)])
        count, hits = len(drawn), int((drawn >= seen).sum())
        if hits / DRAWS >= miss or (hits + DRAWS - count) / DRAWS < miss:
            break
        far = float(drawn.std(ddof=1)) * (count + 1) / math.sqrt(count)
        if 1 / (count + 1) < miss and seen > drawn.mean() + far:
            break
    return hits / DRAWS >= miss


def client_means(
    values: Floats, client: Ints, clients: int, over: str, draws: int, seed: int
) -> Iterator[tuple[Floats, Ints]]:
    """Resampled client means of several trials, a few draws at a time.

    All trials see the same drawn samples, so differences between trials are paired.

    Args:
        values: (N, R) one value for each sample in each of R trials.
        client: (N,) the owner of each sample, in any order.
        clients: how many there are.
        over: "samples" resamples each client's samples, "clients" resamples clients, "both" one
            after the other.

    Yields:
        (k, n, R), ``draws`` in all; NaN for a client without samples. n - 1 of n samples are drawn,
        so that the variance of a drawn mean is s^2 / n, that of the mean, not (n - 1)/n of it. And
        (k, n), how many samples the drawn clients have.
    """
    from scipy import sparse

    require_choice("over", over, OVER)
    require_whole("draws", draws, 1)
    require(
        values.ndim == 2 and client.shape == values.shape[:1],
        "values must be (N, R) and client (N,), got {} and {}",
        *map(np.shape, (values, client)),
    )
    order = np.argsort(client, kind="stable")
    sizes = np.bincount(client, minlength=clients)
    # numbers of right samples are exact in two bytes, and four times as fast to sum
    whole = bool(np.isin(values, (0, 1)).all()) and sizes.max(initial=0) < 2**16
    kind = np.uint16 if whole else np.float64
    ordered = np.asarray(values, kind)[order]
    starts, rng = np.cumsum(sizes) - sizes, np.random.default_rng([seed, 12])
    at_once = max(1, AT_ONCE // max(1, 8 * clients * values.shape[1]))
    everyone = np.arange(clients)

    def drawn() -> tuple[Floats, Ints]:
        chosen = everyone if over == "samples" else rng.integers(0, clients, clients)
        held = sizes[chosen]
        taken = held if over == "clients" else np.where(held > 1, held - 1, held)
        ends = np.concatenate([[0], np.cumsum(taken)])
        if over == "clients":
            places = np.arange(ends[-1]) - np.repeat(ends[:-1], taken)
        else:
            places = (rng.random(ends[-1]) * np.repeat(held, taken)).astype(np.int64)
        rows = sparse.csr_matrix(
            (np.ones(ends[-1], kind), np.repeat(starts[chosen], taken) + places, ends),
            (clients, len(ordered)),
        )
        with np.errstate(invalid="ignore"):
            means = (rows @ ordered) / np.where(taken > 0, taken, np.nan)[:, None]
        return np.asarray(means), held

    for start in range(0, draws, at_once):
        means, held = zip(*(drawn() for _ in range(min(at_once, draws - start))), strict=True)
        yield np.stack(means), np.stack(held)
