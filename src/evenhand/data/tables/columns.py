"""Encoding a column of a table as numbers, from sums over the clients' training rows.

No client shows its rows. For a numeric column, a client sends how many values it has and their sum;
then, once the overall mean is known, its sum of squared differences from that mean. For a category,
it sends how often each value occurs. The server adds these up. It learns the names and counts of
categories, so drop columns that identify people (``drop``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenhand.data.tables.bad_cells import BadCells
from evenhand.data.tables.values import DAY, Floats, Ints, Values, no_numbers, tally
from evenhand.errors import DataError

MOST_CATEGORIES = 50  # a column with more is not used
_UNKNOWN = 0.5  # code of a yes/no value that no training row has
# names of identifiers: patient_id, patientId
IDENTIFIER = re.compile(r"(?i:(^|[\s_.-])(id|uuid|guid|index)$|^unnamed: \d+$)|[a-z]I[dD]$")


class Statistics(NamedTuple):
    """Statistics of one numeric column over all clients' training rows."""

    missing: int
    mean: float
    std: float  # of the population: divides by the count


def client_sums(values: Floats, offsets: Ints) -> Floats:
    """Return (n,) the sum of each client's values.

    Entry k is what client k sends; it depends only on rows offsets[k]:offsets[k + 1].
    """
    return np.add.reduceat(values, offsets[:-1]) if len(values) else np.zeros(len(offsets) - 1)


def statistics(values: Floats, offsets: Ints) -> Statistics:
    """Compute mean and standard deviation from two rounds of sums; NaN if no client has a value.

    Each client first sends its count and sum, then the sum of squares about the overall mean. This
    loses no digits if the mean is far from 0.
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
    """One column of a table, and how it is encoded.

    Attributes:
        name: of the column.
        kind: "number", "date", "yes/no", "category" or "left out" (not used).
        missing: training rows without a value.
        mean: of a number, or of a date in days since the start of 1970.
        std: the standard deviation.
        categories: values in the training rows, including "missing" if values are missing.
        counts: training rows of each category.
        why: the reason if the column is not used.
        unseen: validation and test rows with a category that no training row has.
    """

    name: str
    kind: str
    missing: int = 0
    mean: float = 0.0
    std: float = 1.0
    categories: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    why: str = ""
    unseen: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that it becomes."""
        if self.kind in ("number", "date"):
            return (self.name, f"{self.name} missing") if self.missing else (self.name,)
        shown = self.categories[1:] if self.kind == "yes/no" else self.categories
        return tuple(f"{self.name}={category}" for category in shown)

    def encode(self, values: Values) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return (N, features) numbers, and (N,) whether a value is a category that no training
        row has."""
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
                f"column {self.name!r} has a value in row {row} that is far too large compared with"
                " the others; correct it"
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
        """Describe its values for people."""
        if self.kind == "left out":
            return self.why
        if self.kind == "date":
            return (
                f"mean {pd.Timestamp(1970, 1, 1) + self.mean * DAY:%Y-%m-%d}, std {self.std:.4g}"
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
    """Decide how a column is encoded, from its training rows.

    Args:
        values: the column.
        train: (M,) positions of the training rows, client by client.
        offsets: (n + 1,) client k has entries offsets[k]:offsets[k + 1] of ``train``.
        wanted: "number" or "category" if the user says so, else the values decide.
        most: the largest number of categories.
    """
    name = values.name
    try:
        kind = wanted or values.kind(train)
    except DataError:
        return Column(name, "left out", why="its values are not numbers, texts or dates")
    if kind == "complex":
        return Column(name, "left out", why="complex numbers")
    if kind in ("number", "date"):
        raw = (values.days if kind == "date" else values.numbers)[train]
        distinct = _few_distinct(raw)
        if kind == "number" and wanted is None and _is_identifier(name, raw):
            return Column(
                name,
                "left out",
                why="looks like an identifier: named like one, and no value repeats",
            )
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
        return Column(name, "left out", why="almost constant in the training rows")
    return Column(name, kind, missing=missing, mean=mean, std=std)


def _fit_category(values: Values, train: Ints, most: int, free: bool) -> Column:
    codes, names = values.levels
    # counts are integers: adding up what the clients send gives exactly the count over all rows
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
            why=f"{len(count_of)} distinct values; at most {most} are allowed",
        )
    if not free and len(train) - missing >= 10 and len(count_of) >= 0.9 * (len(train) - missing):
        return Column(
            values.name, "left out", why="looks like an identifier: hardly any value repeats"
        )
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
    """Raise a DataError if most of the texts are numbers: a typo must not silently remove a
    column."""
    if 2 * len(no_numbers(names)) < len(names):
        raise BadCells([values.bad("number", no_numbers(values.levels[1]))])


def _few_distinct(raw: Floats) -> int:
    """Return the number of distinct values; 3 means three or more."""
    rest = raw[~np.isnan(raw)]
    for distinct in range(3):
        if not len(rest):
            return distinct
        rest = rest[rest != rest[0]]
    return 3


def _is_identifier(name: str, raw: Floats) -> bool:
    present = raw[~np.isnan(raw)]
    return (
        IDENTIFIER.search(name) is not None
        and len(present) >= 10
        and len(np.unique(present)) == len(present)
    )
