"""The results of a study in plain words: which measure, over which clients, at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenhand.metrics.spread import tenth
from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.analysis.writing import amount, change, ends, signed
from evenhand.studies.runs.study import Study

# methods that are spoken of for what they do for the worst tenth; those that do harm are spoken of
# in any case
MOST_RANKED = 3


def sentences(
    study: Study, comparison: Comparison, entries: Sequence[Entry], least: int = 10
) -> list[str]:
    """The result in plain words, the most important first."""
    reference, alone = study.reference, study.alone
    fair = [label for label in study.labels if label not in (reference, alone)]
    lines = []
    if study.measure.part == "training":
        lines.append(
            "There are no test data: all numbers are about the samples that were trained with, and"
            " look better than they would."
        )
    lines += [line for label in study.labels if (line := _void(study, label))]
    if reference is not None:
        lines += [
            _lift(study, comparison, label, least) for label in _worth_a_sentence(comparison, fair)
        ]
        lines += [
            _served_worst(study, reference, by, least)
            for by in ("client", "group")
            if len(study.names(by)) > 1
        ]
    if reference is not None and alone is not None and entries:
        lines.append(_alone(study, entries, least))
    lines += [line for label in fair if (line := _moved(study, entries, label, least))]
    lines += [
        _own_models(study, label)
        for label in study.labels
        if "shared_loss" in study.trials[label, study.seeds[0]].score_columns
    ]
    return [
        *lines,
        *([_not_shared(study)] if study.sums_only else []),
        _what_intervals_are(study, comparison),
    ]


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
        f"In {void} of the {rounds} rounds of {label} no client's reply counted: nothing was"
        " learned in them."
        if void
        else ""
    )


def _worth_a_sentence(comparison: Comparison, labels: Sequence[str]) -> list[str]:
    """The methods that do most for the worst tenth, then all others that are significantly worse
    than FedAvg in it or in the mean."""
    known = [label for label in labels if not math.isnan(comparison.rows[label]["worst10"].value)]
    ranked = sorted(known, key=lambda label: -comparison.rows[label]["worst10"].value)
    return [
        label
        for place, label in enumerate(ranked)
        if place < MOST_RANKED
        or any(comparison.differences[label][name].worse for name in ("worst10", "mean", "pooled"))
    ]


def _not_shared(study: Study) -> str:
    """That single clients told nothing of how they fare."""
    them = "" if len(study.sums_only) == len(study.labels) else f" of {', '.join(study.sums_only)}"
    rounded = ", the worst and the best to 0.05 points" if study.measure.percent else ""
    return (
        f"How single clients{them} fare was not shared with the server; numbers over clients are"
        f" made of sums{rounded}."
    )


def _lift(study: Study, comparison: Comparison, label: str, least: int) -> str:
    """A method's effect on the worst tenth, and what it costs in the mean."""
    worst, mean = (comparison.differences[label][name] for name in ("worst10", "mean"))
    what, better, other = study.measure.words
    if comparison.over == "nothing":
        of_worst, of_mean = (
            f"{signed(study, one.interval.value)} {study.measure.points}".rstrip()
            for one in (worst, mean)
        )
        changes = f"{of_worst} for the worst 10 % of clients and {of_mean} in the mean"
        without = "" if study.sampled else " without values of samples"
        return (
            f"Against FedAvg, {label} changes {what} by {changes}. One training{without} cannot"
            " tell that from chance."
        )
    moved, paid = worst.better or worst.worse, mean.better or mean.worse
    warning = _few_among_the_worst(study, label, least)
    if not moved and not paid:
        changes = (
            f"worst 10 % of clients {change(study, worst.interval)}, mean"
            f" {change(study, mean.interval)}"
        )
        return (
            f"Against FedAvg, {label} changes {what} neither of the worst 10 % nor on average"
            f" significantly: {changes}.{warning}"
        )
    if moved:
        verb = better if worst.better else other
        effect = (
            f"{verb} the {what} of the worst 10 % of clients by"
            f" {amount(study, worst.interval.value)} {ends(study, worst.interval)}"
        )
    else:
        effect = (
            f"does not change the {what} of the worst 10 % of clients significantly"
            f" ({change(study, worst.interval)})"
        )
    if not paid:
        cost = f"does not change mean {what} significantly ({change(study, mean.interval)})"
    elif study.measure.percent:
        cost = (
            f"{'gains' if mean.better else 'costs'} {amount(study, mean.interval.value)} of mean"
            f" {what} {ends(study, mean.interval)}"
        )
    else:
        cost = (
            f"{better if mean.better else other} mean {what} by"
            f" {amount(study, mean.interval.value)} {ends(study, mean.interval)}"
        )
    return f"Against FedAvg, {label} {effect} and {cost}.{warning}"


def _few_among_the_worst(study: Study, label: str, least: int) -> str:
    """A warning where the worst tenth of a method, or of FedAvg, are clients with few samples."""
    if study.sums_only:
        return ""
    samples, names = study.sizes(), study.names("client")
    found: dict[int, None] = {}
    for known in (study.reference, label):
        merits = np.mean([study.merits(str(known), seed) for seed in study.judged_seeds], 0)
        judged = np.flatnonzero(~np.isnan(merits))
        found |= dict.fromkeys(
            judged[np.argsort(merits[judged], kind="stable")][: tenth(len(judged))].tolist()
        )
    few = [f"{names[client]} ({samples[client]})" for client in found if samples[client] < least]
    if not few:
        return ""
    more = f" and {len(few) - 5} more" if len(few) > 5 else ""
    return (
        f" Mind that clients with fewer than {least} {study.measure.part} samples are among the"
        f" worst 10 %: {', '.join(few[:5])}{more}."
    )


