"""How methods compare: numbers across clients with intervals, and differences to the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np

from evenhand.errors import require_choice, require_number
from evenhand.metrics.across import OF_SHARES
from evenhand.metrics.trials import trials
from evenhand.metrics.uncertainty import OVER, Interval, holm, over_seeds, paired
from evenhand.studies.analysis.statistics import (
    SMALLER_IS_BETTER,
    STATISTICS,
    UNBOUNDED,
    Floats,
    across_clients,
)
from evenhand.studies.runs.study import Study


class Difference(NamedTuple):
    """How a method's number differs from another's, on the same seeds and samples."""

    interval: Interval  # of (method - other), in units of the merit
    p: float  # of no difference; NaN where it cannot be told
    adjusted: float  # Holm's, over the methods that are compared with the reference by this number
    better: bool  # significantly
    worse: bool


@dataclass(frozen=True)
class Comparison:
    """Numbers across clients for every method."""

    # what intervals are over: "seeds", "samples", "clients" or "both"; "nothing" where they cannot
    # be told
    over: str
    level: float
    # by label, then statistic (a merit: accuracy in 0..1, or minus an RMSE)
    rows: Mapping[str, Mapping[str, Interval]]
    # to the reference, by label, then statistic; empty without a reference
    differences: Mapping[str, Mapping[str, Difference]]
    # statistic -> the method that is significantly better than every other one, where there is one
    best: Mapping[str, str]


def compare(
    study: Study, over: str = "auto", level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Comparison:
    """Numbers across clients with intervals.

    Args:
        over: what intervals are over. "seeds": Student's over the seeds, each standing for another
            training (and another split of the data where they were dealt anew). "samples": other
            test samples of the same clients; "clients": other clients like these; "both": one and
            the other, all for the models at hand. "auto": seeds where there are at least two, else
            samples; where the values of single samples are not known either, as in a real
            federation, there are no intervals.
        draws: of the resampling, for all but seeds.
    """
    require_choice("over", over, ("auto", "seeds", *OVER))
    require_number("level", level, "(0, 1)")
    if over == "auto":
        sampled = study.sampled and study.measure.has_sample_intervals
        over = "seeds" if len(study.seeds) > 1 else "samples" if sampled else "nothing"
    if over == "seeds" and len(study.seeds) < 2:
        raise ValueError("intervals over seeds need at least two of them")
    by_seed = {
        label: [across_clients(study, label, s) for s in study.seeds] for label in study.labels
    }
    # (S,)
    numbers = {
        label: {name: np.array([one[name] for one in found]) for name in STATISTICS}
        for label, found in by_seed.items()
    }
    uncertain: _Uncertain
    if over == "nothing":
        uncertain = _Unknown(numbers)
    else:
        uncertain = (
            _Seeds(numbers, level) if over == "seeds" else _Samples(study, over, level, draws, seed)
        )
    rows = {
        label: {
            name: _possible(study, name, uncertain.interval(label, name)) for name in STATISTICS
        }
        for label in study.labels
    }
    return Comparison(
        over,
        level,
        rows,
        _differences(study, uncertain, level),
        _best(study, numbers, uncertain, level),
    )


def _possible(study: Study, name: str, interval: Interval, change: bool = False) -> Interval:
    """The interval within what the number, or a change of it, can be: a spread, a share, or minus
    an error."""
    if name in UNBOUNDED:
        bounds = (0.0, math.inf)
    elif name in OF_SHARES or study.measure.percent:
        bounds = (0.0, 1.0)
    else:
        bounds = (-math.inf, 0.0)
    if change:
        bounds = (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return Interval(interval.value, *np.clip([interval.low, interval.high], *bounds).tolist())


class _Uncertain(Protocol):
    """Where intervals and tests come from."""

    def interval(self, label: str, name: str) -> Interval:
        """A method's number."""

    def test(self, label: str, other: str, name: str) -> tuple[Interval, float]:
        """The difference of two methods, and the p-value of none."""


class _Seeds:
    """Student's, over seeds."""

    def __init__(self, numbers: Mapping[str, Mapping[str, Floats]], level: float) -> None:
        self.numbers, self.level = numbers, level

    def interval(self, label: str, name: str) -> Interval:
        return over_seeds(self.numbers[label][name].tolist(), self.level)

    def test(self, label: str, other: str, name: str) -> tuple[Interval, float]:
        return paired(
            self.numbers[label][name].tolist(), self.numbers[other][name].tolist(), self.level
        )


