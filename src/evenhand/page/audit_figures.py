"""Figures of an audit's report: HTML and SVG that scale with the page and need no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evenhand.data.plots import Look
from evenhand.metrics.uncertainty import Interval
from evenhand.page.markup import hidden, text

DASHES = {
    "solid": "",
    "dash": "6 4",
    "dot": "2 3",
    "dashdot": "6 3 2 3",
    "longdash": "10 4",
    "longdashdot": "10 3 2 3",
}
NICE = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)


class Mark(NamedTuple):
    """A row of a forest plot."""

    name: str
    found: Interval
    told: str  # HTML: the numbers
    few: bool = False


class Line(NamedTuple):
    """A line of a chart; points have x and y between 0 and 1, band its lower and upper ends."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


def told(value: str, low: str, high: str) -> str:
    """A number with its interval."""
    return f"{value} <small>[{low}, {high}]</small>"


def forest(
    title: str,
    about: str,
    marks: Sequence[Mark],
    ends: tuple[float, float],
    shown: tuple[str, str],
    mean: float = math.nan,
    bound: float = math.nan,
) -> str:
    """A forest plot with a row per client or group: name, interval between ``ends``, and numbers.

    Args:
        shown: the two ends as text.
        mean: a dotted line, such as the rate of everyone.
        bound: a solid line, such as four fifths.
    """
    lines = "".join(
        f'<line class="{kind}" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>'
        for kind, value in (("mean", mean), ("bound", bound))
        if not math.isnan(value)
        for at in [_place(value, ends)]
    )
    rows = "".join(
        f'<tr{" class=few" if mark.few else ""}><th scope="row">{text(mark.name)}</th>'
        f'<td class="track">{_bar(mark.found, ends, lines)}</td>'
        f'<td class="told">{mark.told}</td></tr>'
        for mark in marks
    )
    axis = f'<div class="axis"><span>{text(shown[0])}</span><span>{text(shown[1])}</span></div>'
    small = f"<small>{text(about)}</small>" if about else ""
    return (
        f'<div class="forest"><table><caption>{text(title)}{small}</caption><thead><tr>'
        f'<th scope="col">{hidden("name")}</th><th scope="col" class="track">{axis}</th>'
        f'<th scope="col" class="told">{hidden("numbers")}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _bar(found: Interval, ends: tuple[float, float], lines: str) -> str:
    if math.isnan(found.value):
        return ""
    low, high, at = (_place(value, ends) for value in (found.low, found.high, found.value))
    return (
        f'<svg class="bar" aria-hidden="true">{lines}'
        f'<line class="whisker" x1="{low:.2f}%" x2="{high:.2f}%" y1="50%" y2="50%"/>'
        f'<circle class="dot" cx="{at:.2f}%" cy="50%" r="5"/></svg>'
    )


def _place(value: float, ends: tuple[float, float]) -> float:
    """The position between the ends in percent, clipped to them."""
    return 100 * min(1.0, max(0.0, (value - ends[0]) / (ends[1] - ends[0])))


def span(values: Sequence[float]) -> tuple[float, float]:
    """Round ends around the values, starting at 0 unless all values are far from it."""
    there = [value for value in values if math.isfinite(value)]
    high = top(there)
    low = math.floor(10 * min(there, default=0.0) + 1e-9) / 10
    return (low, high) if low >= 0.5 * high and low < high else (0.0, high)


def top(values: Sequence[float]) -> float:
    """A round number that is not below any of the values."""
    most = max((value for value in values if math.isfinite(value)), default=1.0)
    return next((nice for nice in NICE if nice >= most - 1e-9), most)


def chart(
    title: str,
    lines: Sequence[Line],
    looks: Mapping[str, Look],
    x: Sequence[str],
    under: str,
    finding: str,
    even: bool = False,
) -> str:
    """A chart with lines between 0 and 1, of any width.

    Args:
        x: tick labels, from left to right.
        finding: a description for screen readers.
        even: draw the diagonal.
    """
    drawn = []
    for line in lines:
        look = looks[line.name]
        dash = f' stroke-dasharray="{DASHES[look.dash]}"' if DASHES[look.dash] else ""
        band = ""
        if line.band:
            above = [(at, high) for at, _, high in line.band]
            below = [(at, low) for at, low, _ in reversed(line.band)]
            band = f'<polygon class="range" points="{_points([*above, *below])}"/>'
        drawn.append(
            f'<g style="color:light-dark({look.colour},{look.dark})">{band}'
            f'<polyline points="{_points(line.points)}"{dash}/></g>'
        )
    rules = "".join(
        f'<line class="rule" x1="0" x2="100" y1="{y}" y2="{y}"/>' for y in (0, 25, 50, 75)
    )
    diagonal = '<line class="even" x1="0" y1="100" x2="100" y2="0"/>' if even else ""
    ticks = "".join(f"<span>{y} %</span>" for y in (0, 25, 50, 75, 100))
    return (
        f'<figure class="chart"><figcaption>{text(title)}</figcaption><div class="frame">'
        f'<div class="ticks-y" aria-hidden="true">{ticks}</div>'
        f'<svg class="plane" viewBox="0 0 100 100" preserveAspectRatio="none" role="img"'
        f' aria-label="{text(finding)}">{rules}{diagonal}{"".join(drawn)}</svg>'
        f'<div class="ticks-x" aria-hidden="true">'
        f"{''.join(f'<span>{text(tick)}</span>' for tick in x)}</div>"
        f'<div class="under">{text(under)}</div></div></figure>'
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{100 * x:.2f},{100 - 100 * y:.2f}" for x, y in points)


def legend(looks: Mapping[str, Look]) -> str:
    """The legend of the lines."""
    items = []
    for name, look in looks.items():
        dash = f' stroke-dasharray="{DASHES[look.dash]}"' if DASHES[look.dash] else ""
        items.append(
            '<li><svg width="32" height="10" aria-hidden="true"'
            f' style="color:light-dark({look.colour},{look.dark})"><path d="M0 5h32"'
            f' stroke="currentColor" stroke-width="2.4"{dash}/></svg>{text(name)}</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'
