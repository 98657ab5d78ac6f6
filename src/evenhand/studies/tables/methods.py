"""Tables for people: how methods compare, who gained and who lost, and how groups differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.runs.study import Study

TO = "\N{EN DASH}"

COLUMNS = {
    "mean": "mean",
    "worst10": "worst 10 %",
    "best10": "best 10 %",
    "min": "worst",
    "std": "std",
}
COLOURS = {"gains": "bold green", "harmed": "bold red", "unclear": "dim", "few": "dim"}
MARKS = {"gains": "↑", "harmed": "↓", "unclear": " ", "few": " "}
OF_ALL_LABELS = ("accuracy parity", "calibration")
SHORT = {
    "demographic parity": "selection",
    "equal opportunity": "TPR",
    "false-positive parity": "FPR",
    "equalised odds": "odds",
    "predictive parity": "precision",
    "accuracy parity": "accuracy",
}


def comparison_table(study: Study, comparison: Comparison) -> Table:
    """A row per method: numbers across clients of test accuracy, in percent, or of the error of a
    regression, with intervals."""
    measure = study.measure
    seeds = f", {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    table = _table(
        f"{measure.part.capitalize()} {measure.name} across clients{measure.unit}{seeds}",
        ("method",),
        COLUMNS.values(),
    )
    for label in study.labels:
        cells = []
        for name in COLUMNS:
            interval = comparison.rows[label][name]
            difference = comparison.differences.get(label, {}).get(name)
            mark = (
                ""
                if difference is None
                else "↑"
                if difference.better
                else "↓"
                if difference.worse
                else ""
            )
            value = f"{measure.show(interval.value)}{mark}"
            value = f"[bold]{value}*[/]" if comparison.best.get(name) == label else value
            cells.append(f"{value} {_ends(study, interval, name)}")
        table.add_row(escape(label), *cells)
    return table


def legend(comparison: Comparison) -> list[str]:
    marked = any(
        one.better or one.worse
        for row in comparison.differences.values()
        for name, one in row.items()
        if name in COLUMNS
    )
    bold = any(name in COLUMNS for name in comparison.best)
    lines = ["↑ ↓: significantly better or worse than FedAvg."] if marked else []
    lines += ["*: significantly better than every other method."] if bold else []
    extremes = [
        row[name] for row in comparison.rows.values() for name in ("worst10", "best10", "min")
    ]
    if any(
        interval.low > interval.value or interval.high < interval.value for interval in extremes
    ):
        lines.append(
            "An interval may lie beside its number: with few samples, the worst and the best look"
            " more extreme than they are."
        )
    return lines


def ledger_table(study: Study, entries: Sequence[Entry], by: str, least: int) -> Table:
    """A row per client, group or team: how FedAvg serves it, and what it gains or loses under each
    other method."""
    measure, names, reference = study.measure, study.names(by), study.reference
    teams = by == "client" and any(study.teams)
    others = (
        [label for label in study.labels if label != reference] if reference is not None else []
    )
    title = (
        measure.gain.format(by)
        if others
        else f"{measure.part.capitalize()} {measure.name} of each {by}{measure.unit}"
    )
    title += "" if study.judged_seeds == study.seeds else f", seed {study.seeds[0]}"
    found = {
        (entry.name, entry.method): entry
        for entry in entries
        if entry.by == by and entry.against == reference
    }
    shown = (reference,) if reference is not None else study.labels
    table = _table(title, (by, *(["team"] if teams else [])), ("samples", *shown, *others))
    merits = {
        label: np.mean([study.merits(label, seed, by) for seed in study.judged_seeds], 0)
        for label in shown
    }
    for index, (name, count) in enumerate(zip(names, study.sizes(by).tolist(), strict=True)):
        texts = [escape(name), *([escape(study.teams[index])] if teams else [])]
        values = [measure.show(float(merits[label][index])) for label in shown]
        few = " (few)" if count < least else ""
        table.add_row(
            *texts,
            f"{count}{few}",
            *values,
            *(_gain(study, found[name, label]) for label in others),
        )
    return table


def gap_table(found: Mapping[str, Mapping[str, Interval]], by: str, positive: str | None) -> Table:
    """A row per method: the largest difference between two groups, or teams, in each rate.

    ``positive``: the label that rates are about; of many labels, the one that differs most says
    little.
    """
    kinds = list(next(iter(found.values())))
    about = ""
    if positive is None:
        kinds = [kind for kind in kinds if kind in OF_ALL_LABELS]
    elif any(kind not in OF_ALL_LABELS for kind in kinds):
        about = f"; rates of label {positive}"
    table = _table(
        f"Gaps between {by}s, points{about}", ("method",), [SHORT.get(kind, kind) for kind in kinds]
    )
    for label, row in found.items():
        cells = (
            f"{100 * row[kind].value:.1f} [{100 * row[kind].low:.0f}{TO}{100 * row[kind].high:.0f}]"
            for kind in kinds
        )
        table.add_row(escape(label), *cells)
    return table


def weight_table(study: Study) -> Table:
    """A row per method with an objective: who counted most and least at the end, and how well these
    weights explain it.

    Weights are what a change of each client's training loss counts for, scaled to sum one. The gap
    is what the objective has more than the weights explain: zero where they are its gradient,
    positive where a dual variable has not caught up.
    """
    of_one = f", seed {study.seeds[0]}" if len(study.seeds) > 1 else ""
    table = _table(
        f"Effective weight of clients at the end{of_one}",
        ("method",),
        ("largest", "its base weight", "smallest", "objective", "gap"),
    )
    for label in study.labels:
        certificate = study.trials[label, study.seeds[0]].certificate
        if certificate is None:
            continue
        rows = certificate["clients"]
        total = sum(row["weight"] for row in rows) or 1.0
        most, least = (choose(rows, key=lambda row: row["weight"]) for choose in (max, min))
        largest, smallest = (
            f"{row['weight'] / total:.3f} ({escape(str(row['name']))})" for row in (most, least)
        )
        table.add_row(
            escape(label),
            largest,
            f"{most['base']:.3f}",
            smallest,
            f"{certificate['objective']:.4f}",
            f"{certificate['gap']:.1e}",
        )
    return table


def show_table(console: Console, table: Table) -> None:
    """A table below its title, which may be longer than the table is wide."""
    if table.title is not None:
        console.print(table.title, style="italic", highlight=False)
    table.title = None
    console.print(table)


def _table(title: str, texts: Sequence[str], numbers: Iterable[str]) -> Table:
    table = Table(title=escape(title), box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    for heading in texts:
        table.add_column(escape(heading), no_wrap=True, overflow="fold")
    for heading in numbers:
        table.add_column(escape(heading), justify="right", overflow="fold")
    return table


def _ends(study: Study, interval: Interval, name: str) -> str:
    if math.isnan(interval.low):
        return ""
    low, high = (
        sorted((interval.low, interval.high), key=lambda end: abs(end))
        if name != "std"
        else (interval.low, interval.high)
    )
    # no space: lines break before it
    return f"[dim]\\[{study.measure.show(low)}{TO}{study.measure.show(high)}][/]"


def _gain(study: Study, entry: Entry) -> str:
    gain = study.measure.scale * entry.gain.value
    if math.isnan(gain):  # no test data
        return "-"
    return f"[{COLOURS[entry.verdict]}]{gain:+.{study.measure.digits}f}{MARKS[entry.verdict]}[/]"
