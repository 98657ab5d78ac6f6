"""How methods compare: metrics across clients with intervals, and differences from FedAvg."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenhand.errors import require_choice, require_number
from evenhand.metrics.across import OF_SHARES
from evenhand.metrics.spread import tenth
from evenhand.metrics.uncertainty import OVER, Interval
from evenhand.studies.analysis.statistics import (
    SMALLER_IS_BETTER,
    STATISTICS,
    UNBOUNDED,
    across_clients,
)
from evenhand.studies.analysis.uncertain import TOGETHER, Numbers, Uncertain, uncertain
from evenhand.studies.runs.study import Study

# columns of a table of methods, by statistic
COLUMNS = {
    "mean": "mean",
    "worst10": "worst 10 %",
    "best10": "best 10 %",
    "min": "worst client",
    "std": "std",
}
OF_FEW = {"mean": "mean", "min": "worst client", "max": "best client", "std": "std"}


class Difference(NamedTuple):
    """How a method's metric differs from the reference's, on the same seeds and samples.

    The intervals of all methods hold at once (Bonferroni), so a difference is significant exactly
    where its interval excludes 0.
    """

    interval: Interval  # of (method - reference), in units of the merit
    p: float  # for no difference; NaN if unknown
    # p times the number of methods compared with the reference, at most 1
    adjusted: float
    better: bool  # significantly
    worse: bool


@dataclass(frozen=True)
class Comparison:
    """Metrics across clients for every method."""

    # what the intervals are over: "seeds+samples", "splits", "seeds", "samples", "clients", "both";
    # "nothing" if there are no intervals
    over: str
    level: float
    # by label, then statistic (a merit: accuracy in 0..1, or minus an RMSE); the value is the
    # observed one and can fall outside its interval
    rows: Mapping[str, Mapping[str, Interval]]
    # by label, then statistic: the estimate, which is the middle of the interval
    estimates: Mapping[str, Mapping[str, float]]
    # from the reference, by label, then statistic; empty without a reference
    differences: Mapping[str, Mapping[str, Difference]]
    # by statistic: the method that is significantly better than every other, if one is
    best: Mapping[str, str]


def compare(
    study: Study, over: str = "auto", level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Comparison:
    """Metrics across clients with intervals.

    Args:
        over: what the intervals are over.

            "seeds+samples": a method's average over seeds, with unlimited test samples of these
            clients. "splits": the same if each seed splits the data differently. "samples": these
            trained models, with unlimited test samples of these clients. "clients": these models,
            with other clients like these; "both": with other clients and other samples. "seeds":
            Student's t over seeds, on these test samples.

            "auto": seeds and samples, or splits; with one seed samples, so that the interval is
            about this one run. Without per-sample results, as in a real federation, seeds; with
            one seed there are then no intervals.
        draws: of the resampling, for all but seeds.
    """
    require_choice("over", over, ("auto", TOGETHER, "seeds", "splits", *OVER))
    require_number("level", level, "(0, 1)")
    if over == "auto":
        over = _suitable(study)
    if over in ("seeds", "splits", TOGETHER) and len(study.seeds) < 2:
        raise ValueError(f"intervals over {over} need at least two seeds")
    if over == "splits" and study.same_data:
        raise ValueError(
            "intervals over splits need data that each seed splits differently; use"
            f' over="{TOGETHER}"'
        )
    if not study.labels:  # all diverged
        return Comparison("nothing", level, {}, {}, {}, {})
    by_seed = {
        label: [across_clients(study, label, s) for s in study.seeds] for label in study.labels
    }
    # (S,)
    numbers = {
        label: {name: np.array([one[name] for one in found]) for name in STATISTICS}
        for label, found in by_seed.items()
    }
    unsure = uncertain(study, numbers, over, level, draws, seed)
    rows = {
        label: {
            name: _possible(study, name, unsure.interval(label, name))._replace(
                value=float(numbers[label][name].mean())
            )
            for name in STATISTICS
        }
        for label in study.labels
    }
    estimates = {
        label: {name: (interval.low + interval.high) / 2 for name, interval in row.items()}
        for label, row in rows.items()
    }
    return Comparison(
        over,
        level,
        rows,
        estimates,
        _differences(study, numbers, unsure, level),
        _best(study, numbers, unsure, level),
    )


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row per method and metric across clients."""
    return [
        {
            "method": label,
            "statistic": name,
            **interval._asdict(),
            "best": comparison.best.get(name) == label,
        }
        for label, row in comparison.rows.items()
        for name, interval in row.items()
    ]


