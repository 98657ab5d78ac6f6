"""Tables for a terminal: the settings chosen for each method."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.studies.runs.tuning import Chosen, Tuned
from evenhand.studies.specs.tuning import LR

NUMBERS = {"mean": "mean", "worst10": "worst 10 %", "min": "worst client"}


def show_tuning(console: Console, tuned: Tuned) -> None:
    """Print the settings chosen for each method, and how many were tried."""
    measure = tuned.study.measure
    title = f"Settings chosen on validation data, {measure.name}{measure.unit}"
    console.print(title, style="italic", highlight=False)
    table = Table(box=box.SIMPLE, padding=(0, 0, 0, 1))
    for heading in ("method", "settings"):
        table.add_column(heading, no_wrap=True, overflow="fold")
    for heading in (NUMBERS[tuned.rule.rule], "tried"):
        table.add_column(heading, justify="right")
    for one in tuned.methods:
        settings = ", ".join(f"{key}={value}" for key, value in one.settings.items())
        cells = (one.label, settings, measure.show(one.number), str(one.tried))
        table.add_row(*map(escape, cells))
    console.print(table)
    for line in tuning_lines(tuned):
        console.print(line, highlight=False, markup=False)


def tuning_lines(tuned: Tuned) -> list[str]:
    """How settings were chosen, and for which methods a wider grid is worth trying."""
    seed = tuned.study.seeds[0]
    lines = [
        f"Each method uses the settings with {tuned.rule.stated} on validation data, with seed"
        f" {seed}. Test data played no part in the choice."
    ]
    lines += edge_warnings(tuned)
    others = [
        (f"{one.name}.{key}", f"{key} of {one.label} ({one.settings[key]}, the {most})")
        for one in tuned.methods
        for keys, most in ((one.smallest, "smallest"), (one.largest, "largest"))
        for key in keys
        if key != LR
    ]
    if others:
        worst = (
            ", or choose by the worst clients: --rule worst10" if tuned.rule.rule == "mean" else ""
        )
        lines.append(
            f"At the edge of the grid: {', '.join(text for _, text in others)}. To try other"
            f" values: --tune --grid {others[0][0]}=...{worst}."
        )
    return lines


def edge_warnings(tuned: Tuned) -> list[str]:
    """A line for each method whose best step size is at the edge of the grid."""
    return [line for one in tuned.methods for line in _step_size_at_the_edge(one)]


def _step_size_at_the_edge(one: Chosen) -> list[str]:
    most, more = ("smallest", "smaller") if LR in one.smallest else ("largest", "larger")
    if LR not in (*one.smallest, *one.largest):
        return []
    return [
        f"warning: the best step size of {one.label}, {one.settings[LR]}, is the {most} one tried;"
        f" try {more} ones: --tune --grid {LR}=..."
    ]
