"""An audit of predictions, from a table, a file or counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from evenhand.data.tables.files import read_table
from evenhand.errors import require
from evenhand.metrics.counts import Counts
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.counting import count_predictions, read_counts
from evenhand.studies.audits.provenance import of_file, of_table
from evenhand.studies.audits.rows import read_rows


def audit(
    predictions: pd.DataFrame | Counts | str | Path,
    label: object = None,
    prediction: object = None,
    client: object = None,
    group: object = None,
    *,
    counts: bool = False,
    score: object = None,
    threshold: float | None = None,
    thresholds: Sequence[float] | None = None,
    weight: object = None,
    reference: str | Sequence[str] | None = None,
    positive: str | None = None,
    over: str = "samples",
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    least: int = 10,
    suppress: bool = False,
) -> Audit:
    """Audit existing predictions: how well they serve each client and group.

    >>> table = pd.DataFrame({"paid": ["no", "yes", "yes", "yes"], "score": [3, 8, 9, 2]})
    >>> audit(table, label="paid", prediction="score >= 5").across_clients()["pooled"].value
    0.75

    Args:
        predictions: a table with one row per sample, the path of such a CSV or Parquet file, or
            counts.
        label, prediction, client, group: columns of the table, or conditions on them; several group
            columns are audited one by one and combined.
        counts: whether the table holds counts: columns label, prediction, count and, optionally,
            client and group.
        score: a column that is larger if the positive label is more likely, for AUC, calibration
            and thresholds; without ``prediction``, predictions come from it.
        threshold: the smallest score for which the positive label is predicted, by default 0.5.
        thresholds: the scores in the table of rates by threshold, by default 0.05, 0.1, ..., 0.95.
        weight: a column with sample weights; intervals use Kish's effective sample size.
        reference: the group to compare others with; with several group columns, one of each.

    The other arguments are those of :class:`evenhand.audit.Audit`.
    """
    rows, source = None, {}
    settings = (positive, over, level, draws, seed, least, suppress, reference)
    require(
        score is not None or (threshold is None and thresholds is None),
        "a threshold needs a score; pass the column of the score, too",
    )
    if isinstance(predictions, Counts):
        found = predictions
    else:
        table = predictions if isinstance(predictions, pd.DataFrame) else read_table(predictions)
        columns = {
            "label": label,
            "prediction": prediction,
            "client": client,
            "group": group,
            "score": score,
            "weight": weight,
        }
        if counts:
            require(
                score is None and weight is None,
                "score and weight need one row per sample, not counts",
            )
            found = read_counts(table)
            source = {"rows": len(table), "counts": True}
        else:
            if label is None or (prediction is None and score is None):
                raise ValueError(
                    "give label and prediction (or score), or counts=True for a table of counts"
                )
            rows = read_rows(
                table,
                label,
                prediction,
                client,
                group,
                score=score,
                threshold=threshold,
                weight=weight,
                positive=positive,
            )
            found = rows.counts()
            source = of_table(len(table), len(rows.label), columns)
        if not isinstance(predictions, pd.DataFrame):
            source = of_file(predictions) | source
    by = " & ".join(map(str, group)) if isinstance(group, list | tuple) else str(group or "group")
    return Audit(found, *settings, rows, thresholds, by, source)


for _part in (Audit, count_predictions, read_counts):
    setattr(audit, _part.__name__, _part)  # evenhand.audit was a module of these
