"""How the columns of a table became numbers, and how new rows become the same."""

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
    """How a table became numbers, fitted on training rows; it does the same to new rows.

    Numbers are scaled to mean 0 and standard deviation 1, a missing one becomes the mean and sets
    an extra column to 1. A category becomes a column of zeros and ones for each of its values, a
    missing one is a value of its own; where there are two values, one column is enough. A category
    that no training row has becomes zeros, a half where there is just one column.
    """

    columns: tuple[Column, ...]
    label: str  # the column, or the condition on one
    task: str = "classification"  # or "regression"
    label_names: tuple[str, ...] = ()
    # of a regression's label in the training rows, which is scaled like a number
    label_mean: float = 0.0
    label_std: float = 1.0
    dropped: tuple[tuple[str, int], ...] = ()  # why rows were left out, and how many
    lost: tuple[str, ...] = ()  # clients none of whose rows could be used
    missing: tuple[str, ...] = ()  # texts that the user says stand for a missing value
    # what may be wrong with the table; it is no part of how new rows are encoded, and not saved
    hints: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the encoded matrix."""
        return tuple(feature for column in self.columns for feature in column.features)

    def transform(self, table: pd.DataFrame) -> Tensor:
        """(N, features) float32: new rows in the order given, encoded as the training rows were."""
        matrix = np.empty((len(table), len(self.features)), dtype=np.float32)
        place = 0
        for block, _ in self._encoded(table).values():
            matrix[:, place : place + block.shape[1]] = block
            place += block.shape[1]
        return torch.from_numpy(matrix)

    def unseen(self, table: pd.DataFrame) -> dict[str, int]:
        """How many rows of a table have a category that no training row has, by column; columns
        without any are not listed."""
        counts = {name: int(new.sum()) for name, (_, new) in self._encoded(table).items()}
        return {name: count for name, count in counts.items() if count}

    def _encoded(self, table: pd.DataFrame) -> dict[str, tuple[Numbers, NDArray[np.bool_]]]:
        """Of each column that is used: its numbers, and whether a category is new."""
        if not isinstance(table, pd.DataFrame):
            raise TypeError(f"table must be a pandas DataFrame, got {type(table).__name__}")
        place: dict[str, int] = {}
        for position, name in enumerate(map(str, table.columns)):
            if name in place and any(column.name == name for column in self.columns):
                raise DataError(f"column {name!r} is there twice; rename one")
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
        """Outputs of a regression in the label's own unit."""
        return values * self.label_std + self.label_mean

    def identity(self) -> dict[str, Any]:
        """What rows are encoded by, as plain values: columns that are used, scales, categories, the
        label."""
        saved = self.to_json()
        used = [column for column in saved["columns"] if column["kind"] != "left out"]
        kept = ("label", "task", "label_names", "label_mean", "label_std")
        return {"columns": used, **{key: saved[key] for key in kept}}

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers, for ``from_json``."""
        saved = {"format": 1, **_lists(asdict(self))}
        del saved["hints"]
        if not self.missing:  # as earlier versions write it, and read it
            del saved["missing"]
        return saved

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Encoding:
        """The encoding that ``to_json`` wrote."""
        try:
            fields = dict(saved)
            if fields.pop("format") != 1:
                raise ValueError(f"format {saved['format']!r} is not known to this version")
            columns = tuple(
                Column(**{key: _tuples(value) for key, value in column.items()})
                for column in fields.pop("columns")
            )
            return cls(columns=columns, **{key: _tuples(value) for key, value in fields.items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"this is not a saved encoding: {error}") from error

    def rows(self) -> list[dict[str, str | int]]:
        """A row for each column of the table, for people: column, kind, missing, values, unseen,
        features."""
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
        """What else a user should know, a line each: the label, rows and clients that were left
        out, hints."""
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
        dropped = [
            f"{count} row{'s' * (count != 1)} left out: {why}" for why, count in self.dropped
        ]
        return [
            label,
            *dropped,
            *(f"client {name} left out: none of its rows can be used" for name in self.lost),
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
