"""The tables of the page in which methods are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evenhand.metrics.uncertainty import Interval
from evenhand.page import numbers
from evenhand.page.markup import Cell, hidden, table, text
from evenhand.studies.comparison import Comparison
from evenhand.studies.findings import Findings
from evenhand.studies.statistics import STATISTICS
from evenhand.studies.study import Study

SHORT = {
    "mean": "mean",
    "pooled": "all samples",
    "worst10": "worst 10 %",
    "best10": "best 10 %",
    "min": "worst client",
    "max": "best client",
    "std": "std",
    "variance": "variance",
    "variation": "coefficient of variation",
    "jain": "Jain",
    "gini": "Gini",
    "entropy": "entropy",
    "cosine": "cosine",
}
FIRST = ("mean", "pooled", "worst10", "best10", "min", "std", "jain", "gini")
DIFFERENCES = ("mean", "pooled", "worst10", "best10", "min", "std", "gini")


def methods_compared(findings: Findings) -> str:
    """HTML: numbers of every method with intervals, and what each changes against the reference."""
    study, comparison = findings.study, findings.comparison
    measure, reference = study.measure, study.reference
    about = f"{numbers.merit_words(study)}{measure.unit} over {findings.clients}"
    over = numbers.over_words(study, comparison.over)
    intervals = f"{comparison.level:.0%} intervals {over} in brackets"
    if all(
        math.isnan(interval.low) for row in comparison.rows.values() for interval in row.values()
    ):
        without = "" if study.sampled else " and no values of single samples"
        intervals = f"one seed{without}, so intervals cannot be told"
    marks = ""
    if comparison.over == "nothing":
        pass
    elif reference is not None and len(study.labels) > 1:
        marks = (
            f" ▲ and ▼: significantly better and worse than {text(reference)}, paired {text(over)},"
            " after Holm's correction over the methods, for each number by itself. Bold:"
            " significantly better than every other method."
        )
    elif len(study.labels) > 1:
        marks = " Bold: significantly better than every other method."
    what = {"accuracy": "", "error": "errors, ", "loss": "losses, "}[measure.words[0]]
    smaller = f" Of {what}std and Gini, smaller is better."
    caption = f"{text(about)}; {text(intervals)}.{marks}{smaller}"
    parts = [
        table(
            ["method", *(SHORT[name] for name in kept)],
            _rows(findings, kept),
            caption,
            study.labels,
            True,
        )
        for kept in _kept(comparison)
    ]
    body = parts[0]
    if comparison.differences:
        body += _differences(findings)
    if len(parts) > 1:
        body += f"<details><summary>Further numbers</summary>{parts[1]}</details>"
    return body


def _differences(findings: Findings) -> str:
    """What each method changes against the reference."""
    study, comparison = findings.study, findings.comparison
    rows: list[list[Cell | str]] = []
    names = [
        name
        for name in DIFFERENCES
        if any(not math.isnan(row[name].interval.value) for row in comparison.differences.values())
    ]
    for label, row in comparison.differences.items():
        cells: list[Cell | str] = [Cell(text(label), label)]
        for name in names:
            interval, digits = row[name].interval, numbers.digits(study, name)
            scale = numbers.scale(study, name)
            if math.isnan(interval.value):
                cells.append(Cell("not shared" if study.sums_only else "-", math.nan))
                continue
            ends = (
                ""
                if math.isnan(interval.low)
                else (
                    f" <small>[{scale * interval.low:+.{digits}f},"
                    f" {scale * interval.high:+.{digits}f}]</small>"
                )
            )
            shown = f"{scale * interval.value:+.{digits}f}{_mark(findings, label, name)}{ends}"
            cells.append(Cell(shown, scale * interval.value))
        rows.append(cells)
    unit = (
        "in points of accuracy"
        if study.measure.percent
        else f"decrease (+) or increase (-) of the {study.measure.words[0]}"
    )
    over = text(numbers.over_words(study, comparison.over))
    intervals = f", with {comparison.level:.0%} intervals {over}" if over else ""
    caption = (
        f"Differences to {text(study.reference)}, {unit} (Gini as it is){intervals}: "
        "what each method gives the worst served, and what it costs."
    )
    headings = ["method", *(SHORT[name] for name in names)]
    return table(headings, rows, caption, list(comparison.differences), True)


def _kept(comparison: Comparison) -> list[list[str]]:
    """Columns of the first and of the second table: those that have numbers."""
    there = [
        name
        for name in STATISTICS
        if any(not math.isnan(row[name].value) for row in comparison.rows.values())
    ]
    first = [name for name in FIRST if name in there]
    rest = ["mean", *(name for name in there if name not in FIRST)]
    return [first, rest] if len(rest) > 1 else [first]


def _rows(findings: Findings, names: Sequence[str]) -> list[list[Cell | str]]:
    study, comparison = findings.study, findings.comparison
    rows: list[list[Cell | str]] = []
    for label in study.labels:
        row: list[Cell | str] = [Cell(_name(study, label), label)]
        for name in names:
            interval = comparison.rows[label][name]
            value = numbers.statistic(study, name, interval.value)
            value = (
                "not shared" if label in study.sums_only and math.isnan(interval.value) else value
            )
            best = comparison.best.get(name) == label
            shown = f"<strong>{value}</strong>{hidden('significantly the best')}" if best else value
            written = numbers.written(study, name, interval.value)
            row.append(
                Cell(
                    f"{shown}{_mark(findings, label, name)}{_ends(study, name, interval)}", written
                )
            )
        rows.append(row)
    return rows


def _name(study: Study, label: str) -> str:
    role = {study.reference: "reference", study.alone: "each client alone"}.get(label)
    return text(label) + (f' <small class="role">{role}</small>' if role else "")


def _mark(findings: Findings, label: str, name: str) -> str:
    difference = findings.comparison.differences.get(label, {}).get(name)
    if difference is None or not (difference.better or difference.worse):
        return ""
    sign, word = ("▲", "better") if difference.better else ("▼", "worse")
    meaning = hidden(f" significantly {word} than {findings.study.reference}")
    return f'<span class="{word}" aria-hidden="true">{sign}</span>{meaning}'


def _ends(study: Study, name: str, interval: Interval) -> str:
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    low, high = sorted(
        (numbers.written(study, name, interval.low), numbers.written(study, name, interval.high))
    )
    digits = numbers.digits(study, name)
    return f" <small>[{low:.{digits}f}, {high:.{digits}f}]</small>"
