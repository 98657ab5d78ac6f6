"""Figures that compare methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures
from evenhand.page.figures.methods import VERDICTS
from evenhand.page.markup import table, text
from evenhand.page.numbers import counts, ends_words, over_words, statistic, written
from evenhand.page.numbers import points as points_text
from evenhand.page.panels.groups import GAPS, OF_ALL_LABELS
from evenhand.page.panels.panel import Panel, Variant, listed
from evenhand.page.rates import rates, worst_group
from evenhand.studies.analysis.statistics import HEADINGS, Point, gap_front, gap_intervals
from evenhand.studies.analysis.statistics import front as front_points
from evenhand.studies.findings import Findings

FAIRNESS = ("worst10", "min", "std", "gini", "jain")  # to plot against the mean


def overview(findings: Findings) -> Panel | None:
    """The first figure: the mean and the worst-served client and group of each method (in a sweep,
    of the chosen point and the references). None if no value is known."""
    comparison = findings.comparison
    study = findings.study if findings.sweep is None else findings.sweep.final.in_order()
    standing: dict[str, dict[str, tuple[Interval, str]]] = {}
    for name, statistic_name in (("mean", "mean"), ("worst client", "min")):
        for label in study.labels:
            interval = comparison.rows[label][statistic_name]
            if np.isnan(interval.value):
                continue
            value, *ends = (written(study, statistic_name, end) for end in interval)
            drawn = Interval(value, *sorted(ends))
            who = _worst_client(findings, label) if name == "worst client" else ""
            words = f"{label}: {name}{who} {ends_words(study, statistic_name, interval)}"
            standing.setdefault(name, {})[label] = (drawn, words)
    if len(study.names("group")) > 1:
        found = rates(findings, "group")
        for label in study.labels:
            worst = worst_group(findings, found, label)
            if worst is not None:
                name, one = worst
                value, low, high = one.interval
                around = "" if np.isnan(low) else f" [{low:.1f}, {high:.1f}]"
                words = (
                    f"{label}: worst group {name} {value:.{study.measure.digits}f}"
                    f"{study.measure.percent}{around}, {one.counts}"
                )
                standing.setdefault("worst group", {})[label] = (one.interval, words)
    if not standing:
        return None
    shown = [words for row in standing.values() for _, words in row.values()]
    rows = [
        [
            label,
            *(
                found[label][1].split(": ", 1)[1].removeprefix(name).strip()
                if label in found
                else "-"
                for name, found in standing.items()
            ),
        ]
        for label in study.labels
    ]
    numbers = table(
        ["method", *standing],
        rows,
        f"{study.measure.part.capitalize()} {text(study.measure.name)}{text(study.measure.unit)}",
        study.labels,
    )
    over = over_words(study, comparison.over)
    shown_groups = "worst group" in standing
    caption = (
        f"{study.measure.part.capitalize()} {text(study.measure.name)} of each method:"
        + (" mean over clients, worst client and worst group" if shown_groups else "")
        + ("" if shown_groups else " mean over clients and worst client")
        + (f", with {100 * comparison.level:g} % intervals {text(over)}." if over else ".")
        + (
            " Intervals of groups are over their test samples."
            if shown_groups and comparison.over != "samples"
            else ""
        )
    )
    figure = figures.overview(study, standing)
    return Panel("overview", caption, (Variant("", figure, listed(shown), numbers),))


def _worst_client(findings: Findings, label: str) -> str:
    """The name of the client that a method serves worst; empty if it differs between seeds."""
    study = findings.study
    if study.sums_only or not study.same_data:
        return ""
    merits = [study.merits(label, seed) for seed in study.seeds]
    if any(np.isnan(one).all() for one in merits):
        return ""
    worst = {int(np.nanargmin(one)) for one in merits}
    if len(worst) > 1:
        return ""
    place = worst.pop()
    merit = float(np.mean([one[place] for one in merits]))
    size = int(study.sizes()[place])
    found = counts(study, merit, size)
    return f" {study.names('client')[place]}" + (f" ({found})" if found else "")


def front(findings: Findings) -> Panel:
    """The mean against a fairness statistic."""
    study, comparison = findings.study, findings.comparison
    variants = []
    for fairness in FAIRNESS:
        if fairness == "worst10" and study.clients < 10:
            continue  # it is the worst client
        points = front_points(study, fairness)
        if any(np.isnan(point.y) or np.isnan(point.x) for point in points):
            continue
        shown = [statistic(study, fairness, point.y) for point in points]
        figure = figures.front(study, points, comparison, fairness)
        variants.append(_front_variant(findings, points, HEADINGS[fairness], shown, figure))
    variants += _gap_fronts(findings)
    bars = (
        f"Bars are {100 * comparison.level:g} % intervals"
        f" {text(over_words(study, comparison.over))}."
        if comparison.over != "nothing" and len(study.labels) <= 10
        else ""
    )
    caption = (
        "Every method by its mean over clients and by a fairness statistic or a gap between groups."
        " Methods with a hollow"
        " marker are dominated: another method is at least as good in both and better in one. The"
        f" dotted line joins the others. {bars}"
    )
    return Panel("front", caption, tuple(variants), "Mean against")


def _gap_fronts(findings: Findings) -> list[Variant]:
    """The mean against each gap between groups that is known for every method."""
    study, comparison = findings.study, findings.comparison
    views, variants = findings.groups.get("group", {}), []
    means = {label: comparison.rows[label]["mean"].value for label in study.labels}
    for kind, (rate, _) in GAPS.items():
        if findings.positive is None and kind not in OF_ALL_LABELS:
            continue
        gaps = gap_intervals(views, kind)
        points = gap_front(means, gaps)
        if any(np.isnan(point.y) or np.isnan(point.x) for point in points):
            continue
        shown = [points_text(gaps[point.label]) for point in points]
        figure = figures.gap_front(study, points, comparison, gaps, rate)
        variants.append(_front_variant(findings, points, f"gap in {rate}", shown, figure))
    return variants


def _front_variant(
    findings: Findings, points: Sequence[Point], heading: str, shown: Sequence[str], figure: Any
) -> Variant:
    """One front, with its description and table; ``shown``: the fairness of each point as text."""
    study = findings.study
    kept, beaten = (
        [point.label for point in points if bool(point.dominated) == sign] for sign in (False, True)
    )
    finding = f"Mean against {heading}. Not dominated: {', '.join(kept)}."
    finding += f" Dominated: {', '.join(beaten)}." if beaten else ""
    rows = [
        [point.label, statistic(study, "mean", point.x), value, "yes" if point.dominated else "no"]
        for point, value in zip(points, shown, strict=True)
    ]
    title = f"Mean and {text(heading)} of {study.measure.part} {text(study.measure.name)}"
    if heading not in HEADINGS.values():
        title = f"Mean {study.measure.part} {text(study.measure.name)} and {text(heading)}, points"
    headings = ["method", "mean over clients", heading, "dominated"]
    return Variant(heading, figure, finding, table(headings, rows, title, study.labels))


def verdicts(findings: Findings) -> Panel | None:
    """How many clients gain and how many are harmed; None without a reference."""
    study, variants = findings.study, []
    for against in dict.fromkeys(entry.against for entry in findings.entries):
        counted: dict[str, Counter[str]] = {}
        for entry in findings.entries:
            if entry.against == against and entry.by == "client":
                counted.setdefault(entry.method, Counter())[entry.verdict] += 1
        named = [
            f"{label}: {found['gains']} gain, {found['harmed']} are harmed"
            for label, found in counted.items()
        ]
        headings = ["method", *(look.word for look in VERDICTS.values())]
        rows = [
            [label, *(str(found[verdict]) for verdict in VERDICTS)]
            for label, found in counted.items()
        ]
        numbers = table(headings, rows, f"Clients compared with {text(against)}", list(counted))
        variants.append(
            Variant(
                against,
                figures.verdicts(study, findings.entries, against),
                f"Compared with {against}. {listed(named)}",
                numbers,
            )
        )
    if not variants:
        return None
    caption = (
        f"Clients whose {text(study.measure.words[0])} is significantly better (gains) or worse"
        " (harmed) than with the reference, after Holm's correction. Clients with fewer than"
        f" {findings.least} samples are not tested."
    )
    return Panel("verdicts", caption, tuple(variants), "Compared with")
