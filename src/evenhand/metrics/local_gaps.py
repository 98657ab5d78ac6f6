"""Gaps between groups within clients, next to which the gap over all clients can be seen.

The two can differ in both directions (Simpson's paradox): a model that treats the groups of every
client alike has a gap over all clients if the groups are spread unevenly over clients that it
serves differently, and gaps within clients cancel over all clients if they point in different
directions.

A rate of few samples is noisy, and a largest difference is then too large, not too small. So the
interval of the mean over K clients is no symmetric one around the observed mean:

* Upper end: the clients' errors are independent, so the distances to their own upper ends add up
  as squares (Zou, 2007): mean + sqrt(sum_i (u_i - g_i)^2) / K. It errs on the wide side.
* Lower end: the larger of two bounds, each with half of the error. One is the mean of lower ends
  that hold for all clients at once. The other is the lower end of the mean *signed* difference
  between two groups, which has no bias and is never above the mean of the largest differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_number, require_whole
from evenhand.metrics.group_rates import PARITIES, fractions
from evenhand.metrics.largest_gap import Largest, critical, largest_gaps
from evenhand.metrics.uncertainty import Interval, score_interval

Floats = NDArray[np.float64]
# by rate: (n, A) hits and samples of every client and group
Cells = Mapping[str, tuple[Floats, Floats]]
UNKNOWN = Interval(math.nan, math.nan, math.nan)


class ClientGap(NamedTuple):
    """The largest difference between two groups of one client."""

    client: str
    rate: str  # for equalised odds, the one with the larger gap
    low: str  # group with the smallest rate
    high: str  # group with the largest rate
    interval: Interval  # the intervals of all clients hold at once


class LocalGaps(NamedTuple):
    """Gaps of one kind within clients. The intervals are over test samples."""

    kind: str
    mean: Interval  # over clients; NaN if all are left out
    largest: Interval
    clients: tuple[ClientGap, ...]  # largest first
    left_out: tuple[str, ...]  # clients without two groups that have enough samples

    @property
    def clear(self) -> tuple[ClientGap, ...]:
        """Clients with a significant gap, largest first."""
        return tuple(one for one in self.clients if one.interval.low > 0)


def cells(table: ArrayLike, positive: int | None) -> dict[str, tuple[Floats, Floats]]:
    """Hits and samples (n, A) of every rate of the ``positive`` label, from counts
    (n, A, C, C + 1); only accuracy without a positive label."""
    names = {name for rates in PARITIES.values() for name in rates}
    found = {}
    for name in ("accuracy",) if positive is None else sorted(names):
        hits, of = fractions(table, positive or 0, name)
        found[name] = (np.asarray(hits, np.float64), np.asarray(of, np.float64))
    return found


def local_gaps(
    found: Cells,
    clients: Sequence[str],
    groups: Sequence[str],
    level: float = 0.95,
    least: int = 10,
) -> dict[str, LocalGaps]:
    """The largest gap between groups within every client, by kind of parity; {} with fewer than two
    clients or groups.

    Two clients serve both groups alike, one of them well and one badly:

    >>> right = np.array([[90.0, 18.0], [6.0, 30.0]])
    >>> samples = np.array([[100.0, 20.0], [20.0, 100.0]])
    >>> found = local_gaps({"accuracy": (right, samples)}, ["a", "b"], ["f", "m"])
    >>> round(found["accuracy parity"].mean.value, 3)  # over all, 80 % of f and 40 % of m are right
    0.0

    Args:
        found: see :func:`cells`.
        least: a group with fewer samples *for a rate* at a client is excluded there; a client
            without two other groups is left out.
    """
    require_number("level", level, "(0, 1)")
    require_whole("least", least, 0)
    shape = (len(clients), len(groups))
    for name, (hits, of) in found.items():
        same = hits.shape == of.shape == shape
        require(same, "{} must be {} for clients and groups, got {}", name, shape, hits.shape)
    if min(shape) < 2:
        return {}
    return {
        kind: _of_kind(kind, {name: found[name] for name in names}, clients, groups, level, least)
        for kind, names in PARITIES.items()
        if all(name in found for name in names)
    }


def _of_kind(
    kind: str, found: Cells, clients: Sequence[str], groups: Sequence[str], level: float, least: int
) -> LocalGaps:
    hits, of = (np.stack([cell[place] for cell in found.values()]) for place in (0, 1))  # (R, n, A)
    of = np.where(of < max(1, least), np.nan, of)
    # odds are those of both rates
    enough = (np.isfinite(of).sum(-1) >= 2).all(0)  # (n,)
    kept = np.flatnonzero(enough)
    out = tuple(name for name, there in zip(clients, enough, strict=True) if not there)
    if not len(kept):
        return LocalGaps(kind, UNKNOWN, UNKNOWN, (), out)
    hits, of, rates = hits[:, kept], of[:, kept], len(found)
    each = level ** (1 / len(kept))  # so that all clients hold together
    together = [_largest(k, n, each ** (1 / rates)) for k, n in zip(hits, of, strict=True)]
    value, low, high = (
        np.max([getattr(one, end) for one in together], 0) for end in ("value", "low", "high")
    )
    best = np.argmax([one.value for one in together], 0)  # (K,) the rate with the larger gap
    gaps = [
        ClientGap(
            clients[client],
            list(found)[best[i]],
            groups[together[best[i]].least[i]],
            groups[together[best[i]].most[i]],
            Interval(float(value[i]), float(low[i]), float(high[i])),
        )
        for i, client in enumerate(kept.tolist())
    ]
    gaps.sort(key=lambda one: -one.interval.value)
    largest = Interval(float(value.max()), float(low.max()), float(high.max()))
    return LocalGaps(kind, _mean(value, hits, of, level), largest, tuple(gaps), out)


def _mean(value: Floats, hits: Floats, of: Floats, level: float) -> Interval:
    """The mean of gaps (K,) over clients, from hits and samples (R, K, A) of R rates."""
    rates, count = len(hits), len(value)
    alone = [_largest(k, n, level ** (1 / rates)) for k, n in zip(hits, of, strict=True)]
    upper = np.max([one.high for one in alone], 0)
    high = value.mean() + math.sqrt(((upper - value) ** 2).sum()) / count
    half = (1 + level) / 2  # for one of the two lower bounds
    each = half ** (1 / (count * rates))
    lowest = np.max([_largest(k, n, each).low for k, n in zip(hits, of, strict=True)], 0)
    signed = max(_signed(k, n, half ** (1 / rates)) for k, n in zip(hits, of, strict=True))
    low = max(float(lowest.mean()), signed, 0.0)
    return Interval(float(value.mean()), low, float(min(high, 1.0)))


def _largest(hits: Floats, of: Floats, level: float) -> Largest:
    """The gap of each client in one rate, from hits and samples (K, A)."""
    return largest_gaps(hits / of, lambda z: score_interval(hits, of, z), level, test=False)


def _signed(hits: Floats, of: Floats, level: float) -> float:
    """The largest lower end of the mean signed difference between two groups; a client without one
    of them adds 0."""
    rate, there = hits / of, ~np.isnan(of)
    z = critical(int(there.any(0).sum()), level)
    low, high = score_interval(hits, of, z)
    pair = there[:, :, None] & there[:, None]
    apart = np.where(pair, rate[:, :, None] - rate[:, None], 0.0).sum(0)
    squares = (rate - low)[:, :, None] ** 2 + (high - rate)[:, None] ** 2
    # the distances to Wilson's ends are too short in a sum over many clients with few samples
    variance = rate * (1 - rate) / np.maximum(of - 1, 1.0)
    plain = z**2 * (variance[:, :, None] + variance[:, None])
    half = np.sqrt(np.maximum(*(np.where(pair, one, 0.0).sum(0) for one in (squares, plain))))
    return float((apart - half).max()) / len(hits)
