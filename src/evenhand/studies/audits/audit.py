"""What a classifier's predictions, or counts of them, say about clients and groups. Any system's:
nothing is trained here."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from evenhand.errors import require_known, require_number, require_whole
from evenhand.metrics import rates
from evenhand.metrics.across import accuracy_intervals
from evenhand.metrics.counts import Counts
from evenhand.metrics.group_rates import group_gaps
from evenhand.metrics.uncertainty import Interval, wilson
from evenhand.studies.audits.tables import ACROSS, gaps_table, outside, rows_table, scores_table

Ints = NDArray[np.int64]
Row = dict[str, Any]

WIDTH = 110  # columns of a text that goes to no terminal
MOST_ROWS = 40  # a table of more is no longer read
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
        least: clients and groups with fewer samples are marked as small; a group with fewer samples
            for a rate is left out of its gap.
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
        text = io.StringIO()
        self.show(Console(file=text, width=WIDTH))
        return text.getvalue().rstrip()

    def show(self, console: Console) -> None:
        """Print how clients and groups are served, and gaps between groups."""
        clients, groups = self.clients(), self.groups()

        def say(text: str) -> None:
            console.print(text, highlight=False, markup=False)

        say(self._about(len(clients)))
        across = self.across_clients()
        kept = ACROSS if len(clients) > 1 else ("pooled",)
        shown = {name: across[name] for name in kept}
        console.print(scores_table(shown))
        if any(map(outside, shown.values())):
            say(
                "* Clients with few samples look more different than they are; the interval makes"
                " up for that."
            )
        label = None if self.code is None else self.counts.labels[self.code]
        for by, rows in (("client", clients), ("group", groups)):
            if len(rows) > MOST_ROWS:
                say(f"{len(rows)} {by}s are too many for a table; --out writes them all")
            elif len(rows) > 1:
                console.print(rows_table(by, rows, self.least, label))
        hidden = sum(row["samples"] is None for row in clients)
        if hidden:
            say(
                f"Clients with fewer than {self.least} samples: {hidden}. Their numbers are"
                " suppressed, and left out across clients."
            )
        if gaps := self.across_groups():
            console.print(gaps_table(gaps))
            if few := ", ".join(row["name"] for row in groups if row["small"]):
                say(f"Gaps leave out groups with fewer than {self.least} samples: {few}.")

    def _about(self, clients: int) -> str:
        total, missing = int(self.counts.table.sum()), int(self.counts.table[..., -1].sum())
        none = f", {missing} without a prediction" if missing else ""
        held = f"; {clients} clients" if clients > 1 else ""
        what = "clients and samples" if self.over == "both" else self.over
        labels = ", ".join(self.counts.labels)
        return (
            f"{total} samples{none}{held}; labels {labels}; {self.level:.0%} intervals over {what}"
        )

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
        """Gaps between groups; see :func:`evenhand.metrics.group_rates.group_gaps`."""
        found = group_gaps(
            self.counts.by_group,
            self.counts.groups,
            self.counts.labels,
            self.code,
            self.level,
            self.least,
            self.over,
            self.counts.table,
        )
        return {kind: gap.interval for kind, gap in found.items()}

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
