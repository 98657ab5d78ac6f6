"""What the figures of the page have in common: numbers, markers, names of axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.data.plots import LINES, REFERENCE, Look, looks, shortened
from evenhand.page.figures.drawing import Json, error_bar, faint, safe
from evenhand.papers.numbers import heading, unit_of
from evenhand.papers.page.entry import Entry
from evenhand.papers.published import Published, published

NEUTRAL, NEUTRAL_DARK = "#767676", "#9AA0A8"
PUBLISHED = "published"  # in legends
AXES = {
    "mean": "mean accuracy over clients, %",
    "pooled": "accuracy over all samples, %",
    "worst10": "accuracy of the worst 10 % of clients, %",
    "best10": "accuracy of the best 10 % of clients, %",
    "worst": "accuracy of the worst client, %",
    "best": "accuracy of the best client, %",
    "std": "standard deviation over clients, %",
    "variance": "variance over clients, %²",
    "team gap": "gap between teams, %",
    "team variance": "variance between teams, %²",
    "risk:worst": "risk of the worst group",
    "risk:best": "risk of the best group",
}


class Drawing(NamedTuple):
    """A figure for the page's script, and words for those who do not see it."""

    title: str
    figure: Json
    words: str


class Number(NamedTuple):
    """One of our numbers: mean and standard deviation over seeds."""

    mean: float
    std: float


def axis(metric: str) -> str:
    """A metric as the name of an axis."""
    if metric in AXES:
        return AXES[metric]
    return f"risk of {heading(metric)[8:]}" if metric.startswith("risk:") else _accuracy(metric)


def _accuracy(metric: str) -> str:
    return f"accuracy of {heading(metric)}, {unit_of(metric)}"


def ours(entry: Entry, row: str, metric: str) -> Number | None:
    """Our number, where there is one."""
    values = entry.result.values.get(row, {}).get(metric, ()) if entry.result else ()
    seeds = np.asarray(values, np.float64)
    if not len(seeds) or not np.isfinite(seeds).all():
        return None
    return Number(float(seeds.mean()), float(seeds.std()))


def theirs(entry: Entry) -> dict[tuple[str, str], Published]:
    """The published numbers by row and metric."""
    return {(number.row, number.metric): number for number in published(entry.part)}


def rows_of(found: Iterable[Entry]) -> dict[str, str]:
    """The series of each row, which is its own where it has none."""
    rows: dict[str, str] = {}
    for entry in found:
        rows |= {row.label: row.series or row.label for row in entry.part.rows}
        for number in published(entry.part):
            rows.setdefault(number.row, number.row)
    return rows


def looks_for(names: Iterable[str]) -> dict[str, Look]:
    """How each method is drawn."""
    labels = list(dict.fromkeys(names))
    return looks(labels, next((one for one in labels if re.fullmatch("(?i)fedavg", one)), None))


def themes() -> dict[str, str]:
    """Colours on white, and those that take their place on black."""
    lines = zip(LINES["light"], LINES["dark"], strict=True)
    return {NEUTRAL: NEUTRAL_DARK, REFERENCE["light"]: REFERENCE["dark"], **dict(lines)}


def markers(name: str, look: Look, size: int = 9, hollow: bool = False) -> Json:
    """What draws markers of a method; hollow ones are published and are not in the legend."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": safe(shortened(name, 32)),
        "marker": {
            "color": look.colour,
            "symbol": f"{look.symbol}{'-open' * hollow}",
            "size": size,
        },
        "showlegend": not hollow,
        "hovertemplate": "%{text}<extra></extra>",
    }


def hollow_key() -> Json:
    """What says in the legend that hollow markers are published; it draws nothing."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": PUBLISHED,
        "x": [],
        "y": [],
        "text": [],
        "marker": {"color": NEUTRAL, "symbol": "circle-open", "size": 9},
        "hovertemplate": "%{text}<extra></extra>",
    }


def spread(means: Sequence[float], stds: Sequence[float], colour: str) -> Json:
    """Standard deviations around means."""
    value, half = np.asarray(means), np.asarray(stds)
    return error_bar(value, value - half, value + half, faint(colour, 0.5))


def written(number: Number, digits: int) -> str:
    """Mean and standard deviation."""
    return f"{number.mean:.{digits}f} ± {number.std:.{digits}f}"