class _Unknown:
    """One training, and nothing known of single samples: numbers without intervals."""

    def __init__(self, numbers: Mapping[str, Mapping[str, Floats]]) -> None:
        self.numbers = numbers

    def interval(self, label: str, name: str) -> Interval:
        return Interval(float(self.numbers[label][name][0]), math.nan, math.nan)

    def test(self, label: str, other: str, name: str) -> tuple[Interval, float]:
        return (
            Interval(
                float(self.numbers[label][name][0] - self.numbers[other][name][0]),
                math.nan,
                math.nan,
            ),
            math.nan,
        )


class _Samples:
    """Resampling of samples or clients, the same for all methods and seeds."""

    def __init__(self, study: Study, over: str, level: float, draws: int, seed: int) -> None:
        keys = [(label, s) for label in study.labels for s in study.seeds]
        values = [
            found for found in (study.trials[key].values for key in keys) if found is not None
        ]
        client = study.first.sample_client if study.same_data else None
        if client is None or len(values) < len(keys):
            raise ValueError(
                f'intervals over {over} need the same test samples for all seeds; use over="seeds"'
                if not study.same_data
                else (
                    f"intervals over {over} need the values of each sample, which these runs have"
                    ' not kept; use over="seeds"'
                )
            )
        if not study.measure.has_sample_intervals:
            raise ValueError(
                f"intervals over {over} are for accuracies and squared errors, not for the loss"
                ' "{}"; use over="seeds"'.format(study.specs[0].loss)
            )
        self.labels = np.array([label for label, _ in keys])
        clients, squared = len(study.names("client")), study.measure.squared
        self.trials = trials(
            np.stack(values, 1), client.astype(np.int64), clients, squared, over, draws, level, seed
        )

    def interval(self, label: str, name: str) -> Interval:
        return self.trials.combined(name, self._mean(label).tolist())[0]

    def test(self, label: str, other: str, name: str) -> tuple[Interval, float]:
        return self.trials.combined(name, (self._mean(label) - self._mean(other)).tolist())

    def _mean(self, label: str) -> Floats:
        """(R,) weights that give the mean over seeds."""
        mine = (self.labels == label).astype(np.float64)
        weights: Floats = mine / mine.sum()
        return weights


def _differences(
    study: Study, uncertain: _Uncertain, level: float
) -> dict[str, dict[str, Difference]]:
    reference = study.reference
    if reference is None:
        return {}
    others = [label for label in study.labels if label != reference]
    found: dict[str, dict[str, Difference]] = {label: {} for label in others}
    for name in STATISTICS:
        tests = [uncertain.test(label, reference, name) for label in others]
        for label, (whole, p), adjusted in zip(
            others, tests, holm([p for _, p in tests]).tolist(), strict=True
        ):
            interval = _possible(study, name, whole, change=True)
            # the middle of the interval, twice
            gain, sure = interval.low + interval.high, adjusted < 1 - level
            gain = -gain if name in SMALLER_IS_BETTER else gain
            found[label][name] = Difference(
                interval, p, adjusted, sure and gain > 0, sure and gain < 0
            )
    return found


def _best(
    study: Study, numbers: Mapping[str, Mapping[str, Floats]], uncertain: _Uncertain, level: float
) -> dict[str, str]:
    """For each statistic the best method, where it differs significantly from every other one (Holm
    over all pairs)."""
    best: dict[str, str] = {}
    pairs = list(combinations(study.labels, 2))
    for name in STATISTICS:
        means = {
            label: float(numbers[label][name].mean()) * (-1 if name in SMALLER_IS_BETTER else 1)
            for label in study.labels
        }
        if not pairs or any(math.isnan(mean) for mean in means.values()):
            continue
        adjusted = dict(
            zip(
                pairs,
                holm([uncertain.test(one, two, name)[1] for one, two in pairs]).tolist(),
                strict=True,
            )
        )
        first = max(means, key=lambda label: means[label])
        if all(p < 1 - level for pair, p in adjusted.items() if first in pair):
            best[name] = first
    return best
