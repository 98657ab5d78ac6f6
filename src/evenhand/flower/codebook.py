"""How nodes turn the columns of their tables into numbers: a small file that travels with the app.

Nodes must encode rows in the same way without seeing each other's rows. So the constants are fixed
beforehand, in a file that everyone can read: which columns are features, the rough mean and spread
of each number, and the values of each category.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.data.splits import part_sizes
from evenhand.data.tables.bad_cells import for_each
from evenhand.data.tables.columns import MOST_CATEGORIES, Column, fit_column
from evenhand.data.tables.encoding import Encoding
from evenhand.data.tables.files import read_table
from evenhand.data.tables.giveaways import Answer
from evenhand.data.tables.hints import Feature, hints_of
from evenhand.data.tables.levels import find_column, groups_of, levels_of
from evenhand.data.tables.missing import missing_texts, without
from evenhand.data.tables.roles import MOST_CLASSES
from evenhand.data.tables.values import Ints, Values
from evenhand.errors import DataError, SpecError, first_line, require_known, require_number
from evenhand.flower.codebook_text import (
    HEAD,
    MISSING,
    column_of,
    toml_entry,
    toml_key,
    toml_text,
    toml_texts,
)
from evenhand.flower.conditions import require_both_sides

# of means and spreads: enough for scaling, and less revealing
DIGITS = 2
ENTRIES = ("label", "classes", "group", "test", "missing", "columns")


@dataclass(frozen=True)
class Codebook:
    """How a node's table becomes a client's data.

    Args:
        columns: the features; other columns are not used.
        label: the column to predict, or a condition on one: "stage > 2".
        classes: the values of the label.
        group: columns or conditions whose combinations are the groups to compare.
        test: the share of rows kept for testing.
        left_out: columns of a table that cannot be features, and why; written as comments.
        missing: texts that stand for a missing value in all columns, such as "<0.5".
        hints: what may be wrong with the table it was made from.
    """

    columns: tuple[Column, ...]
    label: str
    classes: tuple[str, ...]
    group: tuple[str, ...] = ()
    test: float = 0.2
    left_out: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default=(), compare=False)

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
        return Encoding(self.columns, self.label, label_names=self.classes, missing=self.missing)

    @property
    def inputs(self) -> int:
        """Numbers in a sample."""
        return len(self.encoding.features)

    @property
    def outputs(self) -> int:
        """Classes."""
        return len(self.classes)

    def federation(self, table: pd.DataFrame | str | Path, strict: bool = True) -> Federation:
        """The data of one node, from its table or the table's path.

        The test split depends only on the number of rows, so it is the same at every call. The
        encoding of a text file is guessed; to name it, read the file with ``read_table``.

        Rows without a label are excluded; ``encoding.dropped`` of the result says how many. With
        ``strict``, a label outside the classes is an error; otherwise its rows are excluded too.
        """
        if not isinstance(table, pd.DataFrame):
            table = read_table(table, missing=self.missing)
        table = without(table, self.missing)
        answer = levels_of(table, "label", self.label)
        unknown = [name for name in answer.names if name not in self.classes]
        if unknown and strict:
            raise DataError(
                f"label {self.label!r} has the value {unknown[0]!r}, which is not a class of the"
                f" codebook; its classes are {', '.join(self.classes)}"
            )
        position = {name: code for code, name in enumerate(self.classes)}
        place = np.array([*(position.get(name, -1) for name in answer.names), -1], dtype=np.int64)
        kept = np.flatnonzero(~answer.missing)
        usable = place[answer.codes[kept]] >= 0
        dropped = _dropped(len(table) - len(kept), int((~usable).sum()), self.label)
        if not usable.any():
            raise DataError(f"no row has a value of {self.label!r}; there is nothing to learn from")
        x = self.encoding.transform(table)[torch.from_numpy(kept)]
        y = torch.from_numpy(place[answer.codes[kept]])
        codes, group_names = groups_of(table, self.group, kept, MOST_CATEGORIES)
        group = None if codes is None else torch.from_numpy(codes)
        chosen = training_rows(len(kept), self.test)

        def part(positions: Ints) -> Part:
            rows = torch.from_numpy(positions[usable[positions]])
            return Part(
                x[rows],
                y[rows],
                torch.tensor([0, len(rows)]),
                None if group is None else group[rows],
            )

        held_out = np.setdiff1d(np.arange(len(kept)), chosen)
        return Federation(
            part(chosen),
            part(held_out) if len(held_out) else None,
            group_names=group_names,
            label_names=self.classes,
            encoding=replace(self.encoding, dropped=dropped),
        )

    def to_toml(self) -> str:
        """The file, with comments, for :meth:`load`."""
        used = "".join(
            f"{toml_key(column.name)} = {toml_entry(column)}\n" for column in self.columns
        )
        unused = "".join(
            f"# {toml_key(name)}: {' '.join(why.split())}\n" for name, why in self.left_out
        )
        head = HEAD.format(
            label=toml_text(self.label),
            classes=toml_texts(self.classes),
            group=toml_texts(self.group),
            test=self.test,
            missing=MISSING.format(toml_texts(self.missing)) if self.missing else "",
        )
        return head + used + unused

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
            raise SpecError(f"{Path(path).name} is not a codebook: {first_line(error)}") from error

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
            require_known("entry", name, ENTRIES)
        for name, kind in (("label", str), ("classes", list), ("columns", dict)):
            if not isinstance(found.get(name), kind):
                raise ValueError(
                    f"{name} is missing or not a"
                    f" {'text' if kind is str else 'table' if kind is dict else 'list'}"
                )
        group = found.get("group", [])
        columns = tuple(column_of(name, entry) for name, entry in found["columns"].items())
        groups = tuple(map(str, [group] if isinstance(group, str) else group))
        return cls(
            columns,
            found["label"],
            tuple(map(str, found["classes"])),
            groups,
            found.get("test", 0.2),
            missing=missing_texts(found.get("missing", [])),
        )

    @classmethod
    def of_table(
        cls,
        table: pd.DataFrame,
        label: str,
        group: tuple[str, ...] = (),
        drop: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
    ) -> Codebook:
        """Make a first codebook from a table like the nodes': its rounded means and spreads, and
        its categories."""
        missing = missing_texts(missing)
        table = without(table, missing)
        answer = levels_of(table, "label", label)
        if len(answer.names) > MOST_CLASSES:
            raise ValueError(
                f"label: {label!r} has {len(answer.names)} different values, and a model has at"
                f" most {MOST_CLASSES} classes; give a condition, such as '{label} > ...'"
            )
        require_both_sides(table, "label", label)
        for name in group:
            require_both_sides(table, "group", name)
        # raises where there is no such column
        groups_of(table, group, np.arange(len(table)), MOST_CATEGORIES)
        rows, offsets = np.arange(len(table)), np.array([0, len(table)])
        others = {answer.column, *(find_column(table, "drop", name) for name in drop)}
        names = [str(name) for name in table.columns if str(name) not in others]
        fitted = for_each(names, lambda name: fit_column(Values(name, table[name]), rows, offsets))
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
            missing=missing,
            hints=_hints(table, label, group, fitted),
        )


def training_rows(count: int, test: float) -> Ints:
    """Positions of the rows for training among ``count`` rows with a label, ascending."""
    order = np.random.default_rng(count).permutation(count)
    return np.sort(order[: part_sizes(count, 0, test)[0]])


def _dropped(unlabelled: int, unknown: int, label: str) -> tuple[tuple[str, int], ...]:
    """Why rows are excluded, and how many."""
    reasons = (
        (f"no value of {label!r}", unlabelled),
        (f"a value of {label!r} that is not a class of the codebook", unknown),
    )
    return tuple(reason for reason in reasons if reason[1])


def _hints(
    table: pd.DataFrame, label: str, group: tuple[str, ...], columns: list[Column]
) -> tuple[str, ...]:
    """What may be wrong with the rows that have a label."""
    answer = levels_of(table, "label", label)
    kept = np.flatnonzero(~answer.missing)
    features = [
        Feature(column, Values(column.name, table[column.name].iloc[kept], kept))
        for column in columns
    ]
    told = Answer(answer.codes[kept], len(answer.names))
    hints = hints_of(table, kept, features, {"classes": (label, answer)}, group, told)
    lacking = len(table) - len(kept)
    if not lacking:
        return hints
    return (
        f"{lacking} of {len(table)} rows have no value of {answer.column!r}; nodes exclude such"
        " rows",
        *hints,
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
