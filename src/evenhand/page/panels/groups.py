"""How groups, or teams, are served."""

from __future__ import annotations

import numpy as np

from evenhand.page import figures
from evenhand.page.markup import table, text
from evenhand.page.numbers import merit_words, points
from evenhand.page.panels.panel import MOST_ROWS, Panel, Variant, listed
from evenhand.studies.findings import Findings

GAPS = {
    "accuracy parity": "of right predictions",
    "demographic parity": "of samples predicted as the label",
    "equal opportunity": "of true positives",
    "false-positive parity": "of false positives",
    "equalised odds": "the larger one of these two",
    "predictive parity": "of predictions of the label that are right",
    "calibration": "of the distance between stated and actual probabilities",
}


def gaps(findings: Findings, by: str) -> list[Panel]:
    """How groups or teams are served, and the gaps between them."""
    study, found = findings.study, findings.gaps.get(by, {})
    names = study.names(by)
    panels = []
    if any(kinds for kinds in found.values()):
        kinds = [kind for kind in GAPS if any(kind in row for row in found.values())]
        rows = [
            [label, *(points(row[kind]) if kind in row else "-" for kind in kinds)]
            for label, row in found.items()
        ]
        kind = kinds[0]
        named = [f"{label}: {points(row[kind])}" for label, row in found.items() if kind in row]
        about = (
            f"The label is {text(findings.positive)}."
            if findings.positive is not None
            else "The label is the one that differs most."
        )
        caption = (
            f"Largest minus smallest rate over the {len(names)} {by}s, with"
            f" {findings.comparison.level:.0%} intervals under resampling of test"
            f" samples{' (means over seeds)' if len(study.seeds) > 1 else ''}; {by}s with fewer"
            f" than {findings.least} samples are left out."
            f" {'; '.join(f'{kind}: {GAPS[kind]}' for kind in kinds).capitalize()}. {about}"
        )
        numbers = table(
            ["method", *kinds], rows, f"Gaps between {by}s, points, with intervals", list(found)
        )
        panels.append(
            Panel(
                f"gaps-{by}",
                caption,
                (
                    Variant(
                        "",
                        figures.gaps(study, found, by, kinds),
                        f"Gap in {kind}. {listed(named)}",
                        numbers,
                    ),
                ),
            )
        )
    merits = {
        label: np.mean([study.merits(label, seed, by) for seed in study.seeds], 0)
        for label in study.labels
    }
    named = [
        f"{label}: lowest {names[int(np.nanargmin(found))]} with"
        f" {findings.number(float(np.nanmin(found)))}"
        for label, found in merits.items()
        if not np.isnan(found).all()
    ]
    rows = [
        [name, *(study.measure.show(float(found[i])) for found in merits.values())]
        for i, name in enumerate(names[:MOST_ROWS])
    ]
    numbers = table(
        [by, *study.labels],
        rows,
        f"{merit_words(study)} of each {by}{text(study.measure.unit)}",
    )
    seeds = " Means over seeds." if len(study.seeds) > 1 else ""
    caption = f"{merit_words(study)} over all samples of each {by}.{seeds}"
    panels.append(
        Panel(
            f"members-{by}",
            caption,
            (Variant("", figures.members(study, by), listed(named), numbers),),
        )
    )
    return panels
