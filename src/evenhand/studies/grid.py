"""The points of a sweep: a grid over any of a method's hyper-parameters."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from evenhand.errors import SpecError
from evenhand.studies.spec import Table, parse_value, put, split_commas

MOST_POINTS = 1000  # a slip in a range asks for more


class Axis(NamedTuple):
    """Values of one hyper-parameter."""

    # q, local.lr, inner.q; with a method's name in front it is for that method alone: qffl.q
    key: str
    values: tuple[Any, ...]
    text: str  # as it was given


def parse_axis(text: str) -> Axis:
    """An axis from a command line: KEY=VALUE,VALUE,... or KEY=lin:FROM:TO:COUNT or
    KEY=log:FROM:TO:COUNT.

    >>> axes = ("q=0.1,1,5", "q=log:0.01:10:4", "local.epochs=lin:1:3:3")
    >>> [parse_axis(axis).values for axis in axes]
    [(0.1, 1, 5), (0.01, 0.1, 1, 10), (1, 2, 3)]
    """
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise SpecError(
            f"cannot read the grid {text!r}; write KEY=VALUE,VALUE, KEY=lin:FROM:TO:COUNT or"
            " KEY=log:FROM:TO:COUNT"
        )
    kind, _, span = rest.partition(":")
    values = (
        _range(kind, span, text)
        if kind in ("lin", "log")
        else tuple(parse_value(value) for value in split_commas(rest))
    )
    if not values:
        raise SpecError(f"the grid {text!r} has no values")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise SpecError(f"the grid {text!r} has {value!r} twice")
    return Axis(key, values, text)


def _range(kind: str, span: str, text: str) -> tuple[float, ...]:
    """Values at even distances, or at even ratios; rounded to what a label can show, so that the
    label says what was run."""
    ends = [parse_value(part) for part in span.split(":")]
    if len(ends) != 3 or any(
        isinstance(end, bool) or not isinstance(end, int | float) for end in ends
    ):
        raise SpecError(
            f"cannot read the range in {text!r}; write {kind}:FROM:TO:COUNT, such as"
            f" {kind}:0.1:10:5"
        )
    low, high, count = ends
    if not isinstance(count, int) or not 2 <= count <= MOST_POINTS:
        raise SpecError(f"the range in {text!r} must have 2 to {MOST_POINTS} values, got {count}")
    if not np.isfinite([low, high]).all() or (kind == "log" and not (low > 0 and high > 0)):
        wanted = "ends above 0" if kind == "log" else "finite ends"
        raise SpecError(f"the range in {text!r} must have {wanted}, got {low} and {high}")
    values = np.geomspace(low, high, count) if kind == "log" else np.linspace(low, high, count)
    rounded = [float(f"{value:.{4 if kind == 'log' else 10}g}") for value in values]
    return tuple(int(value) if value.is_integer() else value for value in rounded)


def grid_points(methods: Iterable[Mapping[str, Any]], axes: Sequence[Axis]) -> list[Table]:
    """[[methods]] entries: each of ``methods`` with every combination of the values on its axes,
    labelled by them.

    >>> axes = [parse_axis("q=0.1,1"), parse_axis("local.lr=0.5")]
    >>> [point["label"] for point in grid_points([{"name": "qffl"}], axes)]
    ['qffl q=0.1 local.lr=0.5', 'qffl q=1 local.lr=0.5']
    """
    methods = list(methods)
    names = {method["name"] for method in methods}
    for axis in axes:
        first = axis.key.partition(".")[0]
        if first != axis.key and first not in names | {"local", "inner"}:
            given = f"a method of the sweep ({', '.join(sorted(names))})"
            raise SpecError(
                f"the key in the grid {axis.text!r} begins with {first!r}; it may begin with local,"
                f" inner or {given}"
            )
    points = []
    for method in methods:
        own = [
            axis._replace(key=axis.key.removeprefix(f"{method['name']}."))
            for axis in axes
            if _concerns(axis, method["name"], names)
        ]
        for values in product(*(axis.values for axis in own)):
            point: Table = copy.deepcopy(dict(method))
            for axis, value in zip(own, values, strict=True):
                put(point, axis.key, value, axis.text)
            chosen = [
                f"{axis.key}={_shown(value)}" for axis, value in zip(own, values, strict=True)
            ]
            points.append(
                point | {"label": " ".join([str(method.get("label", method["name"])), *chosen])}
            )
            if len(points) > MOST_POINTS:
                raise SpecError(f"the grid has more than {MOST_POINTS} points; take fewer values")
    return points


def _concerns(axis: Axis, method: str, names: set[str]) -> bool:
    first = axis.key.partition(".")[0]
    return first == axis.key or first not in names or first == method


def _shown(value: Any) -> str:
    """A value as part of a label, which is also the name of a folder."""
    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^\w.=+-]+", "-", text)
