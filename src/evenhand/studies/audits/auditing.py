"""An audit of predictions, from a table, a file or counts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from evenhand.data.tables.files import read_table
from evenhand.metrics.counts import Counts
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.counting import count_predictions, read_counts


def audit(
    predictions: pd.DataFrame | Counts | str | Path,
    label: object = None,
    prediction: object = None,
    client: object = None,
    group: object = None,
    *,
    counts: bool = False,
    positive: str | None = None,
    over: str = "samples",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    least: int = 10,
    suppress: bool = False,
) -> Audit:
    """Who is served how well by predictions that are there already.

    >>> table = pd.DataFrame({"paid": ["no", "yes", "yes", "yes"], "score": [3, 8, 9, 2]})
    >>> audit(table, label="paid", prediction="score >= 5").across_clients()["pooled"].value
    0.75

    Args:
        predictions: a table with a row for each sample, the path of a CSV or Parquet file with one,
            or counts.
        label, prediction, client, group: columns of the table; see
            :func:`evenhand.audit.count_predictions`.
        counts: the table holds counts: columns label, prediction, count and, where there are any,
            client and group.

    The other arguments are those of :class:`evenhand.audit.Audit`.
    """
    if isinstance(predictions, Counts):
        found = predictions
    else:
        table = predictions if isinstance(predictions, pd.DataFrame) else read_table(predictions)
        if counts:
            found = read_counts(table)
        elif label is None or prediction is None:
            raise ValueError("give label and prediction, or counts=True for a table of counts")
        else:
            found = count_predictions(table, label, prediction, client, group)
    return Audit(found, positive, over, level, draws, seed, least, suppress)


for _part in (Audit, count_predictions, read_counts):
    setattr(audit, _part.__name__, _part)  # evenhand.audit was a module of these
