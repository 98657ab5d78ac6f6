"""Rates of groups, and the gaps between groups, from counts of labels and predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_choice, require_number, require_whole
from evenhand.metrics.largest_gap import Largest, largest_gaps
from evenhand.metrics.uncertainty import OVER, Interval, score_interval, wilson

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RATES = (
    "accuracy",
    "selection rate",
    "true-positive rate",
    "false-positive rate",
    "precision",
    "false-negative rate",
    "false-discovery rate",
    "false-omission rate",
    "base rate",
)
# the rates that must be equal over groups
PARITIES: Mapping[str, tuple[str, ...]] = {
    "demographic parity": ("selection rate",),
    "equal opportunity": ("true-positive rate",),
    "false-positive parity": ("false-positive rate",),
    "equalised odds": ("true-positive rate", "false-positive rate"),
    "predictive parity": ("precision",),
    "accuracy parity": ("accuracy",),
}


class Rate(NamedTuple):
    """A rate of one group: ``hits`` of ``of`` samples, with Wilson's interval."""

    name: str
    group: str
    hits: float  # whole, except for means over seeds
    of: float
    interval: Interval


class Gap(NamedTuple):
    """The largest difference between two groups in a rate."""

    kind: str
    rate: str  # for equalised odds, the one with the larger gap
    label: str  # the positive label of the rate; "" for accuracy
    low: str  # group with the smallest rate
    high: str  # group with the largest rate
    interval: Interval
    p: float  # of no gap
    left_out: tuple[str, ...] = ()  # groups with too few samples for the rate


def fractions(table: ArrayLike, label: int, name: str) -> tuple[Ints, Ints]:
    """(...) hits and samples of a rate of ``label``, from counts (..., C, C + 1)."""
    require_choice("rate", name, RATES)
    given = np.asarray(table)
    everyone = given.sum((-2, -1))
    if name == "accuracy":
        return np.diagonal(given[..., :-1], axis1=-2, axis2=-1).sum(-1), everyone
    there, predicted = given[..., label, :].sum(-1), given[..., label].sum(-1)
    right = given[..., label, label]
    return {
        "selection rate": (predicted, everyone),
        "true-positive rate": (right, there),
        "false-positive rate": (predicted - right, everyone - there),
        "precision": (right, predicted),
        "false-negative rate": (there - right, there),
        "false-discovery rate": (predicted - right, predicted),
        "false-omission rate": (there - right, everyone - predicted),
        "base rate": (there, everyone),
    }[name]


def group_rates(
    table: ArrayLike,
    groups: Sequence[str],
    labels: Sequence[str],
    positive: int,
    level: float = 0.95,
) -> list[Rate]:
    """Every rate of every group, from counts (A, C, C + 1) of label and prediction.

    The last prediction is none. A rate of no samples is NaN.

    >>> found = group_rates([[[8, 2, 0], [1, 4, 0]]], ["f"], ["no", "yes"], positive=1)
    >>> [(rate.name, rate.hits, rate.of) for rate in found][2:4]
    [('true-positive rate', 4, 5), ('false-positive rate', 2, 10)]
    """
    given = _checked(table, groups, labels)
    require_whole("positive", positive, 0)
    require(
        positive < len(labels), "positive must be one of {} labels, got {}", len(labels), positive
    )
    found = []
    for name in RATES:
        hits, of = fractions(given, positive, name)
        low, high = wilson(hits, of, level)
        for place, group in enumerate(groups):
            k, n = hits[place].item(), of[place].item()
            ends = Interval(k / n if n else math.nan, float(low[place]), float(high[place]))
            found.append(Rate(name, group, k, n, ends))
    return found


def group_gaps(
    table: ArrayLike,
    groups: Sequence[str],
    labels: Sequence[str],
    positive: int | None,
    level: float = 0.95,
    least: int = 10,
    over: str = "samples",
    by_client: ArrayLike | None = None,
) -> dict[str, Gap]:
    """The largest gap between groups in each kind of parity; {} with fewer than two groups.

    An interval holds for all pairs of groups at once, and for all labels and rates of its kind, so
    that of equalised odds has the larger ends of its two rates, each at level sqrt(level). A gap is
    NaN if fewer than two groups have enough samples.

    Args:
        table: (A, C, C + 1) counts of label and prediction; the last prediction is none.
        positive: the positive label of the rates; None takes the one that differs most.
        least: groups with fewer samples *for a rate* are excluded from its gap; for the
            true-positive rate, samples with the label count.
        over: "samples" for these clients; "clients" or "both" for clients like these, which needs
            ``by_client`` (n, A, C, C + 1).
    """
    given = _checked(table, groups, labels)
    require_number("level", level, "(0, 1)")
    require_whole("least", least, 0)
    require_choice("over", over, OVER)
    require(over == "samples" or by_client is not None, "over={!r} needs by_client", over)
    clients = None if over == "samples" else np.asarray(by_client)
    codes = range(len(labels)) if positive is None else [positive]
    compared = [
        _Comparison(kind, rate, code, *fractions(given, code, rate))
        for kind, rates in PARITIES.items()
        for rate in rates
        for code in (codes[:1] if rate == "accuracy" else codes)
    ]
    few = np.stack([one.of < max(1, least) for one in compared])  # (m, A)
    found = _largest(compared, few, level, clients)
    gaps = {}
    for kind in PARITIES:
        rows = np.array([place for place, one in enumerate(compared) if one.kind == kind])
        some = [compared[row] for row in rows]
        gaps[kind] = _gap(some, few[rows], found.of(rows), groups, labels)
    return {} if math.isnan(gaps["accuracy parity"].interval.value) else gaps


