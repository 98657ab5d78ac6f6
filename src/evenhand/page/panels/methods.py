"""How methods stand."""

from __future__ import annotations

from collections import Counter

import numpy as np

from evenhand.page import figures
from evenhand.page.figures.methods import VERDICT_WORDS
from evenhand.page.markup import table, text
from evenhand.page.numbers import over_words, statistic
from evenhand.page.panels.panel import Panel, Variant, listed
from evenhand.studies.findings import Findings
from evenhand.studies.statistics import HEADINGS
from evenhand.studies.statistics import front as front_points

FAIRNESS = ("worst10", "min", "std", "gini", "jain")  # what the mean can be set against


def front(findings: Findings) -> Panel:
    """The mean against a number about fairness."""
    study, comparison = findings.study, findings.comparison
    variants = []
    for fairness in FAIRNESS:
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
    caption = (
        "Every method by its mean over clients and by how it serves those who are served worst, or"
        " how evenly. A hollow marker is dominated: another method is at least as good in both"
        " numbers and better in one. The dotted line joins the others. "
        + (
            f"Bars are {comparison.level:.0%} intervals {text(over_words(study, comparison.over))}."
            if comparison.over != "nothing"
            else ""
        )
    )
    return Panel("front", caption, tuple(variants), "Set the mean against")


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
        headings = ["method", *VERDICT_WORDS.values()]
        rows = [
            [label, *(str(found[verdict]) for verdict in VERDICT_WORDS)]
            for label, found in counted.items()
        ]
        numbers = table(headings, rows, f"Clients against {text(against)}", list(counted))
        variants.append(
            Variant(
                against,
                figures.verdicts(study, findings.entries, against),
                f"Against {against}. {listed(named)}",
                numbers,
            )
        )
    if not variants:
        return None
    caption = (
        f"Clients whose {text(study.measure.words[0])} differs significantly from what the"
        " reference gives them (after Holm's correction), in both directions; clients with fewer"
        f" than {findings.least} samples are not judged."
    )
    return Panel("verdicts", caption, tuple(variants), "Against")
