"""Figures that compare methods."""

from __future__ import annotations

from collections import Counter

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures
from evenhand.page.figures.methods import VERDICTS
from evenhand.page.markup import table, text
from evenhand.page.numbers import counts, ends_words, over_words, statistic, written
from evenhand.page.panels.panel import Panel, Variant, listed
from evenhand.page.rates import rates, worst_group
from evenhand.studies.analysis.statistics import HEADINGS
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
        kept, beaten = (
            [point.label for point in points if bool(point.dominated) == sign]
            for sign in (False, True)
        )
        finding = f"Mean against {HEADINGS[fairness]}. Not dominated: {', '.join(kept)}."
        finding += f" Dominated: {', '.join(beaten)}." if beaten else ""
        rows = [
            [
                point.label,
                statistic(study, "mean", point.x),
                statistic(study, fairness, point.y),
                "yes" if point.dominated else "no",
            ]
            for point in points
        ]
        title = (
            f"Mean and {text(HEADINGS[fairness])} of {study.measure.part}"
            f" {text(study.measure.name)}"
        )
        numbers = table(
            ["method", "mean over clients", HEADINGS[fairness], "dominated"],
            rows,
            title,
            study.labels,
        )
        variants.append(
            Variant(
                HEADINGS[fairness],
                figures.front(study, points, comparison, fairness),
                finding,
                numbers,
            )
        )
    bars = (
        f"Bars are {100 * comparison.level:g} % intervals"
        f" {text(over_words(study, comparison.over))}."
        if comparison.over != "nothing" and len(study.labels) <= 10
        else ""
    )
    caption = (
        "Every method by its mean over clients and by a fairness statistic. Methods with a hollow"
        " marker are dominated: another method is at least as good in both and better in one. The"
        f" dotted line joins the others. {bars}"
    )
    return Panel("front", caption, tuple(variants), "Mean against")


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
