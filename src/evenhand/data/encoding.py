"""How the columns of a table become numbers that a model can take, from sums over the clients'
training rows.

No client shows its rows. For a number it sends how many values it has and their sum, and, once the
mean of all clients is known, its sum of squared differences from that mean; for a category, how
often each of its values occurs. The server adds these up. It learns the names and counts of
categories, so a column that names people is better left out by hand (``drop``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

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
)  # texts that mean: no value
MOST_CATEGORIES = 50  # a column with more is left out
_UNKNOWN = 0.5  # a yes/no value that no training row has: neither
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?$")
_IDENTIFIER = re.compile(r"(^|[\s_.-])(id|uuid|guid|index)$|^unnamed: \d+$", re.IGNORECASE)
_DAY = pd.Timedelta(days=1)


class Values:
    """The values of one column, read as numbers, days or categories when they are asked for."""

    def __init__(self, name: str, series: pd.Series[Any], rows: Ints | None = None) -> None:
        self.name, self.series = name, series
        # (N,) which row of the user's table each value is in; None: they are all of its rows
        self._rows = rows

    def row(self, position: int) -> int:
        """The row of the user's table, counted from 1, that value ``position`` is in."""
        return 1 + (position if self._rows is None else int(self._rows[position]))

    @cached_property
    def levels(self) -> tuple[Ints, tuple[str, ...]]:
        """(N,) codes into the names of the different values; -1 where a value is missing."""
        try:
            codes, distinct = pd.factorize(self.series)
        except TypeError as error:
            raise DataError(
                f"column {self.name!r} holds values that are not plain ({error}); drop it"
            ) from error
        position: dict[str, int] = {}
        texts = [text_of(value) for value in distinct.tolist()]
        renumbered = [
            -1 if text in MISSING else position.setdefault(text, len(position)) for text in texts
        ]
        return np.array([*renumbered, -1], dtype=np.int64)[codes], tuple(position)

    @cached_property
    def numbers(self) -> Floats:
        """(N,) as float64; NaN where a value is missing."""
        if isinstance(self.series.dtype, np.dtype) and self.series.dtype.kind == "m":
            return self._finite(self.series.dt.total_seconds().to_numpy(dtype=np.float64) / 86_400)
        if pd.api.types.is_numeric_dtype(self.series.dtype):
            return self._finite(self.series.to_numpy(dtype=np.float64, na_value=np.nan))
        return self._finite(self._of_levels(_numbers, "a number"))

    @cached_property
    def days(self) -> Floats:
        """(N,) dates as days since the start of 1970 (UTC); NaN where one is missing."""
        if isinstance(self.series.dtype, pd.PeriodDtype):
            return _days(self.series.dt.to_timestamp())
        if pd.api.types.is_datetime64_any_dtype(self.series.dtype):
            return _days(self.series)
        return self._of_levels(lambda names: _days(_dates(names)), "a date (year-month-day)")

    def in_order(self, names: Sequence[str]) -> list[str]:
        """Names of values in their natural order: that of a pandas category, else by value where
        all are numbers, else by letter."""
        if isinstance(self.series.dtype, pd.CategoricalDtype):
            rank = {
                text_of(category): place
                for place, category in enumerate(self.series.dtype.categories)
            }
            return sorted(names, key=rank.__getitem__)
        numbers = _numbers(names)
        return (
            sorted(names)
            if bool(np.isnan(numbers).any())
            else [names[i] for i in np.argsort(numbers, kind="stable")]
        )

    def kind(self, chosen: Ints | None = None) -> str:
        """What the values are, judged by those ``chosen`` alone: "number", "date", "category",
        "nothing" or "complex"."""
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
        # the first few tell most texts
        if not any(np.isnan(_numbers(some)).any() for some in (used[:10], used)):
            return "number"
        if all(_DATE.match(name) for name in used) and not bool(
            np.isnan(_days(_dates(used))).any()
        ):
            return "date"
        return "category"

    def _of_levels(self, read: Callable[[Sequence[str]], Floats], what: str) -> Floats:
        codes, names = self.levels
        known = read(names)
        bad = np.flatnonzero(np.isnan(known))
        if len(bad):
            row = self.row(int(np.flatnonzero(codes == bad[0])[0]))
            raise DataError(
                f"column {self.name!r}: {names[bad[0]]!r} in row {row} is not {what}; correct it,"
                " or call the column categorical"
            )
        return np.append(known, np.nan)[codes]

    def _finite(self, numbers: Floats) -> Floats:
        infinite = np.flatnonzero(np.isinf(numbers))
        if len(infinite):
            raise DataError(
                f"column {self.name!r} has an infinite value in row {self.row(int(infinite[0]))};"
                " correct it or leave it empty"
            )
        return numbers


def text_of(value: object) -> str:
    """The name of a value: whole numbers look the same whether they are stored as 1, 1.0 or "1"."""
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
    """(levels + 1,) how often each code occurs; the last entry counts code -1."""
    return np.bincount(np.where(codes < 0, levels, codes), minlength=levels + 1)


