"""How groups, or teams, are served, and the gaps between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenhand.data.plots import shortened
from evenhand.metrics.uncertainty import Interval
from evenhand.page.figures.drawing import dodged, dots, extra, figure, looks_of, plain, safe
from evenhand.page.numbers import merit_title, merit_words
from evenhand.page.series import shown
from evenhand.studies.study import Study


def gaps(
    study: Study, found: Mapping[str, Mapping[str, Interval]], by: str, kinds: Sequence[str]
) -> Any:
    """The gap between groups (or teams) in each kind of rate, with its interval, for each
    method."""
    seen = looks_of(study)
    data = []
    for label, row in found.items():
        rows = [
            (kind, row[kind]) for kind in kinds if kind in row and not np.isnan(row[kind].value)
        ]
        value, low, high = (
            100 * np.array([getattr(interval, end) for _, interval in rows])
            for end in ("value", "low", "high")
        )
        data.append(
            {
                **dots(label, seen[label]),
                "x": plain(value, 3),
                "y": [kind for kind, _ in rows],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": plain(high - value, 3),
                    "arrayminus": plain(value - low, 3),
                    "color": seen[label].colour,
                    "thickness": 1.5,
                    "width": 3,
                },
                "hovertemplate": f"%{{y}}: %{{x:.1f}} points<extra>{extra(label)}</extra>",
            }
        )
    layout = dodged(f"gap between {by}s, points", len(kinds), len(found))
    return figure(data, layout, f"Gaps between {by}s")


def members(study: Study, by: str, most: int = 30) -> Any:
    """How well each group (or team) is served by each method; of many, those that the first method
    serves worst."""
    seen, names = looks_of(study), study.names(by)
    merits = {
        label: np.mean([study.merits(label, seed, by) for seed in study.seeds], 0)
        for label in study.labels
    }
    order = np.argsort(merits[study.reference or study.labels[0]], kind="stable")[:most]
    data = [
        {
            **dots(label, seen[label]),
            "x": plain(shown(study.measure, merits[label][order]), 3),
            "y": [safe(shortened(names[i], 32)) for i in order],
            "hovertemplate": f"%{{y}}: %{{x}}<extra>{extra(label)}</extra>",
        }
        for label in study.labels
    ]
    layout = dodged(merit_title(study), len(order), len(study.labels))
    drawn = shown(study.measure, np.concatenate([found[order] for found in merits.values()]))
    if not np.isnan(drawn).all():
        room = max(0.08 * float(np.nanmax(drawn) - np.nanmin(drawn)), 1e-3 * study.measure.scale)
        layout["xaxis"]["range"] = [float(np.nanmin(drawn)) - room, float(np.nanmax(drawn)) + room]
    return figure(data, layout, f"{merit_words(study)} of each {by}")
