"""Tables for a terminal: how methods compare, who gained and who lost, and how groups differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.metrics.group_rates import Gap, Rate
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.comparison import Comparison, Difference, columns
from evenhand.studies.analysis.groups import GroupView
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.writing import signed, whole
from evenhand.studies.runs.study import Study

TO = "\N{EN DASH}"
MOST_ROWS = 40  # longer tables are only written to files

COLOURS = {"gains": "bold green", "harmed": "bold red", "unclear": "dim", "few": "dim"}
MARKS = {"gains": "↑", "harmed": "↓", "unclear": " ", "few": " "}
OF_ALL_LABELS = ("accuracy parity",)
RATE_NAMES = {
    "base rate": "base rate",
    "selection rate": "selected",
    "true-positive rate": "TPR",
    "false-positive rate": "FPR",
    "precision": "precision",
    "accuracy": "accuracy",
}
SHORT = {
    "demographic parity": "selection",
    "equal opportunity": "TPR",
    "false-positive parity": "FPR",
    "equalised odds": "odds",
    "predictive parity": "precision",
    "accuracy parity": "accuracy",
}


def title(study: Study) -> str:
    """What the numbers of a table of methods are."""
    measure = study.measure
    seeds = f", {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    return f"{measure.part.capitalize()} {measure.name} across clients{measure.unit}{seeds}"


def mark(difference: Difference | None) -> str:
    """An arrow where a number differs significantly from FedAvg's."""
    if difference is None or not (difference.better or difference.worse):
        return ""
    return "↑" if difference.better else "↓"


def comparison_table(study: Study, comparison: Comparison) -> Table:
    """A row per method: the measure across clients, with intervals."""
    measure, shown = study.measure, columns(study)
    table = new_table(title(study), ("method",), shown.values())
    for label in study.labels:
        cells = []
        for name in shown:
            interval = comparison.rows[label][name]
            difference = comparison.differences.get(label, {}).get(name)
            value = f"{measure.show(interval.value)}{mark(difference)}"
            value = f"[bold]{value}*[/]" if comparison.best.get(name) == label else value
            if _beside(interval):
                value += f" est. {measure.show(comparison.estimates[label][name])}"
            cells.append(f"{value} {_ends(study, interval, name)}")
        table.add_row(escape(label), *cells)
    for one in study.diverged:
        table.add_row(escape(one.label), "[bold red]diverged[/]", *[TO] * (len(shown) - 1))
    return table


def _beside(interval: Interval) -> bool:
    """Whether the measured value falls outside its own interval."""
    return interval.low > interval.value or interval.high < interval.value


def marks_legend(study: Study, comparison: Comparison) -> list[str]:
    """What the arrows in the table mean; nothing if it has none."""
    shown = columns(study)
    marked = any(
        mark(one)
        for row in comparison.differences.values()
        for name, one in row.items()
        if name in shown
    )
    return ["↑ ↓: significantly better or worse than FedAvg."] if marked else []


def legend(study: Study, comparison: Comparison) -> list[str]:
    """What the marks in the table with intervals mean."""
    shown = columns(study)
    lines = marks_legend(study, comparison)
    if any(name in shown for name in comparison.best):
        lines.append("*: significantly better than every other method.")
    if any(_beside(row[name]) for row in comparison.rows.values() for name in shown):
        lines.append(
            "est.: few samples make clients look more different than they are. The estimate and its"
            " interval correct for that."
        )
    return lines


def ledger_table(study: Study, entries: Sequence[Entry], by: str, least: int) -> Table:
    """A row per client, group or team: its score with FedAvg, and its gain or loss with each other
    method."""
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
    table = new_table(title, (by, *(["team"] if teams else [])), ("samples", *shown, *others))
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


def show_ledger(
    console: Console, study: Study, entries: Sequence[Entry], by: str, least: int
) -> None:
    """Print gains and losses, unless the table would be too long to read."""
    count = len(study.names(by))
    if count > MOST_ROWS:
        console.print(
            f"{count} {by}s are too many to print; ledger.csv lists all of them.", highlight=False
        )
    elif count:
        show_table(console, ledger_table(study, entries, by, least))


