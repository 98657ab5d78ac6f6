"""How a codebook is written in TOML: its comments, and the entries of its columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evenhand.data.tables.columns import Column
from evenhand.errors import require_number

HEAD = """\
# How every node turns the columns of its table into numbers. This file travels with the app, so all
# nodes do the same without seeing each other's rows. Everyone in the federation can read it: put
# nothing into it that a node would not disclose.

label = {label}  # the column to predict, or a condition on one: "stage > 2"
classes = {classes}  # its values
group = {group}  # columns whose combinations are the groups to compare; [] for none
test = {test}  # the share of each node's rows kept for testing
{missing}
# The features. Other columns are not used.
#   a number:   {{ mean = 60, std = 12 }}, roughly; it becomes (value - mean) / std. A missing value
#               counts as the mean; missing = true adds a feature that is 1 for missing values.
#   a category: {{ values = ["A", "B"] }}; one feature per value (only one for two values). Any
#               other value sets none of them.
[columns]
"""
MISSING = """\
missing = {}  # cells with these texts count as missing, in all columns
"""


def column_of(name: str, entry: Any) -> Column:
    """The column of an entry; raises a ValueError where it is none."""
    if (
        isinstance(entry, Mapping)
        and set(entry) == {"values"}
        and isinstance(entry["values"], list)
        and len(entry["values"]) > 1
    ):
        values = tuple(map(str, entry["values"]))
        return Column(
            name,
            "yes/no" if len(values) == 2 else "category",
            categories=values,
            counts=(0,) * len(values),
        )
    if not isinstance(entry, Mapping) or not {"mean", "std"} <= set(entry) <= {
        "mean",
        "std",
        "missing",
    }:
        raise ValueError(
            f'column {name!r} must be {{ mean = ..., std = ... }} or {{ values = ["...", "..."] }}'
        )
    require_number(f"mean of {name!r}", entry["mean"], "(-inf, inf)")
    require_number(f"std of {name!r}", entry["std"], "(0, inf)")
    return Column(
        name,
        "number",
        missing=int(bool(entry.get("missing"))),
        mean=float(entry["mean"]),
        std=float(entry["std"]),
    )


def toml_entry(column: Column) -> str:
    """The entry of a column."""
    if column.kind != "number":
        return f"{{ values = {toml_texts(column.categories)} }}"
    return (
        f"{{ mean = {column.mean!r}, std ="
        f" {column.std!r}{', missing = true' if column.missing else ''} }}"
    )


def toml_text(text: str) -> str:
    """A text in quotes."""
    return json.dumps(text, ensure_ascii=False)  # TOML's basic strings are written in the same way


def toml_texts(texts: tuple[str, ...]) -> str:
    """A list of texts."""
    return json.dumps(list(texts), ensure_ascii=False)


def toml_key(name: str) -> str:
    """The key of a column: its name, in quotes where TOML wants them."""
    return (
        name
        if name.isascii() and name.replace("_", "").replace("-", "").isalnum()
        else toml_text(name)
    )
