"""How nodes turn the columns of their tables into numbers: a small file that travels with an app.

Nodes must encode rows in the same way without seeing each other's. So the constants are agreed on
beforehand and written down where everyone can read them: which columns are features, roughly which
mean and spread a number has, which values a category can take.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.data.splits import part_sizes
from evenhand.data.tables.columns import MOST_CATEGORIES, Column, fit_column
from evenhand.data.tables.encoding import Encoding
from evenhand.data.tables.files import read_table
from evenhand.data.tables.levels import groups_of, levels_of
from evenhand.data.tables.roles import MOST_CLASSES
from evenhand.data.tables.values import Values
from evenhand.errors import DataError, SpecError, first_line, require_known, require_number

# of means and spreads taken from a table: enough to scale by, and they tell less about its rows
DIGITS = 2


@dataclass(frozen=True)
class Codebook:
    """How one table of a node becomes the data of a client.

    Args:
        columns: the features; other columns of a table are not used.
        label: the column to predict, or a condition on one: "stage > 2".
        classes: the values of the label.
        group: columns, or conditions, whose combinations are the groups of people to compare.
        test: the share of rows that is kept for testing.
        left_out: columns of a table that cannot be features, and why; written as comments.
    """

    columns: tuple[Column, ...]
    label: str
    classes: tuple[str, ...]
    group: tuple[str, ...] = ()
    test: float = 0.2
    left_out: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        require_number("test", self.test, "[0, 1)", "it is the share of rows kept for testing")
        if len(self.classes) < 2:
            raise ValueError(
                f"classes must be at least two values of {self.label!r}, got {list(self.classes)}"
            )
        if not self.columns:
            raise ValueError("columns must name at least one feature")

    @property
    def encoding(self) -> Encoding:
        """How rows become numbers."""
        return Encoding(self.columns, self.label, label_names=self.classes)

    @property
    def inputs(self) -> int:
        """Numbers in a sample."""
        return len(self.encoding.features)

    @property
    def outputs(self) -> int:
        """Classes."""
        return len(self.classes)

    def federation(self, table: pd.DataFrame | str | Path) -> Federation:
        """The data of one node, from its table or the path of it.

        Which rows are for testing depends on their number alone, so it is the same at every call.
        """
        if not isinstance(table, pd.DataFrame):
            table = read_table(table)
        answer = levels_of(table, "label", self.label)
        unknown = [name for name in answer.names if name not in self.classes]
        if unknown:
            raise DataError(
                f"label {self.label!r} is {unknown[0]!r} in some row; the codebook knows"
                f" {', '.join(self.classes)}"
            )
        place = np.array([*map(self.classes.index, answer.names), -1], dtype=np.int64)
        kept = np.flatnonzero(~answer.missing)
        if not len(kept):
            raise DataError(f"no row has a value of {self.label!r}; there is nothing to learn from")
        x = self.encoding.transform(table)[torch.from_numpy(kept)]
        y = torch.from_numpy(place[answer.codes[kept]])
        codes, group_names = groups_of(table, self.group, kept, MOST_CATEGORIES)
        group = None if codes is None else torch.from_numpy(codes)
        order = torch.from_numpy(np.random.default_rng(len(kept)).permutation(len(kept)))
        count = part_sizes(len(kept), 0, self.test)[0]

        def part(rows: torch.Tensor) -> Part:
            return Part(
                x[rows],
                y[rows],
                torch.tensor([0, len(rows)]),
                None if group is None else group[rows],
            )

        train, test = order[:count].sort().values, order[count:].sort().values
        return Federation(
            part(train),
            part(test) if len(test) else None,
            group_names=group_names,
            label_names=self.classes,
        )

    def to_toml(self) -> str:
        """The file, with comments, for :meth:`load`."""
        used = "".join(f"{_key(column.name)} = {_entry(column)}\n" for column in self.columns)
        unused = "".join(
            f"# {_key(name)}: {' '.join(why.split())}\n" for name, why in self.left_out
        )
        groups = json.dumps(list(self.group), ensure_ascii=False)
        return (
            HEAD.format(
                label=_text(self.label), classes=_texts(self.classes), group=groups, test=self.test
            )
            + used
            + unused
        )

    @classmethod
    def load(cls, path: str | Path) -> Codebook:
        """The codebook in a TOML file."""
        try:
            return cls.parse(Path(path).read_text(encoding="utf-8"))
        except (
            OSError,
            UnicodeDecodeError,
            tomllib.TOMLDecodeError,
            SpecError,
            TypeError,
            ValueError,
        ) as error:
            raise SpecError(f"{Path(path).name} is no codebook: {first_line(error)}") from error

    @classmethod
    def parse(cls, text: str) -> Codebook:
        """The codebook in a TOML text.

        >>> age, ward = 'age = { mean = 50, std = 10 }', 'ward = { values = ["A", "B"] }'
        >>> lines = 'label = "ill"', 'classes = ["no", "yes"]', "[columns]", age, ward
        >>> Codebook.parse("\\n".join(lines)).encoding.features
        ('age', 'ward=B')
        """
        found = tomllib.loads(text)
        for name in found:
            require_known("entry", name, ("label", "classes", "group", "test", "columns"))
        for name, kind in (("label", str), ("classes", list), ("columns", dict)):
            if not isinstance(found.get(name), kind):
                raise ValueError(
                    f"{name} is missing, or no"
                    f" {'text' if kind is str else 'table' if kind is dict else 'list'}"
                )
        group = found.get("group", [])
        columns = tuple(_column(name, entry) for name, entry in found["columns"].items())
        groups = tuple(map(str, [group] if isinstance(group, str) else group))
        return cls(
            columns,
            found["label"],
            tuple(map(str, found["classes"])),
            groups,
            found.get("test", 0.2),
        )

    @classmethod
    def of_table(
        cls,
        table: pd.DataFrame,
        label: str,
        group: tuple[str, ...] = (),
        drop: tuple[str, ...] = (),
    ) -> Codebook:
        """A first codebook from a table that looks like the nodes': its means and spreads, rounded,
        and its categories."""
        answer = levels_of(table, "label", label)
        if len(answer.names) > MOST_CLASSES:
            raise ValueError(
                f"label: {label!r} has {len(answer.names)} different values, a model tells at most"
                f" {MOST_CLASSES} classes apart; give a condition, such as '{label} > ...'"
            )
        # raises where there is no such column
        groups_of(table, group, np.arange(len(table)), MOST_CATEGORIES)
        rows, offsets = np.arange(len(table)), np.array([0, len(table)])
        names = [str(name) for name in table.columns if str(name) not in (answer.column, *drop)]
        fitted = [fit_column(Values(name, table[name]), rows, offsets) for name in names]
        out = [
            (
                column.name,
                (
                    column.why
                    if column.kind == "left out"
                    else "a date; a codebook has numbers and categories"
                ),
            )
            for column in fitted
        ]
        useful = ("number", "yes/no", "category")
        return cls(
            columns=tuple(_rounded(column) for column in fitted if column.kind in useful),
            label=label,
            classes=answer.names,
            group=group,
            left_out=tuple(
                pair for pair, column in zip(out, fitted, strict=True) if column.kind not in useful
            ),
        )


HEAD = """\
# How every node turns the columns of its table into numbers. This file travels with the app, so
# that all nodes do the same without seeing each other's rows. Everyone in the federation can read
# it: put nothing into it that a single node would not tell.