def rate_table(
    views: Mapping[str, GroupView], by: str, bases: Sequence[str], most: int
) -> Table | None:
    """A row per method and group: its rates, with intervals and counts; None if there are more than
    two labels.

    ``bases``: the methods to show if all of them would need more than ``most`` rows.
    """
    first = next(iter(views.values()))
    groups = list(dict.fromkeys(group for _, group in first.rates))
    if first.positive is None:
        return None
    shown = list(views) if len(views) * len(groups) <= most else [b for b in bases if b in views]
    table = new_table(
        f"Rates of each {by}, %; label {first.positive}", ("method", by), tuple(RATE_NAMES.values())
    )
    for label in shown:
        for place, group in enumerate(groups):
            cells = (_rate(views[label].rates[name, group]) for name in RATE_NAMES)
            table.add_row(escape(label) if place == 0 else "", escape(group), *cells)
    return table


def _rate(rate: Rate) -> str:
    if not rate.of:
        return "-"
    value, low, high = (100 * end for end in rate.interval)
    return (
        f"{value:.0f} \\[{low:.0f}{TO}{high:.0f}]\n[dim]{whole(rate.hits)} of {whole(rate.of)}[/]"
    )


def gap_table(
    views: Mapping[str, GroupView], calibration: Mapping[str, Interval], by: str
) -> Table:
    """A row per method: the largest difference between two groups, or teams, in each rate, and
    which two they are.

    With more than two labels, only accuracy is compared.
    """
    first = next(iter(views.values()))
    kinds = [kind for kind in SHORT if first.positive is not None or kind in OF_ALL_LABELS]
    about = f"; rates of label {first.positive}" if first.positive is not None else ""
    headings = [SHORT[kind] for kind in kinds] + (["calibration"] if calibration else [])
    table = new_table(f"Largest gaps between {by}s, points{about}", ("method",), headings)
    for label, view in views.items():
        cells = [_gap(view.gaps.get(kind)) for kind in kinds]
        if calibration:
            cells.append(points(calibration[label]) if label in calibration else "-")
        table.add_row(escape(label), *cells)
    return table


def _gap(gap: Gap | None) -> str:
    if gap is None or math.isnan(gap.interval.value):
        return "-"
    return f"{points(gap.interval)}\n[dim]{escape(gap.low)} < {escape(gap.high)}[/]"


def points(interval: Interval) -> str:
    """A gap with its interval, in points."""
    return f"{100 * interval.value:.1f} \\[{100 * interval.low:.0f}{TO}{100 * interval.high:.0f}]"


def weight_table(study: Study) -> Table:
    """A row per method with an objective: the clients with the largest and smallest effective
    weight at the end of training, and the duality gap.

    A client's effective weight is the derivative of the objective with respect to its training
    loss, scaled so that all of them sum to one. The duality gap is the part of the objective that
    these weights do not explain: zero if they are its gradient, positive while a dual variable
    still lags behind.
    """
    of_one = f", seed {study.seeds[0]}" if len(study.seeds) > 1 else ""
    table = new_table(
        f"Effective weights of clients at the end of training{of_one}",
        ("method",),
        ("largest", "its base weight", "smallest", "objective", "duality gap"),
    )
    for label in study.labels:
        certificate = study.trials[label, study.seeds[0]].certificate
        if certificate is None:
            continue
        rows = certificate["clients"]
        total = sum(row["weight"] for row in rows)
        if not (math.isfinite(total) and total > 0):  # they certify nothing
            continue
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
    """Print a table below its title, which may be wider than the table."""
    if table.title is not None:
        console.print(table.title, style="italic", highlight=False)
    table.title = None
    console.print(table)


def new_table(title: str, texts: Sequence[str], numbers: Iterable[str]) -> Table:
    """A table with columns of text, then of numbers."""
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
    if math.isnan(entry.gain.value):  # no test data
        return "-"
    gain = signed(study, entry.gain.value)
    return f"[{COLOURS[entry.verdict]}]{gain}{MARKS[entry.verdict]}[/]"
