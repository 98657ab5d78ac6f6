"""The papers' own figures, redrawn from our runs with published numbers where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evenhand.data.plots import HATCHES, looks, shortened
from evenhand.page.figures.drawing import Json, beside, plain, row_axis, safe
from evenhand.papers.numbers import heading, unit_of
from evenhand.papers.page.drawing import (
    Drawing,
    Number,
    axis,
    hollow_key,
    looks_for,
    markers,
    ours,
    rows_of,
    spread,
    theirs,
    written,
)
from evenhand.papers.page.entry import Entry
from evenhand.papers.published import Published


def redrawn(found: Sequence[Entry]) -> list[Drawing]:
    """An experiment's figure from our runs, as its [figure] table says."""
    run = [entry for entry in found if entry.result is not None]
    if not run:
        return []
    kind, metrics = run[0].experiment.figure.get("kind", ""), figure_metrics(run)
    if kind == "plane" and len(metrics) >= 2:
        return [_plane(entry, metrics[0], metrics[1]) for entry in run]
    if kind == "bars":
        return [_bars_of_clients(entry, metrics) for entry in run]
    if kind == "against":
        return _against(run, metrics)
    return []


def figure_metrics(found: Sequence[Entry]) -> list[str]:
    """What the figure shows, of what was kept: what its table names, or else every client."""
    kept = {
        metric: None
        for entry in found
        if entry.result
        for values in entry.result.values.values()
        for metric in values
    }
    figure = found[0].experiment.figure
    named = list(figure.get("metrics", ()))
    if not named and figure.get("kind") == "plane":
        named = ["mean", "worst10"]
    return [one for one in named or [m for m in kept if m.startswith("client:")] if one in kept]


def _plane(entry: Entry, across: str, up: str) -> Drawing:
    seen, known = looks_for(rows_of([entry]).values()), theirs(entry)
    data: list[Json] = [hollow_key()] if known else []
    for row, series in rows_of([entry]).items():
        look, own = seen[series], (ours(entry, row, across), ours(entry, row, up))
        paper = (known.get((row, across)), known.get((row, up)))
        if own[0] and own[1]:
            data.append(
                {
                    **markers(row, look, 11),
                    "x": plain([own[0].mean], 4),
                    "y": plain([own[1].mean], 4),
                    "error_x": spread([own[0].mean], [own[0].std], look.colour),
                    "error_y": spread([own[1].mean], [own[1].std], look.colour),
                    "text": [safe(f"{row}<br>ours: {own[0].mean:.2f}, {own[1].mean:.2f}")],
                }
            )
        if paper[0] and paper[1]:
            data.append(
                {
                    **markers(row, look, 11, hollow=True),
                    "x": [paper[0].mean],
                    "y": [paper[1].mean],
                    "text": [safe(f"{row}<br>published: {paper[0].text}, {paper[1].text}")],
                }
            )
    layout = {
        "xaxis": {"title": {"text": axis(across)}},
        "yaxis": {"title": {"text": axis(up)}},
        "height": 400,
        "showlegend": True,
    }
    words = f"{axis(up)} against {axis(across)}, one marker for each method."
    return Drawing(entry.part.name, {"data": data, "layout": layout}, words)


def _bars_of_clients(entry: Entry, metrics: Sequence[str]) -> Drawing:
    rows, known = rows_of([entry]), theirs(entry)
    labels = [row for row in rows if any(ours(entry, row, metric) for metric in metrics)]
    seen = looks(list(dict.fromkeys(rows.values())))  # numbers on black bars are not seen
    data: list[Json] = []
    hollow: Json = {**hollow_key(), "x": [], "y": [], "text": []}
    for place, row in enumerate(labels):
        look, off = seen[rows[row]], beside(place, len(labels))
        found = [(at, ours(entry, row, metric)) for at, metric in enumerate(metrics)]
        there = [(at, own) for at, own in found if own]
        x, y = [own.mean for _, own in there], [at + off for at, _ in there]
        hatch = HATCHES[place % len(HATCHES)]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": safe(shortened(row, 32)),
                "x": plain(x, 1),
                "y": plain(y, 4),
                "base": [0] * len(x),
                "width": 0.62 / len(labels),
                "marker": {"color": look.colour, "pattern": {"shape": hatch}},
                "text": [
                    safe(f"{row}, {heading(metrics[at])}: {own.mean:.1f} ± {own.std:.1f}")
                    for at, own in there
                ],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
        for at, metric in enumerate(metrics):
            paper = known.get((row, metric))
            if paper:
                hollow["x"].append(paper.mean)
                hollow["y"].append(round(at + off, 4))
                hollow["text"].append(safe(f"{row}, {heading(metric)}: published {paper.text}"))
    if hollow["x"]:
        data.append(hollow)
    layout = {
        "xaxis": {"title": {"text": "accuracy, %"}, "rangemode": "tozero"},
        "yaxis": row_axis([heading(metric) for metric in metrics]),
        "height": 110 + len(metrics) * (22 + 20 * len(labels)),
        "showlegend": True,
    }
    words = f"Accuracy of {len(metrics)} clients with {', '.join(labels)}."
    return Drawing(entry.part.name, {"data": data, "layout": layout}, words)


