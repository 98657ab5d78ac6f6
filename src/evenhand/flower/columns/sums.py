"""What a node reports about its columns: counts, sums and names of common categories in its
training rows.

A node does not report what fewer than ``least`` rows have: neither such a category, nor the sum of
a column with values in so few rows. Such a column counts as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evenhand.data.tables.columns import MOST_CATEGORIES, client_sums
from evenhand.data.tables.files import read_table
from evenhand.data.tables.levels import condition_in, find_column, levels_of
from evenhand.data.tables.missing import without
from evenhand.data.tables.roles import MOST_CLASSES
from evenhand.data.tables.values import Floats, Ints, Values, tally
from evenhand.errors import DataError, RunError
from evenhand.flower.codebook import training_rows
from evenhand.flower.columns.wanted import Columns

Table = pd.DataFrame | str | Path


class OwnColumns:
    """The columns of one node's table.

    Args:
        least: fewest rows behind a reported number or name.
    """

    def __init__(self, wanted: Columns, table: Table, least: int) -> None:
        if not isinstance(table, pd.DataFrame):
            table = read_table(table, missing=wanted.missing)
        self.table, self.wanted, self.least = without(table, wanted.missing), wanted, least
        self._answer = levels_of(self.table, "label", wanted.label)
        kept = np.flatnonzero(~self._answer.missing)
        if not len(kept):
            raise DataError(
                f"no row has a value of {wanted.label!r}; there is nothing to learn from"
            )
        self._kept, self._train = kept, kept[training_rows(len(kept), wanted.test)]
        dropped = {self._dropped(name) for name in wanted.drop}
        self._names = [
            str(name)
            for name in self.table.columns
            if str(name) not in {self._answer.column, *dropped}
        ]

    def _dropped(self, name: str) -> str:
        """A column that must not be reported, so a misspelt name is an error."""
        try:
            return find_column(self.table, "drop", name)
        except ValueError as error:
            raise RunError(
                f"drop names {name!r}, which is not a column of the node's table"
            ) from error

    def told(self) -> dict[str, Any]:
        """The first answer: the names of classes, and what each column contains."""
        return {
            "classes": self._classes(),
            "columns": [{"name": name, **self._column(name)} for name in self._names],
        }

    def squares(self, means: Mapping[str, float]) -> dict[str, float]:
        """The second answer: sums of squared differences from the means of all nodes."""
        found = {}
        for name in self._names:
            if name in means:
                entry = self._column(name)
                raw = self._numbers(name) if entry["kind"] == "number" else np.zeros(0)
                present = ~np.isnan(raw)
                with np.errstate(over="ignore", invalid="ignore"):
                    found[name] = _total(np.where(present, (raw - means[name]) ** 2, 0.0))
        return found

    def _classes(self) -> list[str]:
        names = self._answer.names
        if condition_in(self.table, self.wanted.label) is not None:
            return list(names)
        if len(names) > MOST_CLASSES:
            raise RunError(
                f"the label has more than {MOST_CLASSES} different values here; give a condition on"
                " it, or remove values that are not classes"
            )
        counts = tally(self._answer.codes, len(names))
        return [name for name, count in zip(names, counts, strict=False) if count >= self.least]

    def _numbers(self, name: str) -> Floats:
        return Values(name, self.table[name]).numbers[self._train]

    def _column(self, name: str) -> dict[str, Any]:
        values = Values(name, self.table[name])
        try:
            kind = values.kind(self._train)
        except DataError:
            kind = "other"
        if kind == "number":
            return self._number(values)
        if kind == "category":
            return self._category(values)
        return {"kind": kind if kind in ("nothing", "date") else "other", "missing": True}

    def _number(self, values: Values) -> dict[str, Any]:
        raw = values.numbers[self._train]
        present = raw[~np.isnan(raw)]
        if len(present) < max(1, self.least):
            return {"kind": "nothing", "missing": True}
        names, counts = self._levels(values)
        few = len(names) <= 2 and min(counts) >= self.least
        return {
            "kind": "number",
            "missing": len(present) < len(raw),
            "count": len(present),
            "sum": _total(np.where(np.isnan(raw), 0.0, raw)),
            "names": names if few else [],
            "many": not few,
            "unique": len(names) == len(present),
        }

    def _category(self, values: Values) -> dict[str, Any]:
        names, counts = self._levels(values)
        count, many = sum(counts), len(names) > MOST_CATEGORIES
        told = [name for name, own in zip(names, counts, strict=True) if own >= self.least]
        return {
            "kind": "category",
            "missing": count < len(self._train),
            "count": count,
            "names": [] if many else told,
            "many": many,
        }

    def _levels(self, values: Values) -> tuple[list[str], list[int]]:
        """The different values in the training rows, and how often each occurs."""
        codes, names = values.levels
        counts: Ints = tally(codes[self._train], len(names))[:-1]
        used = [(name, own) for name, own in zip(names, counts.tolist(), strict=True) if own]
        return [name for name, _ in used], [own for _, own in used]


def _total(values: Floats) -> float:
    """Sum a client's values as the simulator does."""
    return float(client_sums(values, np.array([0, len(values)])).sum())
