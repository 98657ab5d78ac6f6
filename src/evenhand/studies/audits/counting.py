"""Predictions that are there already, counted by client, group, label and prediction."""

from __future__ import annotations

import numpy as np
import pandas as pd

from evenhand.data.tables.levels import groups_of, levels_of
from evenhand.errors import DataError, require_known
from evenhand.metrics.counts import Counts

COLUMNS = ("client", "group", "label", "prediction", "count")


def count_predictions(
    table: pd.DataFrame,
    label: object,
    prediction: object,
    client: object = None,
    group: object = None,
    most: int = 50,
) -> Counts:
    """Count a table with a row for each sample.

    Args:
        label, prediction: columns, or conditions on them such as ``"decile_score >= 5"``; of a
            condition, false and true stand for the two labels in their order. A missing prediction
            is counted, and is never right; rows without a label are left out.
        client: a column; None takes all rows for one client's.
        group: a column or several, whose combinations are the groups.
        most: groups that a column may have, and predictions that are no labels.
    """
    truth, guess = levels_of(table, "label", label), levels_of(table, "prediction", prediction)
    kept = np.flatnonzero(truth.codes >= 0)
    if not len(kept):
        raise DataError("no row of the table has a label")
    if str(prediction) not in table.columns and len(truth.names) == 2:  # a condition
        names: tuple[str, ...] = truth.names
        of_truth, of_guess = [0, 1], [0, 1]
    else:
        names = (*truth.names, *(name for name in guess.names if name not in truth.names))
        of_truth, of_guess = (
            [names.index(name) for name in level.names] for level in (truth, guess)
        )
    strange = len(names) - len(truth.names)
    if strange > most:
        raise DataError(
            f"{prediction} holds {strange} values that are not among the labels"
            f" ({', '.join(truth.names[:5])}); "
            f'give a condition on it, such as "{prediction} >= 0.5"'
        )
    owner = None if client is None else levels_of(table, "client", client)
    if owner is not None and bool((owner.codes[kept] < 0).any()):
        row = int(kept[np.flatnonzero(owner.codes[kept] < 0)[0]]) + 1
        raise DataError(f"row {row} has no value of {client}; fill it or remove the row")
    codes, groups = groups_of(table, group, kept, most)
    return Counts.of(
        np.zeros(len(kept), np.int64) if owner is None else owner.codes[kept],
        np.zeros(len(kept), np.int64) if codes is None else codes,
        np.array(of_truth)[truth.codes[kept]],
        np.array([*of_guess, -1])[guess.codes[kept]],
        ("everyone",) if owner is None else owner.names,
        groups or ("",),
        names,
    )


def read_counts(table: pd.DataFrame) -> Counts:
    """Counts from a table with columns label, prediction and count, and optionally client and
    group; see :meth:`Counts.rows`."""
    for column in ("label", "prediction", "count"):
        if column not in table.columns:
            raise DataError(
                "a table of counts needs columns label, prediction and count; there is no"
                f" {column!r}"
            )
    for column in table.columns:
        require_known("column of a table of counts:", str(column), COLUMNS)
    times = pd.to_numeric(table["count"], errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~(times >= 0) | (times != np.floor(times)))
    if len(bad):
        raise DataError(
            f"row {int(bad[0]) + 1}: count is {table['count'].iloc[bad[0]]}, not a whole number"
            " that is not negative"
        )
    levels = {name: levels_of(table, name, name) for name in COLUMNS[:-1] if name in table.columns}
    truth, guess = levels["label"], levels["prediction"]
    for name in ("client", "group", "label"):
        if name in levels and bool((levels[name].codes < 0).any()):
            raise DataError(
                f"row {int(np.flatnonzero(levels[name].codes < 0)[0]) + 1} has no {name}"
            )
    names = (*truth.names, *(name for name in guess.names if name not in truth.names))
    zeros = np.zeros(len(table), np.int64)
    return Counts.of(
        levels["client"].codes if "client" in levels else zeros,
        levels["group"].codes if "group" in levels else zeros,
        np.array([names.index(name) for name in truth.names])[truth.codes],
        np.array([*(names.index(name) for name in guess.names), -1])[guess.codes],
        levels["client"].names if "client" in levels else ("everyone",),
        levels["group"].names if "group" in levels else ("",),
        names,
        times.astype(np.int64),
    )