class Point(NamedTuple):
    """A point of a line."""

    x: float
    own: Number | None
    paper: Published | None


def _against(run: Sequence[Entry], metrics: Sequence[str]) -> list[Drawing]:
    """Lines over a hyper-parameter in each part, or over the parts, whose names are numbers."""
    if any(row.x is not None for entry in run for row in entry.part.rows):
        return [drawn for entry in run for drawn in _over_rows(entry, metrics)]
    parts = [(float(entry.part.name), entry) for entry in run if _is_number(entry.part.name)]
    lines: dict[str, dict[str, list[Point]]] = {metric: {} for metric in metrics}
    for x, entry in sorted(parts, key=lambda one: one[0]):
        known = theirs(entry)
        for metric in metrics:
            for row in rows_of([entry]):
                point = Point(x, ours(entry, row, metric), known.get((row, metric)))
                lines[metric].setdefault(row, []).append(point)
    return [_lines(axis(metric), found, {}, run, "") for metric, found in lines.items()]


def _over_rows(entry: Entry, metrics: Sequence[str]) -> list[Drawing]:
    known = theirs(entry)
    lines: dict[str, dict[str, list[Point]]] = {}
    # rows that have no place on the axis, each with the line whose look it has
    levels: dict[str, dict[str, tuple[Number, str]]] = {}
    swept = [row for row in entry.part.rows if row.x is not None]
    one = len({row.series for row in swept}) == 1 and len(set(map(unit_of, metrics))) == 1
    for metric in metrics:
        panel = "accuracy, %" if one and len(metrics) > 1 else axis(metric)
        for row in entry.part.rows:
            own = ours(entry, row.label, metric)
            name = heading(metric) if one and len(metrics) > 1 else row.series or row.label
            if row.x is not None:
                point = Point(row.x, own, known.get((row.label, metric)))
                lines.setdefault(panel, {}).setdefault(name, []).append(point)
            elif own:
                label = f"{row.label}, {name}" if one and len(metrics) > 1 else name
                levels.setdefault(panel, {})[label] = (own, name)
    return [
        _lines(panel, found, levels.get(panel, {}), [entry], entry.part.name)
        for panel, found in lines.items()
    ]


def _lines(
    up: str,
    lines: Mapping[str, Sequence[Point]],
    levels: Mapping[str, tuple[Number, str]],
    run: Sequence[Entry],
    title: str,
) -> Drawing:
    seen = looks_for([*lines, *(like for _, like in levels.values())])
    at = sorted({point.x for line in lines.values() for point in line})
    data: list[Json] = []
    for name, line in lines.items():
        look = seen[name]
        points = sorted(line, key=lambda point: point.x)
        there = [(at.index(point.x), point.own) for point in points if point.own]
        paper = [(at.index(point.x), point.paper) for point in points if point.paper]
        y = [own.mean for _, own in there]
        if there:
            data.append(
                {
                    **markers(name, look, 8),
                    "mode": "lines+markers",
                    "line": {"color": look.colour, "dash": look.dash, "width": 2.2},
                    "x": [x for x, _ in there],
                    "y": plain(y, 4),
                    "error_y": spread(y, [own.std for _, own in there], look.colour),
                    "text": [safe(f"{name} at {at[x]:g}: {written(own, 2)}") for x, own in there],
                }
            )
        if paper:
            data.append(
                {
                    **markers(name, look, 9, hollow=True),
                    "x": [x for x, _ in paper],
                    "y": [number.mean for _, number in paper],
                    "text": [
                        safe(f"{name} at {at[x]:g}: published {number.text}") for x, number in paper
                    ],
                }
            )
    if any(point.paper for line in lines.values() for point in line):
        data.append(hollow_key())
    for name, (own, like) in levels.items():
        look = seen[like]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": safe(shortened(name, 32)),
                "x": [-0.4, len(at) - 0.6],
                "y": plain([own.mean, own.mean], 4),
                "line": {"color": look.colour, "width": 1.5, "dash": "dot"},
                "text": [safe(f"{name}: {written(own, 2)}")] * 2,
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    across = str(run[0].experiment.figure.get("x", ""))
    layout = {
        "xaxis": {
            "title": {"text": safe(across)},
            "tickvals": list(range(len(at))),
            "ticktext": [f"{value:g}" for value in at],
            "range": [-0.5, len(at) - 0.5],
        },
        "yaxis": {"title": {"text": safe(up)}},
        "height": 380,
        "showlegend": True,
    }
    words = f"{up} against {across}: {', '.join([*lines, *levels])}."
    return Drawing(title, {"data": data, "layout": layout}, words)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
