"""Rates of clients and groups as shares: hits, denominators and effective sample sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.group_rates import PARITIES, RATES, Gap, fractions
from evenhand.metrics.largest_gap import critical, largest_gaps
from evenhand.metrics.pairwise import detectable, difference, difference_p, kish, ratio
from evenhand.metrics.uncertainty import Interval, holm, score_interval, wilson

Floats = NDArray[np.float64]
Row = dict[str, Any]

FOUR_FIFTHS = 0.8
# rates compared pair by pair; the others are 1 minus one of these
COMPARED = tuple(
    name for name in RATES if name not in ("false-negative rate", "false-discovery rate")
)


class Shares(NamedTuple):
    """One rate of every client or group, (A,) each."""

    hits: Floats  # sums of weights, where samples have weights
    of: Floats
    size: Floats  # effective samples (Kish); without weights, ``of``

    @property
    def value(self) -> Floats:
        """NaN without samples."""
        return np.where(self.of > 0, self.hits / np.where(self.of > 0, self.of, 1.0), np.nan)

    @property
    def k(self) -> Floats:
        """Effective hits."""
        # without weights the factor is 1, so that whole numbers stay whole for Fisher's test
        return self.hits * np.where(self.of > 0, self.size / np.where(self.of > 0, self.of, 1), 0.0)

    def intervals(self, level: float) -> list[Interval]:
        """Wilson's interval of each share."""
        ends = wilson(self.k, self.size, level)
        return [Interval(*map(float, found)) for found in zip(self.value, *ends, strict=True)]


def shares_of(sums: Floats, squares: Floats, code: int, rate: str) -> Shares:
    """A rate from sums of weights, and of squared weights, (A, C, C + 1)."""
    hits, of = (np.asarray(part, np.float64) for part in fractions(sums, code, rate))
    return Shares(hits, of, kish(of, fractions(squares, code, rate)[1]))


def gap_of(
    kind: str,
    rates: Mapping[str, Shares],
    groups: Sequence[str],
    label: str,
    level: float,
    least: int,
) -> Gap:
    """The largest gap between groups in one rate, or in the worst of several, with effective sample
    sizes; see :func:`evenhand.metrics.group_rates.group_gaps`."""
    few = np.stack([share.size < max(1, least) for share in rates.values()])
    sizes = np.where(few, np.nan, np.stack([share.size for share in rates.values()]))
    hits, value = (
        np.stack([getattr(share, part) for share in rates.values()]) for part in ("k", "value")
    )
    found = largest_gaps(
        np.where(few, np.nan, value),
        lambda z: score_interval(hits, sizes, z),
        level ** (1 / len(rates)),
    )
    out = tuple(
        group for group, missing in zip(groups, np.atleast_1d(few.any(0)), strict=True) if missing
    )
    if np.isnan(found.value).any():
        none = Interval(math.nan, math.nan, math.nan)
        return Gap(kind, next(iter(rates)), label, "", "", none, math.nan, out)
    best = int(found.value.argmax())
    p = -math.expm1(len(rates) * math.log1p(-min(float(found.p.min()), 1 - 1e-16)))
    return Gap(
        kind,
        list(rates)[best],
        label,
        groups[found.least[best]],
        groups[found.most[best]],
        Interval(*(float(ends.max()) for ends in (found.value, found.low, found.high))),
        p,
        out,
    )


def weighted_gaps(
    rates: Mapping[str, Shares], groups: Sequence[str], label: str, level: float, least: int
) -> dict[str, Gap]:
    """Gaps of every kind from weighted samples."""
    return {
        kind: gap_of(
            kind,
            {name: rates[name] for name in names},
            groups,
            "" if names == ("accuracy",) else label,
            level,
            least,
        )
        for kind, names in PARITIES.items()
        if all(name in rates for name in names)
    }


def pairs_of(
    rate: str,
    shares: Shares,
    groups: Sequence[str],
    level: float,
    least: int,
    reference: int | None = None,
) -> list[Row]:
    """Compare every two groups, the smaller rate first; or every group with the reference.

    Intervals of one rate hold for all of its pairs at once (Tukey's critical value; Bonferroni's
    with a reference). P-values are from Fisher's test (with weights, the score test), with Holm's
    correction over the pairs of the rate.
    """
    value = shares.value
    kept = [place for place, size in enumerate(shares.size) if size >= max(1, least)]
    made = list(_pairs(kept, value, reference))
    together = _together(len(kept), level, reference is not None)
    rows: list[Row] = []
    for one, other in made:
        numbers = (shares.k[one], shares.size[one], shares.k[other], shares.size[other])
        apart, times = difference(*numbers, together), ratio(*numbers, together)
        pooled = float((numbers[0] + numbers[2]) / (numbers[1] + numbers[3]))
        rows.append(
            {
                "rate": rate,
                "group": groups[one],
                "against": groups[other],
                "value": float(value[one]),
                "other": float(value[other]),
                "difference": apart.value,
                "low": apart.low,
                "high": apart.high,
                "ratio": times.value,
                "ratio_low": times.low,
                "ratio_high": times.high,
                "p": difference_p(*map(float, numbers)),
                "detectable": detectable(numbers[1], numbers[3], pooled, together),
            }
        )
    for row, p in zip(rows, holm([row["p"] for row in rows]).tolist(), strict=True):
        row["p_holm"] = p
    return rows


def _pairs(kept: Sequence[int], value: Floats, reference: int | None) -> Iterator[tuple[int, int]]:
    if reference is not None:
        if reference in kept:
            yield from ((place, reference) for place in kept if place != reference)
        return
    for one, other in combinations(kept, 2):
        yield (one, other) if value[one] <= value[other] else (other, one)


def _together(groups: int, level: float, reference: bool) -> float:
    """The level of each pair at which the intervals of all pairs hold at once."""
    if groups < 3:
        return level
    if reference:
        return 1 - (1 - level) / (groups - 1)
    from scipy import stats

    return float(1 - 2 * stats.norm.sf(critical(groups, level)))


def four_fifths(pairs: Sequence[Row], highest: str) -> list[Row]:
    """Ratios of selection rates to that of one group, with the four-fifths rule's verdict."""
    return [
        {
            "group": row["group"],
            "against": row["against"],
            "value": row["value"],
            "other": row["other"],
            "ratio": row["ratio"],
            "low": row["ratio_low"],
            "high": row["ratio_high"],
            "verdict": verdict(Interval(row["ratio"], row["ratio_low"], row["ratio_high"])),
        }
        for row in pairs
        if row["against"] == highest
    ]


def verdict(found: Interval) -> str:
    """The verdict of the four-fifths rule, given the interval of the ratio."""
    if math.isnan(found.value):
        return "no ratio"
    if found.high < FOUR_FIFTHS:
        return "below 0.8"
    if found.low >= FOUR_FIFTHS:
        return "0.8 or more"
    return f"{'below' if found.value < FOUR_FIFTHS else 'above'} 0.8, not certain"
