"""Intervals of metrics across clients, and of differences between two methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Protocol

import numpy as np

from evenhand.metrics.influence import relative_spread
from evenhand.metrics.spread import tenth
from evenhand.metrics.together import (
    Estimate,
    over_seeds,
    over_seeds_and_samples,
    over_splits,
)
from evenhand.metrics.trials import ENOUGH, Trials, trials
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.statistics import Floats
from evenhand.studies.runs.study import Study

# other seeds, tested on other samples of the same clients
TOGETHER = "seeds+samples"
# by label, then statistic: (S,) a value per seed
Numbers = Mapping[str, Mapping[str, Floats]]


class Uncertain(Protocol):
    """A source of intervals and tests."""

    def interval(self, label: str, name: str) -> Interval:
        """Of a method's metric."""

    def difference(self, label: str, other: str, name: str) -> Estimate:
        """Between two methods, on the same seeds and samples."""


def uncertain(
    study: Study, numbers: Numbers, over: str, level: float, draws: int, seed: int
) -> Uncertain:
    """See :func:`evenhand.studies.analysis.comparison.compare`."""
    if over == "nothing":
        return Unknown(numbers)
    if over == "seeds":
        return OverSeeds(study, numbers, level)
    if over == "splits":
        return OverSplits(study, numbers, level, draws, seed)
    if over == TOGETHER:
        return OverSeedsAndSamples(study, numbers, level, draws, seed)
    return OverSamples(study, over, level, draws, seed)


class Unknown:
    """One seed without per-sample results: values without intervals."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def interval(self, label: str, name: str) -> Interval:
        return Interval(float(self.numbers[label][name][0]), math.nan, math.nan)

    def difference(self, label: str, other: str, name: str) -> Estimate:
        value = float(self.numbers[label][name][0] - self.numbers[other][name][0])
        return Estimate(value, math.nan, math.nan)


class OverSeeds:
    """Student's t over seeds, on the same test samples."""

    def __init__(self, study: Study, numbers: Numbers, level: float) -> None:
        self.study, self.numbers, self.level = study, numbers, level

    def interval(self, label: str, name: str) -> Interval:
        return self._estimate(self.numbers[label][name], name).interval(self.level)

    def difference(self, label: str, other: str, name: str) -> Estimate:
        return self._estimate(self.numbers[label][name] - self.numbers[other][name], name)

    def _estimate(self, values: Floats, name: str) -> Estimate:
        return over_seeds(values.tolist()).at_least(one_sample(self.study, name))


class OverSamples:
    """Resampled samples or clients, the same for all methods and seeds; the models stay fixed."""

    def __init__(
        self,
        study: Study,
        over: str,
        level: float,
        draws: int,
        seed: int,
        seeds: Sequence[int] | None = None,
    ) -> None:
        keys = [(label, s) for label in study.labels for s in seeds or study.seeds]
        _refuse_unsampled(study, over, keys)
        self.study, self.labels = study, np.array([label for label, _ in keys])
        self.trials = _drawn_anew(study, keys, over, level, draws, seed)

    def interval(self, label: str, name: str) -> Interval:
        weights = self._mean(label)
        if (weights != 0).sum() == 1:  # its interval may be asymmetric
            return self.trials.combined(name, weights.tolist())[0]
        return self.estimate(weights, name).interval(self.trials.level)

    def difference(self, label: str, other: str, name: str) -> Estimate:
        return self.estimate(self._mean(label) - self._mean(other), name)

    def mean(self, label: str, name: str) -> Estimate:
        """A method's metric, averaged over seeds."""
        return self.estimate(self._mean(label), name)

    def estimate(self, weights: Floats, name: str) -> Estimate:
        """A weighted sum over trials."""
        value, low, high = self.trials.combined(name, weights.tolist())[0]
        error = (high - low) / 2 / NormalDist().inv_cdf((1 + self.trials.level) / 2)
        return Estimate(value, (low + high) / 2, error).at_least(one_sample(self.study, name))

    def _mean(self, label: str) -> Floats:
        """(R,) weights of the mean over seeds."""
        mine = (self.labels == label).astype(np.float64)
        weights: Floats = mine / mine.sum()
        return weights


