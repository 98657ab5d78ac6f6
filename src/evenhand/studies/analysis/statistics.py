"""Metrics across clients, and the Pareto front of mean and fairness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require, require_choice
from evenhand.metrics import spread
from evenhand.metrics.across import OF_SHARES
from evenhand.metrics.group_rates import PARITIES
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.groups import GroupView, group_views
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.selection import dominated

Floats = NDArray[np.float64]

STATISTICS = (
    "mean",
    "pooled",
    "worst10",
    "best10",
    "min",
    "max",
    "std",
    "variance",
    "variation",
    "jain",
    "gini",
    "entropy",
    "cosine",
)
SMALLER_IS_BETTER = ("std", "variance", "variation", "gini")
UNBOUNDED = ("std", "variance", "variation")
HEADINGS = {
    "mean": "mean over clients",
    "pooled": "over all samples",
    "worst10": "worst 10 % of clients",
    "best10": "best 10 % of clients",
    "min": "worst client",
    "max": "best client",
    "std": "standard deviation over clients",
    "variance": "variance over clients",
    "variation": "coefficient of variation",
    "jain": "Jain's index",
    "gini": "Gini coefficient",
    "entropy": "entropy of shares",
    "cosine": "cosine to equal shares",
}


def statistics(study: Study, merits: Floats, counts: Floats) -> dict[str, Floats]:
    """Metrics across clients of (..., n) merits; ``counts``: (..., n) numbers of samples."""
    shares = np.abs(merits)
    found = {
        name: function(shares if name in OF_SHARES else merits)
        for name, function in spread.SPREAD.items()
    }
    found["pooled"] = study.measure.pooled(merits, counts)
    return {name: found[name] for name in STATISTICS}


def across_clients(study: Study, label: str, seed: int, part: str = "test") -> dict[str, Floats]:
    """:func:`statistics` of one trial; if the server saw sums only, NaN for those that need
    more."""
    trial = study.trials[label, seed]
    if trial.by_client:
        merits = study.merits(label, seed, part=part)
        numbers = statistics(study, merits, study.sizes("client", seed, label).astype(np.float64))
        return numbers | ({} if part != "test" else study.everyone(label, seed))
    found = dict(trial.over_clients or {})
    known = {"pooled": float(study.merits(label, seed, "everyone", part)[0])}
    if study.measure.key:  # of a metric, sums tell the mean alone
        of_metric = np.asarray(found.get(study.measure.column, np.nan))
        found, known["mean"] = {}, float(study.measure.merit(of_metric))
    if "mean" in found and part == "test":
        mean, std = found["mean"], found["std"]
        known |= {name: found[name] for name in ("mean", "worst10", "best10", "std")} | {
            "min": found["worst"],
            "variance": std**2,
        }
        jain = mean**2 / (mean**2 + std**2) if mean else 1.0
        known |= {"variation": std / mean if mean else 0.0, "jain": jain, "cosine": math.sqrt(jain)}
    return {name: np.asarray(known.get(name, np.nan)) for name in STATISTICS}


class Point(NamedTuple):
    """A method by its mean and a fairness statistic."""

    label: str
    x: float  # mean merit over clients
    y: float  # the fairness statistic
    dominated: bool  # another method is at least as good in both and better in one


def front(
    study: Study, fairness: str = "worst10", part: str = "test", positive: str | None = None
) -> list[Point]:
    """Every method by its mean and a fairness statistic ("worst10", "std", "min", ...) or a gap
    between groups ("equal opportunity", "demographic parity", ...), averaged over seeds.

    ``positive``: the label that rates are about; by default the second of two.
    """
    require_choice("fairness", fairness, (*STATISTICS, *PARITIES))
    found = {
        label: [across_clients(study, label, s, part) for s in study.seeds]
        for label in study.labels
    }
    x = {label: float(np.mean([one["mean"] for one in some])) for label, some in found.items()}
    if fairness in PARITIES:
        require(part == "test", "gaps between groups are known on test data, not on {}", part)
        return gap_front(x, gap_intervals(group_views(study, "group", positive=positive), fairness))
    y = {label: float(np.mean([one[fairness] for one in some])) for label, some in found.items()}
    return _points(x, y, fairness in SMALLER_IS_BETTER)


def gap_intervals(views: Mapping[str, GroupView], kind: str) -> dict[str, Interval]:
    """A gap between groups by method."""
    found = {label: view.gaps.get(kind) for label, view in views.items()}
    return {label: gap.interval for label, gap in found.items() if gap is not None}


def gap_front(means: Mapping[str, float], gaps: Mapping[str, Interval]) -> list[Point]:
    """Every method by its mean and its gap between groups; NaN where a gap is unknown."""
    y = {label: gaps[label].value if label in gaps else math.nan for label in means}
    return _points(means, y, smaller=True)


def _points(x: Mapping[str, float], y: Mapping[str, float], smaller: bool) -> list[Point]:
    """``smaller``: whether a smaller y is better."""
    beaten = dominated([*x.values()], [-value if smaller else value for value in y.values()])
    return [
        Point(label, x[label], y[label], flag)
        for label, flag in zip(x, beaten.tolist(), strict=True)
    ]
