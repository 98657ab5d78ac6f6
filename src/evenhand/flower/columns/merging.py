"""Merges the nodes' sums into the codebook that the simulator makes from one table with all
rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from evenhand.data.tables.columns import IDENTIFIER, MOST_CATEGORIES, Column
from evenhand.data.tables.roles import MOST_CLASSES
from evenhand.data.tables.values import Values
from evenhand.errors import RunError
from evenhand.flower.checks import LARGEST
from evenhand.flower.codebook import Codebook
from evenhand.flower.columns.wanted import Columns
from evenhand.flower.registration import MOST_SAMPLES

MOST_COLUMNS = 10_000
LONGEST = 200  # letters of a name
KINDS = ("number", "category", "date", "nothing", "other")

Told = Mapping[str, Any]


def read_told(text: str) -> Told:
    """Read a node's first answer; raises a one-line ValueError if it is impossible."""
    found = _parsed(text)
    classes, columns = found.get("classes"), found.get("columns")
    if not _are_names(classes, MOST_CLASSES) or not isinstance(columns, list):
        raise ValueError("it sent columns that cannot be read")
    if len(columns) > MOST_COLUMNS or not all(map(_is_column, columns)):
        raise ValueError("it sent columns that cannot be read")
    names = [entry["name"] for entry in columns]
    if len(set(names)) != len(names):
        raise ValueError("it sent a column twice")
    for entry in columns:
        _check_sums(entry)
    return found


def read_squares(text: str, means: Mapping[str, float]) -> dict[str, float]:
    """Read a node's second answer; raises a one-line ValueError if it is impossible."""
    found = _parsed(text)
    if found.keys() != means.keys() or not all(
        _is_number(value) and value >= 0 for value in found.values()
    ):
        raise ValueError("it sent impossible sums of squares")
    return {name: float(value) for name, value in found.items()}


def means_of(told: Sequence[Told]) -> dict[str, float]:
    """The mean of each numeric column over all nodes."""
    return {
        name: _sum(entries, "sum") / _sum(entries, "count")
        for name, entries in _shared(told).items()
        if _is_numeric(name, entries)
    }


def merged(
    wanted: Columns, told: Sequence[Told], squares: Sequence[Mapping[str, float]]
) -> Codebook:
    """The codebook, from the answers of all nodes in the order of their names."""
    classes = _ordered({name for answer in told for name in answer["classes"]})
    if len(classes) < 2 or len(classes) > MOST_CLASSES:
        raise RunError(
            f"label {wanted.label!r} has {len(classes)} classes with enough rows at one node; a"
            f" model needs 2 to {MOST_CLASSES}"
        )
    means, columns, out = means_of(told), [], []
    for name, entries in _shared(told).items():
        found = (
            _number(name, entries, means[name], np.array([own[name] for own in squares]))
            if name in means
            else _category(name, entries)
        )
        if isinstance(found, str):
            out.append((name, found))
        else:
            columns.append(found)
    everywhere = _shared(told)
    out += [
        (name, "not in the table of every node")
        for name in dict.fromkeys(entry["name"] for answer in told for entry in answer["columns"])
        if name not in everywhere
    ]
    if not columns:
        raise RunError("no column of the nodes' tables can be a feature; check the tables")
    return Codebook(
        tuple(columns), wanted.label, classes, wanted.group, wanted.test, tuple(out), wanted.missing
    )


def _shared(told: Sequence[Told]) -> dict[str, list[Told]]:
    """The answers about each column that all nodes have, in the first node's order."""
    by_name = [{entry["name"]: entry for entry in answer["columns"]} for answer in told]
    return {
        name: [own[name] for own in by_name]
        for name in by_name[0]
        if all(name in own for own in by_name)
    }


