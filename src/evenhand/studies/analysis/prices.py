"""What methods cost against FedAvg, and whom, in words."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.studies.analysis.evidence import Evidence
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.writing import change, count_of, listed, size

TOLD = 2  # methods whose cost is told in full, and parts of a cost


def costs(found: Evidence) -> str:
    """Every method that makes somebody worse off than FedAvg does, the largest loss first, and
    those whose mean is lower, though that may be chance."""
    study = found.study
    if study.reference is None or found.comparison.over == "nothing":
        return ""
    paid = [label for label in found.others if found.costs(label) and label != found.traded]
    paid.sort(key=lambda label: -_parts(found, label)[0][0])
    told = [f"{label} {price(found, label)}" for label in paid[:TOLD]]
    if len(paid) > TOLD:
        verb = "costs" if len(paid) == TOLD + 1 else "cost"
        told.append(f"{listed(paid[TOLD:], 9)} {verb} somebody less")
    means = {label: found.comparison.differences[label]["mean"].interval for label in found.others}
    told += [
        f"{label} may cost the mean: {change(study, interval)}"
        for label, interval in means.items()
        if not found.costs(label) and found.may_cost(label)
    ]
    return "; ".join(told) + "." if told else ""


def price(found: Evidence, label: str) -> str:
    """What a method costs, and whom: its largest losses."""
    return " and ".join(text for _, text in _parts(found, label)[:TOLD])


def _parts(found: Evidence, label: str) -> list[tuple[float, str]]:
    """Losses with their sizes, the largest first."""
    study = found.study
    name, who = found.worst
    parts = []
    for number, whose in (("mean", "the mean"), (name, who)):
        one = found.comparison.differences[label][number]
        if one.worse:
            parts.append((-one.interval.value, f"costs {whose} {size(study, one.interval)}"))
    leaning = found.collective.get((label, str(study.reference)))
    if leaning is not None and leaning.lose > leaning.gain:
        text = f"makes {leaning.lose} of the {leaning.changed} clients that change worse off"
        parts.append((-leaning.mean.value, text))
    for by in study.kinds:
        if harmed := found.judged(label, study.reference, "harmed", by):
            parts.append((-harmed[0].gain.value, f"harms {_whom(found, harmed, by)}"))
    if fallen := found.worse_rates(label):
        kind, entry = fallen[0]
        more = f" (and {count_of(len(fallen) - 1, 'more rate')})" if len(fallen) > 1 else ""
        text = f"lowers the {kind} of group {entry.name} by {size(study, entry.gain)}{more}"
        parts.append((-entry.gain.value, text))
    return sorted(parts, key=lambda part: -part[0])


def _whom(found: Evidence, harmed: Sequence[Entry], by: str) -> str:
    first = f"{harmed[0].name} ({change(found.study, harmed[0].gain)})"
    kind = "" if by == "client" else f"{by} "
    return (
        f"{kind}{first}"
        if len(harmed) == 1
        else f"{count_of(len(harmed), by)}, most of all {first}"
    )
