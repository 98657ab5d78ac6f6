"""Differences between groups, from counts (..., A, C, C + 1): gaps (0 is parity) and ratios (1 is).

Groups without samples for a rate are excluded; with fewer than two groups left, the result is NaN.
With two classes, name the ``positive`` one; None takes the class with the largest difference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.metrics import rates

Floats = NDArray[np.float64]


def gap(values: ArrayLike) -> Floats:
    """(...) largest minus smallest over the last axis."""
    given = np.asarray(values, np.float64)
    enough = (~np.isnan(given)).sum(-1) >= 2
    low, high = (fill(given, worst) for fill, worst in ((_least, np.inf), (_most, -np.inf)))
    with np.errstate(invalid="ignore"):
        return np.where(enough, high - low, np.nan)


def ratio(values: ArrayLike) -> Floats:
    """(...) smallest over largest over the last axis; 1 where all are 0."""
    given = np.asarray(values, np.float64)
    enough = (~np.isnan(given)).sum(-1) >= 2
    low, high = (fill(given, worst) for fill, worst in ((_least, np.inf), (_most, -np.inf)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(
            enough, np.where(high > 0, low / np.where(high > 0, high, 1.0), 1.0), np.nan
        )


def worst_group(values: ArrayLike) -> Floats:
    """(...) the smallest value over the groups that have one."""
    given = np.asarray(values, np.float64)
    return np.where((~np.isnan(given)).any(-1), _least(given, np.inf), np.nan)


def demographic_parity(
    table: ArrayLike, positive: int | None = None, compare: Callable[[ArrayLike], Floats] = gap
) -> Floats:
    """The positive class is predicted equally often for all groups."""
    return _of_class(rates.selection_rate(table), positive, compare)


def equal_opportunity(
    table: ArrayLike, positive: int | None = None, compare: Callable[[ArrayLike], Floats] = gap
) -> Floats:
    """True-positive rates are equal over groups."""
    return _of_class(rates.recall(table), positive, compare)


def false_positive_parity(
    table: ArrayLike, positive: int | None = None, compare: Callable[[ArrayLike], Floats] = gap
) -> Floats:
    """False-positive rates are equal over groups."""
    return _of_class(rates.false_positive_rate(table), positive, compare)


def equalised_odds(
    table: ArrayLike, positive: int | None = None, compare: Callable[[ArrayLike], Floats] = gap
) -> Floats:
    """Both: the larger difference of true-positive and false-positive rates."""
    both = np.stack(
        [
            equal_opportunity(table, positive, compare),
            false_positive_parity(table, positive, compare),
        ]
    )
    return np.asarray(both.max(0) if compare is gap else both.min(0))


def predictive_parity(
    table: ArrayLike, positive: int | None = None, compare: Callable[[ArrayLike], Floats] = gap
) -> Floats:
    """Precision is equal over groups."""
    return _of_class(rates.precision(table), positive, compare)


def accuracy_parity(table: ArrayLike, compare: Callable[[ArrayLike], Floats] = gap) -> Floats:
    """Accuracy is equal over groups."""
    return compare(rates.accuracy(table))


def _of_class(
    values: Floats, positive: int | None, compare: Callable[[ArrayLike], Floats]
) -> Floats:
    """Compare (..., A, C) over groups, for one class or for the one that differs most."""
    by_class = compare(np.moveaxis(values, -1, -2))  # (..., C)
    if positive is not None:
        return np.asarray(by_class[..., positive])
    there = (~np.isnan(by_class)).any(-1)
    found = _most(by_class, -np.inf) if compare is gap else _least(by_class, np.inf)
    return np.where(there, found, np.nan)


def _least(values: Floats, otherwise: float) -> Floats:
    return np.asarray(np.where(np.isnan(values), otherwise, values).min(-1))


def _most(values: Floats, otherwise: float) -> Floats:
    return np.asarray(np.where(np.isnan(values), otherwise, values).max(-1))
