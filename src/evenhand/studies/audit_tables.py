"""Tables for people: what an audit says."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.metrics.uncertainty import Interval

if TYPE_CHECKING:
    from evenhand.studies.audit import Audit

WIDTH = 110  # columns of a text that goes to no terminal
MOST_ROWS = 40  # a table of more is no longer read
SHORT = {
    "selection rate": "selected",
    "true-positive rate": "TPR",
    "false-positive rate": "FPR",
    "precision": "precision",
}
SHOWN = {
    "mean": "mean over clients",
    "pooled": "over all samples",
    "worst10": "worst 10 % of clients",
    "min": "worst client",
    "std": "std",
}


def as_text(judged: Audit) -> str:
    """What :func:`show` prints."""
    text = io.StringIO()
    show(Console(file=text, width=WIDTH), judged)
    return text.getvalue().rstrip()


def show(console: Console, judged: Audit) -> None:
    counts, clients = judged.counts, judged.clients()
    total, missing = int(counts.table.sum()), int(counts.table[..., -1].sum())
    none = f", {missing} without a prediction" if missing else ""
    held = f"; {len(clients)} clients" if len(clients) > 1 else ""
    what = "clients and samples" if judged.over == "both" else judged.over
    about = f"labels {', '.join(counts.labels)}; {judged.level:.0%} intervals over {what}"
    console.print(f"{total} samples{none}{held}; {about}", highlight=False, markup=False)
    across = judged.across_clients()
    shown = {
        heading: across[name]
        for name, heading in SHOWN.items()
        if len(clients) > 1 or name == "pooled"
    }
    console.print(_table("Accuracy, %", ("", "accuracy", "interval"), _interval_cells(shown)))
    if any(_outside(value) for value in shown.values()):
        console.print(
            "* Clients with few samples look more different than they are; the interval makes up"
            " for that.",
            highlight=False,
        )
    for title, rows in (("client", clients), ("group", judged.groups())):
        if len(rows) < 2:
            continue
        if len(rows) > MOST_ROWS:
            console.print(
                f"{len(rows)} {title}s are too many for a table; --out writes them all",
                highlight=False,
            )
            continue
        extra = [
            name
            for name in rows[0]
            if name not in ("name", "samples", "accuracy", "low", "high", "small")
        ]
        cells = [
            [
                escape(row["name"]),
                (
                    f"< {judged.least}"
                    if row["samples"] is None
                    else str(row["samples"]) + (" (few)" if row["small"] else "")
                ),
                _share(row["accuracy"]),
                f"{_share(row['low'])} to {_share(row['high'])}",
                *(_share(row[name]) for name in extra),
            ]
            for row in rows
        ]
        about = (
            f"; rates of label {escape(counts.labels[judged.code])}"
            if extra and judged.code is not None
            else ""
        )
        headings = (title, "samples", "accuracy", "interval", *(SHORT[name] for name in extra))
        console.print(_table(f"By {title}, %{about}", headings, cells))
    hidden = sum(row["samples"] is None for row in clients)
    if hidden:
        text = (
            f"Clients with fewer than {judged.least} samples: {hidden}. Their numbers are"
            " suppressed, and left out across clients."
        )
        console.print(text, highlight=False)
    gaps = judged.across_groups()
    if gaps:
        console.print(
            _table("Gaps between groups, points", ("", "gap", "interval"), _interval_cells(gaps))
        )
        few = [row["name"] for row in judged.groups() if row["small"]]
        if few:
            text = (
                f"Gaps leave out groups with fewer than {judged.least} samples: {', '.join(few)}."
            )
            console.print(text, highlight=False, markup=False)


def _table(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    for place, heading in enumerate(headings):
        table.add_column(
            heading, justify="right" if place else "left", no_wrap=not place, overflow="fold"
        )
    for row in cells:
        table.add_row(*row)
    return table


def _interval_cells(values: Mapping[str, Interval]) -> list[list[str]]:
    return [
        [
            name,
            _share(value.value),
            f"{_share(value.low)} to {_share(value.high)}{'*' * _outside(value)}",
        ]
        for name, value in values.items()
    ]


def _outside(value: Interval) -> bool:
    return bool(value.value < value.low or value.value > value.high)


def _share(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.1f}"