class _Comparison(NamedTuple):
    """A rate of one label, for every group."""

    kind: str
    rate: str
    code: int  # of the label
    hits: Ints  # (A,)
    of: Ints


def _gap(
    compared: Sequence[_Comparison],
    few: NDArray[np.bool_],
    found: Largest,
    groups: Sequence[str],
    labels: Sequence[str],
) -> Gap:
    """The gap of one kind, from the m comparisons that belong to it."""
    kind, codes = compared[0].kind, np.array([one.code for one in compared])
    there = ~np.isnan(found.value)
    # odds are those of both rates of a label
    usable = np.flatnonzero(~np.isin(codes, codes[~there]))
    if not len(usable):
        left = tuple(groups[place] for place in np.flatnonzero(few.any(0)).tolist())
        none = Interval(math.nan, math.nan, math.nan)
        return Gap(kind, compared[0].rate, "", "", "", none, math.nan, left)
    best = usable[found.value[usable].argmax()]
    rate, code = compared[best].rate, codes[best]
    value, low, high = (float(ends[usable].max()) for ends in (found.value, found.low, found.high))
    return Gap(
        kind,
        rate,
        "" if rate == "accuracy" else labels[code],
        groups[found.least[best]],
        groups[found.most[best]],
        Interval(value, low, high),
        # of the smallest of several
        -math.expm1(len(codes) * math.log1p(-min(float(found.p[usable].min()), 1 - 1e-16))),
        tuple(groups[place] for place in np.flatnonzero(few[codes == code].any(0)).tolist()),
    )


def _largest(
    compared: Sequence[_Comparison], few: NDArray[np.bool_], level: float, clients: Ints | None
) -> Largest:
    """Gaps of m comparisons, each at a level with which those of its kind hold together."""
    kinds = [one.kind for one in compared]
    levels = np.array([level ** (1 / kinds.count(kind)) for kind in kinds])
    hits = np.stack([one.hits for one in compared]).astype(np.float64)
    of = np.where(few, np.nan, np.stack([one.of for one in compared]))
    rate, freedom, correlation = hits / of, math.inf, None
    if clients is not None:
        drawn = [fractions(clients, one.code, one.rate) for one in compared]
        k, n = (np.stack([one[place] for one in drawn], 1) for place in (0, 1))  # (clients, m, A)
        freedom, inflation, correlation = _clustered(k, n, rate, of)
        hits, of = hits / inflation, of / inflation

    def bounds(z: Floats) -> tuple[Floats, Floats]:
        return score_interval(hits, of, z)

    return largest_gaps(rate, bounds, levels, freedom, correlation)


def _clustered(hits: Ints, of: Ints, rate: Floats, total: Floats) -> tuple[float, Floats, Floats]:
    """The effect on rates (m, A) of sampling clients (n, m, A) instead of samples.

    Degrees of freedom, variance inflation (at least 1), and correlations (m, A, A) of groups, which
    share clients.
    """
    n = len(hits)
    if n < 2:
        return math.nan, np.full(rate.shape, np.nan), np.zeros((*rate.shape, rate.shape[1]))
    moves = np.nan_to_num((hits - rate * of) / total)
    covariance = np.einsum("cma,cmb->mab", moves, moves) * n / (n - 1)
    smoothed = (rate * total + 1) / (total + 2)  # a rate of 0 or 1 has a variance, too
    binomial = smoothed * (1 - smoothed) / total
    inflation = np.maximum(1.0, np.diagonal(covariance, axis1=1, axis2=2) / binomial)
    error = np.sqrt(np.nan_to_num(inflation * binomial, nan=1.0))
    return float(n - 1), inflation, covariance / (error[:, :, None] * error[:, None])


def _checked(table: ArrayLike, groups: Sequence[str], labels: Sequence[str]) -> Ints:
    given = np.asarray(table)
    shape = (len(groups), len(labels), len(labels) + 1)
    require(given.shape == shape, "table must be {}, got {}", shape, given.shape)
    return given
