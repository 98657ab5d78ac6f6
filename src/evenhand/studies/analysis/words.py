"""The details behind the answer in plain words: which measure, which clients, at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenhand.metrics.spread import tenth
from evenhand.studies.analysis.about_intervals import what_intervals_are
from evenhand.studies.analysis.answer import guess_merit, warnings
from evenhand.studies.analysis.evidence import Evidence
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.writing import change, count_of, listed, signed, size
from evenhand.studies.runs.study import Study

# methods that are spoken of for what they do for those served worst; those that do harm are spoken
# of in any case
MOST_RANKED = 3


def sentences(found: Evidence) -> list[str]:
    """All that there is to say, the most important first."""
    study, comparison = found.study, found.comparison
    lines = [*warnings(found), *(line for label in study.labels if (line := _void(study, label)))]
    if study.reference is not None:
        lines += [_effect(found, label) for label in _worth_a_sentence(found)]
        lines += [line for label in found.others if (line := _leaning(found, label))]
        lines += [_served_worst(found, study.reference)] if len(study.names("client")) > 1 else []
        if study.alone is not None and found.entries:
            lines.append(_alone(found, study.reference, study.alone))
        lines += [line for label in found.others if (line := _moved(found, label))]
        lines += [_guess(study)]
    lines += [
        _own_models(study, label)
        for label in study.labels
        if f"shared_{study.measure.column}" in study.trials[label, study.seeds[0]].score_columns
    ]
    lines += [_not_shared(study)] if study.sums_only else []
    return [line for line in [*lines, what_intervals_are(study, comparison)] if line]


def _void(study: Study, label: str) -> str:
    """That nobody answered in some rounds, so that less was trained than it seems."""
    answered = np.concatenate(
        [
            np.asarray(study.trials[label, seed].history_columns.get("answered", ()), dtype=float)
            for seed in study.seeds
        ]
    )
    void, rounds = int((answered == 0).sum()), len(answered)
    return (
        f"In {void} of the {rounds} rounds of {label} no client's reply counted, so nothing was"
        " learned in them."
        if void
        else ""
    )


def _worth_a_sentence(found: Evidence) -> list[str]:
    """The methods that do most for those served worst, then all others that cost somebody
    something."""
    comparison, worst = found.comparison, found.worst[0]
    known = [label for label in found.others if not math.isnan(comparison.rows[label][worst].value)]
    ranked = sorted(known, key=lambda label: -comparison.rows[label][worst].value)
    return [
        label
        for place, label in enumerate(ranked)
        if place < MOST_RANKED or found.costs(label) or found.may_cost(label)
    ]


def _effect(found: Evidence, label: str) -> str:
    """A method's effect on those served worst, and on the mean."""
    study, comparison, (name, who) = found.study, found.comparison, found.worst
    worst, mean = (comparison.differences[label][number] for number in (name, "mean"))
    what, better, other = study.measure.words
    if comparison.over == "nothing":
        of_worst, of_mean = (
            f"{signed(study, one.interval.value)} {study.measure.points}".rstrip()
            for one in (worst, mean)
        )
        without = "" if study.sampled else " without values of single samples"
        return (
            f"Compared with FedAvg, {label} changes {what} by {of_worst} for {who} and by {of_mean}"
            f" on average; one training{without} cannot tell that from chance."
        )
    warning = _few_among_the_worst(found, label)
    if not (worst.better or worst.worse or mean.better or mean.worse):
        return (
            f"{label} shows no significant change of {what}, for {who}"
            f" ({change(study, worst.interval)}) or on average ({change(study, mean.interval)})."
            f"{warning}"
        )
    if worst.better or worst.worse:
        verb = better if worst.better else other
        first = f"{verb} the {what} of {who} by {size(study, worst.interval)}"
    else:
        first = f"shows no significant change for {who} ({change(study, worst.interval)})"
    if mean.better or mean.worse:
        verb = better if mean.better else other
        second = f"{verb} mean {what} by {size(study, mean.interval)}"
    else:
        second = f"shows no significant change on average ({change(study, mean.interval)})"
    return f"Compared with FedAvg, {label} {first} and {second}.{warning}"


def _leaning(found: Evidence, label: str) -> str:
    """What clients show together where hardly one of them could alone."""
    one = found.collective.get((label, str(found.study.reference)))
    if one is None:
        return ""
    side, count = ("lose", one.lose) if one.lose > one.gain else ("gain", one.gain)
    return (
        f"{count} of the {one.changed} clients that changed {side} with {label} compared with"
        f" FedAvg (sign test, p {_p(one.p)}); the mean over all clients changes by"
        f" {change(found.study, one.mean)}."
    )


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _few_among_the_worst(found: Evidence, label: str) -> str:
    """A warning where those that a method, or FedAvg, serves worst have few samples."""
    study, least = found.study, found.least
    if study.sums_only:
        return ""
    samples, names = study.sizes(), study.names("client")
    worst: dict[int, None] = {}
    for known in (study.reference, label):
        merits = np.mean([study.merits(str(known), seed) for seed in study.judged_seeds], 0)
        judged = np.flatnonzero(~np.isnan(merits))
        worst |= dict.fromkeys(
            judged[np.argsort(merits[judged], kind="stable")][: tenth(len(judged))].tolist()
        )
    few = [f"{names[client]} ({samples[client]})" for client in worst if samples[client] < least]
    if not few:
        return ""
    return (
        f" Clients with fewer than {least} {study.measure.part} samples are among the worst:"
        f" {listed(few)}."
    )


