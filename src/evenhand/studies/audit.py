"""What a classifier's predictions, or counts of them, say about clients and groups. Any system's:
nothing is trained here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenhand.data.tables.levels import groups_of, levels_of
from evenhand.errors import DataError, require_known, require_number, require_whole
from evenhand.metrics import rates
from evenhand.metrics.across import accuracy_intervals
from evenhand.metrics.counts import Counts
from evenhand.metrics.uncertainty import Interval, gap_interval, resampled_sums, wilson

Ints = NDArray[np.int64]
Row = dict[str, Any]

COLUMNS = ("client", "group", "label", "prediction", "count")
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


@dataclass(frozen=True)
class Audit:
    """Numbers about clients and groups, with intervals.

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
