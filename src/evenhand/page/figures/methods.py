"""How methods stand: the mean against fairness, and how many clients gain or are harmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenhand.data.plots import shortened
from evenhand.metrics.uncertainty import Interval
from evenhand.page.figures.drawing import (
    LEGEND,
    Json,
    extra,
    faint,
    figure,
    looks_of,
    plain,
    safe,
)
from evenhand.page.numbers import statistic_title, written
from evenhand.page.series import Floats
from evenhand.studies.comparison import Comparison
from evenhand.studies.ledger import Entry
from evenhand.studies.statistics import HEADINGS, SMALLER_IS_BETTER, Point
from evenhand.studies.study import Study

VERDICTS = {
    "gains": ("#009E73", ""),
    "unclear": ("#C4C4C4", "."),
    "harmed": ("#D55E00", "x"),
    "few": ("#8C8C8C", "/"),
}
VERDICT_WORDS = {
    "gains": "gain",
    "unclear": "unclear",
    "harmed": "are harmed",
    "few": "too few samples",
}


def front(study: Study, points: Sequence[Point], comparison: Comparison, fairness: str) -> Any:
    """Methods by their mean and a number about fairness; dominated ones are hollow, the others
    joined by a line."""
    seen, named = looks_of(study), len(points) <= 10
    x = {point.label: written(study, "mean", point.x) for point in points}
    y = {point.label: written(study, fairness, point.y) for point in points}
    edge = sorted(
        (point.label for point in points if not point.dominated), key=lambda label: x[label]
    )
    data: list[Json] = [
        {
            "type": "scatter",
            "x": plain([x[label] for label in edge], 4),
            "y": plain([y[label] for label in edge], 4),
            "mode": "lines",
            "name": "front",
            "line": {"color": "#8c8c8c", "width": 1.5, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    places = _text_places([(x[point.label], y[point.label]) for point in points])
    for point, place in zip(points, places, strict=True):
        look, beaten = seen[point.label], "<br>dominated" if point.dominated else ""
        across, up = (comparison.rows[point.label][name] for name in ("mean", fairness))
        bars = {
            f"error_{axis}": _error_bar(study, name, interval, faint(look.colour, 0.55))
            for axis, name, interval in (("x", "mean", across), ("y", fairness, up))
            if named
        }
        data.append(
            {
                "type": "scatter",
                "x": plain([x[point.label]], 4),
                "y": plain([y[point.label]], 4),
                "mode": "markers+text" if named else "markers",
                "text": [safe(shortened(point.label))],
                "textposition": place,
                "cliponaxis": False,
                "name": safe(point.label),
                "meta": {"method": point.label},
                "marker": {
                    "symbol": f"{look.symbol}-open" if point.dominated else look.symbol,
                    "color": look.colour,
                    "size": 12,
                    "line": (
                        {"width": 2.2, "color": look.colour} if point.dominated else {"width": 0}
                    ),
                },
                "hovertemplate": (
                    f"mean %{{x}}<br>{HEADINGS[fairness]}"
                    f" %{{y}}{beaten}<extra>{extra(point.label)}</extra>"
                ),
                **bars,
            }
        )
    up_is_better = (fairness in SMALLER_IS_BETTER) == (
        study.measure.column != "accuracy" and fairness not in SMALLER_IS_BETTER
    )
    layout = {
        "xaxis": {
            "title": {
                "text": (
                    f"{statistic_title(study, 'mean')}"
                    f" ({'→' if study.measure.column == 'accuracy' else '←'}\u00a0better)"
                )
            }
        },
        "yaxis": {
            "title": {
                "text": (
                    f"{statistic_title(study, fairness)}"
                    f" ({'↑' if up_is_better else '↓'}\u00a0better)"
                )
            }
        },
        "height": 480,
        "showlegend": not named,
    }
    return figure(data, layout, f"Mean against {HEADINGS[fairness]}")


def verdicts(study: Study, entries: Sequence[Entry], against: str, by: str = "client") -> Any:
    """How many clients (or groups, or teams) gain, are harmed, or cannot be told, for each method
    against a reference."""
    kept = [entry for entry in entries if entry.against == against and entry.by == by]
    methods = list(dict.fromkeys(entry.method for entry in kept))
    data = []
    for verdict, (colour, hatch) in VERDICTS.items():
        counts = [
            sum(entry.method == label and entry.verdict == verdict for entry in kept)
            for label in methods
        ]
        if any(counts):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": VERDICT_WORDS[verdict],
                    "x": counts,
                    "y": [safe(label) for label in methods],
                    "text": [str(count) if count else "" for count in counts],
                    "textposition": "inside",
                    "insidetextanchor": "middle",
                    "textangle": 0,
                    "textfont": {"color": "#000000"},
                    "marker": {
                        "color": colour,
                        "pattern": {
                            "shape": hatch,
                            "fillmode": "overlay",
                            "fgcolor": "rgba(0,0,0,0.3)",
                            "solidity": 0.2,
                            "size": 7,
                        },
                        "line": {"width": 0},
                    },
                    "hovertemplate": f"%{{x}} {VERDICT_WORDS[verdict]}<extra>%{{y}}</extra>",
                }
            )
    layout = {
        "barmode": "stack",
        "legend": {**LEGEND, "traceorder": "normal"},
        "xaxis": {"title": {"text": f"{by}s"}, "tickformat": ",d"},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
        "height": 150 + 44 * len(methods),
        "bargap": 0.35,
    }
    return figure(data, layout, f"Who gains and who is harmed against {safe(against)}")


def _error_bar(study: Study, name: str, interval: Interval, colour: str) -> Json:
    value, low, high = (written(study, name, end) for end in interval)
    low, high = min(low, high), max(low, high)
    return {
        "type": "data",
        "symmetric": False,
        "array": plain([high - value], 4),
        "arrayminus": plain([value - low], 4),
        "color": colour,
        "thickness": 1.2,
        "width": 0,
    }


def _text_places(points: Sequence[tuple[float, float]]) -> list[str]:
    """Where the name of each point stands, so that names of near points do not cover each other."""
    where = np.array(points, np.float64).reshape(-1, 2)
    extent = np.nanmax(where, 0) - np.nanmin(where, 0) if len(where) else np.ones(2)
    where = where / np.where(extent > 0, extent, 1.0)
    places: list[str] = []
    taken: list[Floats] = []
    for point in where:
        # the middle of the name, in parts of the figure, for each place it can have
        options = {
            "top center": (0.0, 0.05),
            "bottom center": (0.0, -0.05),
            "middle right": (0.09, 0.0),
            "middle left": (-0.09, 0.0),
        }
        room = {
            place: min((_room(point + offset, other) for other in (*taken, *where)), default=1.0)
            for place, offset in options.items()
        }
        best = max(room, key=lambda place: (round(room[place], 3), -list(room).index(place)))
        places.append(best)
        taken.append(point + options[best])
    return places


def _room(one: Floats, other: Floats) -> float:
    """How far apart a name and another thing are; names are wider than high."""
    return float(min(1.0, np.hypot((one[0] - other[0]) / 2.2, one[1] - other[1])))
