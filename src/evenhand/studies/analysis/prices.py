"""What methods cost compared with FedAvg, and whom, in words."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.studies.analysis.evidence import Evidence
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.writing import (
    change,
    count_of,
    listed,
    loss,
    out_of,
    size,
    whose,
)

TOLD = 2  # methods whose costs are spelt out, and costs per method


def costs(found: Evidence) -> str:
    """Every method that costs somebody something compared with FedAvg, largest loss first, then
    those whose mean is lower, possibly by chance."""
    study = found.study
    if study.reference is None or found.comparison.over == "nothing":
        return ""
    paid = [label for label in found.others if found.costs(label) and label != found.traded]
    paid.sort(key=lambda label: -_parts(found, label)[0][0])
    told = [f"{label} {price(found, label)}" for label in paid[:TOLD]]
    if len(paid) > TOLD:
        verb = "has" if len(paid) == TOLD + 1 else "have"
        told.append(f"{listed(paid[TOLD:], 9)} {verb} smaller costs")
    means = {label: found.comparison.differences[label]["mean"].interval for label in found.others}
    told += [
        f"{label} may be worse on average ({change(study, interval)})"
        for label, interval in means.items()
        if not found.costs(label) and found.may_cost(label)
    ]
    return "; ".join(told) + "." if told else ""


def price(found: Evidence, label: str) -> str:
    """The largest losses under a method."""
    return " and ".join(text for _, text in _parts(found, label)[:TOLD])


def _parts(found: Evidence, label: str) -> list[tuple[float, str]]:
    """Losses as sizes and clauses, largest first."""
    study = found.study
    what, _, worse = study.measure.words
    name, who = found.worst
    parts = []
    for number, lost in (("mean", f"mean {what}"), (name, f"the {what} of {who}")):
        one = found.comparison.differences[label][number]
        if one.worse:
            parts.append((-one.interval.value, f"{worse} {lost} by {size(study, one.interval)}"))
    leaning = found.collective.get((label, str(study.reference)))
    if leaning is not None and leaning.lose > leaning.gain:
        several = out_of(leaning.lose, leaning.changed, "clients")
        text = f"is worse for {several} whose {what} changes"
        parts.append((-leaning.mean.value, text))
    for by in study.kinds:
        if harmed := found.judged(label, study.reference, "harmed", by):
            parts.append((-harmed[0].gain.value, _harm(found, harmed, by)))
    if fallen := found.worse_rates(label):
        kind, entry = fallen[0]
        more = f" (and {count_of(len(fallen) - 1, 'other group rate')})" if len(fallen) > 1 else ""
        text = f"lowers the {kind} of {whose(entry)} by {size(study, entry.gain)}{more}"
        parts.append((-entry.gain.value, text))
    return sorted(parts, key=lambda part: -part[0])


def _harm(found: Evidence, harmed: Sequence[Entry], by: str) -> str:
    if len(harmed) == 1:
        return loss(found.study, harmed[0])
    first = f"{whose(harmed[0])}, {change(found.study, harmed[0].gain)}"
    return f"harms {count_of(len(harmed), by)} (most of all {first})"
