"""Figures over rounds: learning curves, and weights of clients and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenhand.data.plots import looks
from evenhand.metrics.round_gaps import GAPS as ROUND_GAPS
from evenhand.page.figures.drawing import (
    Json,
    faint,
    figure,
    line,
    literal,
    looks_of,
    plain,
    rounds_axis,
    row_axis,
    safe,
)
from evenhand.page.series import group_weights as weights_of_groups
from evenhand.page.series import learning, weights
from evenhand.studies.runs.study import Study

LEARNING = {
    "mean": "mean over clients",
    "worst10": "worst 10 % of clients",
    "worst": "worst client",
    "worst_group": "worst group",
}
GAPS = {column: f"gap in {rate}" for column, rate in ROUND_GAPS.items()}
LESS, EVEN, MORE = "#0072B2", "#F2F2F2", "#D55E00"
APART = 0.08  # between panels, as a share of the figure's height


class Axis(NamedTuple):
    """How a column of the history is drawn."""

    title: str
    scale: float
    digits: int


def learning_curves(study: Study) -> Any:
    """Mean, worst 10 % (or worst client) and worst group over rounds (for a regression, the mean
    loss); bands span the seeds."""
    axes = {
        column: (
            Axis(f"{LEARNING[column]}{study.measure.unit}", study.measure.scale, 3)
            if column in LEARNING
            else Axis("mean loss", 1.0, 5)
        )
        for column in learning_columns(study)
    }
    return _over_rounds(study, axes, "Learning curves")


def gap_curves(study: Study) -> Any:
    """Gaps between groups over rounds; bands span the seeds. None if no run recorded gaps."""
    axes = {column: Axis(f"{GAPS[column]}, points", 100.0, 3) for column in gap_columns(study)}
    if not axes:
        return None
    return _over_rounds(study, axes, "Gaps between groups over rounds", tozero=True)


def _over_rounds(study: Study, axes: Mapping[str, Axis], heading: str, tozero: bool = False) -> Any:
    """Columns of the history, one below the other."""
    data: list[Json] = []
    layout: Json = {"height": 240 * len(axes) + 100}
    tall = (1 - APART * (len(axes) - 1)) / len(axes)
    for place, (column, axis) in enumerate(axes.items(), start=1):
        number, bottom = "" if place == 1 else str(place), place == len(axes)
        for label in study.labels:
            data += _traces(study, label, column, axis, number)
        top = 1 - (place - 1) * (tall + APART)
        layout[f"yaxis{number}"] = {
            "title": {"text": axis.title},
            "domain": [max(0.0, top - tall), top],
            "anchor": f"x{number}",
            **({"rangemode": "tozero"} if tozero else {}),
        }
        layout[f"xaxis{number}"] = rounds_axis(
            max(spec.rounds for spec in study.specs),
            anchor=f"y{number}",
            matches="x" if place > 1 else None,
            showticklabels=bottom,
            title={"text": "round" if bottom else ""},
            rangemode="tozero",
        )
    return figure(data, layout, heading)


def _traces(study: Study, label: str, column: str, axis: Axis, number: str) -> list[Json]:
    found = learning(study, label, column)
    if found is None:
        return []
    look, rounds = looks_of(study)[label], found.rounds.tolist()
    axes = {"xaxis": f"x{number}", "yaxis": f"y{number}", "legendgroup": label}
    traces: list[Json] = []
    if len(study.seeds) > 1:
        outline = np.concatenate([found.high, found.low[::-1]])
        traces.append(
            {
                "type": "scatter",
                "x": rounds + rounds[::-1],
                "y": plain(axis.scale * outline, axis.digits),
                "fill": "toself",
                "fillcolor": faint(look.colour, 0.14),
                "line": {"width": 0},
                "mode": "lines",
                "hoverinfo": "skip",
                "showlegend": False,
                "meta": {"method": label},
                **axes,
            }
        )
    return [
        *traces,
        {
            # a single point needs a marker
            **line(label, look, "lines" if len(rounds) > 1 else "markers"),
            "x": rounds,
            "y": plain(axis.scale * found.mean, axis.digits),
            "showlegend": number == "",
            "hovertemplate": "%{y:.3f} after round %{x:d}<extra></extra>",
            **axes,
        },
    ]


def learning_columns(study: Study) -> list[str]:
    """The columns of the history to draw. With fewer than ten clients, the worst 10 % are the worst
    client."""
    left_out = "worst" if study.clients >= 10 else "worst10"
    return [
        column
        for column in LEARNING
        if column != left_out and any(learning(study, label, column) for label in study.labels)
    ] or ["loss"]


def gap_columns(study: Study) -> list[str]:
    """The gaps that some history has."""
    return [
        column for column in GAPS if any(learning(study, label, column) for label in study.labels)
    ]


def client_weights(study: Study, label: str) -> Any:
    """Effective weights of clients over rounds with one method, the worst-served on top; None if
    its runs have no weights."""
    found = weights(study, label)
    if found is None:
        return None
    rows = distinct(found.rows)
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
            "hovertemplate": ("%{y}<br>round %{x:d}: %{z:.2f} times an equal share<extra></extra>"),
            "meta": {"weights": label},
        }
    ]
    layout = {
        "xaxis": rounds_axis(len(found.rounds), title={"text": "round"}, showgrid=False),
        "yaxis": row_axis(rows)
        | {
            "type": "category",
            "title": {"text": f"← better with {safe(found.served_by)}, worse →"},
        },
        "height": 130 + 22 * max(6, len(rows)) if len(rows) <= 25 else 700,
    }
    return figure(data, layout, f"Effective weights of clients with {safe(label)}")


def group_weights(study: Study, label: str) -> Any:
    """Weights of groups over rounds with one method; None if its history has none."""
    found = weights_of_groups(study, label)
    if found is None:
        return None
    seen = looks(study.names("group"))
    data = [
        {
            **line(name, seen[name], "lines" if len(found.rounds) > 1 else "markers"),
            "meta": {"group": name},
            "x": found.rounds.tolist(),
            "y": plain(100 * found.share[:, place], 3),
            "hovertemplate": f"{literal(name)}: %{{y:.1f}} % in round %{{x:d}}<extra></extra>",
        }
        for place, name in enumerate(study.names("group"))
    ]
    layout = {
        "xaxis": rounds_axis(int(found.rounds[-1]), title={"text": "round"}, rangemode="tozero"),
        "yaxis": {"title": {"text": "weight of the group, %"}, "rangemode": "tozero"},
        "height": 380,
        "showlegend": True,
    }
    return figure(data, layout, f"Weights of groups with {safe(label)}")


def distinct(names: Sequence[str]) -> list[str]:
    """Names of rows, made unique."""
    count: dict[str, int] = {}
    found = []
    for name in names:
        count[name] = count.get(name, 0) + 1
        found.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return found
