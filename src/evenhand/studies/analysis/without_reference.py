"""What a study without FedAvg shows: how well its methods do, and that nothing was compared."""

from __future__ import annotations

import math

from evenhand.studies.analysis.evidence import Evidence
from evenhand.studies.analysis.writing import count_of

MOST = 3  # methods that are told of


def without_reference(found: Evidence) -> list[str]:
    """How well the methods do on average and for the worst-served clients, and how to compare
    them; empty if FedAvg is there."""
    study, worst = found.study, found.worst[0]
    if study.reference is not None or not study.labels:
        return []
    value = {
        label: [found.comparison.rows[label][name].value for name in (worst, "mean")]
        for label in study.labels
    }
    known = [label for label in study.labels if not math.isnan(value[label][1])]
    # the method that does most for the worst-served first
    known.sort(key=lambda label: [math.inf if math.isnan(one) else -one for one in value[label]])
    lines = [f"{'; '.join(_served(found, label) for label in known[:MOST])}."] if known else []
    if not any(study.method(one.label).name == "fedavg" for one in study.diverged):
        several = len(study.labels) > 1
        nothing = "No method was compared with FedAvg" if several else "Nothing was compared"
        lines.append(
            f"{nothing}: train FedAvg on the same data to see who gains and who is harmed."
        )
    return lines


def _served(found: Evidence, label: str) -> str:
    """What a method reaches on average and for the worst-served clients."""
    study, (worst, who) = found.study, found.worst
    average = f"{label} reaches a mean {study.measure.name} of {_with_ends(found, label, 'mean')}"
    if study.clients < 2 or math.isnan(found.comparison.rows[label][worst].value):
        return average
    return (
        f"{average} over {count_of(study.clients, 'client')} and of"
        f" {_with_ends(found, label, worst)} for {who}"
    )


def _with_ends(found: Evidence, label: str, name: str) -> str:
    """A number of merits with its unit and its interval."""
    measure, (value, low, high) = found.study.measure, found.comparison.rows[label][name]
    shown = f"{measure.show(value)}{measure.percent}"
    if math.isnan(low) or math.isnan(high):
        return shown
    # an error is a merit with a minus, so its smaller end is the larger merit
    ends = (low, high) if measure.higher else (high, low)
    return f"{shown} [{', '.join(map(measure.show, ends))}]"
