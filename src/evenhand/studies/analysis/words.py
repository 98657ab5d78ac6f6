"""The details behind the answer, in plain words: which clients, which groups, at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenhand.metrics.spread import tenth
from evenhand.studies.analysis.about_intervals import what_intervals_are
from evenhand.studies.analysis.answer import guess_merit, warnings
from evenhand.studies.analysis.convergence import stopped_early
from evenhand.studies.analysis.evidence import Evidence
from evenhand.studies.analysis.groups import known_gaps, spoken_of
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.local_in_words import local_sentence
from evenhand.studies.analysis.privacy_in_words import about_privacy
from evenhand.studies.analysis.writing import (
    change,
    client,
    count_of,
    gain,
    listed,
    loss,
    out_of,
    signed,
    size,
)
from evenhand.studies.runs.study import Study
from evenhand.training.bounds import unmet

# methods that get a sentence for what they do for the worst-served clients; those that do harm
# always get one
MOST_RANKED = 3


def sentences(found: Evidence) -> list[str]:
    """All sentences about a study, most important first."""
    study, comparison = found.study, found.comparison
    lines = [*warnings(found), *(line for label in study.labels if (line := _void(study, label)))]
    lines += [line for label in study.labels if (line := _unmet(study, label))]
    lines += [line for label in study.labels if (line := stopped_early(study, label))]
    lines += [line for label in study.labels if (line := about_privacy(study, label))]
    if study.reference is not None:
        lines += [_effect(found, label) for label in _worth_a_sentence(found)]
        lines += [line for label in found.others if (line := _leaning(found, label))]
        lines += [_served_worst(found, study.reference)] if len(study.names("client")) > 1 else []
        if study.alone is not None and found.entries:
            lines.append(_alone(found, study.reference, study.alone))
        lines += [line for label in found.others if (line := _moved(found, label))]
        lines += [_within_clients(found, study.reference), _guess(study)]
    lines += [
        _own_models(study, label)
        for label in study.labels
        if f"shared_{study.measure.column}" in study.trials[label, study.seeds[0]].score_columns
    ]
    lines += [_not_shared(study)] if study.sums_only else []
    return [line for line in [*lines, what_intervals_are(study, comparison)] if line]


def _void(study: Study, label: str) -> str:
    """A warning about rounds in which no client's reply could be used."""
    answered = np.concatenate(
        [
            np.asarray(study.trials[label, seed].history_columns.get("answered", ()), dtype=float)
            for seed in study.seeds
        ]
    )
    void, rounds = int((answered == 0).sum()), len(answered)
    return (
        f"In {void} of its {rounds} rounds, {label} received no usable reply from any client, so"
        " these rounds changed nothing."
        if void
        else ""
    )


def _unmet(study: Study, label: str) -> str:
    """A warning about a bound that a method was given and did not reach."""
    texts = [unmet(study.trials[label, seed].history_columns) for seed in study.seeds]
    missed = [text for text in texts if text]
    if not missed:
        return ""
    often = "" if len(texts) == 1 else f" (in {len(missed)} of {len(texts)} seeds; the first)"
    return f"{label}: on the training data{often}, {missed[0]}."


