"""Figures that show published numbers against ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenhand.data.plots import Look
from evenhand.page.figures.drawing import Json, plain, safe
from evenhand.papers.numbers import heading, unit_of
from evenhand.papers.page.drawing import (
    NEUTRAL,
    Drawing,
    Number,
    looks_for,
    markers,
    ours,
    rows_of,
    spread,
    written,
)
from evenhand.papers.page.entry import Entry
from evenhand.papers.published import Published, published

SPREADS = ("std", "team gap")


def against_published(found: Sequence[Entry]) -> list[Drawing]:
    """One marker for each number, published across and ours up, one figure for each kind of
    number."""
    rows = rows_of(found)
    seen = looks_for(rows.values())
    kinds: dict[str, dict[str, list[tuple[Entry, Published, Number]]]] = {}
    for entry in found:
        for number in published(entry.part):
            own = ours(entry, number.row, number.metric)
            if own is not None:
                by_method = kinds.setdefault(_kind(number.metric), {})
                by_method.setdefault(rows[number.row], []).append((entry, number, own))
    return [_diagonal(kind, by_method, seen) for kind, by_method in kinds.items()]


def _kind(metric: str) -> str:
    unit = unit_of(metric)
    if unit == "Brier":
        return "risk"
    if unit == "%²":
        return "variance, %²"
    if unit == "count":
        return "clients and images"
    return "spread, %" if metric in SPREADS else "accuracy, %"


def _diagonal(
    kind: str,
    by_method: Mapping[str, Sequence[tuple[Entry, Published, Number]]],
    seen: Mapping[str, Look],
) -> Drawing:
    points = [point for found in by_method.values() for point in found]
    ours_and_theirs = [one for _, number, own in points for one in (own, number)]
    values = [one.mean + side * (one.std or 0.0) for one in ours_and_theirs for side in (-1.0, 1.0)]
    room = 0.08 * (max(values) - min(values)) or 0.05 * abs(values[0]) or 1.0
    ends = [min(values) - room, max(values) + room]
    data: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "equal",
            "x": plain(ends, 4),
            "y": plain(ends, 4),
            "line": {"color": NEUTRAL, "width": 1.4, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    for method, found in by_method.items():
        x, y = [number.mean for _, number, _ in found], [own.mean for *_, own in found]
        across = [number.std or 0.0 for _, number, _ in found]
        up = [own.std for *_, own in found]
        data.append(
            {
                **markers(method, seen[method]),
                "x": plain(x, 4),
                "y": plain(y, 4),
                "error_x": spread(x, across, seen[method].colour),
                "error_y": spread(y, up, seen[method].colour),
                "text": [
                    safe(
                        f"{number.row}, {heading(number.metric)}"
                        f"{f', {entry.part.name}' if entry.part.name else ''}<br>published"
                        f" {number.text}<br>ours {written(own, number.digits)}"
                    )
                    for entry, number, own in found
                ],
            }
        )
    layout = {
        "xaxis": {"title": {"text": f"published {kind}"}, "range": plain(ends, 4)},
        "yaxis": {"title": {"text": f"our {kind}"}, "range": plain(ends, 4)},
        "height": 400,
        "showlegend": True,
    }
    above = sum(own.mean > number.mean for _, number, own in points)
    words = (
        f"Published {kind} against ours: {len(points)} numbers, {above} of ours are larger. The"
        " table has every number."
    )
    return Drawing(f"Published against ours: {kind}", {"data": data, "layout": layout}, words)