def _served_worst(found: Evidence, label: str) -> str:
    """Whom a method serves worst, and whom best, of those with enough samples."""
    study, least = found.study, found.least
    measure, samples, names = study.measure, study.sizes(), study.names("client")
    ends = found.ends(label)
    if ends is None:
        return (
            f"No client has {least} {measure.part} samples or more, too few to say whom FedAvg"
            " serves worst."
        )
    left = int((samples < max(1, least)).sum())
    among = (
        f" of the {len(names) - left} clients with at least {least} {measure.part} samples"
        if left
        else ""
    )
    low, high = (f"{measure.show(value)}{measure.percent}" for value in (ends.low, ends.high))
    if ends.low == ends.high:
        return f"FedAvg serves all{among or ' clients'} alike: {measure.name} {low}."
    count = int(samples[ends.worst])
    one = (
        f", where one sample is {100 / count:.1f} points"
        if measure.of_shares and count < 100
        else ""
    )
    return (
        f"FedAvg serves {names[ends.worst]} worst{among}: {measure.name} {low} on"
        f" {count_of(count, f'{measure.part} sample')}{one}, compared with {high} for"
        f" {names[ends.best]}."
    )


def _alone(found: Evidence, reference: str, alone: str) -> str:
    """Whom FedAvg harms against staying alone, and whom it helps."""
    rows = found.rows(reference, alone)
    harmed, gaining = (found.judged(reference, alone, verdict) for verdict in ("harmed", "gains"))
    among = _judged(found, rows)
    if not harmed and not gaining:
        return f"Of {among}, none is shown to gain or lose with FedAvg compared with staying alone."
    lose = f"{len(harmed)} lose{'s' * (len(harmed) == 1)}"
    lose += f": {_listed(found.study, harmed)}" if harmed else ""
    gain = f"{len(gaining)} gain{'s' * (len(gaining) == 1)}"
    return f"Of {among}, with FedAvg compared with staying alone {gain} and {lose}."


def _moved(found: Evidence, label: str) -> str:
    """Which clients, groups and teams a method harms, and how many it serves better than FedAvg
    does."""
    study, parts = found.study, []
    for by in study.kinds:
        rows = found.rows(label, study.reference, by)
        gaining, harmed = (
            found.judged(label, study.reference, verdict, by) for verdict in ("gains", "harmed")
        )
        if gaining or harmed:
            gain, lose = (
                f"{len(some)} {verb}{'s' * (len(some) == 1)}"
                for some, verb in ((gaining, "gain"), (harmed, "lose"))
            )
            worst = f", {_listed(study, harmed)}" if harmed else ""
            parts.append(f"of {_judged(found, rows)} {gain} and {lose}{worst}")
    return f"With {label}, significantly compared with FedAvg: {'; '.join(parts)}." if parts else ""


def _judged(found: Evidence, rows: Sequence[Entry]) -> str:
    """How many of a kind there are to judge, in words."""
    judged, by = sum(entry.verdict != "few" for entry in rows), rows[0].by
    if judged == len(rows):
        return count_of(judged, by)
    return (
        f"the {judged} of {count_of(len(rows), by)} with at least {found.least}"
        f" {found.study.measure.part} samples"
    )


def _guess(study: Study) -> str:
    """What a model that knows nothing would come to."""
    guess = guess_merit(study)
    if guess is None:
        return ""
    constant = "the most frequent label" if study.measure.percent else "the mean"
    reached = study.measure.show(guess) + study.measure.percent
    return f"Always predicting {constant} would reach a mean {study.measure.name} of {reached}."


def _own_models(study: Study, label: str) -> str:
    """What clients' own models are worth beside the shared one."""
    measure, column = study.measure, f"shared_{study.measure.column}"
    own = float(np.mean([np.nanmean(study.merits(label, seed)) for seed in study.seeds]))
    shared = np.array([study.column(label, seed, column) for seed in study.seeds])
    merit = float(np.nanmean(measure.merit(shared)))
    of_own, of_shared = (f"{measure.show(value)}{measure.percent}" for value in (own, merit))
    return (
        f"{label} gives each client a model of its own: mean {measure.name} {of_own}, and"
        f" {of_shared} with its shared model."
    )


def _not_shared(study: Study) -> str:
    """That single clients told nothing of how they fare."""
    them = "" if len(study.sums_only) == len(study.labels) else f" of {', '.join(study.sums_only)}"
    rounded = ", the worst and the best to 0.05 points" if study.measure.percent else ""
    return (
        f"How single clients{them} fare was not shared with the server; numbers over clients come"
        f" from sums{rounded}."
    )


def _listed(study: Study, entries: Sequence[Entry], most: int = 5) -> str:
    return listed([f"{entry.name} ({signed(study, entry.gain.value)})" for entry in entries], most)
