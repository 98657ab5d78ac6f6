"""How figures are drawn: the style of the page, lines, markers and names."""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from evenhand.data.plots import Look, graph_objects, looks, shortened
from evenhand.studies.study import Study

Json = dict[str, Any]

WIDTH = 900
# a distance between numbers and the figure
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
    """How each method of a study is drawn."""
    return looks(study.labels, study.reference)


def figure(data: list[Json], layout: Json, title: str) -> Any:
    """A plotly Figure in the style of the page."""
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
    """What draws a method's line, its markers or both."""
    return {
        "type": "scatter",
        "mode": mode,
        "name": safe(shortened(label, 32)),
        "meta": {"method": label},
        "line": {"color": look.colour, "dash": look.dash, "width": 2.4},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 7},
    }


def dots(label: str, look: Look) -> Json:
    """What draws a method's markers beside those of other methods."""
    return {
        **line(label, look, "markers"),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 9},
        "orientation": "h",
        "offsetgroup": label,
    }


def dodged(title: str, rows: int, methods: int) -> Json:
    """The layout of markers side by side for each row."""
    return {
        "scattermode": "group",
        "scattergap": 0.25,
        "xaxis": {"title": {"text": title}, "rangemode": "tozero"},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "showgrid": True,
            "tickson": "boundaries",
            "ticklabelstandoff": 6,
        },
        "height": 150 + rows * max(40, 12 * methods + 12),
    }


def plain(values: Any, digits: int) -> list[float | None]:
    """Rounded numbers for JSON; what is not finite is left out."""
    given = np.asarray(values, np.float64)
    return [value if np.isfinite(value) else None for value in given.round(digits).tolist()]


def safe(name: str) -> str:
    """A name that plotly shows as it is: it reads a few tags."""
    return html.escape(name, quote=False)


def extra(label: str) -> str:
    """A name inside a hover template, where %{ begins a value."""
    return safe(shortened(label, 40)).replace("%{", "% {")


def faint(colour: str, opacity: float) -> str:
    """A colour that lets through what is below it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
