"""Comparisons of methods: the mean and the worst-served, the mean against fairness, and how many
clients gain or are harmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page.figures.drawing import (
    Json,
    beside,
    error_bar,
    faint,
    figure,
    looks_of,
    plain,
    rounds_axis,
    row_axis,
    safe,
)
from evenhand.page.numbers import merit_title, statistic_title, written
from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.statistics import HEADINGS, SMALLER_IS_BETTER, Point
from evenhand.studies.runs.study import Study


class VerdictLook(NamedTuple):
    """The look and name of a verdict."""

    colour: str  # of areas
    line: str  # of lines and markers, on white
    dark: str  # of lines and markers, on black
    hatch: str
    word: str


VERDICTS = {
    "harmed": VerdictLook("#E08A4F", "#C24D00", "#FF9457", "x", "harmed"),
    "unclear": VerdictLook("#CFCFCF", "#6B7078", "#9AA0A8", "", "unclear"),
    "few": VerdictLook("#EDEDED", "#8C8C8D", "#9AA0A9", ".", "too few samples"),
    "gains": VerdictLook("#55BFA0", "#007A59", "#3CC79D", "/", "gains"),
}
# the values in the first figure: colour on white and on black, symbol
STANDINGS = {
    "mean": ("#0072B3", "#4FA9E0", "circle"),
    "worst client": ("#C24D00", "#FF9457", "triangle-down"),
    "worst group": ("#8A4FA3", "#C79AE0", "square"),
}


def overview(study: Study, standing: Mapping[str, Mapping[str, tuple[Interval, str]]]) -> Any:
    """The mean, the worst client and the worst group of each method, with intervals.

    ``standing``: by "mean", "worst client" and "worst group", then method: a value as shown, and
    its description.
    """
    data: list[Json] = []
    for place, (name, found) in enumerate(standing.items()):
        rows = np.array([study.labels.index(label) for label in found])
        colour, _, symbol = STANDINGS[name]
        value, low, high = (
            np.array([getattr(interval, end) for interval, _ in found.values()])
            for end in ("value", "low", "high")
        )
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": plain(value, 3),
                "y": plain(rows + beside(place, len(standing)), 3),
                "error_x": error_bar(value, low, high, colour),
                "marker": {"color": colour, "symbol": symbol, "size": 11},
                "text": [safe(words) for _, words in found.values()],
                "hovertemplate": "%{text}<extra></extra>",
                "meta": {"methods": list(found)},
            }
        )
    step = 18 + 16 * len(standing)
    layout = {
        "xaxis": {"title": {"text": merit_title(study)}},
        "yaxis": row_axis(study.labels),
        "height": 92 + step * len(study.labels),
        "showlegend": True,
        "meta": {"rows": list(study.labels), "step": step},
    }
    return figure(data, layout, "Mean and worst served, by method")


class Fairness(NamedTuple):
    """What a front has on its vertical axis."""

    name: str
    title: str  # of the axis
    value: Mapping[str, float]  # by method, as shown
    ends: Mapping[str, tuple[float, float]]
    up_is_better: bool


def front(study: Study, points: Sequence[Point], comparison: Comparison, fairness: str) -> Any:
    """Methods by their mean and a number about fairness; dominated ones are hollow, the others
    joined by a line."""
    larger = bool(study.measure.percent)  # is better
    shown = Fairness(
        HEADINGS[fairness],
        statistic_title(study, fairness),
        {point.label: written(study, fairness, point.y) for point in points},
        {
            point.label: _ends(study, fairness, comparison.rows[point.label][fairness])
            for point in points
        },
        (fairness in SMALLER_IS_BETTER) == (not larger and fairness not in SMALLER_IS_BETTER),
    )
    return _front(study, points, comparison, shown)


def gap_front(
    study: Study,
    points: Sequence[Point],
    comparison: Comparison,
    gaps: Mapping[str, Interval],
    rate: str,
) -> Any:
    """Methods by their mean and their gap between groups in a rate, as in :func:`front`."""
    shown = Fairness(
        f"gap in {rate}",
        f"gap in {rate} between groups, points",
        {point.label: 100 * point.y for point in points},
        {label: (100 * gap.low, 100 * gap.high) for label, gap in gaps.items()},
        False,
    )
    return _front(study, points, comparison, shown)


def _front(
    study: Study, points: Sequence[Point], comparison: Comparison, fairness: Fairness
) -> Any:
    seen, y = looks_of(study), fairness.value
    x = {point.label: written(study, "mean", point.x) for point in points}
    edge = sorted(
        (point.label for point in points if not point.dominated), key=lambda label: x[label]
    )
    data: list[Json] = [
        {
            "type": "scatter",
            "x": plain([x[label] for label in edge], 4),
            "y": plain([y[label] for label in edge], 4),
            "mode": "lines",
            "name": "not dominated",
            "line": {"color": "#8c8c8c", "width": 1.5, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    for point in points:
        look, label = seen[point.label], point.label
        ends = {
            "error_x": (x[label], _ends(study, "mean", comparison.rows[label]["mean"])),
            "error_y": (y[label], fairness.ends[label]),
        }
        bars = {
            name: error_bar([value], [low], [high], faint(look.colour, 0.5))
            for name, (value, (low, high)) in ends.items()
            if len(points) <= 10
        }
        beaten = ", dominated" if point.dominated else ""
        data.append(
            {
                "type": "scatter",
                "x": plain([x[label]], 4),
                "y": plain([y[label]], 4),
                "mode": "markers",
                "name": safe(label),
                "meta": {"method": label},
                "marker": {
                    "symbol": f"{look.symbol}-open" if point.dominated else look.symbol,
                    "color": look.colour,
                    "size": 12,
                    "line": (
                        {"width": 2.2, "color": look.colour} if point.dominated else {"width": 0}
                    ),
                },
                "hovertemplate": (
                    f"mean %{{x:.2f}}, {fairness.name} %{{y:.3f}}{beaten}<extra></extra>"
                ),
                **bars,
            }
        )
    across, up = (
        f"{title} ({arrow}\u00a0better)"
        for title, arrow in (
            (statistic_title(study, "mean"), "→" if study.measure.percent else "←"),
            (fairness.title, "↑" if fairness.up_is_better else "↓"),
        )
    )
    layout = {
        "xaxis": {"title": {"text": across}},
        "yaxis": {"title": {"text": up}},
        "height": 480,
        "showlegend": True,
    }
    return figure(data, layout, f"Mean against {fairness.name}")


def verdicts(study: Study, entries: Sequence[Entry], against: str, by: str = "client") -> Any:
    """How many clients (or groups, or teams) gain, are harmed or are unclear with each method
    compared with a reference."""
    kept = [entry for entry in entries if entry.against == against and entry.by == by]
    methods = list(dict.fromkeys(entry.method for entry in kept))
    before = np.zeros(len(methods), np.int64)
    data = []
    for verdict, look in VERDICTS.items():
        counts = np.array(
            [
                sum(entry.method == label and entry.verdict == verdict for entry in kept)
                for label in methods
            ]
        )
        if counts.any():
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": look.word,
                    "x": counts.tolist(),
                    "y": list(range(len(methods))),
                    "base": before.tolist(),
                    "width": 0.55,
                    "text": [
                        f"{safe(label)}: {count} of {len(kept) // len(methods)} {look.word}"
                        for label, count in zip(methods, counts.tolist(), strict=True)
                    ],
                    "textposition": "none",
                    "marker": {
                        "color": look.colour,
                        "pattern": {"shape": look.hatch, "fgcolor": "rgba(0,0,0,0.3)", "size": 7},
                        "line": {"width": 0},
                    },
                    "hovertemplate": "%{text}<extra></extra>",
                    "meta": {"methods": methods},
                }
            )
            before += counts
    layout = {
        "barmode": "overlay",
        "xaxis": rounds_axis(
            int(before.max(initial=0)),
            title={"text": f"number of {by}s"},
            range=[0, int(before.max(initial=1))],
        ),
        "yaxis": row_axis(methods),
        "height": 90 + 38 * len(methods),
        "showlegend": True,
        "meta": {"rows": methods, "step": 38},
    }
    return figure(data, layout, f"Who gains and who is harmed compared with {safe(against)}")


def _ends(study: Study, name: str, interval: Interval) -> tuple[float, float]:
    """The ends of a statistic's interval as shown, the smaller first."""
    low, high = (written(study, name, end) for end in (interval.low, interval.high))
    return min(low, high), max(low, high)
