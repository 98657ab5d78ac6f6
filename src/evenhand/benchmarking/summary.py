"""What the federations say together: wins, ties and losses against FedAvg, ranks, costs, and the
answer in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evenhand.benchmarking.standing import GROUP, Against, Standing
from evenhand.studies.analysis.writing import listed

COUNTED = ("mean", "worst10", GROUP, "std")
BEATS = ("mean", "worst10", GROUP)  # a smaller spread alone may be equally bad for all


@dataclass(frozen=True)
class Score:
    """A method over all federations that it was run on."""

    label: str
    personal: bool
    federations: int
    # by number: federations where it is significantly better than FedAvg, not different,
    # significantly worse
    counts: Mapping[str, tuple[int, int, int]]
    alone: Mapping[str, tuple[int, int, int]]  # the same against staying alone
    ranks: Mapping[str, float]  # mean rank, by number
    # geometric means of the ratio to FedAvg's
    seconds: float
    numbers: float
    edges: int  # federations where a chosen setting was the smallest or largest tried
    diverged: int

    @property
    def wins(self) -> int:
        """Federations where it lifts the worst 10 %."""
        return self.counts.get("worst10", (0, 0, 0))[0]

    def beats(self) -> bool:
        """Whether it beats FedAvg anywhere, in the mean, the worst 10 % or the worst group."""
        return any(self.counts[name][0] for name in BEATS if name in self.counts)


def scores(standings: Sequence[Standing]) -> list[Score]:
    """Every method but FedAvg that some federation was run with, by wins less losses in the worst
    10 %, then by mean rank."""
    labels = dict.fromkeys(
        label for one in standings for label in (*one.labels, *one.diverged) if label != "fedavg"
    )
    found = [_score(label, standings) for label in labels]

    def order(score: Score) -> tuple[float, float]:
        win, _, loss = score.counts.get("worst10", (0, 0, 0))
        return loss - win, score.ranks.get("worst10", math.inf)

    return sorted(found, key=order)


def _score(label: str, standings: Sequence[Standing]) -> Score:
    there = [one for one in standings if label in one.rows and "fedavg" in one.rows]
    records = [one.records[label] for one in there]
    references = [one.records["fedavg"] for one in there]
    pairs = list(zip(records, references, strict=True))
    timed = [
        one.seconds / other.seconds
        for one, other in pairs
        if one.seconds
        and other.seconds
        and (one.machine, one.device) == (other.machine, other.device)
    ]
    return Score(
        label,
        any(record.personal for record in records),
        len(there),
        _counted([one.to_fedavg.get(label, {}) for one in there]),
        _counted([one.to_alone.get(label, {}) for one in there]),
        {
            name: float(np.mean([one.ranks[name][label] for one in there]))
            for name in ("mean", "worst10")
            if there
        },
        _geometric(timed),
        _geometric([(one.down + one.up) / (other.down + other.up) for one, other in pairs]),
        sum(bool(record.at_edge) for record in records),
        sum(label in one.diverged for one in standings),
    )


def _counted(found: Sequence[Mapping[str, Against]]) -> dict[str, tuple[int, int, int]]:
    counts = {}
    for name in COUNTED:
        verdicts = [row[name].verdict for row in found if name in row]
        if verdicts:
            counts[name] = (verdicts.count(1), verdicts.count(0), verdicts.count(-1))
    return counts


def _geometric(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios)))) if len(ratios) else math.nan


def answer(standings: Sequence[Standing]) -> list[str]:
    """What to reach for, what does not beat FedAvg, and what it costs, in words."""
    told = scores(standings)
    if not told:
        return ["No method has been compared with FedAvg yet."]
    fair = [score for score in told if score.label != "localonly"]
    count = len([one for one in standings if "fedavg" in one.rows])
    sentences = [
        sentence
        for personal, what in ((False, "one shared model"), (True, "a model for each client"))
        if (sentence := _reach([s for s in fair if s.personal == personal], what, count))
    ]
    never = [score.label for score in fair if not score.beats()]
    if never:
        sentences.append(
            "No significant gain over a tuned FedAvg on any federation, in the mean, the worst"
            f" 10 % or the worst group: {listed(never, 99)}."
        )
    pay = [score for score in fair if score.counts.get("mean", (0, 0, 0))[2]]
    if pay:
        named = [f"{score.label} ({score.counts['mean'][2]})" for score in pay]
        sentences.append(f"These lower the mean (on how many federations): {listed(named, 99)}.")
    sentences.append(_alone(standings))
    return [sentence for sentence in sentences if sentence]


def _reach(found: Sequence[Score], what: str, count: int) -> str:
    """The methods that lift the worst 10 % most often."""
    best = max((score.wins for score in found), default=0)
    if not found:
        return ""
    if not best:
        return (
            f"With {what}, no method significantly lifts the worst 10 % of clients above a tuned"
            f" FedAvg on {'this federation' if count == 1 else f'any of {count} federations'}."
        )
    first = [score for score in found if score.wins == best]
    losses = [
        f"{score.label} loses on {score.counts['worst10'][2]}"
        for score in first
        if score.counts["worst10"][2]
    ]
    also = f" ({listed(losses, 9)})" if losses else ""
    names = listed([score.label for score in first], 9)
    lift = "lifts" if len(first) == 1 else "lift"
    return (
        f"With {what}, {names} {lift} the worst 10 % of clients above a tuned FedAvg most often: on"
        f" {best} of {count} federation{'s' * (count != 1)}{also}."
    )


def _alone(standings: Sequence[Standing]) -> str:
    """Where local-only training is better than FedAvg."""
    there = [one for one in standings if "localonly" in one.to_fedavg]
    better = [one.federation for one in there if one.to_fedavg["localonly"]["worst10"].verdict > 0]
    worse = [one.federation for one in there if one.to_fedavg["localonly"]["worst10"].verdict < 0]
    if not there:
        return ""
    parts = []
    if better:
        parts.append(f"better than FedAvg for the worst 10 % on {listed(better, 99)}")
    if worse:
        parts.append(f"worse on {listed(worse, 99)}")
    if not parts:
        return (
            "Local-only training does not differ significantly from FedAvg for the worst 10 %"
            " anywhere."
        )
    return f"Local-only training is {' and '.join(parts)}."
