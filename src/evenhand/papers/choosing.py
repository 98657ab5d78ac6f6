"""Settings that a paper does not state are chosen on validation data, never on test numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.papers.experiment import Row
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Floats
from evenhand.studies.specs.method import Method, flat_settings
from evenhand.studies.specs.selection import Numbers, numbers

# what is to be the best on validation data, on average over the seeds
RULES = {
    "mean": "the best mean accuracy over clients",
    "worst10": "the best accuracy of the worst 10 % of clients",
    "min": "the best accuracy of the worst client",
    "std": "the smallest standard deviation of accuracy over clients",
    "loss": "the smallest mean loss over clients",
    "group": "the smallest loss of the worst group",
    "qffl": "the smallest variance over clients with a mean not below FedAvg's",
}
DEFAULT = "mean"


class Choice(NamedTuple):
    """A point of a row's grid."""

    label: str  # of the method that was trained; "" where all diverged
    settings: Mapping[str, object]  # what was tried, and chosen
    edges: tuple[str, ...]  # settings that are the smallest or largest value tried


def choose(study: Study, rows: Sequence[tuple[Row, Sequence[Method]]]) -> dict[str, Choice]:
    """One of the points of each row."""
    found: dict[str, Choice] = {}
    reference = -np.inf  # FedAvg's mean on validation data, for the rule "qffl"
    needed = any(row.rule == "qffl" and len(points) > 1 for row, points in rows)
    for row, points in rows:
        labels = [point.label for point in points if point.label in study.labels]
        is_reference = row.method["name"] == "fedavg"
        if len(points) == 1:
            found[row.label] = Choice(labels[0] if labels else "", {}, ())
            if is_reference and labels and needed:
                reference = _numbers(study, labels)[labels[0]]["mean"]
            continue
        judged = _numbers(study, labels)
        sound = {label: one for label, one in judged.items() if np.isfinite(one["mean"])}
        if not sound:
            found[row.label] = Choice("", {}, ())
            continue
        rule = row.rule or DEFAULT
        if rule == "qffl":
            fair = {k: v for k, v in sound.items() if v["mean"] >= reference - 1e-12}
            ranks = fair or {max(sound, key=lambda label: sound[label]["mean"]): {}}
            best = min(ranks, key=lambda label: sound[label]["variance"])
        else:
            smaller = rule in ("std", "loss", "group")
            side = -1.0 if smaller else 1.0
            # where points are equal, by the mean, then by the loss
            best = max(
                sound,
                key=lambda label: (
                    round(side * sound[label][rule], 12),
                    round(sound[label]["mean"], 12),
                    -sound[label]["loss"],
                ),
            )
        if is_reference:
            reference = sound[best]["mean"]
        found[row.label] = _choice(row, points, best)
    return found


def _numbers(study: Study, labels: Sequence[str]) -> dict[str, Numbers]:
    """Of each point on validation data: numbers over clients and groups, means over seeds."""

    def column(label: str, name: str, by: str) -> list[Floats]:
        return [study.trials[label, seed].column(name, by, "validation") for seed in study.seeds]

    found = numbers({label: column(label, "accuracy", "client") for label in labels})
    for label in labels:
        losses, groups = (column(label, "loss", by) for by in ("client", "group"))
        found[label]["loss"] = float(np.mean([np.nanmean(one) for one in losses]))
        found[label]["group"] = float(np.mean([np.max(one, initial=-np.inf) for one in groups]))
    return found


def _choice(row: Row, points: Sequence[Method], best: str) -> Choice:
    settings = {point.label: flat_settings(point) for point in points}
    chosen = {key: settings[best].get(key) for key in row.grid}
    edges = []
    for key, values in row.grid.items():
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) == len(values) > 1 and chosen[key] in (min(numbers), max(numbers)):
            edges.append(key)
    return Choice(best, chosen, tuple(edges))
