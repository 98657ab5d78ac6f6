"""Intervals and tests: how far a number could be from what it would be with other samples, other clients or other seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_choice, require_number, require_whole
from evenhand.metrics.counts import Counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OVER = ("samples", "clients", "both")
AT_ONCE = 64 << 20  # bytes of resampled tables held at a time


class Interval(NamedTuple):
    """A value with the ends of its interval; NaN where they cannot be told."""

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
    k, n = np.asarray(right, np.float64), np.asarray(samples, np.float64)
    z = NormalDist().inv_cdf((1 + level) / 2)
    there = n > 0
    n = np.where(there, n, 1.0)
    middle = (k + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(k * (n - k) / n + z**2 / 4)
    return np.where(there, np.clip(middle - half, 0, 1), np.nan), np.where(there, np.clip(middle + half, 0, 1), np.nan)


def resampled(table: Ints, over: str, draws: int, rng: np.random.Generator) -> Ints:
    """(draws, n, A, C, P) tables that might have come instead of ``table`` (n, A, C, P).

    "samples" draws each client's samples anew from its own, "clients" draws clients from those there are, "both" does one after
    the other. Samples that fall into one cell are alike, so counts are all that is needed.
    """
    require_choice("over", over, OVER)
    require_whole("draws", draws, 1)
    n = len(table)
    cells = table.reshape(n, -1)
    chosen = np.broadcast_to(cells, (draws, *cells.shape)) if over == "samples" else cells[rng.integers(0, n, (draws, n))]
    if over != "clients":
        sizes = chosen.sum(-1)
        share = chosen / np.maximum(sizes, 1)[..., None]
        share[..., -1] += sizes == 0  # a client without samples draws none, whatever its chances
        chosen = rng.multinomial(sizes, share / share.sum(-1, keepdims=True))
    return np.ascontiguousarray(chosen).reshape(draws, *table.shape)


def resamples(counts: Counts, over: str, draws: int, seed: int) -> Iterator[Ints]:
    """Resampled tables (k, n, A, C, C + 1), a few at a time, ``draws`` in all; see :func:`resampled`."""
    require_whole("draws", draws, 1)
    rng, at_once = np.random.default_rng([seed, 11]), max(1, AT_ONCE // counts.table.nbytes)
    for start in range(0, draws, at_once):
        yield resampled(counts.table, over, min(at_once, draws - start), rng)


def intervals(
    counts: Counts,
    statistics: Mapping[str, Callable[[Ints], ArrayLike]],
    over: str = "samples",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Basic bootstrap intervals of statistics of a table (..., n, A, C, C + 1) under resampling.

    Each statistic gives one number for every table of the leading axis. What resampling adds to a statistic is taken for what sampling
    added to it, with the opposite sign: the worst client of a small test set looks worse than it is, and so does the worst of a
    resampled one; the interval makes up for that.
    """
    require_number("level", level, "(0, 1)")
    found: dict[str, list[Floats]] = {name: [] for name in statistics}
    for tables in resamples(counts, over, draws, seed):
        for name, statistic in statistics.items():
            values = np.asarray(statistic(tables), np.float64)
            require(values.shape == (len(tables),), "{} must give one number for each table, got shape {}", name, values.shape)
            found[name].append(values)
    return {name: _basic(np.concatenate(found[name]), float(np.asarray(f(counts.table[None]))[0]), level) for name, f in statistics.items()}


def _basic(values: Floats, value: float, level: float) -> Interval:
    kept = values[~np.isnan(values)]
    if not len(kept):
        return Interval(value, np.nan, np.nan)
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(2 * value - high), float(2 * value - low))


def gap_interval(rates: Sequence[ArrayLike], resampled_rates: Sequence[ArrayLike], level: float = 0.95) -> Interval:
    """The largest gap between groups, of one rate or of several, with an interval from bands around all differences at once.

    A gap is never negative, so resampled gaps are all above a gap of 0. Differences of two groups have no such end: with c such that a
    share ``level`` of the resampled tables has every difference within c of what it is, the gap lies within c, too.

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
    return Interval(max(gaps), max(0.0, max(gaps) - width), max(gaps) + width)


def over_seeds(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval of a mean over seeds; the ends are NaN with fewer than two."""
    from scipy import stats

    require_number("level", level, "(0, 1)")
    given = np.asarray(values, np.float64)
    if len(given) < 2:
        return Interval(float(given.mean()) if len(given) else np.nan, np.nan, np.nan)
    half = stats.t.ppf((1 + level) / 2, len(given) - 1) * given.std(ddof=1) / np.sqrt(len(given))
    return Interval(float(given.mean()), float(given.mean() - half), float(given.mean() + half))


def paired(values: Sequence[float], reference: Sequence[float], level: float = 0.95) -> tuple[Interval, float]:
    """The mean difference to a reference on the same seeds with Student's interval, and the p-value of no difference."""
    from scipy import stats

    require(len(values) == len(reference), "paired values need one for each seed of both, got {} and {}", len(values), len(reference))
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
    """Holm's adjusted p-values: reject those below the level, and the chance of any false rejection stays below it.

    >>> [round(float(value), 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, np.float64)
    there = np.flatnonzero(~np.isnan(given))
    order = there[np.argsort(given[there], kind="stable")]
    adjusted = np.full(len(given), np.nan)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)))
    return adjusted
