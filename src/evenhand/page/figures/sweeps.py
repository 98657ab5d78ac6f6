"""Validation metrics against a hyper-parameter."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.page.figures.drawing import Json, figure, plain, safe
from evenhand.page.figures.methods import STANDINGS
from evenhand.page.numbers import merit_title
from evenhand.page.series import shown
from evenhand.studies.analysis.sweeping import Sweep


def sensitivity(sweep: Sweep, key: str) -> Any:
    """Mean and worst client on validation data against a hyper-parameter, with lines for FedAvg;
    the chosen point is filled."""
    rows = sorted(
        (row for row in sweep.rows() if row.get(key) is not None), key=lambda row: _order(row[key])
    )
    values: list[Any] = []  # in order, and not a set: a value may be a list
    for row in rows:
        if row[key] not in values:
            values.append(row[key])
    data: list[Json] = []
    for name, column in (("mean", "mean"), ("worst client", "min")):
        colour, _, symbol = STANDINGS[name]
        at = shown(sweep.measure, np.array([row[f"validation_{column}"] for row in rows]))
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(values) == len(rows) else "markers",
                "name": name,
                "x": [values.index(row[key]) for row in rows],
                "y": plain(at, 3),
                "line": {"color": colour, "width": 2},
                "marker": {
                    "color": colour,
                    "symbol": [symbol if row["chosen"] else f"{symbol}-open" for row in rows],
                    "size": 11,
                },
                "text": [
                    safe(f"{row['label']}{' (chosen)' if row['chosen'] else ''}: {name}")
                    for row in rows
                ],
                "hovertemplate": "%{text} %{y:.2f}<extra></extra>",
            }
        )
        line = float(shown(sweep.measure, sweep.validation[sweep.reference][column]))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{name} of {safe(sweep.reference)}",
                "x": [-0.4, len(values) - 0.6],
                "y": plain([line, line], 3),
                "line": {"color": colour, "width": 1.4, "dash": "dot"},
                "hovertemplate": f"{name} of {safe(sweep.reference)} %{{y:.2f}}<extra></extra>",
            }
        )
    layout = {
        "xaxis": {
            "title": {"text": safe(key)},
            "tickvals": list(range(len(values))),
            "ticktext": [safe(_written(value)) for value in values],
            "range": [-0.5, len(values) - 0.5],
        },
        "yaxis": {"title": {"text": merit_title(sweep.study).replace("test", "validation", 1)}},
        "height": 400,
        "showlegend": True,
    }
    return figure(data, layout, f"Validation metrics against {safe(key)}")


def _order(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, int | float)
    return (not number, value if number else str(value))


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