label = {label}  # the column to predict, or a condition on one: "stage > 2"
classes = {classes}  # its values
group = {group}  # columns whose combinations are the groups of people to compare; [] for none
test = {test}  # the share of each node's rows that is kept for testing

# The features. Columns of a table that are not named here are not used.
#   a number:   {{ mean = 60, std = 12 }}, roughly; it becomes (value - mean) / std. A missing value
#               counts as the mean; with missing = true an extra feature is 1 where it is missing.
#   a category: {{ values = ["A", "B"] }}; one feature for each value (a single one for two values).
#               Any other value sets none of them.
[columns]
"""


def _column(name: str, entry: Any) -> Column:
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


def _entry(column: Column) -> str:
    if column.kind != "number":
        return f"{{ values = {_texts(column.categories)} }}"
    return (
        f"{{ mean = {column.mean!r}, std ="
        f" {column.std!r}{', missing = true' if column.missing else ''} }}"
    )


def _rounded(column: Column) -> Column:
    """Without counts, which are private."""
    if column.kind != "number":
        return Column(
            column.name,
            column.kind,
            categories=column.categories,
            counts=(0,) * len(column.categories),
        )
    mean, std = (float(f"{value:.{DIGITS}g}") for value in (column.mean, column.std))
    return Column(column.name, "number", missing=int(column.missing > 0), mean=mean, std=std)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # TOML's basic strings are written in the same way


def _texts(texts: tuple[str, ...]) -> str:
    return json.dumps(list(texts), ensure_ascii=False)


def _key(name: str) -> str:
    return (
        name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else _text(name)
    )
