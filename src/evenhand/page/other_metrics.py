"""The report's section on the metrics of the user or the task."""

from __future__ import annotations

import math

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import numbers
from evenhand.page.comparison import sign
from evenhand.page.figures.clients import MOST_NAMED
from evenhand.page.markup import Cell, table, text
from evenhand.studies.analysis.comparison import Difference
from evenhand.studies.analysis.other_metrics import MetricView, headings
from evenhand.studies.findings import Findings

PLURAL = {"client": "clients", "group": "groups", "team": "teams"}


def other_metrics(findings: Findings) -> str:
    """HTML: every metric of every method, and of every client and group; empty without metrics."""
    parts = []
    for view in findings.metrics.values():
        parts.append(_methods(view))
        for by in findings.study.kinds:
            names = view.study.names(by)
            if 1 < len(names) <= MOST_NAMED:
                found = _members(view, by)
                about = f"{text(view.name)} by {by}"
                parts.append(f"<details><summary>{about}</summary>{found}</details>")
    return "".join(parts)


def _methods(view: MetricView) -> str:
    """A row per method: mean over clients and worst clients, and their differences."""
    study = view.study
    shown = {name: words for name, words in headings(study).items() if view.known(name)}
    compared = {name: words for name, words in shown.items() if view.comparison.differences}
    rows: list[list[Cell | str]] = []
    for label in view.labels:
        row: list[Cell | str] = [Cell(text(label), label)]
        for name in shown:
            found = view.value(label, name)
            ends = _ends(view, found)
            mark = _mark(view.difference(label, name), study.reference)
            row.append(Cell(f"{view.text(found.value)}{mark}{ends}", found.value))
        for name in compared:
            one = view.difference(label, name)
            words = "" if one is None else _change(view, one.interval)
            row.append(Cell(words, math.nan if one is None else one.interval.value))
        rows.append(row)
    over = text(numbers.over_words(study, view.comparison.over))
    intervals = f"; {100 * view.comparison.level:g} % intervals {over} in brackets" if over else ""
    gains = (
        f" Gains are compared with {text(study.reference)}; plus is better. ▲ ▼: significantly"
        " better or worse, corrected for the number of methods."
        if compared
        else ""
    )
    caption = (
        f"{text(view.name)} on {study.measure.part} data, across clients; {view.better} is"
        f" better{intervals}.{gains}"
    )
    columns = [*shown.values(), *(f"gain, {words}" for words in compared.values())]
    return table(["method", *columns], rows, caption, view.labels, True)


def _members(view: MetricView, by: str) -> str:
    """A row per client, group or team: its value with each method."""
    study = view.study
    verdicts = {
        (entry.name, entry.method): entry.verdict
        for entry in view.entries
        if entry.by == by and entry.against == study.reference
    }
    values = {
        label: view.sign
        * np.mean([study.merits(label, seed, by) for seed in study.judged_seeds], 0)
        for label in view.labels
    }
    rows: list[list[Cell | str]] = []
    for place, (name, size) in enumerate(
        zip(study.names(by), study.sizes(by).tolist(), strict=True)
    ):
        row: list[Cell | str] = [Cell(text(name), name), Cell(f"{size:,}", size)]
        for label in view.labels:
            value = float(values[label][place])
            mark = sign(verdicts.get((name, label), ""), study.reference)
            row.append(Cell(f"{view.text(value)}{mark}", value))
        rows.append(row)
    marks = (
        f" ▲ ▼: significantly better or worse than with {text(study.reference)}, after Holm's"
        f" correction over the {PLURAL[by]}."
        if verdicts
        else ""
    )
    seeds = ", mean over seeds" if len(study.judged_seeds) > 1 else ""
    caption = f"{text(view.name)} of each {by}{seeds}; {view.better} is better.{marks}"
    return table([by, "samples", *view.labels], rows, caption, sortable=True)


def _ends(view: MetricView, found: Interval) -> str:
    if math.isnan(found.low) or math.isnan(found.high):
        return ""
    return f" <small>[{view.text(found.low)}, {view.text(found.high)}]</small>"


def _change(view: MetricView, gain: Interval) -> str:
    value, *ends = numbers.change(gain, 1.0, view.measure.digits).split(" ", 1)
    return value + (f" <small>{ends[0]}</small>" if ends else "")


def _mark(difference: Difference | None, reference: str | None) -> str:
    if difference is None:
        return ""
    verdict = "gains" if difference.better else "harmed" if difference.worse else ""
    return sign(verdict, reference)
