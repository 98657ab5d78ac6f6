"""Encoding the columns of a table as numbers, and new rows in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.tables.bad_cells import for_each
from evenhand.data.tables.columns import Column
from evenhand.data.tables.missing import emptied
from evenhand.data.tables.values import Values
from evenhand.errors import DataError

Numbers = NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class Encoding:
    """How a table's columns became numbers; it encodes new rows in the same way.

    It is fitted on the training rows. Numbers are scaled to mean 0 and standard deviation 1; a
    missing number becomes the mean and sets an extra column to 1. A category becomes one 0/1 column
    per value, or a single column if it has two values; "missing" is a value of its own. A category
    that no training row has becomes zeros, or 0.5 in a single column.

    Attributes:
        columns: how each column is encoded.
        label: the label's column, or the condition on one.
        task: "classification" or "regression".
        label_names: of the classes.
        label_mean: of a regression's label in the training rows; labels are scaled like numbers.
        label_std: the label's standard deviation.
        dropped: why rows were skipped, and how many.
        lost: clients without a usable row.
        missing: texts that the user declared to mean a missing value.
        client: the column of the clients, or the condition on one; "" if a partition made them.
        group: the columns of the groups.
        hints: possible problems of the table; they do not affect the encoding and are not saved.
    """

    columns: tuple[Column, ...]
    label: str
    task: str = "classification"
    label_names: tuple[str, ...] = ()
    label_mean: float = 0.0
    label_std: float = 1.0
    dropped: tuple[tuple[str, int], ...] = ()
    lost: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    client: str = ""
    group: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the encoded matrix."""
        return tuple(feature for column in self.columns for feature in column.features)

    def transform(self, table: pd.DataFrame) -> Tensor:
        """Encode new rows as (N, features) float32, in the order given."""
        matrix = np.empty((len(table), len(self.features)), dtype=np.float32)
        place = 0
        for block, _ in self._encoded(table).values():
            matrix[:, place : place + block.shape[1]] = block
            place += block.shape[1]
        return torch.from_numpy(matrix)

    def unseen(self, table: pd.DataFrame) -> dict[str, int]:
        """Count the rows with a category that no training row has, by column; omits zero counts."""
        counts = {name: int(new.sum()) for name, (_, new) in self._encoded(table).items()}
        return {name: count for name, count in counts.items() if count}

    def _encoded(self, table: pd.DataFrame) -> dict[str, tuple[Numbers, NDArray[np.bool_]]]:
        """Return the numbers of each used column, and whether a category is new."""
        if not isinstance(table, pd.DataFrame):
            raise TypeError(f"table must be a pandas DataFrame, got {type(table).__name__}")
        place: dict[str, int] = {}
        for position, name in enumerate(map(str, table.columns)):
            if name in place and any(column.name == name for column in self.columns):
                raise DataError(f"column {name!r} appears twice; rename one")
            place[name] = position
        needed = [column for column in self.columns if column.kind != "left out"]
        for column in needed:
            if column.name not in place:
                raise DataError(f"column {column.name!r} is missing; the model needs it")

        def encoded(column: Column) -> tuple[Numbers, NDArray[np.bool_]]:
            cells = emptied(table.iloc[:, place[column.name]], self.missing)
            return column.encode(Values(column.name, cells))

        return dict(zip((column.name for column in needed), for_each(needed, encoded), strict=True))

    def unscaled(self, values: Tensor) -> Tensor:
        """Convert outputs of a regression to the label's own unit."""
        return values * self.label_std + self.label_mean

    def identity(self) -> dict[str, Any]:
        """Return what determines the encoding, as plain values: used columns, scales,
        categories, label."""
        saved = self.to_json()
        used = [column for column in saved["columns"] if column["kind"] != "left out"]
        kept = ("label", "task", "label_names", "label_mean", "label_std")
        return {"columns": used, **{key: saved[key] for key in kept}}

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, texts and numbers, for ``from_json``."""
        saved = {"format": 1, **_lists(asdict(self))}
        del saved["hints"]
        for name in ("missing", "client", "group"):
            if not saved[name]:  # as earlier versions wrote and read it
                del saved[name]
        return saved

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Encoding:
        """Rebuild the encoding that ``to_json`` saved."""
        try:
            fields = dict(saved)
            if fields.pop("format") != 1:
                raise ValueError(f"unknown format {saved['format']!r}")
            columns = tuple(
                Column(**{key: _tuples(value) for key, value in column.items()})
                for column in fields.pop("columns")
            )
            return cls(columns=columns, **{key: _tuples(value) for key, value in fields.items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"this is not a saved encoding: {error}") from error

    def rows(self) -> list[dict[str, str | int]]:
        """Return a row per column of the table: column, kind, missing, values, unseen, features."""
        return [
            {
                "column": column.name,
                "kind": column.kind,
                "missing": column.missing,
                "values": column.summary(),
                "unseen": column.unseen,
                "features": len(column.features),
            }
            for column in self.columns
        ]

    def notes(self) -> list[str]:
        """Return what else a user should know, a line each: label, skipped rows and clients,
        hints."""
        if self.task == "regression":
            label = (
                f"label {self.label}: a number, mean {self.label_mean:.4g}, std"
                f" {self.label_std:.4g} in the training rows"
            )
        else:
            label = (
                f"label {self.label}: {len(self.label_names)} classes,"
                f" {', '.join(self.label_names)}"
            )
        dropped = [f"{count} row{'s' * (count != 1)} skipped: {why}" for why, count in self.dropped]
        return [
            label,
            *dropped,
            *(f"client {name} skipped: none of its rows can be used" for name in self.lost),
            *(f"hint: {hint}" for hint in self.hints),
        ]

    def __str__(self) -> str:
        cells = [
            {key: str(value or "") for key, value in row.items() if key != "features"}
            for row in self.rows()
        ]
        shown = [
            key
            for key in ("column", "kind", "missing", "values", "unseen")
            if any(row[key] for row in cells)
        ]
        width = {key: max([len(key), *(len(row[key]) for row in cells)]) for key in shown}
        lines = [
            "  ".join(row[key].ljust(width[key]) for key in shown).rstrip()
            for row in [{key: key for key in shown}, *cells]
        ]
        return "\n".join([*lines, *self.notes()])

    def __repr__(self) -> str:
        used = sum(column.kind != "left out" for column in self.columns)
        return (
            f"<Encoding: {used} of {len(self.columns)} columns, {len(self.features)} features,"
            f" label {self.label!r}>"
        )


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, tuple | list) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
