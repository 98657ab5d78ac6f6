"""Tables for a terminal: the points of a sweep, and the chosen one."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.studies.analysis.sweeping import Sweep
from evenhand.studies.specs.selection import FAIRNESS

GAP_NAMES = {"tpr_gap": "TPR gap", "fpr_gap": "FPR gap"}


def show_choice(console: Console, sweep: Sweep) -> None:
    """Print the validation scores of every point, and which point was chosen and why."""
    console.print(_points(sweep))
    number = {"worst10": "worst 10 %", "min": "worst", "std": "std"}[FAIRNESS[sweep.selection.rule]]
    if sweep.dominated:
        text = (
            f"dominated: another point has a mean and a {number} at least as good, and one of them"
            " better."
        )
        console.print(text, style="dim", highlight=False)
    for name, labels in sweep.gap_fronts.items():
        text = f"Not dominated in the mean and the {GAP_NAMES[name]}: {', '.join(labels)}."
        console.print(text, style="dim", highlight=False, markup=False)
    console.print(
        f"Rule {sweep.selection.rule}: {sweep.selection.stated}.", highlight=False, markup=False
    )
    for line in (sweep.reason, *sweep.at_edge):
        console.print(line, highlight=False, markup=False)


def _points(sweep: Sweep) -> Table:
    measure, seeds = sweep.measure, len(sweep.study.seeds)
    means = f", means over {seeds} seeds" if seeds > 1 else ""
    title = f"Validation {measure.name} across clients{measure.unit}{means}"
    table = Table(title=title, box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("point", no_wrap=True, overflow="fold")
    for heading in ("mean", "worst 10 %", "worst", "std", "variance"):
        table.add_column(heading, justify="right")
    gaps = sweep.gaps["validation"]
    for name in gaps:
        table.add_column(GAP_NAMES[name], justify="right")
    table.add_column("")
    for label, point in sweep.validation.items():
        chosen = label == sweep.choice.label
        notes = (
            ["chosen"] * chosen
            + ["reference"] * (label in (sweep.reference, sweep.study.alone))
            + ["dominated"] * (label in sweep.dominated)
        )
        cells = [measure.show(point[name]) for name in ("mean", "worst10", "min", "std")]
        cells.append(
            "-"
            if point["variance"] != point["variance"]
            else f"{measure.scale**2 * point['variance']:.{measure.digits}f}"
        )
        table.add_row(
            escape(label),
            *cells,
            *(f"{100 * found[label]:.1f}" for found in gaps.values()),
            ", ".join(notes),
            style="bold" if chosen else "dim" if label in sweep.dominated else "",
        )
    return table