def _worth_a_sentence(found: Evidence) -> list[str]:
    """The methods that do most for the worst-served, then all others that cost somebody
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
    """A method's effect on the worst-served clients and on the mean."""
    study, comparison, (name, who) = found.study, found.comparison, found.worst
    worst, mean = (comparison.differences[label][number] for number in (name, "mean"))
    what, better, other = study.measure.words
    if comparison.over == "nothing":
        of_worst, of_mean = (
            f"{signed(study, one.interval.value)} {study.measure.points}".rstrip()
            for one in (worst, mean)
        )
        sign = "" if study.measure.percent else " (plus is better)"
        return (
            f"Compared with FedAvg, {label} changes {what} by {of_worst} for {who} and by {of_mean}"
            f" on average{sign}; with one seed and no intervals, this may be chance."
        )
    warning = _few_among_the_worst(found, label)
    if not (worst.better or worst.worse or mean.better or mean.worse):
        return (
            f"{label} shows no significant change in {what}, either for {who}"
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
    alike = (worst.better, worst.worse) == (mean.better, mean.worse)
    return f"Compared with FedAvg, {label} {first} {'and' if alike else 'but'} {second}.{warning}"


def _leaning(found: Evidence, label: str) -> str:
    """What clients show together where few would show it one by one."""
    one = found.collective.get((label, str(found.study.reference)))
    if one is None:
        return ""
    side, count = ("worse", one.lose) if one.lose > one.gain else ("better", one.gain)
    several = out_of(count, one.changed, "clients")
    return (
        f"{several[0].upper()}{several[1:]} whose {found.study.measure.words[0]} changes with"
        f" {label} do {side} than with FedAvg (sign test, p {_p(one.p)}); the mean over all"
        f" clients changes by {change(found.study, one.mean)}."
    )


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _few_among_the_worst(found: Evidence, label: str) -> str:
    """A warning if clients that a method or FedAvg serves worst have few samples."""
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
    few = [f"{client(names[i])} ({samples[i]})" for i in worst if samples[i] < least]
    if not few:
        return ""
    return (
        f" Some of the worst-served clients have fewer than {least} {study.measure.part} samples:"
        f" {listed(few)}."
    )


def _served_worst(found: Evidence, label: str) -> str:
    """Which clients a method serves worst and best, among those with enough samples."""
    study, least = found.study, found.least
    measure, samples, names = study.measure, study.sizes(), study.names("client")
    ends = found.ends(label)
    if ends is None:
        return (
            f"No client has the {least} {measure.part} samples needed to say which one FedAvg"
            " serves worst."
        )
    left = int((samples < max(1, least)).sum())
    among = (
        f"Among the {len(names) - left} clients with at least {least} {measure.part} samples, "
        if left
        else ""
    )
    low, high = (f"{measure.show(value)}{measure.percent}" for value in (ends.low, ends.high))
    if ends.low == ends.high:
        return f"{among}FedAvg serves all clients equally well: {measure.name} {low}."
    count = int(samples[ends.worst])
    one = f" (one sample is {100 / count:.1f} points)" if measure.of_shares and count < 100 else ""
    return (
        f"{among}FedAvg serves {client(names[ends.worst])} worst: {measure.name} {low} on"
        f" {count_of(count, f'{measure.part} sample')}{one}, compared with {high} for"
        f" {client(names[ends.best])}."
    )


def _alone(found: Evidence, reference: str, alone: str) -> str:
    """Which clients FedAvg harms and helps compared with local-only training."""
    text = _better_and_worse(found, reference, alone, "client")
    if text:
        return f"Compared with local-only training, FedAvg {text}."
    rows = found.rows(reference, alone)
    if all(entry.verdict == "few" for entry in rows):
        return ""
    return (
        "FedAvg is neither significantly better nor significantly worse than local-only training"
        f" for any of {_judged(found, rows)}."
    )


def _moved(found: Evidence, label: str) -> str:
    """Which clients, groups and teams a method serves better or worse than FedAvg does."""
    found_by = (
        _better_and_worse(found, label, str(found.study.reference), by) for by in found.study.kinds
    )
    parts = [text for text in found_by if text]
    return f"Compared with FedAvg, {label} {'; it '.join(parts)}." if parts else ""


def _better_and_worse(found: Evidence, method: str, against: str, by: str) -> str:
    """A method's significant gains and losses for clients, groups or teams; "" if none."""
    study, rows = found.study, found.rows(method, against, by)
    gaining, harmed = (
        found.judged(method, against, verdict, by) for verdict in ("gains", "harmed")
    )
    if not gaining and not harmed:
        return ""
    if len(gaining) + len(harmed) == 1:
        return loss(study, harmed[0]) if harmed else gain(study, gaining[0])
    losers = f": {_listed(study, harmed)}" if harmed else ""
    if not gaining:
        return f"is significantly worse for {_judged(found, rows, len(harmed))}{losers}"
    worse = f" and worse for {len(harmed)}{losers}" if harmed else ""
    return f"is significantly better for {_judged(found, rows, len(gaining))}{worse}"


def _judged(found: Evidence, rows: Sequence[Entry], count: int | None = None) -> str:
    """All or some of the clients, groups or teams with enough samples: "3 of the 20 clients"."""
    judged, by = sum(entry.verdict != "few" for entry in rows), rows[0].by
    enough = f" with at least {found.least} {found.study.measure.part} samples"
    what = by if judged == 1 else f"{by}s"
    some = f"the {judged:,} {what}" if count is None else out_of(count, judged, what)
    return some + (enough if judged < len(rows) else "")


def _within_clients(found: Evidence, label: str) -> str:
    """Whether FedAvg treats groups alike within clients, and over all of them."""
    view, local = found.groups.get("group", {}).get(label), found.local.get(label, {})
    if view is None:
        return ""
    gap, known = spoken_of(view), known_gaps(view)
    kinds = [one.kind for one in ([gap] if gap is not None else known)]
    told = (local_sentence(view.gaps, local, kind, "FedAvg", found.least) for kind in kinds)
    return next(filter(None, told), "")


def _guess(study: Study) -> str:
    """What a constant prediction would reach."""
    guess = guess_merit(study)
    if guess is None:
        return ""
    constant = "the most frequent label" if study.measure.percent else "the mean"
    reached = study.measure.show(guess) + study.measure.percent
    return f"Always predicting {constant} would reach a mean {study.measure.name} of {reached}."


def _own_models(study: Study, label: str) -> str:
    """How clients' own models compare with the shared one."""
    measure, column = study.measure, f"shared_{study.measure.column}"
    own = float(np.mean([np.nanmean(study.merits(label, seed)) for seed in study.seeds]))
    shared = np.array([study.column(label, seed, column) for seed in study.seeds])
    merit = float(np.nanmean(measure.merit(shared)))
    of_own, of_shared = (f"{measure.show(value)}{measure.percent}" for value in (own, merit))
    return (
        f"{label} gives each client its own model: mean {measure.name} is {of_own} with these"
        f" models and {of_shared} with the shared model."
    )


def _not_shared(study: Study) -> str:
    """That the server saw sums over clients only."""
    every = len(study.sums_only) == len(study.labels)
    begin = "The" if every else f"For {listed(study.sums_only)}, the"
    rounded = ", the worst and the best to within 0.05 points" if study.measure.percent else ""
    return (
        f"{begin} server saw no scores client by client; metrics across clients come from sums"
        f"{rounded}."
    )


def _listed(study: Study, entries: Sequence[Entry], most: int = 5) -> str:
    return listed(
        [f"{_short(entry)} ({signed(study, entry.gain.value)})" for entry in entries], most
    )


def _short(entry: Entry) -> str:
    return client(entry.name) if entry.by == "client" else entry.name
