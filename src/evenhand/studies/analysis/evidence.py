"""The evidence of a study, from which its answer and sentences are written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from evenhand.metrics.group_rates import Gap
from evenhand.metrics.local_gaps import LocalGaps
from evenhand.metrics.spread import tenth
from evenhand.metrics.uncertainty import Interval, holm
from evenhand.studies.analysis.collective import Together, detectable, together
from evenhand.studies.analysis.comparison import Comparison, Difference
from evenhand.studies.analysis.convergence import identical, trend
from evenhand.studies.analysis.groups import GroupView, disadvantaged, spoken_of
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.runs.study import Study

# the rate in which each kind of gap is measured; larger is better
RATE_OF = {
    "equal opportunity": "recall",
    "false-positive parity": "specificity",
    "accuracy parity": "accuracy",
}
# a loss of the mean is mentioned, even if it may be chance, from this share of FedAvg's own error
MAY = 0.1
POINT = 0.01  # smaller changes of a rate are not mentioned
# how many clients must have changed before a sentence mentions them together
SEVERAL = 6


class Ends(NamedTuple):
    """The clients or groups that a method serves worst and best: their indices and merits."""

    worst: int
    best: int
    low: float
    high: float


@dataclass(frozen=True)
class Evidence:
    """All results of a study, with the questions that sentences ask of them."""

    study: Study
    comparison: Comparison
    entries: Sequence[Entry]
    groups: Mapping[str, Mapping[str, GroupView]]  # by "group" and "team", then method
    least: int = 10
    # ledger lines of groups in rates other than the measure: "recall" and "specificity"
    of_rates: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    # gaps between groups within clients, by method, then kind
    local: Mapping[str, Mapping[str, LocalGaps]] = field(default_factory=dict)

    @property
    def others(self) -> list[str]:
        """The methods other than the references."""
        return [
            label
            for label in self.study.labels
            if label not in (self.study.reference, self.study.alone)
        ]

    @property
    def worst(self) -> tuple[str, str]:
        """The statistic about the worst-served clients, and its name in a sentence."""
        if tenth(max(1, self.study.clients)) == 1:
            return "min", "the worst client"
        return "worst10", "the worst 10 % of clients"

    def rows(self, method: str | None, against: str | None, by: str = "client") -> list[Entry]:
        """The ledger lines of a method."""
        return [
            entry
            for entry in self.entries
            if (entry.method, entry.against, entry.by) == (method, against, by)
        ]

    def judged(
        self, method: str | None, against: str | None, verdict: str, by: str = "client"
    ) -> list[Entry]:
        """The ledger lines with a verdict, "gains" or "harmed", largest change first."""
        found = [entry for entry in self.rows(method, against, by) if entry.verdict == verdict]
        return sorted(found, key=lambda entry: -abs(entry.gain.value))

    def mean_change(self, method: str, against: str) -> Difference | None:
        """The change of the mean over clients; None if it was not tested."""
        if against == self.study.reference:
            return self.comparison.differences.get(method, {}).get("mean")
        if against == self.study.alone and method == self.study.reference:
            of_alone = self.comparison.differences.get(against, {}).get("mean")
            if of_alone is None:
                return None
            value, low, high = of_alone.interval
            return of_alone._replace(
                interval=Interval(-value, -high, -low), better=of_alone.worse, worse=of_alone.better
            )
        return None

    @cached_property
    def collective(self) -> dict[tuple[str, str], Together]:
        """By method and reference: clients that together lean to one side, by the sign test with
        Holm's correction over all such pairs."""
        study, found = self.study, {}
        pairs: list[tuple[str | None, str | None]] = [
            *((label, study.reference) for label in self.others),
            (study.reference, study.alone),
        ]
        for method, against in pairs:
            rows = self.rows(method, against)
            if method is None or against is None or not rows:
                continue
            change = self.mean_change(method, against)
            mean = change.interval if change is not None else _mean_gain(rows)
            found[method, against] = together(rows, mean)
        adjusted = holm([one.p for one in found.values()])
        return {
            pair: one
            for (pair, one), p in zip(found.items(), adjusted.tolist(), strict=True)
            if p < 1 - self.comparison.level and one.changed >= SEVERAL
        }

    @cached_property
    def improving(self) -> list[str]:
        """Methods that had not converged. One that was stopped early is not among them: training
        ended for another reason than its number of rounds."""
        study = self.study
        full = [
            label
            for label in study.labels
            if all(study.trials[label, seed].stopped is None for seed in study.seeds)
        ]
        found = {label: trend(study, label) for label in full}
        return [label for label, one in found.items() if one is not None and one.improving]

    @cached_property
    def like_reference(self) -> list[str]:
        """Methods that make exactly FedAvg's predictions."""
        reference = self.study.reference
        if reference is None:
            return []
        return [label for label in self.others if identical(self.study, label, reference)]

    @property
    def alone_is_better(self) -> bool:
        """Whether local-only training is better than FedAvg on average."""
        study = self.study
        if study.alone is None or study.reference is None:
            return False
        change = self.mean_change(study.reference, study.alone)
        leaning = self.collective.get((study.reference, study.alone))
        return (change is not None and change.worse) or (
            leaning is not None and leaning.lose > leaning.gain and leaning.mean.value < 0
        )

    def detectable(self, method: str | None, against: str | None, by: str = "client") -> float:
        """See :func:`evenhand.studies.analysis.collective.detectable`."""
        return detectable(self.rows(method, against, by), self.comparison.level)

    def benefits(self, label: str) -> bool:
        """Whether a method is significantly better for the clients or group FedAvg serves worst."""
        difference = self.comparison.differences.get(label, {}).get(self.worst[0])
        if difference is not None and difference.better and self.study.clients > 1:
            return True
        entry = self.group_change(label)
        return entry is not None and entry.verdict == "gains"

    @cached_property
    def lifting(self) -> list[str]:
        """Methods that are significantly better for those FedAvg serves worst, the largest gain
        for clients first."""
        found = [label for label in self.others if self.benefits(label)]
        gained = {
            label: self.comparison.differences[label][self.worst[0]].interval.value
            for label in found
        }
        return sorted(found, key=lambda label: -gained[label])

    @property
    def traded(self) -> str | None:
        """The method that does most for the worst-served, if all such methods cost somebody
        something."""
        free = any(not self.costs(label) for label in self.lifting)
        return None if free or not self.lifting else self.lifting[0]

    def costs(self, label: str) -> bool:
        """Whether somebody does significantly worse with a method than with FedAvg."""
        differences = self.comparison.differences.get(label, {})
        if any(differences[name].worse for name in ("mean", self.worst[0]) if name in differences):
            return True
        reference = self.study.reference
        leaning = self.collective.get((label, str(reference)))
        return (
            (leaning is not None and leaning.lose > leaning.gain)
            or bool(self.worse_rates(label))
            or any(self.judged(label, reference, "harmed", by) for by in self.study.kinds)
        )

    def worse_rates(self, label: str) -> list[tuple[str, Entry]]:
        """Groups whose recall or specificity falls significantly and by a point or more, largest
        fall first."""
        found = [
            (kind, entry)
            for kind, rows in self.of_rates.items()
            for entry in rows
            if (entry.method, entry.against) == (label, self.study.reference)
            and entry.verdict == "harmed"
            and entry.gain.value <= -POINT
        ]
        return sorted(found, key=lambda pair: pair[1].gain.value)

    def may_cost(self, label: str) -> bool:
        """Whether the mean is worse than FedAvg's by more than a tenth of FedAvg's own error."""
        new, old = (
            self.comparison.rows[known]["mean"].value
            for known in (label, str(self.study.reference))
        )
        return old - new > MAY * (1 - old if self.study.measure.percent else abs(old))

    def group_change(self, label: str) -> Entry | None:
        """What a method changes for the group that FedAvg treats worst, in the rate of that gap
        (see :func:`spoken_of`), or else in the measure."""
        gap, rows = self.gap, self.rows(label, self.study.reference, "group")
        name = self.worst_group if gap is None else disadvantaged(gap)
        if gap is not None and (kind := RATE_OF[gap.kind]) in self.of_rates:
            rows = [
                entry
                for entry in self.of_rates[kind]
                if (entry.method, entry.against) == (label, self.study.reference)
            ]
        return next((entry for entry in rows if entry.name == name), None)

    @property
    def gap(self) -> Gap | None:
        """FedAvg's most important significant gap between groups; None if there is none."""
        view = self.groups.get("group", {}).get(str(self.study.reference))
        return None if view is None or self.study.measure.kind != "accuracy" else spoken_of(view)

    @property
    def worst_group(self) -> str | None:
        """The group that FedAvg serves worst by the measure, among those with enough samples."""
        names, reference = self.study.names("group"), self.study.reference
        if reference is None or len(names) < 2:
            return None
        ends = self.ends(reference, "group")
        return None if ends is None else names[ends.worst]

    def ends(self, label: str, by: str = "client") -> Ends | None:
        """Whom a method serves worst and best, among those with enough samples, or None."""
        study = self.study
        merits = np.mean([study.merits(label, seed, by) for seed in study.judged_seeds], 0)
        merits = np.where(study.sizes(by) >= max(1, self.least), merits, np.nan)
        if np.isnan(merits).all():
            return None
        worst, best = int(np.nanargmin(merits)), int(np.nanargmax(merits))
        return Ends(worst, best, float(merits[worst]), float(merits[best]))


def _mean_gain(rows: Sequence[Entry]) -> Interval:
    return Interval(float(np.nanmean([entry.gain.value for entry in rows])), math.nan, math.nan)
