"""Values that the user declares to mean a missing value: "<0.5", 999."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from evenhand.data.tables.levels import listed
from evenhand.data.tables.values import numbers_of, text_of


def missing_texts(missing: object) -> tuple[str, ...]:
    """Return one text or number, or several, as texts without surrounding spaces.

    >>> missing_texts(["<0.5", 999.0]), missing_texts(" n.d. ")
    (('<0.5', '999'), ('n.d.',))
    """
    for value in listed(missing):
        if not isinstance(value, str | Real):
            raise TypeError(f"missing must be texts or numbers, got {value!r}")
    return tuple(text_of(value) for value in listed(missing))


def without(table: pd.DataFrame, missing: tuple[str, ...]) -> pd.DataFrame:
    """Empty each cell, of any column, that is one of the texts ``missing``."""
    if not missing:
        return table
    table = table.copy(deep=False)
    for place in range(table.shape[1]):
        table.isetitem(place, emptied(table.iloc[:, place], missing).array)
    return table


def emptied(column: pd.Series[Any], missing: tuple[str, ...]) -> pd.Series[Any]:
    """Empty each cell of a column that is one of the texts ``missing``, as text or number: 999
    is 999.0."""
    if not missing:
        return column
    try:
        codes, distinct = pd.factorize(column)
    except TypeError:  # lists and the like, which cannot be features either
        return column
    numbers = set(numbers_of(missing).tolist())
    names = [text_of(value) for value in distinct.tolist()]
    # NaN equals nothing
    same = [
        name in missing or number in numbers
        for name, number in zip(names, numbers_of(names).tolist(), strict=True)
    ]
    return column.mask(np.array([*same, False])[codes]) if any(same) else column
