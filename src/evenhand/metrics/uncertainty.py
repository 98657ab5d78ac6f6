"""Intervals and tests: what a number could be with other samples, clients or seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_choice, require_number, require_whole

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OVER = ("samples", "clients", "both")
AT_ONCE = 64 << 20  # bytes of resampled tables held at a time


class Interval(NamedTuple):
    """A value with the ends of its interval; NaN where they are not known."""

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
    """:func:`wilson` with a critical value in place of a level."""
    k, n, z = (np.asarray(given, np.float64) for given in (right, samples, z))
    there = n > 0
    n = np.where(there, n, 1.0)
    middle = (k + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(np.maximum(k * (n - k) / n, 0.0) + z**2 / 4)
    return np.where(there, np.clip(middle - half, 0, 1), np.nan), np.where(
        there, np.clip(middle + half, 0, 1), np.nan
    )


def resampled_sums(table: Ints, over: str, draws: int, seed: int) -> Ints:
    """(draws, ...) sums over clients of tables that might have come instead of ``table`` (n, ...).

    "samples" draws each client's samples anew from its own, "clients" draws clients from those
    there are, "both" does one after the other. Samples that fall into one cell are alike, so counts
    are all that is needed; and what a client that is drawn twice has is one draw of twice as many
    samples.
    """
    require_choice("over", over, OVER)
    require_whole("draws", draws, 1)
    rng, n = np.random.default_rng([seed, 11]), len(table)
    cells = table.reshape(n, -1)
    times = (
        np.ones((draws, n), np.int64)
        if over == "samples"
        else rng.multinomial(n, np.full(n, 1 / n), draws)
    )
    if over == "clients":
        return np.asarray((times @ cells).reshape(draws, *table.shape[1:]))
    sizes, most = cells.sum(1), max(1, int((cells > 0).sum(1).max()))
    # most clients have few cells that are not empty
    kept = np.argsort(cells == 0, axis=1, kind="stable")[:, :most]
    share = np.take_along_axis(cells, kept, 1) / np.maximum(sizes, 1)[:, None]
    share[sizes == 0, 0] = 1.0  # a client without samples draws none, whatever its chances
    found = np.empty((draws, cells.shape[1]), np.int64)
    at_once = max(1, AT_ONCE // (8 * kept.size))
    for start in range(0, draws, at_once):
        # (k, n, most)
        some = rng.multinomial(
            times[start : start + at_once] * sizes, share / share.sum(1, keepdims=True)
        )
        place = np.arange(len(some))[:, None, None] * cells.shape[1] + kept
        summed = np.bincount(
            place.ravel(), weights=some.ravel(), minlength=len(some) * cells.shape[1]
        )
        found[start : start + at_once] = summed.reshape(len(some), -1).round()
    return found.reshape(draws, *table.shape[1:])


def gap_interval(
    rates: Sequence[ArrayLike], resampled_rates: Sequence[ArrayLike], level: float = 0.95
) -> Interval:
    """The largest gap between groups, of one rate or of several, with an interval.

    The interval comes from bands around all differences at once. A gap is never negative, so
    resampled gaps are all above a gap of 0. Differences of two groups have no such end: with c such
    that a share ``level`` of the resampled tables has every difference within c of what it is, the
    gap lies within c, too.

    Args:
        rates: one (A,) for each rate; NaN where a group has none.
        resampled_rates: (draws, A) for each.
    """
    gaps, moves = [], []
    for rate, drawn in zip(rates, resampled_rates, strict=True):
        values = np.asarray(rate, np.float64)
        kept = ~np.isnan(values)
        if kept.sum() >= 2:
            gaps.append(float(np.ptp(values[kept])))
            moves.append(np.ptp(np.asarray(drawn, np.float64)[:, kept] - values[kept], axis=1))
    if not gaps:
        return Interval(np.nan, np.nan, np.nan)
    move = np.max(moves, axis=0)
    move = move[~np.isnan(move)]  # a resampled group may be left without samples of a label
    width = float(np.quantile(move, level)) if len(move) else np.nan
    return Interval(max(gaps), max(0.0, max(gaps) - width), min(1.0, max(gaps) + width))


def over_seeds(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval of a mean over seeds; the ends are NaN with fewer than two."""
    from scipy import stats

    require_number("level", level, "(0, 1)")
    given = np.asarray(values, np.float64)
    if len(given) < 2:
        return Interval(float(given.mean()) if len(given) else np.nan, np.nan, np.nan)
    half = stats.t.ppf((1 + level) / 2, len(given) - 1) * given.std(ddof=1) / np.sqrt(len(given))
    return Interval(float(given.mean()), float(given.mean() - half), float(given.mean() + half))


def paired(
    values: Sequence[float], reference: Sequence[float], level: float = 0.95
) -> tuple[Interval, float]:
    """The mean difference to a reference on the same seeds, Student's interval, and a p-value."""
    from scipy import stats

    require(
        len(values) == len(reference),
        "paired values need one for each seed of both, got {} and {}",
        len(values),
        len(reference),
    )
    differences = np.asarray(values, np.float64) - np.asarray(reference, np.float64)
    interval = over_seeds(list(differences), level)
    if len(differences) < 2:
        return interval, np.nan
    spread = differences.std(ddof=1)
    if spread == 0:
        return interval, 1.0 if interval.value == 0 else 0.0
    t = interval.value / (spread / np.sqrt(len(differences)))
    return interval, float(2 * stats.t.sf(abs(t), len(differences) - 1))


def holm(p: Sequence[float]) -> Floats:
    """Holm's adjusted p-values, which bound the chance of any false rejection.

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


def client_means(
    values: Floats, client: Ints, clients: int, over: str, draws: int, seed: int
) -> Iterator[Floats]:
    """Clients' means of several trials, with samples or clients drawn anew, a few draws at a time.

    All trials see the same drawn samples, so differences between trials are paired.

    Args:
        values: (N, R) one value for each sample in each of R trials.
        client: (N,) whose each sample is, in any order.
        clients: how many there are.
        over: "samples" draws each client's samples anew from its own, "clients" draws clients,
            "both" one after the other.

    Yields:
        (k, n, R), ``draws`` in all; NaN for a client without samples. Of n samples n - 1 are drawn,
        so that the variance of a drawn mean is that of the mean, s^2 / n, and not (n - 1)/n of it.
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
    ordered, sizes = np.asarray(values, np.float64)[order], np.bincount(client, minlength=clients)
    starts, rng = np.cumsum(sizes) - sizes, np.random.default_rng([seed, 12])
    at_once = max(1, AT_ONCE // max(1, 8 * clients * values.shape[1]))
    everyone = np.arange(clients)

    def drawn() -> Floats:
        chosen = everyone if over == "samples" else rng.integers(0, clients, clients)
        held = sizes[chosen]
        taken = held if over == "clients" else np.where(held > 1, held - 1, held)
        ends = np.concatenate([[0], np.cumsum(taken)])
        if over == "clients":
            places = np.arange(ends[-1]) - np.repeat(ends[:-1], taken)
        else:
            places = (rng.random(ends[-1]) * np.repeat(held, taken)).astype(np.int64)
        rows = sparse.csr_matrix(
            (np.ones(ends[-1]), np.repeat(starts[chosen], taken) + places, ends),
            (clients, len(ordered)),
        )
        with np.errstate(invalid="ignore"):
            return np.asarray((rows @ ordered) / np.where(taken > 0, taken, np.nan)[:, None])

    for start in range(0, draws, at_once):
        yield np.stack([drawn() for _ in range(min(at_once, draws - start))])
