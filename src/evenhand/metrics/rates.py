"""Rates of a classifier from counts (..., C, C + 1) of label and prediction; the last is none.

Leading axes stay, so one call handles every client, group or resampled table. A rate without
samples is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def count(table: ArrayLike) -> Floats:
    """(...) samples."""
    return np.asarray(np.asarray(table, np.float64).sum((-2, -1)))


def accuracy(table: ArrayLike) -> Floats:
    """(...) share of samples whose prediction is their label."""
    given = np.asarray(table, np.float64)
    return _ratio(_right(given).sum(-1), given.sum((-2, -1)))


def recall(table: ArrayLike) -> Floats:
    """(..., C) the true-positive rate of each class: the share of its samples predicted as it."""
    given = np.asarray(table, np.float64)
    return _ratio(_right(given), given.sum(-1))


def precision(table: ArrayLike) -> Floats:
    """(..., C) the positive predictive value of each class: the correct share of its
    predictions."""
    given = np.asarray(table, np.float64)
    return _ratio(_right(given), given[..., :-1].sum(-2))


def f1(table: ArrayLike) -> Floats:
    """(..., C) harmonic mean of precision and recall, 2 right / (predicted + there)."""
    given = np.asarray(table, np.float64)
    return _ratio(2 * _right(given), given[..., :-1].sum(-2) + given.sum(-1))


def balanced_accuracy(table: ArrayLike) -> Floats:
    """(...) mean recall over the classes that have samples."""
    rate = recall(table)
    there = ~np.isnan(rate)
    return _ratio(np.where(there, rate, 0.0).sum(-1), there.sum(-1).astype(np.float64))


def selection_rate(table: ArrayLike) -> Floats:
    """(..., C) share of samples predicted as each class."""
    given = np.asarray(table, np.float64)
    return _ratio(given[..., :-1].sum(-2), given.sum((-2, -1))[..., None])


def base_rate(table: ArrayLike) -> Floats:
    """(..., C) share of samples with each label."""
    given = np.asarray(table, np.float64)
    return _ratio(given.sum(-1), given.sum((-2, -1))[..., None])


def false_positive_rate(table: ArrayLike) -> Floats:
    """(..., C) share of the samples with other labels that are predicted as this class."""
    given = np.asarray(table, np.float64)
    predicted, there, right = given[..., :-1].sum(-2), given.sum(-1), _right(given)
    return _ratio(predicted - right, given.sum((-2, -1))[..., None] - there)


def false_negative_rate(table: ArrayLike) -> Floats:
    """(..., C) share of the samples with each label that are predicted otherwise, or not at all."""
    return 1 - recall(table)


def _right(table: Floats) -> Floats:
    """(..., C) samples of each label that are predicted so."""
    return np.asarray(np.diagonal(table[..., :-1], axis1=-2, axis2=-1))


def _ratio(above: Floats, below: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)
