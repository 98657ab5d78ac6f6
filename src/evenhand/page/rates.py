"""Rates of groups and teams with intervals and counts, and the two groups behind each gap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenhand.metrics.group_rates import Rate
from evenhand.metrics.uncertainty import Interval
from evenhand.page.series import shown
from evenhand.studies.analysis.groups import GroupView
from evenhand.studies.analysis.writing import whole
from evenhand.studies.findings import Findings
from evenhand.studies.runs.study import Study

# rates shown for each group, if there is a positive label
SHOWN = (
    "accuracy",
    "true-positive rate",
    "false-positive rate",
    "selection rate",
    "precision",
)
# measures that are rates
RATE_OF = {
    "accuracy": "accuracy",
    "recall": "true-positive rate",
    "precision": "precision",
}


class Served(NamedTuple):
    """A rate of a group as shown, averaged over seeds."""

    interval: Interval
    hits: float  # NaN if it is no share of samples
    of: float

    @property
    def counts(self) -> str:
        """15 of 23."""
        if np.isnan(self.hits):
            return f"{self.of:,.0f} sample{'s' * (self.of != 1)}"
        return f"{whole(self.hits)} of {whole(self.of)}"


Rates = dict[str, dict[str, dict[str, Served]]]  # by method, rate, group


def rates(findings: Findings, by: str) -> Rates:
    """The rates of each group (or team) with every method: the study's measure first (without
    intervals if it is no rate of samples), then other rates."""
    study, views = findings.study, findings.groups.get(by, {})
    found: Rates = {}
    for label in study.labels:
        view = views.get(label)
        known = {} if view is None else _known(view, study.names(by))
        first = RATE_OF.get(study.measure.kind, "")
        if first not in known:
            first = study.measure.name
            known[first] = _merits(study, label, by)
        found[label] = {first: known[first], **known}
    return found


def _known(view: GroupView, groups: tuple[str, ...]) -> dict[str, dict[str, Served]]:
    """Rates of a method; with several labels, only accuracy."""
    return {
        name: {group: _served(view.rates[name, group]) for group in groups}
        for name in SHOWN
        if (name, groups[0]) in view.rates
    }


def _served(rate: Rate) -> Served:
    return Served(Interval(*(100 * np.array(rate.interval)).tolist()), rate.hits, rate.of)


def _merits(study: Study, label: str, by: str) -> dict[str, Served]:
    merits = np.mean([study.merits(label, seed, by) for seed in study.judged_seeds], 0)
    return {
        name: Served(Interval(float(shown(study.measure, merit)), np.nan, np.nan), np.nan, size)
        for name, merit, size in zip(
            study.names(by), merits.tolist(), study.sizes(by).tolist(), strict=True
        )
    }


def worst_group(findings: Findings, found: Rates, label: str) -> tuple[str, Served] | None:
    """The group that a method serves worst by the measure, among those with enough samples."""
    judged = {
        name: one
        for name, one in next(iter(found[label].values())).items()
        if one.of >= max(1, findings.least) and not np.isnan(one.interval.value)
    }
    if len(judged) < 2:
        return None
    sign = 1 if findings.study.measure.percent else -1
    name = min(judged, key=lambda name: sign * judged[name].interval.value)
    return name, judged[name]


def extremes(findings: Findings, found: Rates, by: str, label: str, kind: str) -> str:
    """The two groups behind a gap, the lower rate first: "Black 46 %, White 70 %"; empty if fewer
    than two groups have enough samples."""
    gap = findings.groups[by][label].gaps.get(kind)
    if gap is None or np.isnan(gap.interval.value) or gap.rate not in found[label]:
        return ""
    members = found[label][gap.rate]
    return ", ".join(f"{name} {members[name].interval.value:.0f} %" for name in (gap.low, gap.high))
