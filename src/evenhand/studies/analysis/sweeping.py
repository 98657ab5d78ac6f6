"""The result of a sweep: every point on validation and test data, and the chosen one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from evenhand.errors import RunError
from evenhand.metrics.parity import gap
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.measure import Measure
from evenhand.studies.specs.method import flat_settings
from evenhand.studies.specs.selection import (
    FAIRNESS,
    NUMBERS,
    Choice,
    Numbers,
    Selection,
    dominated,
    numbers,
    off_the_front,
)
from evenhand.studies.specs.spec import Spec

# the scores behind each gap: specificity is 1 minus the false-positive rate
GAPS = {"tpr_gap": "recall", "fpr_gap": "specificity"}
LEAST = 10  # samples of a group


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep, with metrics across clients averaged over seeds, and the chosen
    one."""

    study: Study
    selection: Selection
    reference: str  # the label of FedAvg
    validation: Mapping[str, Numbers]  # by label
    test: Mapping[str, Numbers]
    choice: Choice
    dominated: frozenset[str]  # points that another one beats on validation data

    @classmethod
    def of(cls, study: Study, spec: Spec) -> Sweep:
        """Choose a point by the rule of ``spec``."""
        selection, reference = spec.build_selection(), study.reference
        if reference is None and any(one.label == "fedavg" for one in study.diverged):
            raise RunError(
                "FedAvg diverged, and a sweep compares with it; try smaller step sizes:"
                " --grid local.lr=0.001,0.01"
            )
        if reference is None:
            raise ValueError("a sweep needs FedAvg to compare with; add it to the methods")
        validation, test = (
            numbers(
                {
                    label: np.stack([study.merits(label, seed, part=part) for seed in study.seeds])
                    for label in study.labels
                }
            )
            for part in ("validation", "test")
        )
        points = {label: point for label, point in validation.items() if label != study.alone}
        choice = selection.choose(points, reference, study.measure)
        return cls(
            study,
            selection,
            reference,
            validation,
            test,
            choice,
            frozenset(off_the_front(points, FAIRNESS[selection.rule])),
        )

    @property
    def measure(self) -> Measure:
        return self.study.measure

    @property
    def reason(self) -> str:
        """Why this point was chosen, in plain words."""
        return self.selection.reason(self.choice, self.validation, self.reference, self.measure)

    @cached_property
    def gaps(self) -> dict[str, dict[str, dict[str, float]]]:
        """Gaps between groups in the rates of the second label: by "validation" and "test", then
        column ("tpr_gap", "fpr_gap"), then point; only those known for every point."""
        return {part: _gaps(self.study, part) for part in ("validation", "test")}

    @property
    def gap_fronts(self) -> dict[str, list[str]]:
        """By gap: the points that no other beats in both the mean and this gap, on validation
        data."""
        known = [label for label in self.validation if label != self.study.alone]
        means = {label: self.validation[label]["mean"] for label in known}
        found = {}
        for column, gaps in self.gaps["validation"].items():
            beaten = dominated([*means.values()], [-gaps[label] for label in known])
            found[column] = [
                label for label, flag in zip(known, beaten.tolist(), strict=True) if not flag
            ]
        return found

    @property
    def at_edge(self) -> list[str]:
        """A line for each number of the chosen point that is the smallest or largest of at least
        three tried."""
        methods = {label: trial.method for (label, _), trial in self.study.trials.items()}
        chosen = methods[self.choice.label]
        points = [flat_settings(one) for one in methods.values() if one.name == chosen.name]
        lines = []
        for key, value in flat_settings(chosen).items():
            tried: set[Any] = {point.get(key) for point in points}
            numeric = all(type(one) in (int, float) for one in tried)
            if self.choice.label == self.reference or not numeric or len(tried) < 3:
                continue
            for end, most, more in ((min, "smallest", "smaller"), (max, "largest", "larger")):
                if value == end(tried):
                    lines.append(
                        f"warning: {key}={value} is the {most} value tried; try {more} ones: --grid"
                        f" {key}=..."
                    )
        return lines

    @property
    def final(self) -> Study:
        """The study reduced to the chosen point and the references, so that only one test against
        FedAvg is made."""
        kept = {self.choice.label, self.reference, self.study.alone}
        return replace(
            self.study,
            trials={key: trial for key, trial in self.study.trials.items() if key[0] in kept},
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row per point: its settings, its metrics on validation and test data, whether it was
        chosen and whether it is dominated."""
        methods = {label: trial.method for (label, _), trial in self.study.trials.items()}
        settings = {label: flat_settings(method) for label, method in methods.items()}
        keys = dict.fromkeys(key for found in settings.values() for key in found)
        return [
            {
                "label": label,
                "method": methods[label].name,
                **{key: settings[label].get(key) for key in keys},
                **{f"validation_{name}": self.validation[label][name] for name in NUMBERS},
                **{f"test_{name}": self.test[label][name] for name in NUMBERS},
                **{
                    f"{part}_{name}": gaps[label]
                    for part, columns in self.gaps.items()
                    for name, gaps in columns.items()
                },
                "chosen": label == self.choice.label,
                "dominated": label in self.dominated,
            }
            for label in self.study.labels
        ]


def _gaps(study: Study, part: str) -> dict[str, dict[str, float]]:
    """See :attr:`Sweep.gaps`. Rates are means over seeds; groups with few samples are excluded."""
    if len(study.names("group")) < 2:
        return {}
    found: dict[str, dict[str, float]] = {}
    for name, column in GAPS.items():
        gaps = {label: _gap(study, label, column, part) for label in study.labels}
        if not any(math.isnan(gap) for gap in gaps.values()):
            found[name] = gaps
    return found


def _gap(study: Study, label: str, column: str, part: str) -> float:
    rates = []
    for seed in study.judged_seeds:
        trial = study.trials[label, seed]
        columns = trial.score_columns if part == "test" else trial.validation
        if columns is None or column not in columns:
            return math.nan
        enough = trial.column("count", "group", part) >= LEAST
        rates.append(np.where(enough, trial.column(column, "group", part), math.nan))
    return float(gap(np.mean(rates, 0)))
