"""Tables for a terminal: the metrics of the user or the task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.other_metrics import MetricView, headings
from evenhand.studies.tables.methods import COLOURS, MARKS, TO, mark, new_table, show_table

MOST_ROWS = 40  # of a table of groups or clients; longer ones are only written to files


def show_metrics(
    console: Console, views: Mapping[str, MetricView], kinds: Sequence[str], verbose: bool
) -> None:
    """Print the metrics of every method; if ``verbose``, with intervals and gains of each group.

    ``kinds``: of "client", "group" and "team", those to report.
    """
    if not views:
        return
    show_table(console, metrics_table(list(views.values()), verbose))
    for by in kinds if verbose else ():
        for view in views.values():
            names = view.study.names(by)
            if by != "client" and 0 < len(names) <= MOST_ROWS and view.study.reference is not None:
                show_table(console, gains_table(view, by))


def metrics_table(views: Sequence[MetricView], intervals: bool) -> Table:
    """A row per metric and method: its mean over clients and the worst of them."""
    study = views[0].study
    shown = {name: words for name, words in headings(study).items() if any_known(views, name)}
    seeds = f", {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    title = f"Other metrics across clients, {study.measure.part} data{seeds}"
    table = new_table(title, ("metric", "better", "method"), shown.values())
    for view in views:
        for place, label in enumerate(view.labels):
            about = (escape(view.name), view.better) if place == 0 else ("", "")
            cells = (_cell(view, label, name, intervals) for name in shown)
            table.add_row(*about, escape(label), *cells)
    return table


def any_known(views: Sequence[MetricView], statistic: str) -> bool:
    """Whether any metric has this statistic."""
    return any(view.known(statistic) for view in views)


def gains_table(view: MetricView, by: str) -> Table:
    """A row per client, group or team: its value with the reference, and its gain with others."""
    reference = view.study.reference
    found = {
        (entry.name, entry.method): entry
        for entry in view.entries
        if entry.by == by and entry.against == reference
    }
    others = [label for label in view.labels if label != reference]
    title = f"Gain (+) or loss (-) of each {by} in {view.name} compared with {reference}"
    table = new_table(title, (by,), ("samples", str(reference), *others))
    for name in view.study.names(by):
        rows = [found[name, label] for label in others if (name, label) in found]
        if rows:
            first = view.text(view.sign * rows[0].reference)
            table.add_row(
                escape(name), f"{rows[0].samples}", first, *(_gain(view, r) for r in rows)
            )
    return table


def _cell(view: MetricView, label: str, statistic: str, intervals: bool) -> str:
    found = view.value(label, statistic)
    value = f"{view.text(found.value)}{mark(view.difference(label, statistic)) or ' '}"
    return f"{value} {_ends(view, found)}" if intervals else value


def _ends(view: MetricView, found: Interval) -> str:
    if math.isnan(found.low):
        return ""
    return f"[dim]\\[{view.text(found.low)}{TO}{view.text(found.high)}][/]"


def _gain(view: MetricView, entry: Entry) -> str:
    if math.isnan(entry.gain.value):
        return "-"
    gain = f"{entry.gain.value:+.{view.measure.digits}f}"
    return f"[{COLOURS[entry.verdict]}]{gain}{MARKS[entry.verdict]}[/]"
