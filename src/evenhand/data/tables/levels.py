"""Columns, and conditions on columns (``"age > 60"``), as codes of their values."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenhand.data.tables.values import Ints, Values
from evenhand.errors import DataError

_CONDITION = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}


def listed(names: object) -> list[object]:
    """Return one name, several names or None as a list."""
    if names is None:
        return []
    return (
        list(names)
        if isinstance(names, Sequence | set | frozenset | pd.Index) and not isinstance(names, str)
        else [names]
    )


def find_column(table: pd.DataFrame, what: str, name: object) -> str:
    """Return the column ``name``; raise a ValueError that suggests the closest name if there is
    none."""
    # names from a file have no spaces around them
    for spelling in (str(name), str(name).strip()):
        if spelling in table.columns:
            return spelling
    near = difflib.get_close_matches(str(name), list(table.columns), n=1)
    shown = ", ".join(table.columns[:12]) + (", ..." if len(table.columns) > 12 else "")
    raise ValueError(
        f"{what}: there is no column {str(name)!r}; "
        + (f"did you mean {near[0]!r}?" if near else f"the columns are {shown}")
    )


class Levels(NamedTuple):
    """The values of a column, or of a condition on one, as codes."""

    column: str
    codes: Ints  # (N,) -1 where missing
    names: tuple[str, ...]
    worded: bool  # whether the names are clear without the column's name

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(N,) whether a value is missing."""
        return self.codes < 0

    @property
    def filled(self) -> tuple[Ints, tuple[str, ...]]:
        """(N,) codes and their names, with "unknown" for missing values.

        Names include the column's name if they are not clear without it.
        """
        names = (name if self.worded else f"{self.column}={name}" for name in self.names)
        return np.where(self.missing, len(self.names), self.codes), (*names, "unknown")


def condition_in(table: pd.DataFrame, name: object) -> re.Match[str] | None:
    """Parse a condition into column, sign and value; None if ``name`` is a column."""
    return None if str(name) in table.columns else _CONDITION.fullmatch(str(name))


def levels_of(table: pd.DataFrame, what: str, name: object, new: bool = False) -> Levels:
    """Return codes of a column's values in their natural order, or of a condition, false before
    true. In a ``new`` table, a condition may be about a value that no row has."""
    condition = condition_in(table, name)
    if condition is None:
        column = find_column(table, what, name)
        values = Values(column, table[column])
        codes, names = values.levels
        ordered = values.in_order(names)
        place = {level: code for code, level in enumerate(ordered)}
        renumbered = np.array([*(place[level] for level in names), -1], dtype=np.int64)[codes]
        worded = not (pd.api.types.is_bool_dtype(table[column].dtype) or values.kind() == "number")
        return Levels(column, renumbered, tuple(ordered), worded)
    column, sign = find_column(table, what, condition[1]), condition[2]
    given = condition[3].strip("'\"")
    truth, missing = _compare(Values(column, table[column]), sign, given, what, new)
    names = (f"{column} {_OPPOSITE[sign]} {given}", f"{column} {sign} {given}")
    return Levels(column, np.where(missing, -1, truth).astype(np.int64), names, True)


def _compare(
    values: Values, sign: str, given: str, what: str, new: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (N,) whether the condition holds, and whether the value is missing."""
    kind = values.kind()
    if kind in ("number", "date"):
        raw = values.numbers if kind == "number" else values.days
        try:
            other = Values(what, pd.Series([given], dtype=object))
            bound = float((other.numbers if kind == "number" else other.days)[0])
        except DataError:
            raise ValueError(
                f"{what}: {values.name!r} has {kind}s and cannot be compared with {given!r}"
            ) from None
        return _COMPARE[sign](raw, bound), np.isnan(raw)
    if sign not in ("==", "!="):
        raise ValueError(
            f"{what}: {values.name!r} has text, which can only be compared with == and !=, not with"
            f" {sign}"
        )
    codes, names = values.levels
    if given not in names and not new:
        raise ValueError(
            f"{what}: no row has {values.name} {given!r}; the values are"
            f" {', '.join(values.in_order(names)[:10])}"
        )
    place = names.index(given) if given in names else len(names)
    return _COMPARE[sign](codes, place), codes < 0


def groups_of(
    table: pd.DataFrame, group: object, kept: Ints, most: int
) -> tuple[Ints | None, tuple[str, ...]]:
    """Return group codes of the rows kept, and group names; a missing value is the group
    "unknown"."""
    columns = listed(group)
    if not columns:
        return None, ()
    parts: list[tuple[str, ...]] = []
    combined = np.zeros(len(kept), dtype=np.int64)
    for column in columns:
        levels = levels_of(table, "group", column)
        if len(levels.names) > most:
            raise ValueError(
                f"group: {levels.column!r} has {len(levels.names)} distinct values; use a"
                f" condition such as '{column} > ...'"
            )
        of_column, names_of = levels.filled
        parts.append(names_of)
        combined = combined * len(names_of) + of_column[kept]
    used, codes = np.unique(combined, return_inverse=True)
    shape = tuple(len(part) for part in parts)
    names = [
        " & ".join(part[i] for part, i in zip(parts, np.unravel_index(code, shape), strict=True))
        for code in used
    ]
    return codes.astype(np.int64), tuple(names)
