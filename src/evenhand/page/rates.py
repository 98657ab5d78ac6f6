"""Rates of groups and teams with intervals and counts, and which two of them make a gap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenhand.metrics.group_rates import PARITIES, group_rates
from evenhand.metrics.uncertainty import Interval
from evenhand.page.series import shown
from evenhand.studies.findings import Findings
from evenhand.studies.runs.study import Study

# what is shown of each group, where there is one label that rates are about
SHOWN = (
    "accuracy",
    "true-positive rate",
    "false-positive rate",
    "selection rate",
    "precision",
)
OF_ALL_LABELS = ("accuracy", "accuracy parity", "calibration")


class Served(NamedTuple):
    """A rate of a group, means over seeds."""

    interval: Interval
    hits: float
    of: float

    @property
    def counts(self) -> str:
        """15 of 23; nothing where it is no share of samples."""
        if np.isnan(self.hits):
            return f"{self.of:,.0f} samples"
        whole = abs(self.hits - round(self.hits)) < 1e-6 and abs(self.of - round(self.of)) < 1e-6
        digits = 0 if whole else 1
        return f"{self.hits:,.{digits}f} of {self.of:,.{digits}f}"


Rates = dict[str, dict[str, dict[str, Served]]]  # by method, rate, group


def rates(findings: Findings, by: str) -> Rates:
    """Rates of each group (or team) with every method; of a regression its errors, as they are
    written, without intervals.

    An interval is the mean over seeds of Wilson's: that of a single training.
    """
    study = findings.study
    found: Rates = {}
    for label in study.labels:
        counted = [study.trials[label, seed].counts for seed in study.seeds]
        if any(counts is None for counts in counted):
            found[label] = {study.measure.words[0]: _merits(study, label, by)}
            continue
        by_seed = []
        for counts in counted:
            assert counts is not None
            if by == "team":
                counts = counts.with_groups(study.names("team"), study.team_codes)
            about = findings.positive
            code = counts.labels.index(about) if about in counts.labels else len(counts.labels) - 1
            by_seed.append(
                group_rates(
                    counts.by_group, counts.groups, counts.labels, code, findings.comparison.level
                )
            )
        kept = SHOWN if findings.positive is not None else SHOWN[:1]
        found[label] = {name: {} for name in kept}
        for same in zip(*by_seed, strict=True):
            if same[0].name in kept:
                found[label][same[0].name][same[0].group] = Served(
                    Interval(*np.mean([100 * np.array(one.interval) for one in same], 0).tolist()),
                    float(np.mean([one.hits for one in same])),
                    float(np.mean([one.of for one in same])),
                )
    return found


def _merits(study: Study, label: str, by: str) -> dict[str, Served]:
    merits = np.mean([study.merits(label, seed, by) for seed in study.seeds], 0)
    return {
        name: Served(Interval(float(shown(study.measure, merit)), np.nan, np.nan), np.nan, size)
        for name, merit, size in zip(
            study.names(by), merits.tolist(), study.sizes(by).tolist(), strict=True
        )
    }


def worst_group(findings: Findings, found: Rates, label: str) -> tuple[str, Served] | None:
    """The group that a method serves worst by accuracy (or error), of those with enough samples."""
    first = next(iter(found[label].values()))
    judged = {
        name: one
        for name, one in first.items()
        if one.of >= max(1, findings.least) and not np.isnan(one.interval.value)
    }
    if len(judged) < 2:
        return None
    sign = 1 if findings.study.measure.column == "accuracy" else -1
    name = min(judged, key=lambda name: sign * judged[name].interval.value)
    return name, judged[name]


def extremes(findings: Findings, found: Rates, label: str, kind: str) -> str:
    """The two groups that make a gap, the one with the lower rate first: "Black 46 %, White 70 %".

    Empty where fewer than two groups have enough samples.
    """
    best: tuple[float, str] = (-1.0, "")
    for rate in PARITIES.get(kind, ()):
        judged = [
            (one.interval.value, name)
            for name, one in found[label].get(rate, {}).items()
            if one.of >= max(1, findings.least) and not np.isnan(one.interval.value)
        ]
        if len(judged) > 1:
            low, high = min(judged), max(judged)
            words = f"{low[1]} {low[0]:.0f} %, {high[1]} {high[0]:.0f} %"
            best = max(best, (high[0] - low[0], words))
    return best[1]
