"""How the gaps between groups change with the threshold."""

from __future__ import annotations

import math
from typing import NamedTuple

from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.numbers import Numbers


class Extremes(NamedTuple):
    """The largest gap in a rate, and its two groups."""

    value: float
    low: str
    high: str


class Step(NamedTuple):
    """One threshold: rates of everyone, and gaps between groups."""

    threshold: float
    accuracy: float
    selected: float
    ratio: float  # smallest over largest selection rate
    tpr: Extremes | None
    fpr: Extremes | None


def steps(audit: Numbers) -> list[Step]:
    """A step per threshold; groups with too few samples for a rate are excluded from its gap."""
    by_cut: dict[float, list[Row]] = {}
    for row in audit.sweep:
        by_cut.setdefault(row["threshold"], []).append(row)
    return [_step(audit, cut, rows) for cut, rows in by_cut.items()]


def _step(audit: Numbers, cut: float, rows: list[Row]) -> Step:
    everyone = {row["rate"]: row["value"] for row in rows if row["by"] == "everyone"}
    selected = _extremes(audit, rows, "selection rate")
    values = {row["name"]: row["value"] for row in rows if row["rate"] == "selection rate"}
    times = math.nan
    if selected is not None and values[selected.high] > 0:
        times = values[selected.low] / values[selected.high]
    return Step(
        cut,
        everyone["accuracy"],
        everyone["selection rate"],
        times,
        _extremes(audit, rows, "true-positive rate"),
        _extremes(audit, rows, "false-positive rate"),
    )


def _extremes(audit: Numbers, rows: list[Row], rate: str) -> Extremes | None:
    kept = [
        row
        for row in rows
        if row["by"] == "group" and row["rate"] == rate and row["of"] >= max(1, audit.least)
    ]
    if len(kept) < 2:
        return None
    low, high = (found(kept, key=lambda row: row["value"]) for found in (min, max))
    return Extremes(high["value"] - low["value"], low["name"], high["name"])
