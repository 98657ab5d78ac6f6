"""Read a table of predictions: client, group, label, prediction, score and weight per row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenhand.data.tables.levels import (
    Levels,
    condition_in,
    find_column,
    groups_of,
    levels_of,
    listed,
)
from evenhand.data.tables.values import Values
from evenhand.errors import DataError, require
from evenhand.metrics.counts import Counts
from evenhand.studies.audits.matching import (
    BOOLEANS,
    Matched,
    check_label,
    check_prediction,
    find_label,
    match,
    plain,
    shown,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EVERYONE = ("everyone",)
NO_GROUPS = ("",)
MOST_GROUPS = 50


@dataclass(frozen=True)
class Rows:
    """The rows that have a label, as codes; (N,) each."""

    client: Ints
    group: Ints
    label: Ints
    prediction: Ints  # -1 for none
    clients: tuple[str, ...]
    groups: tuple[str, ...]
    labels: tuple[str, ...]
    weight: Floats | None = None
    score: Floats | None = None
    threshold: float | None = None  # of the scores, if they made the predictions
    # with several group columns, codes and names by column
    columns: Mapping[str, tuple[Ints, tuple[str, ...]]] = field(default_factory=dict)

    def counts(self) -> Counts:
        """Count predictions by client, group and label."""
        codes = (self.client, self.group, self.label, self.prediction)
        return Counts.of(*codes, self.clients, self.groups, self.labels)

    def by(self, column: str) -> Rows:
        """The same rows with the groups of one column."""
        codes, names = self.columns[column]
        return replace(self, group=codes, groups=names, columns={})

    def summed(self, power: int = 1) -> Floats:
        """(n, A, C, C + 1) sums of weights to a power."""
        shape = (len(self.clients), len(self.groups), len(self.labels), len(self.labels) + 1)
        guess = np.where(self.prediction < 0, len(self.labels), self.prediction)
        cell = np.ravel_multi_index((self.client, self.group, self.label, guess), shape)
        weight = np.ones(len(cell)) if self.weight is None else self.weight
        size = int(np.prod(shape))
        summed = np.bincount(cell, weights=weight**power, minlength=size)
        return summed.astype(np.float64).reshape(shape)


def read_rows(
    table: pd.DataFrame,
    label: object,
    prediction: object = None,
    client: object = None,
    group: object = None,
    *,
    score: object = None,
    threshold: float | None = None,
    weight: object = None,
    positive: object = None,
    most: int = MOST_GROUPS,
) -> Rows:
    """Read a table with one row per sample.

    Args:
        label, prediction: columns, or conditions on them such as ``"decile_score >= 5"``; false and
            true of a condition stand for the first and second label. A missing prediction counts
            as wrong; rows without a label are skipped.
        client: a column; None means one client.
        group: a column, or several whose combinations are the groups.
        score: a column with larger values if the positive label is more likely.
        threshold: the smallest score for which the positive label is predicted, if there is no
            prediction; by default 0.5.
        weight: a column with sample weights.
        positive: the positive label of scores, by default the second of two.
        most: how many groups a column may have.
    """
    truth = levels_of(table, "label", label)
    check_label(table, label, truth)
    kept = np.flatnonzero(truth.codes >= 0)
    if not len(kept):
        raise DataError(f"no row of the table has a value of {label}")
    scores = None if score is None else _numbers(table, "score", score)
    cut = None
    if prediction is None:
        if scores is None:
            raise ValueError("give a prediction, or a score to predict from")
        matched = match(truth.names, (), label, score)
        names = _two(matched.names, label)
        of_truth = [names.index(matched.names[code]) for code in matched.of_truth]
        cut = _threshold(score, scores, threshold)
        up = names.index(names[-1] if positive is None else find_label(positive, names))
        guessed = np.where(np.isnan(scores), -1, np.where(scores >= cut, up, 1 - up))
    else:
        require(threshold is None, "threshold makes predictions of a score; leave out prediction")
        guess = levels_of(table, "prediction", prediction)
        check_prediction(table, prediction, truth.names, guess)
        names, of_truth, of_guess = _matched(table, truth, guess, label, prediction)
        guessed = np.array([*of_guess, -1])[guess.codes]
        if scores is not None:
            _two(names, label)
    owner = None if client is None else levels_of(table, "client", client)
    if owner is not None and bool((owner.codes[kept] < 0).any()):
        row = int(kept[np.flatnonzero(owner.codes[kept] < 0)[0]]) + 1
        raise DataError(f"row {row} has no value of {client}; fill it or remove the row")
    of_group, groups = groups_of(table, group, kept, most)
    columns = listed(group)
    return Rows(
        np.zeros(len(kept), np.int64) if owner is None else owner.codes[kept],
        np.zeros(len(kept), np.int64) if of_group is None else of_group,
        np.array(of_truth)[truth.codes[kept]],
        guessed[kept].astype(np.int64),
        EVERYONE if owner is None else owner.names,
        groups or NO_GROUPS,
        tuple(names),
        None if weight is None else _weights(table, weight, kept),
        None if scores is None else scores[kept],
        cut,
        _alone(table, columns, kept, most) if len(columns) > 1 else {},
    )


def _alone(
    table: pd.DataFrame, columns: list[object], kept: Ints, most: int
) -> dict[str, tuple[Ints, tuple[str, ...]]]:
    found = {}
    for column in columns:
        codes, names = groups_of(table, column, kept, most)
        if codes is not None:
            found[str(column)] = (codes, names)
    return found


def _matched(
    table: pd.DataFrame, truth: Levels, guess: Levels, label: object, prediction: object
) -> Matched:
    """Labels of two columns; false and true of a condition are the first and second label."""
    conditions = [condition_in(table, name) is not None for name in (label, prediction)]
    if conditions[1] and len(truth.names) == 2:
        return Matched(truth.names, [0, 1], [0, 1])
    if conditions[0] and all(plain(name) in BOOLEANS for name in guess.names):
        return Matched(truth.names, [0, 1], [int(BOOLEANS[plain(name)]) for name in guess.names])
    return match(truth.names, guess.names, label, prediction)


def _two(names: tuple[str, ...], label: object) -> tuple[str, ...]:
    """The two labels that a score needs; of a boolean, one may be missing."""
    if len(names) == 1 and plain(names[0]) in BOOLEANS:
        there = BOOLEANS[plain(names[0])]
        return ("0", names[0]) if there else (names[0], "1")
    if len(names) != 2:
        raise DataError(
            f"a score needs two labels, but {str(label)!r} has {len(names)} ({shown(names)}); use"
            f' a condition such as "{label} == {names[-1]}"'
        )
    return names


def _threshold(score: object, scores: Floats, threshold: float | None) -> float:
    if threshold is not None:
        return float(threshold)
    there = scores[~np.isnan(scores)]
    if len(there) and not (there.min() >= 0 and there.max() <= 1):
        raise DataError(
            f"{str(score)!r} ranges from {there.min():.4g} to {there.max():.4g}, so 0.5 is no"
            f" natural threshold; pass one, such as --threshold {np.median(there):.4g}"
        )
    return 0.5


def _numbers(table: pd.DataFrame, what: str, name: object) -> Floats:
    column = find_column(table, what, name)
    return Values(column, table[column]).numbers


def _weights(table: pd.DataFrame, name: object, kept: Ints) -> Floats:
    weights = _numbers(table, "weight", name)[kept]
    bad = np.flatnonzero(~(weights >= 0))
    if len(bad):
        value = "missing" if np.isnan(weights[bad[0]]) else f"{weights[bad[0]]:g}"
        raise DataError(f"row {int(kept[bad[0]]) + 1}: weight {name} is {value}; it must be >= 0")
    if not weights.sum() > 0:
        raise DataError(f"all weights of {name} are 0")
    return weights
