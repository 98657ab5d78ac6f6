"""Count existing predictions by client, group, label and prediction."""

from __future__ import annotations

import numpy as np
import pandas as pd

from evenhand.data.tables.levels import levels_of
from evenhand.errors import DataError, brief, require_known
from evenhand.metrics.counts import Counts
from evenhand.studies.audits.matching import MOST_LABELS, match, shown
from evenhand.studies.audits.rows import EVERYONE, MOST_GROUPS, NO_GROUPS, read_rows

MOST = 1e15  # sums of counts up to here are exact
COLUMNS = ("client", "group", "label", "prediction", "count")


def count_predictions(
    table: pd.DataFrame,
    label: object,
    prediction: object,
    client: object = None,
    group: object = None,
    most: int = MOST_GROUPS,
) -> Counts:
    """Count a table with one row per sample; the arguments are those of :func:`read_rows`."""
    return read_rows(table, label, prediction, client, group, most=most).counts()


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
    times = np.array([_number(count) for count in table["count"]], np.float64)
    bad = np.flatnonzero(~((times >= 0) & (times <= MOST)) | (times != np.floor(times)))
    if len(bad):
        raise DataError(
            f"row {int(bad[0]) + 1}: count is {brief(table['count'].iloc[bad[0]])}, not a whole"
            f" number from 0 to {MOST:g}"
        )
    levels = {name: levels_of(table, name, name) for name in COLUMNS[:-1] if name in table.columns}
    if "group" in levels and not levels["group"].names:  # predictions without groups
        del levels["group"]
    truth, guess = levels["label"], levels["prediction"]
    for name in ("client", "group", "label"):
        if name in levels and bool((levels[name].codes < 0).any()):
            raise DataError(
                f"row {int(np.flatnonzero(levels[name].codes < 0)[0]) + 1} has no {name}"
            )
    names, of_truth, of_guess = match(truth.names, guess.names, "label", "prediction")
    if len(names) > MOST_LABELS:
        raise DataError(
            f"the label has {len(names):,} different values ({shown(names)}), more than the"
            f" {MOST_LABELS} allowed; if it is a number, count ranges of it"
        )
    zeros = np.zeros(len(table), np.int64)
    return Counts.of(
        levels["client"].codes if "client" in levels else zeros,
        levels["group"].codes if "group" in levels else zeros,
        np.array(of_truth)[truth.codes],
        np.array([*of_guess, -1])[guess.codes],
        levels["client"].names if "client" in levels else EVERYONE,
        levels["group"].names if "group" in levels else NO_GROUPS,
        names,
        times.astype(np.int64),
    )


def _number(count: object) -> float:
    """A count from a cell of the table; NaN if it is not a number."""
    try:
        return float(count)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return np.nan
