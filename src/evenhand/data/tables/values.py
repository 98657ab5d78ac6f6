"""The values of one column of a table, as numbers, days or categories."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenhand.data.tables.bad_cells import MOST_TEXTS, Bad, BadCells
from evenhand.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MISSING = frozenset(
    [
        "",
        "?",
        "-",
        "--",
        "NA",
        "n/a",
        "N/A",
        "NaN",
        "nan",
        "null",
        "NULL",
        "<NA>",
        "#N/A",
        "missing",
    ]
)  # texts that mean a missing value
DAY = pd.Timedelta(days=1)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?$")


class Values:
    """The values of one column, read as numbers, days or categories on demand."""

    def __init__(self, name: str, series: pd.Series[Any], rows: Ints | None = None) -> None:
        self.name, self.series = name, series
        # (N,) the row of the user's table that each value is in; None means all rows in order
        self._rows = rows

    def row(self, position: int) -> int:
        """Return the row of the user's table, counted from 1, of value ``position``."""
        return 1 + (position if self._rows is None else int(self._rows[position]))

    @cached_property
    def levels(self) -> tuple[Ints, tuple[str, ...]]:
        """(N,) codes into the names of the distinct values; -1 if a value is missing."""
        try:
            codes, distinct = pd.factorize(self.series)
        except TypeError as error:
            raise DataError(
                f"column {self.name!r} has values that are not numbers, texts or dates ({error});"
                " drop it"
            ) from error
        position: dict[str, int] = {}
        texts = [text_of(value) for value in distinct.tolist()]
        renumbered = [
            -1 if text in MISSING else position.setdefault(text, len(position)) for text in texts
        ]
        return np.array([*renumbered, -1], dtype=np.int64)[codes], tuple(position)

    @cached_property
    def numbers(self) -> Floats:
        """(N,) as float64; NaN if a value is missing."""
        if isinstance(self.series.dtype, np.dtype) and self.series.dtype.kind == "m":
            return self._finite(self.series.dt.total_seconds().to_numpy(dtype=np.float64) / 86_400)
        if pd.api.types.is_numeric_dtype(self.series.dtype):
            return self._finite(self.series.to_numpy(dtype=np.float64, na_value=np.nan))
        return self._of_levels(numbers_of, "number")

    @cached_property
    def days(self) -> Floats:
        """(N,) dates as days since the start of 1970 (UTC); NaN if one is missing."""
        if isinstance(self.series.dtype, pd.PeriodDtype):
            return _days(self.series.dt.to_timestamp())
        if pd.api.types.is_datetime64_any_dtype(self.series.dtype):
            return _days(self.series)
        return self._of_levels(lambda names: _days(_dates(names)), "date (year-month-day)")

    def in_order(self, names: Sequence[str]) -> list[str]:
        """Sort names of values: in the order of a pandas category, by value if all are numbers,
        or by letter."""
        if isinstance(self.series.dtype, pd.CategoricalDtype):
            rank = {
                text_of(category): place
                for place, category in enumerate(self.series.dtype.categories)
            }
            return sorted(names, key=rank.__getitem__)
        numbers = numbers_of(names)
        return (
            sorted(names)
            if bool(np.isnan(numbers).any())
            else [names[i] for i in np.argsort(numbers, kind="stable")]
        )

    def kind(self, chosen: Ints | None = None) -> str:
        """Return "number", "date", "category", "nothing" or "complex", considering only values
        ``chosen``."""
        dtype = self.series.dtype
        if pd.api.types.is_complex_dtype(dtype):
            return "complex"
        if pd.api.types.is_bool_dtype(dtype) or isinstance(dtype, pd.CategoricalDtype):
            return "category"
        if pd.api.types.is_numeric_dtype(dtype) or (
            isinstance(dtype, np.dtype) and dtype.kind == "m"
        ):
            return "number"
        if pd.api.types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
            return "date"
        codes, names = self.levels
        counts = tally(codes if chosen is None else codes[chosen], len(names))
        used = [name for name, count in zip(names, counts, strict=False) if count]
        if not used:
            return "nothing"
        # the first few decide for most texts
        if not any(np.isnan(numbers_of(some)).any() for some in (used[:10], used)):
            return "number"
        return "category" if any(map(no_dates, (used[:10], used))) else "date"

    def bad(self, what: str, texts: Sequence[str]) -> Bad:
        """Return the cells with these texts as unreadable: they are not ``what`` they should be."""
        codes, names = self.levels
        rows = (
            tuple(map(self.row, np.flatnonzero(codes == names.index(text)).tolist()))
            for text in texts[:MOST_TEXTS]
        )
        return Bad(self.name, what, tuple(texts), tuple(rows))

    def _of_levels(self, read: Callable[[Sequence[str]], Floats], what: str) -> Floats:
        codes, names = self.levels
        known = read(names)
        bad = np.flatnonzero(~np.isfinite(known))
        if len(bad):
            shown = what if bool(np.isnan(known[bad]).any()) else f"finite {what}"
            raise BadCells([self.bad(shown, [names[code] for code in bad])])
        return np.append(known, np.nan)[codes]

    def _finite(self, numbers: Floats) -> Floats:
        infinite = np.unique(numbers[np.isinf(numbers)])
        if len(infinite):
            texts = [text_of(number) for number in infinite.tolist()]
            raise BadCells([self.bad("finite number", texts)])
        return numbers


def text_of(value: object) -> str:
    """Return the name of a value; whole numbers look the same whether stored as 1, 1.0 or "1"."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    if isinstance(value, Decimal):
        return text_of(float(value))
    return str(value)


def tally(codes: Ints, levels: int) -> Ints:
    """Return (levels + 1,) how often each code occurs; the last entry counts code -1."""
    return np.bincount(np.where(codes < 0, levels, codes), minlength=levels + 1)


def numbers_of(names: Sequence[str]) -> Floats:
    """Convert texts to numbers; NaN if one is not a number."""
    parsed = pd.to_numeric(pd.Series(list(names), dtype=object), errors="coerce")
    return parsed.to_numpy(dtype=np.float64, na_value=np.nan)


def no_numbers(names: Sequence[str]) -> list[str]:
    """Return the texts that are not numbers."""
    return [name for name, bad in zip(names, np.isnan(numbers_of(names)), strict=True) if bad]


def no_dates(names: Sequence[str]) -> list[str]:
    """Return the texts that are not dates in the form year-month-day."""
    formed = [name for name in names if _DATE.match(name)]
    read = dict(zip(formed, ~np.isnan(_days(_dates(formed))), strict=True)) if formed else {}
    return [name for name in names if not read.get(name, False)]


def _dates(names: Sequence[str]) -> pd.Series[Any]:
    return pd.Series(
        pd.to_datetime(
            pd.Series(list(names), dtype=object), format="ISO8601", utc=True, errors="coerce"
        )
    )


def _days(dates: pd.Series[Any]) -> Floats:
    if dates.dt.tz is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    return np.asarray(
        ((dates - pd.Timestamp(1970, 1, 1)) / DAY).to_numpy(na_value=np.nan), dtype=np.float64
    )
