"""Results by client: their distribution, clients from worst to best, and gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenhand.page.figures.drawing import (
    Json,
    dots,
    error_bar,
    faint,
    figure,
    line,
    looks_of,
    plain,
    row_axis,
    safe,
)
from evenhand.page.figures.methods import VERDICTS
from evenhand.page.numbers import gain_title, gain_words, merit_title, merit_words, served
from evenhand.page.series import Floats, client_merits, curve, density, shown, thinned
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.runs.study import Study

FEW = 30  # up to this many clients are drawn as points, more as a density
MOST_NAMED = 40  # clients shown by name, in a figure or a table
GAIN_SYMBOLS = {
    "gains": "triangle-up",
    "harmed": "triangle-down",
    "unclear": "circle",
    "few": "circle-open",
}


def distribution(study: Study) -> Any:
    """The distribution of the measure over clients: a point per client, or for many clients a
    density with the median and the middle half."""
    data: list[Json] = []
    for row, label in enumerate(study.labels):
        merits = shown(study.measure, client_merits(study, label))
        there = merits[~np.isnan(merits)]
        if len(there) <= FEW:
            data.append(_points(study, label, row, merits))
        else:
            data += _density(study, label, row, there)
    height = 70 + 64 * len(study.labels)
    layout = {
        "xaxis": {"title": {"text": merit_title(study)}},
        "yaxis": row_axis(study.labels),
        "height": height,
        "showlegend": False,
        "meta": {"rows": list(study.labels), "step": 64},
    }
    return figure(data, layout, f"{merit_words(study)} of the clients, by method")


def _points(study: Study, label: str, row: int, merits: Floats) -> Json:
    """A point per client; equal values are stacked."""
    names = study.names("client") if study.same_data else ()
    place = np.zeros(len(merits))
    stacked: dict[float | None, int] = {}
    for i, merit in enumerate(plain(merits, 1)):
        stacked[merit] = stacked.get(merit, -1) + 1
        place[i] = -0.12 * stacked[merit]
    seeds = study.seeds[:1] if study.same_data else study.seeds
    sizes = np.concatenate([study.sizes(seed=seed) for seed in seeds])
    found = [
        f"{safe(names[i]) if names else 'a client'}: {served(study, merit, int(sizes[i]))}"
        for i, merit in enumerate(client_merits(study, label).tolist())
    ]
    return {
        **dots(label, looks_of(study)[label]),
        "x": plain(merits, 3),
        "y": plain(row + np.maximum(place, -0.45), 3),
        "text": found,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _density(study: Study, label: str, row: int, merits: Floats) -> list[Json]:
    look = looks_of(study)[label]
    at, high = density(merits)
    quarters = np.percentile(merits, (25, 50, 75))
    outline: Json = {
        **line(label, look, "lines"),
        "x": plain(np.r_[at, at[::-1]], 3),
        "y": plain(np.r_[row - 0.46 * high / high.max(), np.full(len(at), row)], 3),
        "fill": "toself",
        "fillcolor": faint(look.colour, 0.25),
        "line": {"color": look.colour, "width": 1.2},
        "hoverinfo": "skip",
    }
    half: Json = {
        **dots(label, look),
        "x": plain(quarters[[1]], 3),
        "y": [row + 0.14],
        "error_x": error_bar(*quarters[[1, 0, 2], None]) | {"thickness": 4},
        "hovertemplate": (
            "median %{x:.1f}, middle half"
            f" {quarters.min():.1f} to {quarters.max():.1f}<extra></extra>"
        ),
    }
    return [outline, half]


def sorted_clients(study: Study) -> Any:
    """The measure over clients from worst to best, a line per method."""
    seen, data = looks_of(study), []
    for label in study.labels:
        percent, merits = curve(study, label)
        few = len(percent) <= MOST_NAMED
        data.append(
            {
                **line(label, seen[label], "lines+markers" if few else "lines"),
                "x": plain(percent, 2),
                "y": plain(shown(study.measure, merits), 3),
                "hovertemplate": "%{y:.1f} at %{x:.0f} % of the clients<extra></extra>",
            }
        )
    layout: Json = {
        "xaxis": {
            "title": {"text": "clients from worst to best, %"},
            "range": [-1, 101],
        },
        "yaxis": {"title": {"text": merit_title(study)}},
        "height": 440,
    }
    if study.clients >= 10:
        layout["shapes"] = [
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": 0,
                "x1": 10,
                "y0": 0,
                "y1": 1,
                "line": {"width": 0},
                "fillcolor": "#8c8c8c",
                "opacity": 0.13,
                "layer": "below",
            }
        ]
        layout["annotations"] = [
            {
                "x": 0.7,
                "y": 1,
                "xref": "x",
                "yref": "paper",
                "text": "worst 10 %",
                "showarrow": False,
                "xanchor": "left",
                "yanchor": "top",
            }
        ]
    return figure(data, layout, "Clients from worst to best")


def gains(study: Study, entries: Sequence[Entry], method: str, against: str) -> Any:
    """The gain or loss of each client with a method compared with a reference, with intervals,
    largest loss first; for many clients, a curve."""
    found = [
        entry
        for entry in entries
        if (entry.method, entry.against, entry.by) == (method, against, "client")
        and not np.isnan(entry.gain.value)
    ]
    found.sort(key=lambda entry: entry.gain.value)
    value, low, high = (
        study.measure.scale * np.array([getattr(entry.gain, end) for entry in found])
        for end in ("value", "low", "high")
    )
    words = [gain_words(study, entry) for entry in found]
    draw = _gain_rows if len(found) <= MOST_NAMED else _gain_curve
    data, layout = draw(found, value, low, high, words, gain_title(study, against))
    return figure(data, layout, f"Gains of clients: {safe(method)} compared with {safe(against)}")


def _gain_rows(
    found: Sequence[Entry], value: Floats, low: Floats, high: Floats, words: list[str], title: str
) -> tuple[list[Json], Json]:
    colours = {verdict: look.line for verdict, look in VERDICTS.items()}
    data: list[Json] = []
    for verdict in VERDICTS:
        rows = [row for row, entry in enumerate(found) if entry.verdict == verdict]
        if rows:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": VERDICTS[verdict].word,
                    "x": plain(value[rows], 3),
                    "y": rows,
                    "error_x": error_bar(value[rows], low[rows], high[rows], colours[verdict]),
                    "marker": {
                        "color": colours[verdict],
                        "symbol": GAIN_SYMBOLS[verdict],
                        "size": 10,
                    },
                    "text": [words[row] for row in rows],
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )
    layout = {
        "xaxis": {"title": {"text": title}, "zeroline": True, "tickformat": "+"},
        "yaxis": row_axis([entry.name for entry in found]),
        "height": 110 + 24 * len(found),
        "showlegend": True,
    }
    return data, layout


def _gain_curve(
    found: Sequence[Entry], value: Floats, low: Floats, high: Floats, words: list[str], title: str
) -> tuple[list[Json], Json]:
    at = thinned(len(found), 200)
    known = at[~np.isnan(low[at])]
    colour = VERDICTS["unclear"].line
    data: list[Json] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "one client, with its interval",
            "x": (at + 1).tolist(),
            "y": plain(value[at], 3),
            "error_y": error_bar(value[at], low[at], high[at], faint(colour, 0.35)),
            "marker": {
                "color": [VERDICTS[found[i].verdict].line for i in at],
                "symbol": [GAIN_SYMBOLS[found[i].verdict] for i in at],
                "size": 6,
            },
            "text": [words[i] for i in at],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]
    room = 0.05 * (np.max(high[known], initial=0) - np.min(low[known], initial=0)) or 1.0
    layout = {
        "xaxis": {
            "title": {"text": "clients, largest loss first"},
            "tickformat": ",d",
            "range": [0, len(found) + 1],
        },
        "yaxis": {
            "title": {"text": title},
            "zeroline": True,
            "tickformat": "+",
            "range": [
                float(min(np.min(low[known], initial=0), value.min()) - room),
                float(max(np.max(high[known], initial=0), value.max()) + room),
            ],
        },
        "height": 420,
        "showlegend": False,
    }
    return data, layout
