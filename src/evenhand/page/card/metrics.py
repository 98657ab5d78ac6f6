"""The section of a card with the metrics of the user or the task."""

from __future__ import annotations

import math

from evenhand.metrics.uncertainty import Interval
from evenhand.page import numbers
from evenhand.page.card.blocks import Section, Table
from evenhand.page.card.subject import Subject
from evenhand.studies.analysis.other_metrics import MetricView, headings
from evenhand.studies.tables.other_metrics import any_known


def other_metrics(subject: Subject) -> Section:
    """Every metric over clients with intervals; empty without metrics."""
    findings, label = subject.findings, subject.label
    views = [view for view in findings.metrics.values() if label in view.labels]
    if not views:
        return Section("metrics", "Other metrics", [])
    study = views[0].study
    shown = {name: words for name, words in headings(study).items() if any_known(views, name)}
    rows = [
        [view.name, view.better, *(_text(view, view.value(label, name)) for name in shown)]
        for view in views
    ]
    over = numbers.over_words(study, views[0].comparison.over)
    level = f"{100 * views[0].comparison.level:g} %"
    ends = f"; {level} intervals {over} in brackets" if over else ""
    caption = f"Other metrics on {study.measure.part} data over {findings.clients}{ends}."
    table = Table(["metric", "better", *shown.values()], rows, caption)
    return Section("metrics", "Other metrics", [table])


def _text(view: MetricView, found: Interval) -> str:
    value = view.text(found.value)
    if math.isnan(found.low):
        return value
    return f"{value} [{view.text(found.low)}, {view.text(found.high)}]"