def _numbers(names: Sequence[str]) -> Floats:
    parsed = pd.to_numeric(pd.Series(list(names), dtype=object), errors="coerce")
    return parsed.to_numpy(dtype=np.float64, na_value=np.nan)


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
        ((dates - pd.Timestamp(1970, 1, 1)) / _DAY).to_numpy(na_value=np.nan), dtype=np.float64
    )


class Statistics(NamedTuple):
    """Of one column of numbers in all clients' training rows."""

    missing: int
    mean: float
    std: float  # of the population: sums are divided by the count


def client_sums(values: Floats, offsets: Ints) -> Floats:
    """(n,) the sum of each client's values; entry k is what client k sends, and depends on rows
    offsets[k]:offsets[k + 1] alone."""
    return np.add.reduceat(values, offsets[:-1]) if len(values) else np.zeros(len(offsets) - 1)


def statistics(values: Floats, offsets: Ints) -> Statistics:
    """Mean and standard deviation from two exchanges of sums; NaN where no client has a value.

    First each client sends its count and sum, then the sum of squares about the mean of all, which
    loses no digits where the mean is far from 0.
    """
    present = ~np.isnan(values)
    count = float(client_sums(present.astype(np.float64), offsets).sum())
    if not count:
        return Statistics(len(values), np.nan, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(client_sums(np.where(present, values, 0.0), offsets).sum() / count)
        squares = float(client_sums(np.where(present, (values - mean) ** 2, 0.0), offsets).sum())
    return Statistics(len(values) - int(count), mean, float(np.sqrt(squares / count)))


@dataclass(frozen=True)
class Column:
    """One column of a table, and what it becomes."""

    name: str
    kind: str  # "number", "date", "yes/no", "category" or "left out"
    missing: int = 0  # training rows without a value
    mean: float = 0.0  # of a number, or of a date in days since the start of 1970
    std: float = 1.0
    # in the training rows; "missing" is one of them where values are missing
    categories: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()  # of the categories
    why: str = ""  # it is left out
    unseen: int = 0  # rows held out from training with a category that no training row has

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the numbers that it becomes."""
        if self.kind in ("number", "date"):
            return (self.name, f"{self.name} missing") if self.missing else (self.name,)
        shown = self.categories[1:] if self.kind == "yes/no" else self.categories
        return tuple(f"{self.name}={category}" for category in shown)

    def encode(self, values: Values) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(N, features) numbers, and (N,) whether a value is a category that no training row
        has."""
        if self.kind in ("number", "date"):
            return self._scaled(values), np.zeros(len(values.series), dtype=bool)
        codes = self._codes(values)
        if self.kind == "yes/no":
            return np.where(codes < 0, _UNKNOWN, codes)[:, None].astype(np.float32), codes < 0
        block = np.zeros((len(codes), len(self.categories)), dtype=np.float32)
        known = np.flatnonzero(codes >= 0)
        block[known, codes[known]] = 1
        return block, codes < 0

    def _scaled(self, values: Values) -> NDArray[np.float32]:
        raw = values.days if self.kind == "date" else values.numbers
        absent = np.isnan(raw)
        with np.errstate(over="ignore"):
            # a missing value becomes the mean
            scaled = np.where(absent, 0.0, (raw - self.mean) / self.std).astype(np.float32)
        if not bool(np.isfinite(scaled).all()):
            row = values.row(int(np.flatnonzero(~np.isfinite(scaled))[0]))
            raise DataError(
                f"column {self.name!r} has a value in row {row} that is too large beside the"
                " others; correct it"
            )
        return (
            np.stack([scaled, absent.astype(np.float32)], axis=1)
            if self.missing
            else scaled[:, None]
        )

    def _codes(self, values: Values) -> Ints:
        codes, names = values.levels
        position = {category: code for code, category in enumerate(self.categories)}
        return np.array(
            [*(position.get(name, -1) for name in names), position.get("missing", -1)],
            dtype=np.int64,
        )[codes]

    def summary(self) -> str:
        """What is known of its values, for people."""
        if self.kind == "left out":
            return self.why
        if self.kind == "date":
            return (
                f"mean {pd.Timestamp(1970, 1, 1) + self.mean * _DAY:%Y-%m-%d}, std {self.std:.4g}"
                " days"
            )
        if self.kind == "number":
            return f"mean {self.mean:.4g}, std {self.std:.4g}"
        pairs = list(zip(self.categories, self.counts, strict=True))
        common = pairs if len(pairs) <= 4 else sorted(pairs, key=lambda pair: -pair[1])[:4]
        shown = [f"{category} {count}" for category, count in common]
        more = len(pairs) - len(shown)
        return ", ".join([*shown, *([f"{more} more"] if more else [])])


def fit_column(
    values: Values,
    train: Ints,
    offsets: Ints,
    wanted: str | None = None,
    most: int = MOST_CATEGORIES,
) -> Column:
    """What a column becomes, from its training rows.

    Args:
        train: (M,) positions of the training rows, client after client.
        offsets: (n + 1,) client k has entries offsets[k]:offsets[k + 1] of ``train``.
        wanted: "number" or "category" where the user says so, else the values decide.
        most: categories that a column may have.
    """
    name = values.name
    try:
        kind = wanted or values.kind(train)
    except DataError:
        return Column(name, "left out", why="its values are not plain")
    if kind == "complex":
        return Column(name, "left out", why="complex numbers")
    if kind in ("number", "date"):
        raw = (values.days if kind == "date" else values.numbers)[train]
        distinct = _few_distinct(raw)
        if kind == "number" and wanted is None and _is_identifier(name, raw):
            return Column(name, "left out", why="an identifier: its name, and no value twice")
        if kind == "date" or wanted is not None or distinct > 2:
            return _fit_number(name, kind, raw, offsets, distinct)
    return _fit_category(values, train, most, free=wanted is not None)


def _fit_number(name: str, kind: str, raw: Floats, offsets: Ints, distinct: int) -> Column:
    if distinct < 2:
        return Column(
            name,
            "left out",
            why="constant in the training rows" if distinct else "no training row has a value",
        )
    missing, mean, std = statistics(raw, offsets)
    if not np.isfinite(std):
        raise DataError(f"column {name!r} has numbers too large to add up; use another unit")
    if std == 0:
        return Column(name, "left out", why="as good as constant in the training rows")
    return Column(name, kind, missing=missing, mean=mean, std=std)


def _fit_category(values: Values, train: Ints, most: int, free: bool) -> Column:
    codes, names = values.levels
    # counts are whole numbers: adding up what each client sends gives the count over all of their
    # rows, to the last digit
    counts = tally(codes[train], len(names))
    *of_names, missing = counts.tolist()
    count_of = {name: count for name, count in zip(names, of_names, strict=True) if count}
    if not count_of:
        return Column(values.name, "left out", why="no training row has a value")
    if not free and len(count_of) > most:
        _refuse_almost_numbers(values, list(count_of))
        return Column(
            values.name,
            "left out",
            why=f"{len(count_of)} different values, more than {most} categories",
        )
    if not free and len(train) - missing >= 10 and len(count_of) >= 0.9 * (len(train) - missing):
        return Column(values.name, "left out", why="an identifier: hardly any value twice")
    categories = values.in_order(list(count_of))
    if missing:
        categories, count_of["missing"] = [*categories, "missing"], missing
    if len(categories) == 1:
        return Column(values.name, "left out", why="constant in the training rows")
    kind = "yes/no" if len(categories) == 2 else "category"
    return Column(
        values.name,
        kind,
        missing,
        categories=tuple(categories),
        counts=tuple(count_of[name] for name in categories),
    )


def _refuse_almost_numbers(values: Values, names: Sequence[str]) -> None:
    """Raise a DataError where most of the texts are numbers: a slip in one cell must not take the
    column away unseen."""
    odd = [name for name, number in zip(names, _numbers(names), strict=True) if np.isnan(number)]
    if 2 * len(odd) < len(names):
        codes, known = values.levels
        row = values.row(int(np.flatnonzero(codes == known.index(odd[0]))[0]))
        raise DataError(
            f"column {values.name!r} looks like numbers, but {odd[0]!r} in row {row} is none;"
            " correct it, empty it, or drop the column"
        )


def _few_distinct(raw: Floats) -> int:
    """How many different values there are; 3 stands for three or more."""
    rest = raw[~np.isnan(raw)]
    for distinct in range(3):
        if not len(rest):
            return distinct
        rest = rest[rest != rest[0]]
    return 3


def _is_identifier(name: str, raw: Floats) -> bool:
    present = raw[~np.isnan(raw)]
    return (
        bool(_IDENTIFIER.search(name) or re.search("[a-z]I[dD]$", name))
        and len(present) >= 10
        and len(np.unique(present)) == len(present)
    )


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

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the encoded matrix."""
        return tuple(feature for column in self.columns for feature in column.features)

    def transform(self, table: pd.DataFrame) -> Tensor:
        """(N, features) float32: new rows in the order given, encoded as the training rows were."""
        values = self._values(table)
        matrix = np.empty((len(table), len(self.features)), dtype=np.float32)
        place = 0
        for column in values:
            block, _ = column.encode(values[column])
            matrix[:, place : place + block.shape[1]] = block
            place += block.shape[1]
        return torch.from_numpy(matrix)

    def unseen(self, table: pd.DataFrame) -> dict[str, int]:
        """How many rows of a table have a category that no training row has, by column; columns
        without any are not listed."""
        counts = {
            column.name: int(column.encode(values)[1].sum())
            for column, values in self._values(table).items()
        }
        return {name: count for name, count in counts.items() if count}

    def _values(self, table: pd.DataFrame) -> dict[Column, Values]:
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
        return {column: Values(column.name, table.iloc[:, place[column.name]]) for column in needed}

    def unscaled(self, values: Tensor) -> Tensor:
        """Outputs of a regression in the label's own unit."""
        return values * self.label_std + self.label_mean

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers, for :meth:`from_json`."""
        return {"format": 1, **_lists(asdict(self))}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Encoding:
        """The encoding that :meth:`to_json` wrote."""
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
        out."""
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
