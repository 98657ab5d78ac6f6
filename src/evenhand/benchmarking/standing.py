"""How methods stand on one federation: numbers with intervals, differences, ranks with ties."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenhand.benchmarking.rebuilt import has_groups, study_of
from evenhand.benchmarking.record import Record
from evenhand.metrics.together import Estimate
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.gaps import gaps
from evenhand.studies.analysis.statistics import SMALLER_IS_BETTER, STATISTICS, across_clients
from evenhand.studies.analysis.uncertain import TOGETHER, Numbers, uncertain
from evenhand.studies.runs.study import Study

OF_CLIENTS = ("mean", "worst10", "min", "std")
GROUP = "group"  # the worst group's number
HEADINGS = {
    "mean": "mean",
    "worst10": "worst 10 %",
    "min": "worst client",
    "std": "std",
    GROUP: "worst group",
}
RANKED = ("mean", "worst10")
GAPS = {  # kinds of gaps between groups, by the column that has them
    "accuracy parity": "gap in accuracy",
    "equal opportunity": "gap in true-positive rate",
    "false-positive parity": "gap in false-positive rate",
    "demographic parity": "gap in selection rate",
}
LEVEL, DRAWS = 0.95, 400


class Against(NamedTuple):
    """A method's number against another's, on the same seeds and samples."""

    interval: Interval  # of the gain, positive is better; holds for all methods at once
    p: float
    verdict: int  # 1: significantly better, -1: worse, 0: no significant difference


@dataclass(frozen=True)
class Standing:
    """Methods on one federation. Numbers are shares of test samples, between 0 and 1."""

    federation: str
    records: Mapping[str, Record]  # by label, those that are judged
    diverged: tuple[str, ...]
    # by label, then number: "mean", "worst10", "min", "std", and "group" where there are groups
    rows: Mapping[str, Mapping[str, Interval]]
    to_fedavg: Mapping[str, Mapping[str, Against]]  # without FedAvg itself
    to_alone: Mapping[str, Mapping[str, Against]]
    ranks: Mapping[str, Mapping[str, int]]  # by number, then label
    gaps: Mapping[str, Mapping[str, Interval]]  # by label, then kind

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.rows)

    @property
    def grouped(self) -> bool:
        """Whether there are groups, or teams."""
        return any(GROUP in row for row in self.rows.values())


def standing(records: Sequence[Record], level: float = LEVEL) -> Standing:
    """How the methods of some records stand, which are all of one federation.

    A difference is significant where its p-value is below (1 - level) / (M - 1), with M methods:
    each method is compared with M - 1 others, and the chance that any of them is wrongly called
    better than it is at most 1 - level (Bonferroni). So a method's rank, 1 + the number of methods
    significantly better, is too low a place with at most that chance.
    """
    study = study_of(records).in_order()
    of_clients = _Judge(study, level)
    judges = dict.fromkeys(OF_CLIENTS, of_clients)
    if has_groups(records[0]):
        judges[GROUP] = _Judge(study_of(records, "group").in_order(), level)
    rows = {
        label: {name: judge.interval(label, _own(name)) for name, judge in judges.items()}
        for label in study.labels
    }

    def to(reference: str | None) -> dict[str, dict[str, Against]]:
        return {
            label: {
                name: judge.against(label, reference, _own(name)) for name, judge in judges.items()
            }
            for label in study.labels
            if reference is not None and label != reference
        }

    return Standing(
        records[0].federation,
        {record.method: record for record in records if record.method in study.labels},
        tuple(one.label for one in study.diverged),
        rows,
        to(study.reference),
        to(study.alone),
        {name: of_clients.ranks(name) for name in RANKED},
        gaps(study, "group", level) if records[0].groups else {},
    )


def _own(name: str) -> str:
    """A number's name in its study: groups take the place of clients in that of groups."""
    return "min" if name == GROUP else name


class _Judge:
    """Intervals and differences of a study's numbers."""

    def __init__(self, study: Study, level: float) -> None:
        self.study, self.level = study, level
        found = {
            label: [across_clients(study, label, seed) for seed in study.seeds]
            for label in study.labels
        }
        self.numbers: Numbers = {
            label: {name: np.array([one[name] for one in seeds]) for name in STATISTICS}
            for label, seeds in found.items()
        }
        self.unsure = uncertain(study, self.numbers, TOGETHER, level, DRAWS, 0)
        self.alpha = (1 - level) / max(1, len(study.labels) - 1)

    def interval(self, label: str, name: str) -> Interval:
        found = self.unsure.interval(label, name)
        low, high = np.clip([found.low, found.high], 0.0, 1.0).tolist()
        return Interval(float(self.numbers[label][name].mean()), low, high)

    def against(self, label: str, other: str, name: str) -> Against:
        side = -1 if name in SMALLER_IS_BETTER else 1
        estimate = self.unsure.difference(label, other, name)
        low, high = sorted(side * end for end in estimate.interval(1 - self.alpha)[1:])
        seen = float(self.numbers[label][name].mean() - self.numbers[other][name].mean())
        return Against(
            Interval(side * seen, max(-1.0, low), min(1.0, high)),
            estimate.p,
            verdict(estimate, side, self.alpha),
        )

    def ranks(self, name: str) -> dict[str, int]:
        better = {
            label: [
                other
                for other in self.study.labels
                if other != label and self.against(other, label, name).verdict > 0
            ]
            for label in self.study.labels
        }
        return ranked(better)


def verdict(estimate: Estimate, side: int, alpha: float) -> int:
    """Whether a difference is a gain (1), a loss (-1), or neither (0); ``side``: -1 where smaller
    is better."""
    if math.isnan(estimate.p) or estimate.p >= alpha:
        return 0
    return 1 if side * estimate.middle > 0 else -1


def ranked(better: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The rank of each method: 1 + the number of methods that are significantly better.

    >>> ranked({"a": [], "b": [], "c": ["a"]})
    {'a': 1, 'b': 1, 'c': 2}
    """
    return {label: 1 + len(others) for label, others in better.items()}


def gap_names(kinds: Mapping[str, Interval]) -> dict[str, Interval]:
    """The gaps that the benchmark tells of, by their column."""
    return {GAPS[kind]: gap for kind, gap in kinds.items() if kind in GAPS}
