"""What a study says: how methods compare, who gains and who pays, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require_choice, require_number
from evenhand.metrics import calibration, spread
from evenhand.metrics.across import OF_SHARES
from evenhand.metrics.ledger import Gains
from evenhand.metrics.trials import trials
from evenhand.metrics.uncertainty import OVER, Interval, gap_interval, holm, over_seeds, paired
from evenhand.studies.audit import Audit
from evenhand.studies.selection import dominated
from evenhand.studies.study import Study
from evenhand.studies.trial import Trial

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


class Entry(NamedTuple):
    """A line of the harm ledger: what a client, group or team gains or loses with a method against
    a reference."""

    by: str  # "client", "group" or "team"
    name: str
    team: str
    samples: int
    method: str  # label
    against: str  # label of the reference: FedAvg, or training alone
    merit: float
    reference: float
    gain: Interval  # merit - reference
    p: float
    # Holm's, over all entries of this method against this reference and of this kind
    adjusted: float
    # "gains", "harmed", "unclear" or "few" (fewer samples than the least that are judged)
    verdict: str


class Point(NamedTuple):
    """A method in the plane of two numbers: the mean, which should be large, and one about
    fairness."""

    label: str
    x: float  # mean merit over clients
    y: float  # the fairness number
    dominated: bool  # another method is at least as good in both and better in one


def statistics(study: Study, merits: Floats, counts: Floats) -> dict[str, Floats]:
    """Numbers across clients of (..., n) merits; ``counts``: (..., n) their samples."""
    shares = np.abs(merits)
    found = {
        name: function(shares if name in OF_SHARES else merits)
        for name, function in spread.SPREAD.items()
    }
    found["pooled"] = study.measure.pooled(merits, counts)
    return {name: found[name] for name in STATISTICS}


def across_clients(study: Study, label: str, seed: int, part: str = "test") -> dict[str, Floats]:
    """:func:`statistics` of one trial; of clients that share nothing but sums, those that follow
    from sums, the others NaN."""
    trial = study.trials[label, seed]
    if trial.by_client:
        return statistics(
            study, study.merits(label, seed, part=part), study.column(label, seed, "count")
        )
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
        sampled = is_sampled(study) and study.measure.has_sample_intervals
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
    elif name in OF_SHARES or study.measure.column == "accuracy":
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


def is_sampled(study: Study) -> bool:
    """Whether the values of single samples are known."""
    return all(trial.values is not None for trial in study.trials.values())


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


def ledger(study: Study, level: float = 0.95, least: int = 10) -> list[Entry]:
    """Every client, group and team against FedAvg and against staying alone.

    Where data were dealt anew with each seed, clients are others with each, and the ledger is that
    of the first seed. Without the values of single samples there is none: nobody could say which
    gains are chance.
    """
    entries: list[Entry] = []
    if not is_sampled(study):
        return entries
    seeds = study.judged_seeds
    for against in dict.fromkeys(
        label for label in (study.reference, study.alone) if label is not None
    ):
        for label in study.labels:
            if label != against:
                for by in ("client", "group", "team"):
                    entries += _entries(study, label, against, by, seeds, level, least)
    return entries


def _entries(
    study: Study, label: str, against: str, by: str, seeds: Sequence[int], level: float, least: int
) -> list[Entry]:
    names, samples = study.names(by), study.sizes(by).tolist()
    if not names:
        return []
    new, old = (
        np.mean([study.merits(known, seed, by) for seed in seeds], 0) for known in (label, against)
    )
    low, high, p = _gain_ends(study, label, against, by, seeds, level, new - old, -(new + old))
    enough = np.array(samples) >= max(1, least)
    adjusted = holm(np.where(enough, p, np.nan).tolist()).tolist()
    teams = study.teams if by == "client" else ("",) * len(names)
    columns = zip(
        names,
        teams,
        samples,
        new.tolist(),
        old.tolist(),
        low.tolist(),
        high.tolist(),
        p.tolist(),
        adjusted,
        strict=True,
    )
    return [
        Entry(
            by,
            name,
            team,
            count,
            label,
            against,
            mine,
            its,
            Interval(mine - its, down, up),
            one,
            fair,
            _verdict(mine - its, fair, level),
        )
        for name, team, count, mine, its, down, up, one, fair in columns
    ]


def _verdict(gain: float, adjusted: float, level: float) -> str:
    if math.isnan(adjusted):
        return "few"
    return "unclear" if adjusted >= 1 - level or gain == 0 else "gains" if gain > 0 else "harmed"


def _gain_ends(
    study: Study,
    label: str,
    against: str,
    by: str,
    seeds: Sequence[int],
    level: float,
    gain: Floats,
    errors: Floats,
) -> tuple[Floats, Floats, Floats]:
    """(K,) ends of the intervals of gains, and p-values; NaN where the samples' own values were not
    kept."""
    first = study.trials[label, seeds[0]]
    pairs = [
        (study.trials[label, seed].values, study.trials[against, seed].values) for seed in seeds
    ]
    kept = [(new, old) for new, old in pairs if new is not None and old is not None]
    cell = _cells(study, first.sample_client, first.sample_group, by)
    none = np.full(len(gain), np.nan)
    if cell is None or len(kept) < len(pairs):
        return none, none, none
    classifies = study.measure.column == "accuracy"
    gains = np.stack([new - old if classifies else old - new for new, old in kept], 1)
    member = cell >= 0
    judged = Gains.of(gains[member], cell[member], len(gain)).judged(level, bounded=classifies)
    # a difference of roots is that of the squares over the sum of the roots
    scale = 1 / np.where(errors > 0, errors, np.nan) if study.measure.squared else 1.0
    return (
        gain + (judged.low - judged.gain) * scale,
        gain + (judged.high - judged.gain) * scale,
        judged.p,
    )


def _cells(study: Study, client: Any, group: Any, by: str) -> NDArray[np.int64] | None:
    """(N,) the client, group or team of each sample; -1 for none."""
    if client is None or by == "client":
        return None if client is None else client.astype(np.int64)
    return np.asarray(group, np.int64) if by == "group" else study.team_codes[client]


def gaps(
    study: Study,
    by: str = "group",
    level: float = 0.95,
    least: int = 10,
    positive: str | None = None,
    draws: int = 400,
) -> dict[str, dict[str, Interval]]:
    """Gaps between groups (or teams), by method, then by kind ("accuracy parity", "demographic
    parity", ...); {} without groups.

    ``positive``: the label that rates are about, by default the last of two, and of more the one
    that differs most. The mean over seeds of the gap and of the ends of its interval under
    resampling of test samples: the interval of a single training.
    """
    require_choice("by", by, ("group", "team"))
    if len(study.names(by)) < 2:
        return {}
    found: dict[str, dict[str, Interval]] = {}
    for label in study.labels:
        trials = [study.trials[label, seed] for seed in study.seeds]
        counted = [trial.counts for trial in trials if trial.counts is not None]
        if len(counted) < len(trials):
            continue
        if by == "team":
            counted = [
                counts.with_groups(study.names("team"), study.team_codes) for counts in counted
            ]
        judged = [
            Audit(counts, positive, level=level, least=least, draws=draws).across_groups()
            | _calibration(study, trial, by, level, least, draws)
            for counts, trial in zip(counted, trials, strict=True)
        ]
        found[label] = {
            kind: Interval(*np.mean([np.array(one[kind]) for one in judged], 0).tolist())
            for kind in judged[0]
        }
    return {label: kinds for label, kinds in found.items() if kinds}


def _calibration(
    study: Study, trial: Trial, by: str, level: float, least: int, draws: int
) -> dict[str, Interval]:
    """The gap in calibration errors, for models whose scores are probabilities; resampled scores
    are the mean ones of their bins."""
    if "brier" not in trial.tally:
        return {}
    scored, score = (trial.tally[name] for name in ("scored", "score"))  # (n, A, 2, BINS)
    if by == "group":
        scored, score = scored.sum(0), score.sum(0)
    else:
        members = [study.team_codes == code for code in range(len(study.names("team")))]
        scored, score = (
            np.stack([table[member].sum((0, 1)) for member in members]) for table in (scored, score)
        )
    kept = scored.sum((1, 2)) >= max(1, least)
    if kept.sum() < 2:
        return {}
    scored, mean = scored[kept].astype(np.int64), score[kept] / np.maximum(scored[kept], 1)
    sizes, rng = scored.sum((1, 2)), np.random.default_rng(0)
    drawn = np.stack(
        [
            rng.multinomial(n, table.ravel() / n, draws)
            for n, table in zip(sizes, scored, strict=True)
        ],
        1,
    )
    drawn = drawn.reshape(draws, *scored.shape)
    errors = (calibration.calibration_error(table, table * mean) for table in (scored, drawn))
    return {"calibration": gap_interval([next(errors)], [next(errors)], level)}


def front(study: Study, fairness: str = "worst10", part: str = "test") -> list[Point]:
    """Every method by its mean and a fairness number ("worst10", "std", "min", ...), means over
    seeds."""
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
