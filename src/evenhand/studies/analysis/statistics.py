"""Metrics across clients, and the Pareto front of mean and fairness."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require_choice
from evenhand.metrics import spread
from evenhand.metrics.across import OF_SHARES
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


def front(study: Study, fairness: str = "worst10", part: str = "test") -> list[Point]:
    """Every method by its mean and a fairness statistic ("worst10", "std", "min", ...), averaged
    over seeds."""
    require_choice("fairness", fairness, STATISTICS)
    found = {
        label: [across_clients(study, label, s, part) for s in study.seeds]
        for label in study.labels
    }
    x, y = (
        np.array([np.mean([one[name] for one in found[label]]) for label in study.labels])
        for name in ("mean", fairness)
    )
    beaten = dominated(x, -y if fairness in SMALLER_IS_BETTER else y)
    return [
        Point(*values)
        for values in zip(study.labels, x.tolist(), y.tolist(), beaten.tolist(), strict=True)
    ]
