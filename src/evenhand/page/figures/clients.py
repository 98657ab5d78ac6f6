"""How clients are served: their distribution, and from the worst to the best."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.page.figures.drawing import Json, extra, faint, figure, line, looks_of, plain, safe
from evenhand.page.numbers import merit_title, merit_words
from evenhand.page.series import client_merits, curve, shown, thinned
from evenhand.studies.study import Study

MOST_NAMED = 60  # clients that are drawn as points with names
FEW = 8  # with fewer clients than these, a density would say what is not known


def distribution(study: Study) -> Any:
    """How well clients are served by each method: a density and a box for each, and the clients
    themselves where there are few."""
    measure, seen = study.measure, looks_of(study)
    names = study.names("client") if study.same_data else ()
    data = []
    for label in study.labels:
        merits = shown(measure, client_merits(study, label))
        kept = np.flatnonzero(~np.isnan(merits))
        named = bool(names) and len(kept) <= MOST_NAMED
        if not named:
            kept = (
                kept[np.argsort(merits[kept], kind="stable")][thinned(len(kept), 400)]
                if len(kept)
                else kept
            )
        look = seen[label]
        trace: Json = {
            "x": plain(merits[kept], 3),
            "y": [safe(label)] * len(kept),
            "name": safe(label),
            "meta": {"method": label},
            "orientation": "h",
            "line": {"color": look.colour, "width": 1.5},
            "fillcolor": faint(look.colour, 0.25),
            "marker": {"color": look.colour, "symbol": look.symbol, "size": 6, "opacity": 0.75},
            "showlegend": False,
        }
        if named:
            trace |= {
                "text": [safe(names[i]) for i in kept],
                "hovertemplate": f"%{{text}}: %{{x}}<extra>{extra(label)}</extra>",
            }
        if len(kept) < FEW:
            trace |= {
                "type": "box",
                "boxpoints": "all",
                "jitter": 0.5,
                "pointpos": 0,
                "width": 0.5,
                "hoveron": "points",
            }
        else:
            points: Json = (
                {"points": "all", "jitter": 0.35, "pointpos": 0.45} if named else {"points": False}
            )
            trace |= {
                "type": "violin",
                "side": "negative",
                "width": 0.8,
                "spanmode": "hard",
                "meanline": {"visible": True},
                **points,
            }
            trace |= {
                "box": {"visible": True, "width": 0.3, "fillcolor": faint(look.colour, 0.45)},
                "hoveron": "points" if named else "violins",
            }
        data.append(trace)
    layout = {
        "xaxis": {"title": {"text": merit_title(study)}},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
            "tickfont": {"size": 13},
        },
        "height": max(240, 110 + 84 * len(study.labels)),
    }
    return figure(data, layout, f"{merit_words(study)} of the clients, by method")


def sorted_clients(study: Study) -> Any:
    """The merits of the clients from the worst to the best served, a line for each method."""
    seen, data = looks_of(study), []
    for label in study.labels:
        percent, merits = curve(study, label)
        few = len(percent) <= 40
        data.append(
            {
                **line(label, seen[label], "lines+markers" if few else "lines"),
                "x": plain(percent, 2),
                "y": plain(shown(study.measure, merits), 3),
                "hovertemplate": (
                    f"%{{y}} at %{{x:.0f}} % of the clients<extra>{extra(label)}</extra>"
                ),
            }
        )
    layout = {
        "xaxis": {
            "title": {"text": "clients from the worst to the best served, %"},
            "range": [-1, 101],
        },
        "yaxis": {"title": {"text": merit_title(study)}},
        "shapes": [
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
        ],
        "annotations": [
            {
                "x": 0.7,
                "y": 1,
                "xref": "x",
                "yref": "paper",
                "text": "worst 10 %",
                "showarrow": False,
                "xanchor": "left",
                "yanchor": "top",
                "textangle": 0,
            }
        ],
        "height": 460,
    }
    return figure(data, layout, "Clients from the worst to the best served")
