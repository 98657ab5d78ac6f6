"""Rates of groups or teams, and the gaps between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page.figures.drawing import (
    Json,
    beside,
    dots,
    error_bar,
    figure,
    looks_of,
    plain,
    row_axis,
    safe,
)
from evenhand.studies.runs.study import Study

# by method, then row: a value as shown, and its description
Rows = Mapping[str, Mapping[str, tuple[Interval, str]]]


def gaps(study: Study, found: Rows, by: str) -> Any:
    """The gap between groups (or teams) in each rate, with its interval, for each method."""
    return _rows(study, found, f"gap between {by}s, points", f"Gaps between {by}s", tozero=True)


def local_gaps(study: Study, found: Rows, rate: str) -> Any:
    """The gap between groups in a rate over all clients and within clients, with intervals, for
    each method."""
    title = f"gap in {rate} between groups, points"
    return _rows(study, found, title, f"Gap in {rate} over all and within clients", tozero=True)


def members(study: Study, found: Rows, by: str, title: str) -> Any:
    """A rate of each group (or team) with each method, with intervals."""
    return _rows(study, found, title, f"{title[:1].upper()}{title[1:]} of each {by}")


def _rows(study: Study, found: Rows, title: str, heading: str, tozero: bool = False) -> Any:
    seen = looks_of(study)
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    data: list[Json] = []
    for place, (label, row) in enumerate(found.items()):
        rows = [names.index(name) for name in row]
        value, low, high = (
            np.array([getattr(interval, end) for interval, _ in row.values()])
            for end in ("value", "low", "high")
        )
        data.append(
            {
                **dots(label, seen[label]),
                "x": plain(value, 3),
                "y": plain(np.array(rows) + beside(place, len(found)), 3),
                "error_x": error_bar(value, low, high, seen[label].colour),
                "text": [safe(words) for _, words in row.values()],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": title}, **({"rangemode": "tozero"} if tozero else {})},
        "yaxis": row_axis(names),
        "height": 100 + len(names) * max(34, 13 * len(found) + 12),
    }
    return figure(data, layout, heading)
