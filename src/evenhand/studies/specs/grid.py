"""The points of a sweep: a grid over any of a method's hyper-parameters."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from evenhand.algorithm import Algorithm
from evenhand.algorithms.naming import Table, described, label_of
from evenhand.errors import SpecError, unknown
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.parsing import parse_value, put, split_commas
from evenhand.studies.specs.spec import REFERENCES, Spec

MOST_POINTS = 1000  # more are probably a typing error


class Axis(NamedTuple):
    """Values of one hyper-parameter."""

    # q, local.lr, inner.q; qffl.q applies only to the method qffl
    key: str
    values: tuple[Any, ...]
    text: str  # as it was given

    @classmethod
    def of(cls, key: str, values: Sequence[Any], text: str) -> Axis:
        """An axis; raises if values are missing or repeated."""
        if not len(values):
            raise SpecError(f"the grid {text!r} has no values")
        for place, value in enumerate(values):
            if value in values[:place]:
                raise SpecError(f"the grid {text!r} has {value!r} twice")
        return cls(key, tuple(values), text)


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
    return Axis.of(key, values, text)


def _range(kind: str, span: str, text: str) -> tuple[float, ...]:
    """Evenly spaced values, or values in equal ratios, rounded so that labels show exactly what was
    run."""
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


def swept(spec: Spec, axes: Sequence[Axis], references: Sequence[str]) -> Spec:
    """The spec with the points of a grid as its methods, after FedAvg and other references. Without
    axes, its methods are the points."""
    methods = list(spec.methods)
    if axes:
        if any(method.name == "auto" for method in methods):
            raise SpecError("a sweep needs a method, such as qffl; name it")
        methods = grid_points(
            [
                method
                for method in methods
                if method.label != label_of(method.name) or method.name not in REFERENCES
            ],
            axes,
        )
    elif not spec.select:
        raise SpecError("a sweep needs values to try: a grid, such as q=0.1,1,5 for qffl")
    labels = {method.label for method in methods}
    added = [Method(name, name) for name in REFERENCES if name in {"fedavg", *references}]
    return replace(spec, methods=(*(one for one in added if one.label not in labels), *methods))


def grid_points(methods: Sequence[Method], axes: Sequence[Axis]) -> list[Method]:
    """Each method with every combination of the values on its axes, labelled by them.

    >>> axes = [parse_axis("q=0.1,1"), parse_axis("local.lr=0.5")]
    >>> [point.label for point in grid_points([Method("qffl", "qffl")], axes)]
    ['qffl q=0.1 local.lr=0.5', 'qffl q=1 local.lr=0.5']
    """
    points = []
    for number, chosen in combinations([label_of(method.name) for method in methods], axes):
        method = methods[number]
        table, given = copy.deepcopy(method.table()), method.given
        for key, (value, text) in chosen.items():
            if given is None or key.startswith("local."):
                put(table, key, value, text)
            else:
                given = _changed(given, key, value, text)
        if given is not None:
            table = {**described(given), "local": table.get("local", {})}
            for key, (value, _) in chosen.items():  # including values equal to the default
                _set(table, key, value)
        values = (f"{key}={_shown(value)}" for key, (value, _) in chosen.items())
        table["label"] = " ".join([method.label, *values])
        points.append(replace(Method.from_table(table), given=given))
    return points


# the values of a point by key, each with the text of its axis
Chosen = dict[str, tuple[Any, str]]


def combinations(names: Sequence[str], axes: Sequence[Axis]) -> Iterator[tuple[int, Chosen]]:
    """The points of a grid for methods of these names: the number of the method, and its values.

    An axis whose key begins with a method's name applies only to that method.
    """
    for axis in axes:
        first = axis.key.partition(".")[0]
        if first != axis.key and first not in {*names, "local", "inner"}:
            given = f"a method of the sweep ({', '.join(sorted({*names}))})"
            raise SpecError(
                f"the key in the grid {axis.text!r} begins with {first!r}; it may begin with local,"
                f" inner or {given}"
            )
    points = 0
    for number, name in enumerate(names):
        own = [axis for axis in axes if _concerns(axis, name, names)]
        keys = [axis.key.removeprefix(f"{name}.") for axis in own]
        for values in product(*(axis.values for axis in own)):
            points += 1
            if points > MOST_POINTS:
                raise SpecError(f"the grid has more than {MOST_POINTS} points; take fewer values")
            chosen = zip(keys, values, own, strict=True)
            yield number, {key: (value, axis.text) for key, value, axis in chosen}


def _concerns(axis: Axis, method: str, names: Sequence[str]) -> bool:
    first = axis.key.partition(".")[0]
    return first == axis.key or first not in names or first == method


def _changed(algorithm: Algorithm, key: str, value: Any, text: str) -> Algorithm:
    """A method with another value of a hyper-parameter, its own or its inner method's."""
    name, _, rest = key.partition(".")
    kind = type(algorithm)
    known: list[str] = [entry.name for entry in fields(kind)] if is_dataclass(kind) else []
    if name not in known or (rest and name != "inner"):
        raise SpecError(f"{unknown(f'keyword of {kind.__name__}:', key, known)} (grid {text!r})")
    if rest:
        value = _changed(getattr(algorithm, name), rest, value, text)
    settings = {entry: getattr(algorithm, entry) for entry in known}
    try:
        return kind(**{**settings, name: value})
    except (ValueError, TypeError) as error:
        raise SpecError(f"{kind.__name__}: {error}") from error


def _set(table: Table, path: str, value: Any) -> None:
    *tables, key = path.split(".")
    for step in tables:
        table = table.setdefault(step, {})
    table[key] = value


def _shown(value: Any) -> str:
    """A value as part of a label, which is also the name of a folder."""
    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^\w.=+-]+", "-", text)
