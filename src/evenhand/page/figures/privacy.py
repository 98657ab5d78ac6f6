"""Merits against epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evenhand.data.plots import looks
from evenhand.metrics.uncertainty import Interval
from evenhand.page.figures.drawing import Json, error_bar, figure, line, literal, plain, safe
from evenhand.page.numbers import merit_title
from evenhand.studies.analysis.privacy_costs import Series
from evenhand.studies.runs.study import Study


def privacy_costs(
    study: Study, series: Series, standing: Mapping[str, list[Interval]], everyone: str
) -> Any:
    """What every party gets at each level of privacy, the least private on the right.

    Args:
        standing: by party, values at each level, as shown.
        everyone: the party drawn as the plain line.
    """
    data: list[Json] = []
    seen, levels = looks(list(standing), everyone), len(series.levels)
    for place, (party, found) in enumerate(standing.items()):
        value, low, high = (np.array([one[end] for one in found]) for end in range(3))
        # side by side, so that intervals do not cover each other
        at = np.arange(levels) + (place - (len(standing) - 1) / 2) * 0.06
        trace = line(party, seen[party], "lines+markers")
        del trace["meta"]  # a party is no method, which the page could hide
        data.append(
            {
                **trace,
                "x": plain(at, 3),
                "y": plain(value, 3),
                "error_y": error_bar(value, low, high, seen[party].colour),
                "text": [literal(f"{party}, {level.name}") for level in series.levels],
                "hovertemplate": "%{text}: %{y:.2f}<extra></extra>",
            }
        )
    layout = {
        "xaxis": {
            "title": {"text": "epsilon; smaller is more private"},
            "tickvals": list(range(levels)),
            "ticktext": [safe(level.name) for level in series.levels],
            "range": [-0.5, levels - 0.5],
        },
        "yaxis": {"title": {"text": merit_title(study)}},
        "height": 420,
        "showlegend": True,
    }
    return figure(data, layout, "What privacy costs whom")