def _is_numeric(name: str, entries: Sequence[Told]) -> bool:
    """Whether a column has numbers at every node that has values, and more than two of them."""
    held = [entry for entry in entries if entry["kind"] != "nothing"]
    if not held or any(entry["kind"] != "number" for entry in held):
        return False
    if IDENTIFIER.search(name) and all(entry["unique"] for entry in held):
        return _sum(held, "count") < 10
    return any(entry["many"] for entry in held) or len(_names(held)) > 2


def _number(
    name: str, entries: Sequence[Told], mean: float, squares: np.ndarray[Any, Any]
) -> Column | str:
    std = float(np.sqrt(squares.sum() / _sum(entries, "count")))
    if not math.isfinite(std):
        raise RunError(f"column {name!r} has numbers too large to add up; use another unit")
    if std == 0:
        return "almost constant in the training rows"
    missing = int(any(entry["missing"] for entry in entries))
    return Column(name, "number", missing=missing, mean=mean, std=std)


def _category(name: str, entries: Sequence[Told]) -> Column | str:
    held = [entry for entry in entries if entry["kind"] != "nothing"]
    kinds = {entry["kind"] for entry in held}
    if not held:
        return "no node has enough values"
    if kinds - {"number", "category"}:
        return (
            "a date; a codebook has numbers and categories"
            if kinds == {"date"}
            else "its values are of different kinds, or not plain"
        )
    if kinds == {"number"} and any(entry["many"] for entry in held):
        return "looks like an identifier: named like one, and no value repeats"
    if any(entry["many"] for entry in held):
        return (
            "numbers at some nodes, text at others"
            if "number" in kinds
            else f"more than {MOST_CATEGORIES} categories"
        )
    names, count = _names(held), _sum(held, "count")
    if len(names) > MOST_CATEGORIES:
        return f"more than {MOST_CATEGORIES} categories"
    if count >= 10 and len(names) >= 0.9 * count:
        return "looks like an identifier: hardly any value repeats"
    categories = _ordered(names)
    if categories and any(entry["missing"] for entry in entries):
        categories = (*categories, "missing")
    if len(categories) < 2:
        return "constant in the training rows" if categories else "no category has enough rows"
    kind = "yes/no" if len(categories) == 2 else "category"
    return Column(name, kind, categories=categories, counts=(0,) * len(categories))


def _names(entries: Sequence[Told]) -> set[str]:
    return {name for entry in entries for name in entry["names"]}


def _ordered(names: set[str]) -> tuple[str, ...]:
    """In their natural order, as one table would have them."""
    listed = sorted(names)
    return tuple(Values("", pd.Series(listed, dtype=object)).in_order(listed))


def _sum(entries: Sequence[Told], what: str) -> float:
    """Sum over nodes as the simulator does; nodes without a value have 0."""
    return float(np.array([float(entry.get(what, 0.0)) for entry in entries]).sum())


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("it sent columns that cannot be read") from error
    if not isinstance(found, dict):
        raise ValueError("it sent columns that cannot be read")
    return found


def _are_names(values: Any, most: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= most
        and all(isinstance(name, str) and len(name) <= LONGEST for name in values)
        and len(set(values)) == len(values)
    )


def _is_column(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.get("kind") not in KINDS:
        return False
    plain = _are_names([entry.get("name")], 1) and type(entry.get("missing")) is bool
    if entry["kind"] not in ("number", "category"):
        return plain
    flags = ["many", "unique"] if entry["kind"] == "number" else ["many"]
    return (
        plain
        and _are_names(entry.get("names"), MOST_CATEGORIES)
        and all(type(entry.get(flag)) is bool for flag in flags)
    )


def _check_sums(entry: Told) -> None:
    """Raise if a column's count is not an integer or its sum is impossible."""
    if entry["kind"] not in ("number", "category"):
        return
    count = entry.get("count")
    if type(count) is not int or not 1 <= count <= MOST_SAMPLES:
        raise ValueError(f"it sent an impossible count for column {entry['name']!r}")
    if entry["kind"] == "number" and not _is_number(entry.get("sum")):
        raise ValueError(f"it sent an impossible sum for column {entry['name']!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
