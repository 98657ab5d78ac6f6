"""What a classifier's predictions, or counts of them, say about clients and groups. Any system's:
nothing is trained here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenhand.data.tables.files import read_table
from evenhand.errors import require_known, require_number, require_whole
from evenhand.metrics import rates
from evenhand.metrics.across import accuracy_intervals
from evenhand.metrics.counts import Counts
from evenhand.metrics.uncertainty import Interval, gap_interval, resampled_sums, wilson
from evenhand.studies.counting import count_predictions, read_counts

Ints = NDArray[np.int64]
Row = dict[str, Any]

# of one label, what must be equal over groups
PARITIES: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "demographic parity": (rates.selection_rate,),
    "equal opportunity": (rates.recall,),
    "false-positive parity": (rates.false_positive_rate,),
    "equalised odds": (rates.recall, rates.false_positive_rate),
    "predictive parity": (rates.precision,),
}
RATES: Mapping[str, Callable[..., Any]] = {
    "selection rate": rates.selection_rate,
    "true-positive rate": rates.recall,
    "false-positive rate": rates.false_positive_rate,
    "precision": rates.precision,
}


@dataclass(frozen=True, repr=False)
class Audit:
    """Numbers about clients and groups, with intervals; printed, they are the tables of the command
    line.

    Args:
        counts: predictions, counted.
        positive: the label that is the favourable or the feared one, for rates and parities of two
            classes; None takes the last of two labels, and of more labels the one that differs
            most.
        over: what intervals are over: other "samples" of these clients, other "clients" like these,
            or "both".
        least: clients and groups with fewer samples are marked as small, and such groups are left
            out of gaps.
        suppress: leave small clients and groups without numbers, and such clients out of numbers
            across clients.
    """

    counts: Counts
    positive: str | None = None
    over: str = "samples"
    level: float = 0.95
    draws: int = 1000
    seed: int = 0
    least: int = 10
    suppress: bool = False

    def __post_init__(self) -> None:
        require_number("level", self.level, "(0, 1)")
        require_whole("least", self.least, 0)
        if self.positive is not None:
            require_known("label", self.positive, self.counts.labels)

    def __repr__(self) -> str:
        from evenhand.studies.audit_tables import as_text  # here: rich is slow to load

        return as_text(self)

    @property
    def code(self) -> int | None:
        """The number of the positive label."""
        if self.positive is not None:
            return self.counts.labels.index(self.positive)
        return 1 if len(self.counts.labels) == 2 else None

    def clients(self) -> list[Row]:
        """A row per client: samples, accuracy with Wilson's interval, whether it has few
        samples."""
        return self._accuracies(self.counts.clients, self.counts.by_client)

    def groups(self) -> list[Row]:
        """A row per group: samples, accuracy with Wilson's interval and, of the positive label, the
        rates."""
        rows = self._accuracies(self.counts.groups, self.counts.by_group)
        if self.code is not None:
            for name, rate in RATES.items():
                for row, value in zip(
                    rows, rate(self.counts.by_group)[:, self.code].tolist(), strict=True
                ):
                    row[name] = None if row["samples"] is None else value
        return rows

    def across_clients(self) -> dict[str, Interval]:
        """Mean, worst 10 % and so on of the clients' accuracies; see
        :mod:`evenhand.metrics.across`.

        A value may lie outside of its interval: the worst of many clients with few samples looks
        worse than it is.
        """
        right, samples = _right(self.counts.by_client)
        kept = samples >= (self.least if self.suppress else 0)
        return accuracy_intervals(
            right[kept], samples[kept], self.over, self.draws, self.level, self.seed
        )

    def across_groups(self) -> dict[str, Interval]:
        """Gaps between groups that are not small; empty where there are fewer than two."""
        kept = np.flatnonzero(self.counts.by_group.sum((-2, -1)) >= max(1, self.least))
        if len(kept) < 2:
            return {}
        drawn = resampled_sums(self.counts.table, self.over, self.draws, self.seed)[:, kept]
        there = self.counts.by_group[kept]
        codes = range(len(self.counts.labels)) if self.code is None else [self.code]

        def compared(functions: Sequence[Callable[..., Any]]) -> Interval:
            seen, resampled = (
                [function(table)[..., code] for function in functions for code in codes]
                for table in (there, drawn)
            )
            return gap_interval(seen, resampled, self.level)

        found = {name: compared(functions) for name, functions in PARITIES.items()}
        return found | {
            "accuracy parity": gap_interval(
                [rates.accuracy(there)], [rates.accuracy(drawn)], self.level
            )
        }

    def tables(self) -> dict[str, list[Row]]:
        """Rows of tables, by name: clients, groups, summary, counts."""
        kinds = {"clients": self.across_clients(), "groups": self.across_groups()}
        summary = [
            {"across": kind, "measure": name, **value._asdict()}
            for kind, values in kinds.items()
            for name, value in values.items()
        ]
        return {
            "clients": self.clients(),
            "groups": self.groups(),
            "summary": summary,
            "counts": self.count_rows(),
        }

    def table(self, name: str) -> pd.DataFrame:
        """One of :meth:`tables`."""
        tables = self.tables()
        require_known("table", name, tables)
        return pd.DataFrame(tables[name])

    def count_rows(self) -> list[Row]:
        """See :meth:`Counts.rows`; without those of small clients and groups where they are
        suppressed."""
        groups, clients = (
            {row["name"] for row in rows if row["samples"] is None}
            for rows in (self.groups(), self.clients())
        )
        return [
            row
            for row in self.counts.rows()
            if row["client"] not in clients and row["group"] not in groups
        ]

    def _accuracies(self, names: Sequence[str], tables: Ints) -> list[Row]:
        right, samples = _right(tables)
        low, high = wilson(right, samples, self.level)
        columns = zip(
            samples.tolist(),
            rates.accuracy(tables).tolist(),
            low.tolist(),
            high.tolist(),
            strict=True,
        )
        rows = []
        for name, numbers in zip(names, columns, strict=True):
            small = numbers[0] < self.least
            shown = [None] * 4 if small and self.suppress else numbers
            rows.append(
                {
                    "name": name,
                    **dict(zip(("samples", "accuracy", "low", "high"), shown, strict=True)),
                    "small": small,
                }
            )
        return rows


def _right(tables: Ints) -> tuple[Ints, Ints]:
    """Samples that are predicted right, and all samples, of tables (..., C, C + 1)."""
    return np.diagonal(tables[..., :-1], axis1=-2, axis2=-1).sum(-1), tables.sum((-2, -1))


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
