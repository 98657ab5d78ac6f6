"""What thresholds change on test data: rates, gaps and accuracy, before (0.5) and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.cuts import HALF, Floats, chances
from evenhand.metrics.group_rates import group_gaps, group_rates
from evenhand.metrics.ledger import Gains
from evenhand.metrics.uncertainty import Interval, wilson

Row = dict[str, Any]

SHOWN = ("selection rate", "true-positive rate", "false-positive rate", "accuracy")
LABELS = ("0", "1")
NONE = Interval(math.nan, math.nan, math.nan)


def effect(
    histogram: NDArray[np.integer],
    chance: Floats,
    names: Sequence[str],
    notion: str,
    level: float = 0.95,
    least: int = 10,
) -> list[Row]:
    """Rows with a measure before and after: accuracy of everyone, the gap, and rates of groups.

    Numbers under a randomised rule are exact expectations. Their intervals are those of one
    decision per sample, which err on the wide side.

    Args:
        histogram: (A, 2, BINS) test samples by group (or client), label and score bin.
        chance: (A, BINS) how likely each bin is accepted.
        notion: one of :data:`evenhand.metrics.threshold_search.NOTIONS`; "accuracy" has no gap.
    """
    counts = np.asarray(histogram, np.int64)
    first = np.broadcast_to(chances(((1.0, HALF),)), chance.shape)
    tables = [_table(counts, one) for one in (first, chance)]
    rows = [_accuracy(counts, tables, chance - first, level)]
    if notion != "accuracy":
        gaps = [group_gaps(table, names, LABELS, 1, level, least) for table in tables]
        ends = [found[notion].interval if found else NONE for found in gaps]
        rows.append(_row("gap", "", notion, counts.sum(), *ends))
    rates = [group_rates(table, names, LABELS, 1, level) for table in tables]
    rows += [
        _row("unit", before.group, before.name, before.of, before.interval, after.interval)
        for before, after in zip(*rates, strict=True)
        if before.name in SHOWN
    ]
    return rows


def _table(counts: NDArray[np.int64], chance: Floats) -> Floats:
    """(A, 2, 3) expected samples by group, label and decision; the last decision is none."""
    positive, whole = (counts * chance[:, None]).sum(-1), counts.sum(-1)
    return np.stack([whole - positive, positive, np.zeros(whole.shape)], -1)


def _accuracy(
    counts: NDArray[np.int64], tables: Sequence[Floats], change: Floats, level: float
) -> Row:
    """Accuracy of everyone. The change is paired: it comes from the decisions that differ."""
    n = float(counts.sum())
    ends = []
    for table in tables:
        right = float(table[:, 0, 0].sum() + table[:, 1, 1].sum())
        low, high = wilson(np.array([right]), np.array([n]), level)
        ends.append(Interval(right / n if n else math.nan, float(low[0]), float(high[0])))
    row = _row("everyone", "", "accuracy", n, *ends)
    gained = float(((counts[:, 1] - counts[:, 0]) * change).sum())
    differ = float((counts * np.abs(change)[:, None]).sum())
    if differ > 0:
        found = Gains(np.array([n]), np.array([[gained]]), np.array([differ])).judged(level)
        low, high = found.low, found.high
    else:  # the same decisions for everyone: nothing changes, for certain
        low = high = np.zeros(1) if n else np.full(1, math.nan)
    return {**row, "change": gained / n if n else math.nan} | {
        "change_low": float(low[0]),
        "change_high": float(high[0]),
    }


def _row(
    by: str, name: str, measure: str, samples: float, before: Interval, after: Interval
) -> Row:
    return {
        "by": by,
        "name": name,
        "measure": measure,
        "samples": round(float(samples)),
        **{f"before{end}": value for end, value in zip(("", "_low", "_high"), before, strict=True)},
        **{f"after{end}": value for end, value in zip(("", "_low", "_high"), after, strict=True)},
    }
