"""What thresholds change: rates, gaps and accuracy before (0.5) and after, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.cuts import HALF, Floats, Rule, chances
from evenhand.metrics.group_rates import group_gaps, group_rates
from evenhand.metrics.ledger import Gains
from evenhand.metrics.parity import gap
from evenhand.metrics.uncertainty import Interval

Row = dict[str, Any]

SHOWN = ("accuracy", "selection rate", "true-positive rate", "false-positive rate")
# the notions of thresholds by their names among the parities of group_rates
PARITY = {
    "equalised odds": "equalised odds",
    "equal opportunity": "equal opportunity",
    "demographic parity": "demographic parity",
    "false positive parity": "false-positive parity",
}
BEFORE: Rule = ((1.0, HALF),)


def effect_rows(
    histogram: NDArray[np.generic],
    chance: Floats,
    groups: Sequence[str],
    level: float = 0.95,
) -> list[Row]:
    """Rates of groups and gaps between them, before and after; then the change in accuracy.

    Rates under a randomised rule are exact weighted sums over bins, not draws. Their intervals are
    those of one decision per sample, which errs on the wide side.

    Args:
        histogram: (n, A, 2, BINS) test samples; n is 1 if they are known by group only.
        chance: the chance that each bin is accepted, (A, BINS), or (n, A, BINS) by client.
    """
    counts = np.asarray(histogram, np.float64)
    tables = [_table(counts, one) for one in (chances(BEFORE), chance)]
    rows: list[Row] = [_change(counts, chance, level)]
    found = [group_rates(table, groups, ("0", "1"), 1, level) for table in tables]
    for before, after in zip(*found, strict=True):
        if before.name in SHOWN:
            ends = (before.interval, after.interval)
            rows.append(_row("group", before.group, before.name, before.of, *ends))
    gaps = [group_gaps(table, groups, ("0", "1"), 1, level, least=1) for table in tables]
    none = Interval(math.nan, math.nan, math.nan)
    for notion, kind in PARITY.items():
        pair = [one[kind].interval if one else none for one in gaps]
        rows.append(_row("gap", "", notion, counts.sum(), *pair))
    return rows


def local_rows(
    histogram: NDArray[np.generic], chance: Floats, clients: Sequence[str], notion: str
) -> list[Row]:
    """The gap between groups at each client before and after, without intervals."""
    counts = np.asarray(histogram, np.float64)
    found = []
    for one in (chances(BEFORE), chance):
        accepted = (counts * one[..., None, :]).sum(-1)  # (n, A, 2)
        of = counts.sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = {
                "demographic parity": (accepted.sum(-1) / of.sum(-1),),
                "equal opportunity": (accepted[..., 1] / of[..., 1],),
                "false positive parity": (accepted[..., 0] / of[..., 0],),
                "equalised odds": (accepted[..., 0] / of[..., 0], accepted[..., 1] / of[..., 1]),
            }[notion]
        found.append(np.max([gap(rate) for rate in rates], axis=0))
    nan = math.nan
    return [
        _row("client", name, notion, size, Interval(b, nan, nan), Interval(a, nan, nan))
        for name, size, b, a in zip(clients, counts.sum((1, 2, 3)), *found, strict=True)
    ]


def _table(counts: Floats, chance: Floats) -> Floats:
    """(A, 2, 3) expected samples by group, label and decision; the last decision is none."""
    positive = (counts * chance[..., None, :]).sum((0, -1))
    whole = counts.sum((0, -1))
    return np.stack([whole - positive, positive, np.zeros_like(whole)], -1)


def _change(counts: Floats, chance: Floats, level: float) -> Row:
    """Accuracy before and after; the change is paired, from the decisions that differ."""
    changed = chance - chances(BEFORE)
    gained = (counts[:, :, 1] * changed - counts[:, :, 0] * changed).sum()
    differ = (counts * np.abs(changed)[..., None, :]).sum()
    n = counts.sum()
    tables = [_table(counts, one) for one in (chances(BEFORE), chance)]
    before, after = (
        float((table[:, 0, 0] + table[:, 1, 1]).sum() / n) if n else math.nan for table in tables
    )
    if differ > 0:
        found = Gains(np.array([n]), np.array([[gained]]), np.array([differ])).judged(level)
        change = tuple(float(one[0]) for one in (found.gain, found.low, found.high))
    else:
        change = (0.0, 0.0, 0.0) if n else (math.nan,) * 3
    ends = [_whole(table, level) for table in tables]
    row = _row(
        "everyone",
        "everyone",
        "accuracy",
        n,
        Interval(before, *ends[0]),
        Interval(after, *ends[1]),
    )
    return {**row, "change": change[0], "change_low": change[1], "change_high": change[2]}


def _whole(table: Floats, level: float) -> tuple[float, float]:
    """The ends of Wilson's interval of the overall accuracy."""
    first = group_rates(table.sum(0)[None], ["everyone"], ("0", "1"), 1, level)[0]
    return first.interval.low, first.interval.high


def _row(
    by: str, name: str, measure: str, samples: float, before: Interval, after: Interval
) -> Row:
    return {
        "by": by,
        "name": name,
        "measure": measure,
        "samples": round(float(samples)),
        "before": before.value,
        "before_low": before.low,
        "before_high": before.high,
        "after": after.value,
        "after_low": after.low,
        "after_high": after.high,
        "change": after.value - before.value,
        "change_low": math.nan,
        "change_high": math.nan,
    }
