"""Columns that give the label away."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import numpy as np
import pandas as pd

from evenhand.data.tables.columns import Column
from evenhand.data.tables.values import Floats, Ints, Values

FEWEST_ROWS = 50
FEWEST_OTHERS = 10  # rows of other classes than the most frequent one
ERRORS = 0.02  # the largest share of the rows of other classes that a giveaway gets wrong
MOST_LEVELS = 50  # distinct values that are checked one by one
CORRELATION = 0.999  # with a numeric label
SAMPLE = 4000  # rows that decide whether to check all of them


class Answer(NamedTuple):
    """The label of the rows that are used."""

    y: Ints | Floats  # codes of classes, or numbers
    classes: int  # 0 for a numeric label


def about_giveaway(column: Column, values: Values, answer: Answer) -> str | None:
    """Return a hint if a column almost equals the label, or predicts it by itself."""
    if column.kind == "left out" or len(answer.y) < FEWEST_ROWS:
        return None
    levels = None if column.kind in ("number", "date") else values.levels[0]
    raw = None if levels is not None else values.days if column.kind == "date" else values.numbers
    way = f"if it is known only after the label, remove it with --drop {shlex.quote(column.name)}"
    if not answer.classes:
        together = 0.0 if raw is None else _correlation(raw, answer.y)
        if abs(together) < CORRELATION:
            return None
        shown = int(together * 1e4) / 1e4  # never rounded up to 1
        return f"{column.name!r} almost equals the label (correlation {shown:.4f}); {way}"
    few = np.linspace(0, len(answer.y) - 1, min(SAMPLE, len(answer.y))).astype(np.int64)
    if _errors(levels, raw, answer, few) is None:
        return None
    wrong = _errors(levels, raw, answer, np.arange(len(answer.y)))
    if wrong is None:
        return None
    share = int(1000 * (1 - wrong / len(answer.y))) / 10
    return f"{column.name!r} by itself predicts the label in {share:g} % of the rows; {way}"


def _errors(levels: Ints | None, raw: Floats | None, answer: Answer, rows: Ints) -> int | None:
    """Count the rows predicted wrongly by the most frequent label of each value, or by one
    threshold.

    Returns None if there are too many for a column that gives the label away.
    """
    y = answer.y[rows].astype(np.int64)
    others = len(y) - int(np.bincount(y).max())
    if others < FEWEST_OTHERS:
        return None
    codes = levels[rows] if levels is not None else None
    if codes is None and raw is not None:
        codes = _few_levels(raw[rows])
    if codes is not None:
        wrong = _by_level(codes, y, answer.classes) if codes.max() * 10 <= len(y) else len(y)
    else:
        assert raw is not None
        wrong = _by_threshold(raw[rows], y) if answer.classes == 2 else len(y)
    return wrong if wrong <= ERRORS * others else None


def _few_levels(raw: Floats) -> Ints | None:
    if len(pd.unique(raw[:500])) > MOST_LEVELS:
        return None
    codes, distinct = pd.factorize(raw)
    return codes.astype(np.int64) if len(distinct) <= MOST_LEVELS else None


def _by_level(codes: Ints, y: Ints, classes: int) -> int:
    """Count the errors of predicting the most frequent label of each value; missing is a value."""
    table = np.bincount((codes + 1) * classes + y, minlength=classes)
    table = np.append(table, np.zeros(-len(table) % classes, dtype=table.dtype))
    return len(y) - int(table.reshape(-1, classes).max(1).sum())


def _by_threshold(raw: Floats, y: Ints) -> int:
    """Count the errors of the best threshold for labels 0 and 1; missing values have their own
    label."""
    absent = np.isnan(raw)
    lost = min(int(y[absent].sum()), int((1 - y[absent]).sum()))
    order = np.argsort(raw[~absent], kind="stable")
    values, labels = raw[~absent][order], y[~absent][order]
    # the number of ones up to each change of value, and in total
    ends = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)
    ones, total = np.cumsum(labels)[ends], int(labels.sum())
    # a threshold after each end: 0 below and 1 above, or the other way round
    wrong = ones + (len(labels) - (ends + 1)) - (total - ones)
    return lost + int(np.minimum(wrong, len(labels) - wrong).min())


def _correlation(raw: Floats, y: Ints | Floats) -> float:
    present = ~np.isnan(raw)
    x, y = raw[present], y[present]
    if len(x) < FEWEST_ROWS or float(x.std()) == 0 or float(y.std()) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])
