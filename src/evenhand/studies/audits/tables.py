"""The tables of an audit, for a terminal of 100 columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.numbers import Numbers
from evenhand.studies.audits.sweeping import Step
from evenhand.studies.audits.words import chances, smallest_found

SHORT = {
    "accuracy": "accuracy",
    "base rate": "base rate",
    "selection rate": "selected",
    "true-positive rate": "TPR",
    "false-positive rate": "FPR",
    "precision": "precision",
    "false-omission rate": "FOR",
}
PREVALENCE = ("base rate", "selection rate", "accuracy")
ERRORS = ("true-positive rate", "false-positive rate", "precision", "false-omission rate")
ACROSS = {
    "mean": "mean over clients",
    "pooled": "over all samples",
    "worst10": "worst 10 % of clients",
    "min": "worst client",
    "std": "std",
}
LONGEST = 18  # characters of a name; longer ones are shortened


def scores_table(across: Mapping[str, Interval]) -> Group:
    """Metrics across clients, in percent."""
    cells = [
        [ACROSS[name], number(value.value), f"{ends(value)}{'*' * outside(value)}"]
        for name, value in across.items()
    ]
    return made("Accuracy across clients, %", ("", "accuracy", "interval"), cells)


def everyone_table(audit: Numbers) -> Group:
    """Rates over all samples."""
    rows = {row["rate"]: row for row in audit.rates() if row["by"] == "everyone"}
    cells = []
    for rate in SHORT:
        if rate in rows:
            row = rows[rate]
            found = Interval(row["value"], row["low"], row["high"])
            cells.append([rate, number(found.value), ends(found), _counts(audit, row)])
    about = "" if audit.code is None else f"; rates of label {escape(str(audit.label))}"
    return made(f"All samples, %{about}", ("", "rate", "interval", "counts"), cells)


def clients_table(audit: Numbers) -> Group:
    """A row per client: accuracy with its interval, and other rates."""
    rates = [name for name in ("base rate", *ERRORS[:2]) if name in audit.clients()[0]]
    aucs = {row["name"]: row["auc"] for row in audit.scores if row["by"] == "client"}
    cells = [
        [
            name_of(row["name"]),
            (
                f"< {audit.least}"
                if row["samples"] is None
                else f"{row['samples']:,}" + (" (few)" if row["small"] else "")
            ),
            number(row["accuracy"]),
            "-" if row["low"] is None else f"{number(row['low'])} to {number(row['high'])}",
            *(number(row[rate]) for rate in rates),
            *([ratio(aucs.get(row["name"]))] if aucs else []),
        ]
        for row in audit.clients()
    ]
    about = f"; rates of label {escape(str(audit.label))}" if rates else ""
    heads = ("client", "samples", "accuracy", "interval", *(SHORT[rate] for rate in rates))
    return made(f"By client, %{about}", (*heads, *(["AUC"] if aucs else [])), cells)


def groups_tables(audit: Numbers) -> list[Group]:
    """Rates of each group with intervals and counts, in two tables so that they fit."""
    rows = {(row["name"], row["rate"]): row for row in audit.rates() if row["by"] == "group"}
    parts = (PREVALENCE, ERRORS) if audit.code is not None else (("accuracy",),)
    about = "" if audit.code is None else f"; rates of label {escape(str(audit.label))}"
    tables = []
    for place, rates in enumerate(parts):
        cells = [
            [name_of(name), *(_rate(audit, rows.get((name, rate))) for rate in rates)]
            for name in audit.counts.groups
        ]
        title = (
            f"By {escape(audit.by)}, %{about}" if not place else f"Errors by {escape(audit.by)}, %"
        )
        tables.append(made(title, (audit.by, *(SHORT[rate] for rate in rates)), cells))
    return tables


def _rate(audit: Numbers, row: Row | None) -> str:
    """A cell of two lines: the rate with its interval, and the counts."""
    if row is None:
        return f"< {audit.least}"
    found = Interval(row["value"], row["low"], row["high"])
    return f"{number(found.value)} {brackets(found)}\n{_counts(audit, row)}" if row["of"] else "-"


def _counts(audit: Numbers, row: Row) -> str:
    few = ", few" * row["few"]
    if audit.weighted:
        return f"of {row['effective']:,.0f} effective{few}"
    return f"{row['hits']:,} of {row['of']:,}{few}"


def gaps_table(audit: Numbers) -> Group:
    """Gaps between groups, in points, with the two groups of each."""
    cells = []
    for gap in audit.gaps.values():
        if math.isnan(gap.interval.value):
            cells.append([gap.kind, "-", "-", "-", "-", "-", "-"])
            continue
        found = smallest_found(audit, gap.rate, gap.low, gap.high)
        cells.append(
            [
                gap.kind,
                number(gap.interval.value),
                ends(gap.interval),
                name_of(gap.low, 15),
                name_of(gap.high, 15),
                chance(gap.p),
                number(found),
            ]
        )
    headings = ("", "gap", "interval", "lowest", "highest", "p", "detectable")
    return made(f"Gaps by {escape(audit.by)}, points", headings, cells)


def ratios_table(audit: Numbers) -> Group:
    """Selection rates relative to one group."""
    against = audit.ratios[0]["against"]
    why = "the reference" if audit.compared_with else "the highest"
    cells = [
        [
            name_of(row["group"]),
            number(row["value"]),
            ratio(row["ratio"]),
            f"{ratio(row['low'])} to {ratio(row['high'])}",
            row["verdict"],
        ]
        for row in audit.ratios
    ]
    title = (
        f"Four-fifths rule: predicted as {escape(str(audit.label))}, relative to {escape(against)}"
        f" ({why}, {number(audit.ratios[0]['other'])} %)"
    )
    return made(title, (audit.by, "selected, %", "ratio", "interval", "verdict"), cells)


def pairs_table(rows: Sequence[Row], title: str) -> Group:
    """Differences between two groups, in points."""
    cells = [
        [
            row["rate"],
            name_of(row["group"]),
            name_of(row["against"]),
            signed(row["difference"]),
            f"{signed(row['low'])} to {signed(row['high'])}",
            chance(row["p_holm"]),
        ]
        for row in rows
    ]
    return made(title, ("rate", "group", "against", "difference", "interval", "p (Holm)"), cells)


def auc_table(audit: Numbers) -> Group:
    """AUC and calibration of groups."""
    calibrated = "bias" in audit.scores[0]
    cells = []
    for row in audit.scores:
        if row["by"] == "client":
            continue
        auc = Interval(row["auc"], row["auc_low"], row["auc_high"])
        cells.append(
            [
                name_of(row["name"]),
                f"{row['positives']:,}",
                f"{row['negatives']:,}",
                ratio(auc.value),
                "-" if math.isnan(auc.low) else f"{ratio(auc.low)} to {ratio(auc.high)}",
            ]
        )
        if calibrated:
            low, high = signed(row["bias_low"]), signed(row["bias_high"])
            cells[-1] += [
                signed(row["bias"]),
                f"{low} to {high}",
                number(row["calibration_error"]),
            ]
    heads = [audit.by, "positive", "negative", "AUC", "interval"]
    more = ["score - share", "interval", "error"] if calibrated else []
    unit = "; calibration in points" if calibrated else ""
    return made(f"Scores{unit}", (*heads, *more), cells)


def steps_table(audit: Numbers, steps: Sequence[Step]) -> Group:
    """Gaps and accuracy by threshold."""
    cells = [
        [
            f"{step.threshold:g}",
            number(step.accuracy),
            number(step.selected),
            ratio(step.ratio),
            *(
                "-" if gap is None else f"{number(gap.value)} {_shortly(gap.low, gap.high)}"
                for gap in (step.tpr, step.fpr)
            ),
        ]
        for step in steps
    ]
    heads = (
        "threshold",
        "accuracy",
        "selected",
        "ratio",
        "TPR gap: low, high",
        "FPR gap: low, high",
    )
    return made(f"By threshold, % and points, by {escape(audit.by)}", heads, cells)


def _shortly(low: str, high: str) -> str:
    return escape(f"({name_of(low, 12)}, {name_of(high, 12)})")


def made(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Group:
    """A table under its title, which may be wider."""
    table = Table(box=box.SIMPLE, padding=(0, 0, 0, 1))
    for place, heading in enumerate(headings):
        table.add_column(
            escape(heading),
            justify="right" if place else "left",
            no_wrap=not place,
            overflow="fold",
        )
    for row in cells:
        table.add_row(*row)
    return Group(Text.from_markup(title, style="italic"), table)


def outside(value: Interval) -> bool:
    """Whether a value falls outside its interval."""
    return bool(value.value < value.low or value.value > value.high)


def number(value: Any) -> str:
    """A share in percent, or points; never -0.0."""
    if value is None or value != value:
        return "-"
    return f"{100 * value + 0.0:.1f}".replace("-0.0", "0.0")


def signed(value: Any) -> str:
    """Points with their sign."""
    shown = number(value)
    return shown if shown in ("-", "0.0") or shown.startswith("-") else f"+{shown}"


def ratio(value: Any) -> str:
    """A ratio or AUC."""
    if value is None or value != value:
        return "-"
    return "inf" if math.isinf(value) else f"{value:.2f}"


def chance(p: float) -> str:
    """A p-value as a cell under its heading."""
    return "-" if math.isnan(p) else chances(p).removeprefix("p ").removeprefix("= ")


def ends(found: Interval) -> str:
    """The ends of an interval."""
    return f"{number(found.low)} to {number(found.high)}"


def brackets(found: Interval) -> str:
    return escape(f"[{number(found.low)}, {number(found.high)}]")


def name_of(name: str, longest: int = LONGEST) -> str:
    """A name shortened to fit a table; every part of a combination keeps its beginning.

    >>> name_of("Asian-Pac-Islander & Female")
    'Asian-Pa… & Female'
    """
    parts = name.split(" & ")
    while sum(map(len, parts)) + 3 * (len(parts) - 1) > longest:
        place = max(range(len(parts)), key=lambda i: len(parts[i]))
        if len(parts[place]) < 3:
            break
        parts[place] = (
            parts[place].removesuffix("…")[:-1] + "…"
            if parts[place].endswith("…")
            else parts[place][:-2] + "…"
        )
    return escape(" & ".join(parts))