class OverSeedsAndSamples:
    """Other seeds, tested on other samples of the same clients."""

    def __init__(self, study: Study, numbers: Numbers, level: float, draws: int, seed: int) -> None:
        self.numbers, self.level = numbers, level
        # a mean over seeds needs fewer draws than a single run
        draws = max(min(draws, ENOUGH), draws // len(study.seeds))
        self.samples = OverSamples(study, "samples", level, draws, seed)

    def interval(self, label: str, name: str) -> Interval:
        of_samples = self.samples.mean(label, name)
        found = over_seeds_and_samples(of_samples, self.numbers[label][name].tolist())
        return found.interval(self.level)

    def difference(self, label: str, other: str, name: str) -> Estimate:
        apart = self.numbers[label][name] - self.numbers[other][name]
        return over_seeds_and_samples(self.samples.difference(label, other, name), apart.tolist())


class OverSplits:
    """Other seeds with other splits of the data: each seed has its own test samples."""

    def __init__(self, study: Study, numbers: Numbers, level: float, draws: int, seed: int) -> None:
        self.study, self.numbers, self.level = study, numbers, level
        self.ratio = split_ratio(study)
        sampled = study.sampled and study.measure.has_sample_intervals
        self.splits = [
            OverSamples(study, "samples", level, draws, seed, [one]) if sampled else None
            for one in study.seeds
        ]

    def interval(self, label: str, name: str) -> Interval:
        found = [
            Estimate(float(value), float(value), 0.0) if one is None else one.mean(label, name)
            for one, value in zip(self.splits, self.numbers[label][name], strict=True)
        ]
        return self._estimate(found, name).interval(self.level)

    def difference(self, label: str, other: str, name: str) -> Estimate:
        apart = self.numbers[label][name] - self.numbers[other][name]
        found = [
            Estimate(float(value), float(value), 0.0)
            if one is None
            else one.difference(label, other, name)
            for one, value in zip(self.splits, apart, strict=True)
        ]
        return self._estimate(found, name)

    def _estimate(self, splits: Sequence[Estimate], name: str) -> Estimate:
        return over_splits(splits, self.ratio).at_least(one_sample(self.study, name))


def split_ratio(study: Study) -> float:
    """The ratio of test to training samples."""
    by = "client" if study.first.by_client else "everyone"
    train, test = (float(study.first.column(name, by).sum()) for name in ("train_count", "count"))
    return test / train if train else 1.0


def one_sample(study: Study, name: str) -> float:
    """How much one sample moves a metric across clients: the smallest standard error we assume,
    even where seeds or methods do not differ at all."""
    by = "client" if study.first.by_client else "everyone"
    samples, clients = max(1, int(study.sizes(by).sum())), max(1, study.clients)
    if name in ("worst10", "best10", "min", "max"):
        samples = max(1, samples * (tenth(clients) if name.endswith("10") else 1) // clients)
    if study.measure.bounded:
        return _most_of_one(study) / samples
    errors = study.merits(study.labels[0], study.seeds[0], by)
    return float(np.nanmean(np.abs(errors))) / samples


def _most_of_one(study: Study) -> float:
    """How much the share of one sample that is right may vary: 1 if it is right or wrong."""
    key = study.labels[0], study.seeds[0]
    values, client = study.sample_merits(*key), study.cells("client", key[1])
    if study.measure.whole or values is None or client is None:
        return 1.0
    return math.sqrt(relative_spread(values, client, len(study.names("client"))))


def _drawn_anew(
    study: Study,
    keys: Sequence[tuple[str, int]],
    over: str,
    level: float,
    draws: int,
    seed: int,
) -> Trials:
    measure, client = study.measure, study.cells("client", keys[0][1])
    found = [study.sample_merits(label, seed) for label, seed in keys]
    values = np.stack([one for one in found if one is not None], 1)
    assert client is not None  # see _refuse_unsampled
    counted = ~np.isnan(values).any(1)
    values = -values if measure.squared else values
    # minus a share is a share less one
    less = 1.0 if measure.bounded and not measure.higher else 0.0
    whole = measure.squared or measure.of_shares
    if measure.bounded and not measure.percent:
        whole = bool(np.isin(values[counted] + less, (0, 1)).all())
    drawn = trials(
        values[counted] + less,
        client[counted],
        len(study.names("client")),
        measure.squared,
        over,
        draws,
        level,
        seed,
        whole=whole,
        fractions=not measure.whole,
        shares=measure.bounded,
    )
    return drawn.moved(-less) if less else drawn


def _refuse_unsampled(study: Study, over: str, keys: Sequence[tuple[str, int]]) -> None:
    """Raise if these trials cannot be resampled."""
    seeds = {seed for _, seed in keys}
    if not study.same_data and len(seeds) > 1:
        raise ValueError(
            f'intervals over {over} need the same test samples for all seeds; use over="seeds"'
        )
    if any(study.sample_merits(label, seed) is None for label, seed in keys):
        raise ValueError(
            f"intervals over {over} need per-sample results, which these runs did not keep; use"
            ' over="seeds"'
        )
    if not study.measure.has_sample_intervals:
        raise ValueError(
            f"intervals over {over} are for rates and squared errors, not for {study.measure.name};"
            ' use over="seeds"'
        )
