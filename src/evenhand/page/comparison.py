"""The report's tables that compare methods."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import numbers
from evenhand.page.figures.clients import MOST_NAMED
from evenhand.page.markup import Cell, hidden, table, text
from evenhand.page.series import shown
from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.analysis.statistics import STATISTICS
from evenhand.studies.findings import Findings
from evenhand.studies.runs.study import Study

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
FIRST = ("mean", "pooled", "worst10", "min", "std", "gini")
# without spreads, for which a plus would not be better
DIFFERENCES = ("mean", "pooled", "worst10", "best10", "min", "max")
TENTHS = ("worst10", "best10")  # with fewer than ten clients, the worst and best client


def methods_compared(findings: Findings) -> str:
    """HTML: metrics of every method with intervals, and their differences from the reference."""
    study, comparison = findings.study, findings.comparison
    measure, reference = study.measure, study.reference
    if not study.labels:
        return _diverged(study)
    about = f"{numbers.merit_words(study)}{measure.unit}, over {findings.clients}"
    over = numbers.over_words(study, comparison.over)
    intervals = f"{100 * comparison.level:g} % intervals {over} in brackets"
    if all(
        math.isnan(interval.low) for row in comparison.rows.values() for interval in row.values()
    ):
        without = "" if study.sampled else " without per-sample results"
        intervals = f"no intervals, as there is one seed{without}"
    marks = ""
    if comparison.over == "nothing":
        pass
    elif reference is not None and len(study.labels) > 1:
        marks = (
            f" ▲ ▼: significantly better or worse than {text(reference)}, corrected for the number"
            " of methods. Bold: significantly better than every other method."
        )
    elif len(study.labels) > 1:
        marks = " Bold: significantly better than every other method."
    what = "" if measure.percent else f"{measure.words[0]}, "
    smaller = f" Smaller is better for {what}std and Gini."
    caption = f"{text(about)}; {text(intervals)}.{marks}{smaller}"
    parts = [
        table(
            ["method", *(SHORT[name] for name in kept)],
            _rows(findings, kept),
            caption,
            study.labels,
            True,
        )
        for kept in _kept(study, comparison)
    ]
    body = parts[0] + _diverged(study) + _beside(findings)
    if comparison.differences:
        body += _differences(findings)
    if len(parts) > 1:
        body += f"<details><summary>More metrics</summary>{parts[1]}</details>"
    return body


def _diverged(study: Study) -> str:
    """The methods that diverged."""
    names = ", ".join(f"<strong>{text(one.label)}</strong>" for one in study.diverged)
    return f'<p class="note">Diverged and excluded: {names}.</p>' if names else ""


def _beside(findings: Findings) -> str:
    """Why a value can fall outside its interval, if one does."""
    study = findings.study
    for label, row in findings.comparison.rows.items():
        for name in ("min", *TENTHS, "max", "std"):
            value, low, high = row[name]
            if low > value or high < value:
                seen = numbers.statistic(study, name, value)
                middle = findings.comparison.estimates[label][name]
                estimated = numbers.ends_words(study, name, Interval(middle, low, high))
                return (
                    '<p class="note">With few test samples, the worst client looks worse than it is'
                    " and the best looks better, just by chance. Intervals correct for that, so a"
                    " value can fall outside its own interval"
                    f" ({text(label)}, {SHORT[name]}: observed {seen}, estimated {estimated}).</p>"
                )
    return ""


def clients_by_method(findings: Findings) -> str:
    """HTML: every client with every method, by name; empty for many clients."""
    study = findings.study
    names = study.names("client")
    if not 1 < len(names) <= MOST_NAMED or not (study.same_data or study.same_clients):
        return ""
    verdicts = {
        (entry.name, entry.method): entry.verdict
        for entry in findings.entries
        if entry.by == "client" and entry.against == study.reference
    }
    sizes = study.sizes().tolist()
    merits = {
        label: np.mean([study.merits(label, seed) for seed in study.judged_seeds], 0)
        for label in study.labels
    }
    rows: list[list[Cell | str]] = []
    for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
        row: list[Cell | str] = [Cell(text(name), name), Cell(f"{size:,}", size)]
        for label, found in merits.items():
            merit = float(found[place])
            counts = numbers.counts(study, merit, size) if study.same_data else ""
            below = f"<small>{counts}</small>" if counts else ""
            mark = sign(verdicts.get((name, label), ""), study.reference)
            row.append(
                Cell(
                    f"{study.measure.show(merit)}{mark}{below}",
                    float(shown(study.measure, merit)),
                )
            )
        rows.append(row)
    marks = (
        f" ▲ ▼: significantly better or worse than with {text(study.reference)}, after Holm's"
        " correction over the clients."
        if study.reference is not None
        else ""
    )
    seeds = ", means over seeds" if len(study.seeds) > 1 else ""
    caption = (
        f"{numbers.merit_words(study)} of each client with each method{text(study.measure.unit)}"
        f"{seeds}.{marks}"
    )
    return table(["client", "samples", *study.labels], rows, caption, sortable=True)


def _differences(findings: Findings) -> str:
    """Differences of each method from the reference."""
    study, comparison = findings.study, findings.comparison
    rows: list[list[Cell | str]] = []
    names = [
        name
        for name in DIFFERENCES
        if name not in _left_out(study)
        and any(not math.isnan(row[name].interval.value) for row in comparison.differences.values())
    ]
    for label, row in comparison.differences.items():
        cells: list[Cell | str] = [Cell(text(label), label)]
        for name in names:
            interval, digits = row[name].interval, numbers.digits(study, name)
            scale = numbers.scale(study, name)
            if math.isnan(interval.value):
                cells.append(Cell("not shared" if study.sums_only else "-", math.nan))
                continue
            value, *ends = numbers.change(interval, scale, digits).split(" ", 1)
            words = f"{value}{_mark(findings, label, name)}"
            words += f" <small>{ends[0]}</small>" if ends else ""
            cells.append(Cell(words, scale * interval.value))
        rows.append(cells)
    over = text(numbers.over_words(study, comparison.over))
    intervals = f", with {100 * comparison.level:g} % intervals {over}" if over else ""
    caption = (
        f"Gain (+) or loss (\u2212) compared with {text(study.reference)},"
        f" {numbers.gain_unit(study)}{intervals}."
    )
    headings = ["method", *(SHORT[name] for name in names)]
    return table(headings, rows, caption, list(comparison.differences), True)


def _left_out(study: Study) -> tuple[str, ...]:
    return TENTHS if study.clients < 10 else ()


def _kept(study: Study, comparison: Comparison) -> list[list[str]]:
    """Columns of the first and the second table: those with values."""
    there = [
        name
        for name in STATISTICS
        if name not in _left_out(study)
        and any(not math.isnan(row[name].value) for row in comparison.rows.values())
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
            bold = f"<strong>{value}</strong>{hidden('significantly the best')}" if best else value
            written = numbers.written(study, name, interval.value)
            row.append(
                Cell(f"{bold}{_mark(findings, label, name)}{_ends(study, name, interval)}", written)
            )
        rows.append(row)
    return rows


def _name(study: Study, label: str) -> str:
    role = {study.reference: "reference", study.alone: "local-only training"}.get(label)
    return text(label) + (f' <small class="role">{role}</small>' if role else "")


def _mark(findings: Findings, label: str, name: str) -> str:
    difference = findings.comparison.differences.get(label, {}).get(name)
    if difference is None:
        return ""
    verdict = "gains" if difference.better else "harmed" if difference.worse else ""
    return sign(verdict, findings.study.reference)


def sign(verdict: str, reference: str | None) -> str:
    """A mark for a significant gain or loss."""
    if verdict not in ("gains", "harmed"):
        return ""
    arrow, word = ("▲", "better") if verdict == "gains" else ("▼", "worse")
    meaning = hidden(f" significantly {word} than {reference}")
    return f'<span class="{word}" aria-hidden="true">{arrow}</span>{meaning}'


def _ends(study: Study, name: str, interval: Interval) -> str:
    if math.isnan(interval.low) or math.isnan(interval.high):
        return ""
    low, high = sorted(
        (numbers.written(study, name, interval.low), numbers.written(study, name, interval.high))
    )
    digits = numbers.digits(study, name)
    return f" <small>[{low:.{digits}f}, {high:.{digits}f}]</small>"
