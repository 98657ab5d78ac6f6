"""The answer: who is harmed, which method to use, what it costs whom, and what to run next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.diverging import diverged_sentence, smaller_step_sizes
from evenhand.studies.analysis.evidence import RATE_OF, Evidence
from evenhand.studies.analysis.groups import disadvantaged
from evenhand.studies.analysis.prices import costs, price
from evenhand.studies.analysis.rates_in_words import groups_sentence
from evenhand.studies.analysis.without_reference import without_reference
from evenhand.studies.analysis.writing import (
    amount,
    change,
    client,
    count_of,
    listed,
    loss,
    named,
    size,
    whose,
)
from evenhand.studies.runs.merits import guessed
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.spec import NODES
from evenhand.training.about import PYTHON

MOST = 3  # sentences in an answer
FEW = 30  # test samples of a client; with fewer, one sample is more than 3 points


@dataclass(frozen=True)
class Answer:
    """What a busy reader should take away."""

    sentences: tuple[str, ...]  # at most three, most important first
    command: str  # what to run next

    def lines(self) -> list[str]:
        """The sentences, then the next command."""
        return [*self.sentences, *([f"Next: {self.command}"] if self.command else [])]


def answer(found: Evidence) -> Answer:
    """Summarise the evidence in at most three sentences."""
    caveats, harm = warnings(found), harm_sentence(found)
    advice, cost = advised(found), costs(found)
    if caveats and advice and cost:  # so that the limit on sentences hides nobody's loss
        advice, cost = f"{advice.removesuffix('.')}; {cost}", ""
    told = (*caveats[:1], harm, advice, cost, *without_reference(found))
    lines = [line for line in told if line]
    return Answer(tuple(lines[:MOST]), next_command(found))


def warnings(found: Evidence) -> list[str]:
    """What to fix before ranking methods, most serious first."""
    study, lines = found.study, []
    if line := diverged_sentence(study):
        lines.append(line)
    if study.measure.part == "training":
        lines.append(
            "There are no test data: all metrics are computed on the training samples and look"
            " better than they are."
        )
    if found.improving:
        who = listed([named(study, label) for label in found.improving], 4)
        verb = "was" if len(found.improving) == 1 else "were"
        lines.append(
            f"{who} {verb} still improving when training stopped after"
            f" {study.specs[0].rounds} rounds, so the ranking may change: train longer"
            f"{'' if study.tuned else ' or tune the step size'} first."
        )
    if found.alone_is_better and study.reference is not None and study.alone is not None:
        shift = found.mean_change(study.reference, study.alone)
        more = f" by {size(study, _negated(shift.interval))} on average" if shift else ""
        lines.append(
            f"Local-only training beats FedAvg{more}"
            + (
                ", although both were tuned."
                if study.tuned
                else ": tune FedAvg's step size before you conclude that joining does not pay off."
            )
        )
    if line := no_better_than_guessing(study):
        lines.append(line)
    if found.like_reference:
        who, verb = listed(found.like_reference, 4), _verb(found.like_reference, "predicts")
        lines.append(
            f"{who} {verb} exactly what FedAvg predicts for every test sample: these"
            " hyper-parameters have no effect here."
        )
    return lines


def no_better_than_guessing(study: Study) -> str:
    """A warning if FedAvg has learned nothing, else ""."""
    guess = guess_merit(study)
    if study.reference is None or guess is None:
        return ""
    own = np.mean([np.nanmean(study.merits(study.reference, s)) for s in study.judged_seeds])
    if own > guess:
        return ""
    constant = "the most frequent label" if study.measure.percent else "the mean"
    reached = f"{study.measure.name} {study.measure.show(guess)}{study.measure.percent}"
    return f"FedAvg is no better than always predicting {constant} ({reached}): tune it first."


def guess_merit(study: Study) -> float | None:
    """The mean merit over clients of a constant prediction; None where it is unknown."""
    if study.sums_only:
        return None
    cell, count = study.cells("client"), len(study.names("client"))
    merits = guessed(study.first, study.measure, cell, count)
    return None if merits is None else float(np.nanmean(merits))


def harm_sentence(found: Evidence) -> str:
    """Whether FedAvg harms clients or groups compared with local-only training, and which group it
    serves worst."""
    study = found.study
    if study.reference is None:
        return ""
    parts = []
    if study.alone is not None:
        parts.append(_against_alone(found, study.reference, study.alone))
        parts.append(_groups_against_alone(found, study.reference, study.alone))
    views = found.groups.get("group", {})
    if study.reference in views:
        others = {label: views[label] for label in found.others if label in views}
        parts.append(groups_sentence(views[study.reference], "FedAvg", others))
    elif len(study.names("group")) > 1 and (worst := found.worst_group):
        parts.append(f"FedAvg serves the {worst} group worst")
    if not parts and len(study.names("client")) > 1:
        parts.append(_worst_client(found, study.reference))
    first, *rest = [part for part in parts if part] or [""]
    if first.startswith("FedAvg "):
        rest = [f"it {part.removeprefix('FedAvg ')}" for part in rest]
    return "; ".join([first, *rest]) + "." if first else ""


def _against_alone(found: Evidence, reference: str, alone: str) -> str:
    study = found.study
    rows = found.rows(reference, alone)
    harmed = found.judged(reference, alone, "harmed")
    leaning = found.collective.get((reference, alone))
    if harmed:
        first = harmed[0]
        if len(harmed) == 1:
            return f"FedAvg {loss(study, first)} compared with local-only training"
        return (
            f"FedAvg harms {len(harmed)} of {count_of(len(rows), 'client')} compared with"
            f" local-only training, most of all {whose(first)} ({change(study, first.gain)})"
        )
    if leaning is not None and leaning.lose > leaning.gain:
        return (
            f"Of the {leaning.changed} clients whose {study.measure.words[0]} differs,"
            f" {leaning.lose} do worse with FedAvg than with local-only training (mean change"
            f" {change(study, leaning.mean)}), though no single client has enough samples for a"
            " significant loss"
        )
    if not rows:
        return ""
    least = found.detectable(reference, alone)
    if math.isnan(least):
        return (
            f"No client has the {found.least} {study.measure.part} samples needed to test for harm"
        )
    return (
        "No client does significantly worse with FedAvg than with local-only training (a loss of"
        f" {amount(study, least)} at a typical client would have been detected)"
    )


def _groups_against_alone(found: Evidence, reference: str, alone: str) -> str:
    """Which groups lose by joining, even where no client does."""
    study, harmed = found.study, found.judged(reference, alone, "harmed", "group")
    if not harmed:
        return ""
    groups = [f"{entry.name} ({change(study, entry.gain)})" for entry in harmed]
    text = loss(study, harmed[0]) if len(harmed) == 1 else f"harms the groups {listed(groups, 3)}"
    return f"FedAvg {text} compared with local-only training"


def _worst_client(found: Evidence, label: str) -> str:
    """Which client FedAvg serves worst, among those with enough samples."""
    study, ends = found.study, found.ends(label)
    if ends is None:
        return ""
    measure, names = study.measure, study.names("client")
    low, high = (f"{measure.show(value)}{measure.percent}" for value in (ends.low, ends.high))
    if ends.low == ends.high:
        return f"FedAvg serves all clients equally well ({measure.name} {low})"
    samples = count_of(int(study.sizes()[ends.worst]), f"{measure.part} sample")
    return (
        f"FedAvg serves {client(names[ends.worst])} worst ({measure.name} {low} on {samples}) and"
        f" {client(names[ends.best])} best ({high}); compare with local-only training to see"
        " whether anyone is harmed"
    )


def advised(found: Evidence) -> str:
    """Which method to use, or to keep FedAvg, with gains and costs."""
    study = found.study
    if study.reference is None or not found.others:
        return ""
    if found.comparison.over == "nothing":
        return "One seed without confidence intervals cannot rank methods: run more seeds."
    name, who = found.worst
    ranked, traded = found.lifting, found.traded
    free = [label for label in ranked if not found.costs(label)]
    once = "" if len(study.seeds) > 1 or study.folds else " (from one seed; others may differ)"
    settled = not found.improving and (study.tuned or not found.alone_is_better)
    now = "" if settled else "So far, "
    if free:
        use = f"{now}use".capitalize()
        return (
            f"{use} {free[0]}{once}: {_effect(found, free[0])}, with no significant loss for"
            " anyone."
        )
    if traded is not None:
        return (
            f"{now}{traded} is a trade-off{once}: {_effect(found, traded)}, but"
            f" {price(found, traded)}; keep FedAvg unless you put the worst-served first."
        )
    differences = [found.comparison.differences[label][name].interval for label in found.others]
    top = max((one.high for one in differences if not math.isnan(one.high)), default=math.nan)
    ruled = (
        ""
        if math.isnan(top)
        else f" (gains of up to {amount(study, max(0.0, top))} cannot be ruled out)"
    )
    group = None if found.gap is None else disadvantaged(found.gap)
    them = who if group is None else f"{who} or the {group} group"
    alone = found.comparison.differences.get(study.alone or "", {}).get(name)
    if alone is not None and alone.better:
        return (
            f"{'From one seed, no' if once else 'No'} fair method is significantly better than"
            f" FedAvg for {them}{ruled}, but local-only training is: look for what sets the"
            " worst-served apart."
        )
    keep = f"{now}keep".capitalize()
    return f"{keep} FedAvg{once}: no fair method is significantly better for {them}{ruled}."


def _effect(found: Evidence, label: str) -> str:
    """What a method does for the clients and the group that FedAvg serves worst."""
    study = found.study
    name, who = found.worst
    one, group = found.comparison.differences[label][name], found.group_change(label)
    what, better, _ = study.measure.words
    parts = []
    if one.better and study.clients > 1:
        parts.append(f"the {what} of {who} by {size(study, one.interval)}")
    if group is not None and group.verdict == "gains":
        parts.append(f"the {_rate(found)} of {whose(group)} by {size(study, group.gain)}")
    return f"it {better} {' and '.join(parts)}"


def _rate(found: Evidence) -> str:
    """The rate in which FedAvg serves its worst-served group worst."""
    gap = found.gap
    kind = "" if gap is None else RATE_OF[gap.kind]
    return kind if kind in found.of_rates else found.study.measure.words[0]


def next_command(found: Evidence) -> str:
    """What to run next; "" where no command can."""
    study = found.study
    root = study.directories[0]
    root = root.parent if len(study.seeds) > 1 or root.name.startswith(("seed-", "fold-")) else root
    spec = shlex.quote(str(_short(root / "spec.toml")))
    if study.specs[0].data.get("name") in (NODES, PYTHON):
        return ""
    # folds and other splits cannot be tuned: a sample tested in one is trained on in another
    one_split = study.same_data and not study.folds
    if study.diverged and one_split:
        return f"evenhand compare {spec} --tune --grid {smaller_step_sizes(study)}"
    if found.improving and (study.tuned or not one_split):
        return f"evenhand compare {spec} --rounds {2 * study.specs[0].rounds}"
    tunable = found.improving or found.alone_is_better or found.like_reference
    if one_split and not study.tuned and (tunable or no_better_than_guessing(study)):
        return f"evenhand compare {spec} --tune"
    if len(study.seeds) == 1 and one_split and _few_rows(study):
        return f"evenhand compare {spec} --folds 5"
    if len(study.seeds) == 1 and one_split:
        return f"evenhand compare {spec} --seeds 5"
    if study.reference is None and not study.diverged:
        return f"evenhand compare {spec}"  # it adds FedAvg and local-only training
    return f"evenhand report {shlex.quote(str(_short(root)))}"


def _few_rows(study: Study) -> bool:
    """Whether a client of a user's table has so few test rows that cross-validation is better."""
    data = study.specs[0].data
    whole = data.get("name") == "table" and "held_out" not in data and not data.get("split")
    return whole and int(study.sizes().min()) < FEW


def _short(path: Path) -> Path:
    """The path relative to the current directory where possible."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def _negated(interval: Interval) -> Interval:
    return Interval(-interval.value, -interval.high, -interval.low)


def _verb(who: Sequence[str], verb: str) -> str:
    return verb if len(who) == 1 else verb.removesuffix("s")
