"""The short table of a study: one number per column, within 80 columns."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.metrics.group_rates import Gap
from evenhand.studies.analysis.comparison import Comparison, columns
from evenhand.studies.analysis.convergence import stopped_early
from evenhand.studies.analysis.groups import GroupView
from evenhand.studies.runs.study import Study
from evenhand.studies.tables.methods import TO, mark, marks_legend, title

NARROW = 80  # columns of the narrowest terminal that the table fits
GAPS = {
    "demographic parity": "selection",
    "equal opportunity": "true positives",
    "false-positive parity": "false positives",
}


def show_brief(
    console: Console, study: Study, comparison: Comparison, groups: Mapping[str, GroupView]
) -> None:
    """Print a row per method, without intervals, and what the marks in it mean; which
    methods were stopped early; then the gaps between groups if there is a positive label."""
    console.print(title(study), style="italic", highlight=False, markup=False)
    console.print(brief_table(study, comparison))
    for line in marks_legend(study, comparison):
        console.print(line, style="dim", highlight=False)
    for line in filter(None, (stopped_early(study, label) for label in study.labels)):
        console.print(line, highlight=False, markup=False)
    positive = next((view.positive for view in groups.values()), None)
    if positive is not None and any(view.gaps for view in groups.values()):
        about = f"Largest gaps between groups in the rates of label {positive}, points"
        console.print(about, style="italic", highlight=False, markup=False)
        console.print(brief_gaps(groups))


def brief_table(study: Study, comparison: Comparison) -> Table:
    """A row per method: its numbers across clients, marked where they differ from FedAvg's.

    A label that leaves no room for the numbers is folded; numbers never are.
    """
    measure, shown = study.measure, columns(study)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("method", overflow="fold")
    cells: list[list[str]] = []  # column by column
    for name, heading in shown.items():
        values = [measure.show(comparison.rows[label][name].value) for label in study.labels]
        marks = [mark(comparison.differences.get(label, {}).get(name)) for label in study.labels]
        # rich would strip the space in place of a mark, and digits would not be aligned
        width = max(map(len, (heading, *values)))
        table.add_column(escape(heading.rjust(width)), no_wrap=True)
        pairs = zip(values, marks, strict=True)
        cells.append([f"{value.rjust(width)}{arrow}" for value, arrow in pairs])
    for row in zip(map(escape, study.labels), *cells, strict=True):
        table.add_row(*row)
    for one in study.diverged:
        table.add_row(escape(one.label), "[bold red]diverged[/]", *[TO] * (len(shown) - 1))
    return table


def brief_gaps(groups: Mapping[str, GroupView]) -> Table:
    """A row per method: the largest difference between two groups in each rate."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("method", overflow="fold")
    for heading in GAPS.values():
        table.add_column(heading, no_wrap=True, justify="right")
    for label, view in groups.items():
        table.add_row(escape(label), *(_points(view.gaps.get(kind)) for kind in GAPS))
    return table


def _points(gap: Gap | None) -> str:
    return (
        "-" if gap is None or math.isnan(gap.interval.value) else f"{100 * gap.interval.value:.1f}"
    )
