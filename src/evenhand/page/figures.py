"""The figures of a study, each a plotly Figure: in a notebook,
``sorted_clients(Study.load(["runs/digits"])).show()``.

Every method looks the same in all of them; what belongs to a method says so in its ``meta``, which
is what the page goes by when methods are hidden.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenhand.data.plots import Look, graph_objects, looks, shortened
from evenhand.metrics.uncertainty import Interval
from evenhand.page.series import Floats, client_merits, curve, learning, shown, thinned, weights
from evenhand.studies.analysis import HEADINGS, SMALLER_IS_BETTER, Comparison, Entry, Point
from evenhand.studies.study import Study

Json = dict[str, Any]

WIDTH = 900
MOST_NAMED = 60  # clients that are drawn as points with names
# statistics in the unit of a merit
OF_MERITS = ("mean", "pooled", "worst10", "best10", "min", "max")
FEW = 8  # with fewer clients than these, a density would say what is not known
VERDICTS = {
    "gains": ("#009E73", ""),
    "unclear": ("#C4C4C4", "."),
    "harmed": ("#D55E00", "x"),
    "few": ("#8C8C8C", "/"),
}
VERDICT_WORDS = {
    "gains": "gain",
    "unclear": "unclear",
    "harmed": "are harmed",
    "few": "too few samples",
}
# a distance between numbers and the figure
APART: Json = {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
LEGEND: Json = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
LESS, EVEN, MORE = "#0072B2", "#F2F2F2", "#D55E00"
TEMPLATE: Json = {
    "layout": {
        "font": {
            "family": (
                "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
            ),
            "size": 13,
            "color": "#22262b",
        },
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "hoverlabel": {"align": "left"},
        **{
            axis: {
                "gridcolor": "#e4e6ea",
                "linecolor": "#aab0b8",
                "zeroline": False,
                "automargin": True,
                **APART,
                "title": {"font": {"size": 13}, "standoff": 10},
            }
            for axis in ("xaxis", "yaxis")
        },
    }
}


def distribution(study: Study) -> Any:
    """How well clients are served by each method: a density and a box for each, and the clients
    themselves where there are few."""
    measure, seen = study.measure, _looks(study)
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
            "x": _plain(merits[kept], 3),
            "y": [_safe(label)] * len(kept),
            "name": _safe(label),
            "meta": {"method": label},
            "orientation": "h",
            "line": {"color": look.colour, "width": 1.5},
            "fillcolor": _faint(look.colour, 0.25),
            "marker": {"color": look.colour, "symbol": look.symbol, "size": 6, "opacity": 0.75},
            "showlegend": False,
        }
        if named:
            trace |= {
                "text": [_safe(names[i]) for i in kept],
                "hovertemplate": f"%{{text}}: %{{x}}<extra>{_extra(label)}</extra>",
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
                "box": {"visible": True, "width": 0.3, "fillcolor": _faint(look.colour, 0.45)},
                "hoveron": "points" if named else "violins",
            }
        data.append(trace)
    layout = {
        "xaxis": {"title": {"text": _merit_title(study)}},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
            "tickfont": {"size": 13},
        },
        "height": max(240, 110 + 84 * len(study.labels)),
    }
    return _figure(data, layout, f"{merit_words(study)} of the clients, by method")


def sorted_clients(study: Study) -> Any:
    """The merits of the clients from the worst to the best served, a line for each method."""
    seen, data = _looks(study), []
    for label in study.labels:
        percent, merits = curve(study, label)
        few = len(percent) <= 40
        data.append(
            {
                **_line(label, seen[label], "lines+markers" if few else "lines"),
                "x": _plain(percent, 2),
                "y": _plain(shown(study.measure, merits), 3),
                "hovertemplate": (
                    f"%{{y}} at %{{x:.0f}} % of the clients<extra>{_extra(label)}</extra>"
                ),
            }
        )
    layout = {
        "xaxis": {
            "title": {"text": "clients from the worst to the best served, %"},
            "range": [-1, 101],
        },
        "yaxis": {"title": {"text": _merit_title(study)}},
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
    return _figure(data, layout, "Clients from the worst to the best served")


def front(study: Study, points: Sequence[Point], comparison: Comparison, fairness: str) -> Any:
    """Methods by their mean and a number about fairness; dominated ones are hollow, the others
    joined by a line."""
    seen, named = _looks(study), len(points) <= 10
    x = {point.label: written(study, "mean", point.x) for point in points}
    y = {point.label: written(study, fairness, point.y) for point in points}
    edge = sorted(
        (point.label for point in points if not point.dominated), key=lambda label: x[label]
    )
    data: list[Json] = [
        {
            "type": "scatter",
            "x": _plain([x[label] for label in edge], 4),
            "y": _plain([y[label] for label in edge], 4),
            "mode": "lines",
            "name": "front",
            "line": {"color": "#8c8c8c", "width": 1.5, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    places = _text_places([(x[point.label], y[point.label]) for point in points])
    for point, place in zip(points, places, strict=True):
        look, beaten = seen[point.label], "<br>dominated" if point.dominated else ""
        across, up = (comparison.rows[point.label][name] for name in ("mean", fairness))
        bars = {
            f"error_{axis}": _error_bar(study, name, interval, _faint(look.colour, 0.55))
            for axis, name, interval in (("x", "mean", across), ("y", fairness, up))
            if named
        }
        data.append(
            {
                "type": "scatter",
                "x": _plain([x[point.label]], 4),
                "y": _plain([y[point.label]], 4),
                "mode": "markers+text" if named else "markers",
                "text": [_safe(shortened(point.label))],
                "textposition": place,
                "cliponaxis": False,
                "name": _safe(point.label),
                "meta": {"method": point.label},
                "marker": {
                    "symbol": f"{look.symbol}-open" if point.dominated else look.symbol,
                    "color": look.colour,
                    "size": 12,
                    "line": (
                        {"width": 2.2, "color": look.colour} if point.dominated else {"width": 0}
                    ),
                },
                "hovertemplate": (
                    f"mean %{{x}}<br>{HEADINGS[fairness]}"
                    f" %{{y}}{beaten}<extra>{_extra(point.label)}</extra>"
                ),
                **bars,
            }
        )
    up_is_better = (fairness in SMALLER_IS_BETTER) == (
        study.measure.column != "accuracy" and fairness not in SMALLER_IS_BETTER
    )
    layout = {
        "xaxis": {
            "title": {
                "text": (
                    f"{_statistic_title(study, 'mean')}"
                    f" ({'→' if study.measure.column == 'accuracy' else '←'}\u00a0better)"
                )
            }
        },
        "yaxis": {
            "title": {
                "text": (
                    f"{_statistic_title(study, fairness)}"
                    f" ({'↑' if up_is_better else '↓'}\u00a0better)"
                )
            }
        },
        "height": 480,
        "showlegend": not named,
    }
    return _figure(data, layout, f"Mean against {HEADINGS[fairness]}")


def gaps(
    study: Study, found: Mapping[str, Mapping[str, Interval]], by: str, kinds: Sequence[str]
) -> Any:
    """The gap between groups (or teams) in each kind of rate, with its interval, for each
    method."""
    seen = _looks(study)
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
                **_dots(label, seen[label]),
                "x": _plain(value, 3),
                "y": [kind for kind, _ in rows],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": _plain(high - value, 3),
                    "arrayminus": _plain(value - low, 3),
                    "color": seen[label].colour,
                    "thickness": 1.5,
                    "width": 3,
                },
                "hovertemplate": f"%{{y}}: %{{x:.1f}} points<extra>{_extra(label)}</extra>",
            }
        )
    layout = _dodged(f"gap between {by}s, points", len(kinds), len(found))
    return _figure(data, layout, f"Gaps between {by}s")


def members(study: Study, by: str, most: int = 30) -> Any:
    """How well each group (or team) is served by each method; of many, those that the first method
    serves worst."""
    seen, names = _looks(study), study.names(by)
    merits = {
        label: np.mean([study.merits(label, seed, by) for seed in study.seeds], 0)
        for label in study.labels
    }
    order = np.argsort(merits[study.reference or study.labels[0]], kind="stable")[:most]
    data = [
        {
            **_dots(label, seen[label]),
            "x": _plain(shown(study.measure, merits[label][order]), 3),
            "y": [_safe(shortened(names[i], 32)) for i in order],
            "hovertemplate": f"%{{y}}: %{{x}}<extra>{_extra(label)}</extra>",
        }
        for label in study.labels
    ]
    layout = _dodged(_merit_title(study), len(order), len(study.labels))
    drawn = shown(study.measure, np.concatenate([found[order] for found in merits.values()]))
    if not np.isnan(drawn).all():
        room = max(0.08 * float(np.nanmax(drawn) - np.nanmin(drawn)), 1e-3 * study.measure.scale)
        layout["xaxis"]["range"] = [float(np.nanmin(drawn)) - room, float(np.nanmax(drawn)) + room]
    return _figure(data, layout, f"{merit_words(study)} of each {by}")


LEARNING = {"mean": "mean over clients", "worst10": "worst 10 % of clients"}


def learning_curves(study: Study) -> Any:
    """Mean and worst 10 % over rounds (of a regression, the mean loss); bands reach from the lowest
    to the highest seed."""
    seen, data = _looks(study), []
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
                        "y": _plain(scale * outline, digits),
                        "fill": "toself",
                        "fillcolor": _faint(seen[label].colour, 0.14),
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
                    **_line(label, seen[label], "lines" if len(rounds) > 1 else "markers"),
                    "x": rounds,
                    "y": _plain(scale * found.mean, digits),
                    "legendgroup": label,
                    "showlegend": place == 1,
                    "hovertemplate": f"%{{y}} after round %{{x}}<extra>{_extra(label)}</extra>",
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
    return _figure(data, layout, "Learning curves")


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
            "z": [_plain(row, 3) for row in found.share],
            "x": found.rounds.tolist(),
            "y": [_safe(row) for row in rows],
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
            "title": {"text": f"← served better by {_safe(shortened(found.served_by))}, worse →"},
            "type": "category",
            "autorange": "reversed",
            "showgrid": False,
        },
        "height": max(300, 130 + 20 * min(20, len(rows))),
    }
    return _figure(data, layout, f"Weights that clients had with {_safe(label)}")


def verdicts(study: Study, entries: Sequence[Entry], against: str, by: str = "client") -> Any:
    """How many clients (or groups, or teams) gain, are harmed, or cannot be told, for each method
    against a reference."""
    kept = [entry for entry in entries if entry.against == against and entry.by == by]
    methods = list(dict.fromkeys(entry.method for entry in kept))
    data = []
    for verdict, (colour, hatch) in VERDICTS.items():
        counts = [
            sum(entry.method == label and entry.verdict == verdict for entry in kept)
            for label in methods
        ]
        if any(counts):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": VERDICT_WORDS[verdict],
                    "x": counts,
                    "y": [_safe(label) for label in methods],
                    "text": [str(count) if count else "" for count in counts],
                    "textposition": "inside",
                    "insidetextanchor": "middle",
                    "textangle": 0,
                    "textfont": {"color": "#000000"},
                    "marker": {
                        "color": colour,
                        "pattern": {
                            "shape": hatch,
                            "fillmode": "overlay",
                            "fgcolor": "rgba(0,0,0,0.3)",
                            "solidity": 0.2,
                            "size": 7,
                        },
                        "line": {"width": 0},
                    },
                    "hovertemplate": f"%{{x}} {VERDICT_WORDS[verdict]}<extra>%{{y}}</extra>",
                }
            )
    layout = {
        "barmode": "stack",
        "legend": {**LEGEND, "traceorder": "normal"},
        "xaxis": {"title": {"text": f"{by}s"}, "tickformat": ",d"},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
        "height": 150 + 44 * len(methods),
        "bargap": 0.35,
    }
    return _figure(data, layout, f"Who gains and who is harmed against {_safe(against)}")


def _looks(study: Study) -> dict[str, Look]:
    return looks(study.labels, study.reference)


def _figure(data: list[Json], layout: Json, title: str) -> Any:
    whole = {
        "template": TEMPLATE,
        "title": {
            "text": title,
            "x": 0,
            "xref": "paper",
            "y": 0.98,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 17},
        },
        "legend": LEGEND,
        "hovermode": "closest",
        "margin": {"l": 20, "r": 20, "t": 90 if _has_legend(data, layout) else 56, "b": 50},
        "width": WIDTH,
        **layout,
    }
    return graph_objects().Figure(data, whole)


def _has_legend(data: list[Json], layout: Json) -> bool:
    return bool(
        layout.get(
            "showlegend",
            sum(trace.get("showlegend", trace["type"] != "heatmap") for trace in data) > 1,
        )
    )


def _line(label: str, look: Look, mode: str) -> Json:
    return {
        "type": "scatter",
        "mode": mode,
        "name": _safe(shortened(label, 32)),
        "meta": {"method": label},
        "line": {"color": look.colour, "dash": look.dash, "width": 2.4},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 7},
    }


def _dots(label: str, look: Look) -> Json:
    return {
        **_line(label, look, "markers"),
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 9},
        "orientation": "h",
        "offsetgroup": label,
    }


def _dodged(title: str, rows: int, methods: int) -> Json:
    """The layout of markers side by side for each row."""
    return {
        "scattermode": "group",
        "scattergap": 0.25,
        "xaxis": {"title": {"text": title}, "rangemode": "tozero"},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "showgrid": True,
            "tickson": "boundaries",
            "ticklabelstandoff": 6,
        },
        "height": 150 + rows * max(40, 12 * methods + 12),
    }


def _error_bar(study: Study, name: str, interval: Interval, colour: str) -> Json:
    value, low, high = (written(study, name, end) for end in interval)
    low, high = min(low, high), max(low, high)
    return {
        "type": "data",
        "symmetric": False,
        "array": _plain([high - value], 4),
        "arrayminus": _plain([value - low], 4),
        "color": colour,
        "thickness": 1.2,
        "width": 0,
    }


def written(study: Study, name: str, value: float) -> float:
    """A statistic in the unit that it is written in."""
    if name in OF_MERITS:
        return float(shown(study.measure, value))
    power = {"std": 1, "variance": 2}.get(name, 0)
    return float(value * study.measure.scale**power)


def _statistic_title(study: Study, name: str) -> str:
    unit = study.measure.unit if name in OF_MERITS else ""
    what = {"std": f", {study.measure.points}" if study.measure.points else ""}.get(name, unit)
    return (
        f"{HEADINGS[name]}: {study.measure.part} {study.measure.name}{what}"
        if name == "mean"
        else f"{HEADINGS[name]}{what}"
    )


def merit_words(study: Study) -> str:
    """What is measured, on which part of the data, as the beginning of a sentence."""
    return f"{study.measure.part.capitalize()} {study.measure.name}"


def _merit_title(study: Study) -> str:
    smaller = "" if study.measure.column == "accuracy" else " (smaller is better)"
    return f"{study.measure.part} {study.measure.name}{study.measure.unit}{smaller}"


def _text_places(points: Sequence[tuple[float, float]]) -> list[str]:
    """Where the name of each point stands, so that names of near points do not cover each other."""
    where = np.array(points, np.float64).reshape(-1, 2)
    extent = np.nanmax(where, 0) - np.nanmin(where, 0) if len(where) else np.ones(2)
    where = where / np.where(extent > 0, extent, 1.0)
    places: list[str] = []
    taken: list[Floats] = []
    for point in where:
        # the middle of the name, in parts of the figure, for each place it can have
        options = {
            "top center": (0.0, 0.05),
            "bottom center": (0.0, -0.05),
            "middle right": (0.09, 0.0),
            "middle left": (-0.09, 0.0),
        }
        room = {
            place: min((_room(point + offset, other) for other in (*taken, *where)), default=1.0)
            for place, offset in options.items()
        }
        best = max(room, key=lambda place: (round(room[place], 3), -list(room).index(place)))
        places.append(best)
        taken.append(point + options[best])
    return places


def _room(one: Floats, other: Floats) -> float:
    """How far apart a name and another thing are; names are wider than high."""
    return float(min(1.0, np.hypot((one[0] - other[0]) / 2.2, one[1] - other[1])))


def _plain(values: Any, digits: int) -> list[float | None]:
    """Rounded numbers for JSON; what is not finite is left out."""
    given = np.asarray(values, np.float64)
    return [value if np.isfinite(value) else None for value in given.round(digits).tolist()]


def _safe(name: str) -> str:
    """A name that plotly shows as it is: it reads a few tags."""
    return html.escape(name, quote=False)


def _extra(label: str) -> str:
    """A name inside a hover template, where %{ begins a value."""
    return _safe(shortened(label, 40)).replace("%{", "% {")


def _distinct(names: Sequence[str]) -> list[str]:
    """Names as rows of an axis, where equal ones would be one row."""
    count: dict[str, int] = {}
    found = []
    for name in names:
        count[name] = count.get(name, 0) + 1
        found.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return found


def _faint(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