def _served_worst(study: Study, label: str, by: str, least: int) -> str:
    """Whom a method serves worst, and whom best, of those with enough samples."""
    measure, samples, names = study.measure, study.sizes(by), study.names(by)
    merits = np.mean([study.merits(label, seed, by) for seed in study.judged_seeds], 0)
    merits = np.where(samples >= max(1, least), merits, np.nan)
    if np.isnan(merits).all():
        return (
            f"No {by} has {least} {measure.part} samples or more: too few to say whom FedAvg serves"
            " worst."
        )
    worst, best = int(np.nanargmin(merits)), int(np.nanargmax(merits))
    left = int((samples < max(1, least)).sum())
    among = (
        f" of the {len(names) - left} {by}s with at least {least} {measure.part} samples"
        if left
        else ""
    )
    if merits[worst] == merits[best]:
        return (
            f"FedAvg serves all{among or f' {by}s'} alike: {measure.name}"
            f" {measure.show(float(merits[worst]))}{measure.percent}."
        )
    low, high = (
        f"{measure.show(float(merits[place]))}{measure.percent}" for place in (worst, best)
    )
    count = int(samples[worst])
    one = (
        f", where one sample is {100 / count:.1f} points" if measure.percent and count < 100 else ""
    )
    text = (
        f"{measure.name} {low} on {count} {measure.part} samples{one}, against {high} for"
        f" {names[best]}"
    )
    return f"FedAvg serves {by} {names[worst]} worst{among}: {text}."


def _alone(study: Study, entries: Sequence[Entry], least: int) -> str:
    """Whom FedAvg harms against staying alone."""
    rows = [
        entry
        for entry in entries
        if entry.by == "client" and entry.method == study.reference and entry.against == study.alone
    ]
    harmed = sorted(
        (entry for entry in rows if entry.verdict == "harmed"), key=lambda entry: entry.gain.value
    )
    among = _judged(study, rows, least)
    if not harmed:
        return f"Of {among}, none is significantly worse off with FedAvg than alone."
    verb = "is" if len(harmed) == 1 else "are"
    return (
        f"Of {among}, {len(harmed)} {verb} significantly worse off with FedAvg than alone:"
        f" {_listed(study, harmed)}."
    )


def _moved(study: Study, entries: Sequence[Entry], label: str, least: int) -> str:
    """Which clients, groups and teams a method harms, and how many it serves better than FedAvg
    does."""
    parts = []
    for by in study.kinds:
        rows = [
            entry
            for entry in entries
            if entry.by == by and entry.method == label and entry.against == study.reference
        ]
        gaining, harmed = (
            [entry for entry in rows if entry.verdict == verdict] for verdict in ("gains", "harmed")
        )
        if gaining or harmed:
            gain, lose = (
                f"{len(some)} {verb}{'s' * (len(some) == 1)}"
                for some, verb in ((gaining, "gain"), (harmed, "lose"))
            )
            worst = (
                f", {_listed(study, sorted(harmed, key=lambda entry: entry.gain.value))}"
                if harmed
                else ""
            )
            parts.append(f"of {_judged(study, rows, least)} {gain} and {lose}{worst}")
    return f"Against FedAvg, significantly, with {label}: {'; '.join(parts)}." if parts else ""


def _judged(study: Study, rows: Sequence[Entry], least: int) -> str:
    """How many of a kind there are to judge, in words."""
    judged, by = sum(entry.verdict != "few" for entry in rows), rows[0].by
    if judged == len(rows):
        return f"{judged} {by}s"
    return f"the {judged} of {len(rows)} {by}s with at least {least} {study.measure.part} samples"


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


def _listed(study: Study, entries: Sequence[Entry], most: int = 5) -> str:
    shown = ", ".join(
        f"{entry.name} ({signed(study, entry.gain.value)})" for entry in entries[:most]
    )
    return shown + (f" and {len(entries) - most} more" if len(entries) > most else "")


def _what_intervals_are(study: Study, comparison: Comparison) -> str:
    samples, several = f"{study.measure.part} samples", len(study.seeds) > 1
    one = "" if several or study.folds else ", for this one training"
    folds = f" ({study.folds}-fold cross-validation: each is tested once)" if study.folds else ""
    if comparison.over == "nothing":
        why = (
            "and numbers of a loss of one's own"
            if study.sampled
            else "and samples are with the nodes: numbers"
        )
        return (
            f"There is one seed, {why} across clients have no intervals. Runs with more seeds have."
        )
    about = {
        "seeds+samples": f"over {len(study.seeds)} seeds and other {samples} of the same clients",
        "splits": f"over {len(study.seeds)} splits of the data, corrected for what splits share",
        "seeds": f"over {len(study.seeds)} seeds (Student's)",
        "samples": f"over other {samples} of the same clients{one}{folds}",
        "clients": "over other clients like these",
        "both": f"over other clients like these and other {samples}",
    }[comparison.over]
    seeds = (
        " and over seeds"
        if several and study.same_data
        else " and over splits"
        if several and study.same_clients
        else f", with seed {study.seeds[0]}"
        if several
        else ""
    )
    whose = "gaps between groups" if study.sums_only else "single clients, groups and teams"
    single = f"those of {whose} over their {samples}{seeds}"
    return (
        f"Intervals of numbers across clients are {comparison.level:.0%}, {about}; {single}."
        " Differences are paired, and intervals of differences to FedAvg hold for all methods at"
        " once: significant are those that exclude 0. For single clients, groups and teams what is"
        " significant is so after Holm's correction."
    )
