"""New rows for a trained model: tables of any library, their clients and groups, and what in them
differs from the training rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evenhand.data.tables.bad_cells import MOST_COLUMNS, BadCells
from evenhand.data.tables.columns import Column
from evenhand.data.tables.encoding import Encoding
from evenhand.data.tables.levels import Levels, levels_of, listed
from evenhand.data.tables.missing import emptied
from evenhand.data.tables.values import DAY, Ints, Values, text_of
from evenhand.errors import DataError

MOST_VALUES = 5  # unknown values shown of a column


def as_pandas(x: Any) -> pd.DataFrame | None:
    """A table of pandas, polars or another library as a pandas table; None if it is no table."""
    if isinstance(x, pd.DataFrame):
        return x
    import narwhals as nw

    if nw.dependencies.is_polars_lazyframe(x):
        raise TypeError("x is a LazyFrame; pass x.collect()")
    if not nw.dependencies.is_into_dataframe(x):
        return None
    table = nw.from_native(x, eager_only=True)
    # polars' own to_pandas needs pyarrow
    columns = {
        name: table[name].to_numpy()
        if table.schema[name].is_numeric() or table.schema[name].is_temporal()
        else pd.Series(table[name].to_list(), dtype=object)
        for name in table.columns
    }
    return pd.DataFrame(columns, index=range(len(table)))


def like(x: Any, values: Any, name: str) -> Any:
    """Values of the rows of a table ``x`` as a column of the same library, with the same index."""
    if isinstance(x, pd.DataFrame):
        return pd.Series(values, index=x.index, name=name)
    import narwhals as nw

    backend = nw.from_native(x, eager_only=True).implementation
    return nw.new_series(name, values.tolist(), backend=backend).to_native()


def like_table(x: Any, columns: dict[str, Any]) -> Any:
    """The same for several columns."""
    if isinstance(x, pd.DataFrame):
        return pd.DataFrame(columns, index=x.index)
    import narwhals as nw

    backend = nw.from_native(x, eager_only=True).implementation
    return nw.from_dict(columns, backend=backend).to_native()


def encoded(encoding: Encoding, table: pd.DataFrame) -> Any:
    """(N, features) the rows of a new table; raises if columns are missing or there are no rows."""
    there = set(map(str, table.columns))
    absent = [name for name in needed(encoding) if name not in there]
    if absent:
        many = len(absent) > 1
        raise DataError(
            f"the table has no column{'s' * many} {', '.join(map(repr, absent))}; the model needs"
            f" {'them' if many else 'it'} (an empty cell is allowed, a missing column is not)"
        )
    if not len(table):
        raise DataError("the table has no rows")
    try:
        return encoding.transform(table)
    except BadCells as error:  # the model is trained, so the column cannot be dropped
        listed = "; ".join(map(str, error.columns[:MOST_COLUMNS]))
        raise DataError(f"{listed}; correct or empty such cells") from error


def needed(encoding: Encoding) -> tuple[str, ...]:
    """The columns of a table that a model needs."""
    return tuple(column.name for column in encoding.columns if column.kind != "left out")


class Difference(NamedTuple):
    """What is new in one column of a table."""

    column: str
    kind: str  # "missing" or "unknown"
    rows: int
    total: int
    values: tuple[tuple[str, int], ...] = ()  # unknown ones and their rows, the most frequent first
    instead: str = ""  # what a missing value becomes

    def __str__(self) -> str:
        rows = f"column {self.column!r}: {self.rows} of {self.total} rows"
        if self.kind == "missing":
            return f"{rows} {_have(self.rows)} no value; {self.instead}"
        shown = [f"{value!r} ({count})" for value, count in self.values[:MOST_VALUES]]
        more = len(self.values) - len(shown)
        shown += [f"{more} more"] if more else []
        return (
            f"{rows} {_have(self.rows)} a value that no training row has: {', '.join(shown)};"
            f" the model treats {_them(self.rows)} as unknown"
        )


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def differences(encoding: Encoding, table: pd.DataFrame) -> list[Difference]:
    """Missing values and unknown categories in a table that the encoding fits, column by column."""
    found = []
    for column in encoding.columns:
        if column.kind != "left out":
            cells = emptied(table[column.name], encoding.missing)
            found += _differences(column, Values(column.name, cells))
    return found


def _differences(column: Column, values: Values) -> list[Difference]:
    total = len(values.series)
    if column.kind in ("number", "date"):
        raw = values.days if column.kind == "date" else values.numbers
        lost = int(np.isnan(raw).sum())
        mean = f"{column.mean:.4g}"
        if column.kind == "date":
            mean = f"{pd.Timestamp(1970, 1, 1) + column.mean * DAY:%Y-%m-%d}"
        instead = f"the mean of the training rows, {mean}, is used"
        return [Difference(column.name, "missing", lost, total, instead=instead)] if lost else []
    codes, names = values.levels
    lost = int((codes < 0).sum())
    count = Counter(
        {
            name: int(number)
            for name, number in zip(
                names, np.bincount(codes[codes >= 0], minlength=len(names)), strict=True
            )
            if name not in column.categories
        }
    )
    found = []
    if lost and "missing" not in column.categories:
        instead = f"every training row has one, so the model treats {_them(lost)} as unknown"
        found.append(Difference(column.name, "missing", lost, total, instead=instead))
    if count:
        unknown = tuple(count.most_common())
        found.append(Difference(column.name, "unknown", count.total(), total, unknown))
    return found


def names_in(table: pd.DataFrame, what: str, column: object) -> list[str]:
    """(N,) the name in a column, or of a condition on one; "" where a value is missing."""
    levels = levels_of(_plain(table), what, column, new=True)
    names = (*levels.names, "")  # the last for code -1
    return [names[code] for code in levels.codes.tolist()]


def group_names_in(table: pd.DataFrame, columns: object, known: Collection[str]) -> list[str]:
    """(N,) names of the rows' groups, spelled as in ``known`` where these have them.

    A value is shown with its column's name if it does not speak for itself (smoker=yes), which
    depends on the other values in the table.
    """
    plain = _plain(table)
    levels = [levels_of(plain, "group", column, new=True) for column in listed(columns)]
    codes = np.stack([each.codes for each in levels])
    distinct, place = np.unique(codes, axis=1, return_inverse=True)
    shown = [_spelled(levels, row, known) for row in distinct.T]
    return [shown[code] for code in place.reshape(-1).tolist()]


def _spelled(levels: Sequence[Levels], codes: Ints, known: Collection[str]) -> str:
    forms = [
        ["unknown"]
        if code < 0
        else [each.filled[1][code], each.names[code], f"{each.column}={each.names[code]}"]
        for each, code in zip(levels, codes.tolist(), strict=True)
    ]
    spellings = [" & ".join(parts) for parts in product(*forms)]
    return next((name for name in spellings if name in known), spellings[0])


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """The table with texts as names of columns and rows numbered from 0."""
    return table.set_axis(list(map(str, table.columns)), axis=1).reset_index(drop=True)


def texts(values: Any, count: int) -> list[str]:
    """(N,) names: one for all rows, or one for each; "" where one is missing."""
    if isinstance(values, str) or np.ndim(values) == 0:
        return [text_of(values)] * count
    given = list(values)
    if len(given) != count:
        raise ValueError(f"x has {count} rows, but {len(given)} names were given for them")
    return ["" if pd.isna(value) else text_of(value) for value in given]