def difference_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row per method and metric across clients: the difference from the reference."""
    return [
        {
            "method": label,
            "statistic": name,
            **one.interval._asdict(),
            **{key: getattr(one, key) for key in Difference._fields[1:]},
        }
        for label, row in comparison.differences.items()
        for name, one in row.items()
    ]


def columns(study: Study) -> dict[str, str]:
    """Headings of a table of methods, by statistic. With fewer than twenty clients, the worst 10 %
    are the worst client, so one column shows both."""
    return dict(OF_FEW if tenth(max(1, study.clients)) == 1 else COLUMNS)


def _suitable(study: Study) -> str:
    """What intervals are over by default."""
    sampled = study.sampled and study.measure.has_sample_intervals
    if len(study.seeds) < 2:
        return "samples" if sampled else "nothing"
    if not study.same_data:
        return "splits"
    return TOGETHER if sampled else "seeds"


def _possible(study: Study, name: str, interval: Interval, change: bool = False) -> Interval:
    """The interval, clipped to the possible range of a spread, a share or minus an error, or of a
    change of it."""
    if name in UNBOUNDED:
        bounds = (0.0, math.inf)
    else:
        bounds = (0.0, 1.0) if name in OF_SHARES else study.measure.range
    if change:
        bounds = (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return Interval(interval.value, *np.clip([interval.low, interval.high], *bounds).tolist())


def _differences(
    study: Study, numbers: Numbers, unsure: Uncertain, level: float
) -> dict[str, dict[str, Difference]]:
    """Differences from the reference. With M methods, each interval has level 1 - (1 - level) / M,
    so that all of them hold at once with probability at least ``level`` (Bonferroni)."""
    reference = study.reference
    if reference is None:
        return {}
    others = [label for label in study.labels if label != reference]
    found: dict[str, dict[str, Difference]] = {label: {} for label in others}
    for label in others:
        for name in STATISTICS:
            estimate = unsure.difference(label, reference, name)
            each = 1 - (1 - level) / len(others)
            interval = _possible(study, name, estimate.interval(each), change=True)
            seen = numbers[label][name].mean() - numbers[reference][name].mean()
            interval = interval._replace(value=float(seen))
            adjusted = min(1.0, len(others) * estimate.p)
            sure = estimate.p < (1 - level) / len(others)
            gain = -estimate.middle if name in SMALLER_IS_BETTER else estimate.middle
            found[label][name] = Difference(
                interval, estimate.p, adjusted, sure and gain > 0, sure and gain < 0
            )
    return found


def _best(study: Study, numbers: Numbers, unsure: Uncertain, level: float) -> dict[str, str]:
    """For each statistic, the method that is significantly better than every other.

    With M others, each of the M tests is at level (1 - level) / M: a method is wrongly called best
    only if its test against the truly best one errs, and that can happen to M methods.
    """
    best: dict[str, str] = {}
    for name in STATISTICS:
        means = {
            label: float(numbers[label][name].mean()) * (-1 if name in SMALLER_IS_BETTER else 1)
            for label in study.labels
        }
        if len(means) < 2 or any(math.isnan(mean) for mean in means.values()):
            continue
        first = max(means, key=lambda label: means[label])
        against = [unsure.difference(first, label, name) for label in means if label != first]
        side = -1 if name in SMALLER_IS_BETTER else 1
        if all(one.p < (1 - level) / len(against) and side * one.middle > 0 for one in against):
            best[name] = first
    return best
