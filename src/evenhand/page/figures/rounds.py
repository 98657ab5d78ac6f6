"""What happens over rounds: learning curves, and how much clients count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenhand.data.plots import shortened
from evenhand.page.figures.drawing import Json, extra, faint, figure, line, looks_of, plain, safe
from evenhand.page.series import learning, weights
from evenhand.studies.study import Study

LEARNING = {"mean": "mean over clients", "worst10": "worst 10 % of clients"}
LESS, EVEN, MORE = "#0072B2", "#F2F2F2", "#D55E00"


def learning_curves(study: Study) -> Any:
    """Mean and worst 10 % over rounds (of a regression, the mean loss); bands reach from the lowest
    to the highest seed."""
    seen, data = looks_of(study), []
    columns = learning_columns(study)
    for place, column in enumerate(columns, start=1):
        axes = {
            "xaxis": "x" if place == 1 else f"x{place}",
            "yaxis": "y" if place == 1 else f"y{place}",
        }
        scale, digits = (study.measure.scale, 3) if column in LEARNING else (1.0, 5)
        for label in study.labels:
            found = learning(study, label, column)
            if found is None:
                continue
            rounds = found.rounds.tolist()
            if len(study.seeds) > 1:
                outline = np.concatenate([found.high, found.low[::-1]])
                data.append(
                    {
                        "type": "scatter",
                        "x": rounds + rounds[::-1],
                        "y": plain(scale * outline, digits),
                        "fill": "toself",
                        "fillcolor": faint(seen[label].colour, 0.14),
                        "line": {"width": 0},
                        "mode": "lines",
                        "hoverinfo": "skip",
                        "showlegend": False,
                        "meta": {"method": label},
                        "legendgroup": label,
                        **axes,
                    }
                )
            data.append(
                {
                    # one point makes no line
                    **line(label, seen[label], "lines" if len(rounds) > 1 else "markers"),
                    "x": rounds,
                    "y": plain(scale * found.mean, digits),
                    "legendgroup": label,
                    "showlegend": place == 1,
                    "hovertemplate": f"%{{y}} after round %{{x}}<extra>{extra(label)}</extra>",
                    **axes,
                }
            )
    layout: Json = {"height": 300 * len(columns) + 100}
    for place, column in enumerate(columns, start=1):
        number, bottom = "" if place == 1 else str(place), place == len(columns)
        top = 1 - (place - 1) * 0.53
        layout[f"yaxis{number}"] = {
            "title": {
                "text": (
                    f"{LEARNING[column]}{study.measure.unit}" if column in LEARNING else "mean loss"
                )
            },
            "domain": [max(0.0, top - 0.47), top] if len(columns) > 1 else [0, 1],
            "anchor": f"x{number}",
        }
        layout[f"xaxis{number}"] = {
            "anchor": f"y{number}",
            "matches": "x" if place > 1 else None,
            "showticklabels": bottom,
            "title": {"text": "round" if bottom else ""},
            "rangemode": "tozero",
        }
    return figure(data, layout, "Learning curves")


def learning_columns(study: Study) -> list[str]:
    """Which numbers of the history are drawn."""
    return [
        column
        for column in LEARNING
        if any(learning(study, label, column) for label in study.labels)
    ] or ["loss"]


def client_weights(study: Study, label: str) -> Any:
    """How much clients counted over rounds with one method, the worst served on top; None where its
    runs have no weights."""
    found = weights(study, label)
    if found is None:
        return None
    rows = _distinct([shortened(row) for row in found.rows])
    most = max(2.0, round(float(np.nanmax(found.share)), 3))
    data = [
        {
            "type": "heatmap",
            "z": [plain(row, 3) for row in found.share],
            "x": found.rounds.tolist(),
            "y": [safe(row) for row in rows],
            "colorscale": [[0, LESS], [1 / most, EVEN], [1, MORE]],
            "zmin": 0,
            "zmax": most,
            "colorbar": {
                "title": {"text": "times an equal share", "side": "right"},
                "thickness": 14,
                "outlinewidth": 0,
            },
            "hovertemplate": "%{y}<br>round %{x}: %{z:.2f} times an equal share<extra></extra>",
            "meta": {"method": label},
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "round"}, "showgrid": False},
        "yaxis": {
            "title": {"text": f"← served better by {safe(shortened(found.served_by))}, worse →"},
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
        },
        "height": max(300, 130 + 20 * min(20, len(rows))),
    }
    return figure(data, layout, f"Weights that clients had with {safe(label)}")


def _distinct(names: Sequence[str]) -> list[str]:
    """Names as rows of an axis, where equal ones would be one row."""
    count: dict[str, int] = {}
    found = []
    for name in names:
        count[name] = count.get(name, 0) + 1
        found.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return found
