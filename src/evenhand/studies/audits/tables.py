"""Tables for people: what an audit says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from evenhand.metrics.uncertainty import Interval

SHORT = {
    "selection rate": "selected",
    "true-positive rate": "TPR",
    "false-positive rate": "FPR",
    "precision": "precision",
}
ACROSS = {
    "mean": "mean over clients",
    "pooled": "over all samples",
    "worst10": "worst 10 % of clients",
    "min": "worst client",
    "std": "std",
}


def scores_table(across: Mapping[str, Interval]) -> Table:
    """Numbers across clients, in percent."""
    values = {ACROSS[name]: value for name, value in across.items()}
    return _table("Accuracy, %", ("", "accuracy", "interval"), _interval_cells(values))


def gaps_table(gaps: Mapping[str, Interval]) -> Table:
    """Gaps between groups, in points."""
    return _table("Gaps between groups, points", ("", "gap", "interval"), _interval_cells(gaps))


def rows_table(by: str, rows: Sequence[Mapping[str, Any]], least: int, label: str | None) -> Table:
    """A row per client or group; rates are those of ``label``."""
    extra = [name for name in rows[0] if name in SHORT]
    cells = [
        [
            escape(row["name"]),
            (
                f"< {least}"
                if row["samples"] is None
                else str(row["samples"]) + (" (few)" if row["small"] else "")
            ),
            _share(row["accuracy"]),
            f"{_share(row['low'])} to {_share(row['high'])}",
            *(_share(row[name]) for name in extra),
        ]
        for row in rows
    ]
    about = f"; rates of label {escape(label)}" if extra and label is not None else ""
    headings = (by, "samples", "accuracy", "interval", *(SHORT[name] for name in extra))
    return _table(f"By {by}, %{about}", headings, cells)


def outside(value: Interval) -> bool:
    """Whether a number is outside of its interval."""
    return bool(value.value < value.low or value.value > value.high)


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
            f"{_share(value.low)} to {_share(value.high)}{'*' * outside(value)}",
        ]
        for name, value in values.items()
    ]


def _share(value: float | None) -> str:
    return "-" if value is None or value != value else f"{100 * value:.1f}"
