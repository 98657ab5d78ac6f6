"""The style of figures: template, lines, markers and names."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenhand.data.plots import Look, graph_objects, looks, shortened
from evenhand.studies.runs.study import Study

Json = dict[str, Any]

WIDTH = 900
# space between tick labels and the plot
APART: Json = {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
LEGEND: Json = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
TEMPLATE: Json = {
    "layout": {
        "font": {
            "family": (
                "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
            ),
            "size": 13,
            "color": "#22262b",
        },
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "hoverlabel": {"align": "left"},
        **{
            axis: {
                "gridcolor": "#e4e6ea",
                "linecolor": "#aab0b8",
                "zeroline": False,
                "automargin": True,
                **APART,
                "title": {"font": {"size": 13}, "standoff": 10},
            }
            for axis in ("xaxis", "yaxis")
        },
    }
}


def looks_of(study: Study) -> dict[str, Look]:
    """The colour, line and marker of each method."""
    return looks(study.labels, study.reference)


def figure(data: list[Json], layout: Json, title: str) -> Any:
    """A plotly Figure in the style of the report."""
    whole = {
        "template": TEMPLATE,
        "title": {
            "text": title,
            "x": 0,
            "xref": "paper",
            "y": 0.98,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 17},
        },
        "legend": LEGEND,
        "hovermode": "closest",
        "margin": {"l": 20, "r": 20, "t": 90 if has_legend(data, layout) else 56, "b": 50},
        "width": WIDTH,
        **layout,
    }
    return graph_objects().Figure(data, whole)


def has_legend(data: list[Json], layout: Json) -> bool:
    return bool(
        layout.get(
            "showlegend",
            sum(trace.get("showlegend", trace["type"] != "heatmap") for trace in data) > 1,
        )
    )


def line(label: str, look: Look, mode: str) -> Json:
    """A trace with a method's line, its markers or both."""
    return {
        "type": "scatter",
        "mode": mode,
        "name": safe(shortened(label, 32)),
        "meta": {"method": label},
        "line": {"color": look.colour, "dash": look.dash, "width": 2.4},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 7},
    }


def dots(label: str, look: Look) -> Json:
    """A trace with a method's markers."""
    return {
        **line(label, look, "markers"),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 9},
    }


def error_bar(value: Any, low: Any, high: Any, colour: Any = None) -> Json:
    """Intervals around values in plotly's form; none if an end is unknown."""
    value, low, high = (np.asarray(given, np.float64) for given in (value, low, high))
    bar: Json = {
        "type": "data",
        "symmetric": False,
        "array": plain(high - value, 4),
        "arrayminus": plain(value - low, 4),
        "thickness": 1.6,
        "width": 0,
    }
    return bar | ({} if colour is None else {"color": colour})


def beside(place: int, of: int) -> float:
    """The offset of a marker from the middle of its row, the first on top."""
    return (place - (of - 1) / 2) * 0.7 / max(of, 1)


def row_axis(names: Sequence[str]) -> Json:
    """A vertical axis with a row for each name, the first on top."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [safe(name) for name in names],
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
    }


def rounds_axis(rounds: int, **others: Any) -> Json:
    """A horizontal axis of rounds or other counts."""
    few = {"dtick": 1} if rounds <= 10 else {}
    return {"tickformat": ",d", **few, **others}


def plain(values: Any, digits: int) -> list[float | None]:
    """Rounded numbers for JSON; None if not finite."""
    given = np.asarray(values, np.float64)
    return [value if np.isfinite(value) else None for value in given.round(digits).tolist()]


def safe(name: str) -> str:
    """A name escaped for plotly, which interprets a few tags."""
    return html.escape(name, quote=False)


def literal(words: str) -> str:
    """Text escaped for a hover template, where %{ begins a value."""
    return safe(words).replace("%{", "% {")


def faint(colour: str, opacity: float) -> str:
    """A transparent colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
