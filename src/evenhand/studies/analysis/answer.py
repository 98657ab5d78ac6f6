"""The answer: is somebody harmed, which method to take, what it costs and whom, what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenhand.studies.analysis.diverging import diverged_sentence, smaller_step_sizes
from evenhand.studies.analysis.evidence import RATE_OF, Evidence
from evenhand.studies.analysis.groups import disadvantaged
from evenhand.studies.analysis.prices import costs, price
from evenhand.studies.analysis.rates_in_words import groups_sentence
from evenhand.studies.analysis.writing import amount, change, count_of, listed, named, size
from evenhand.studies.runs.merits import guessed
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.spec import NODES
from evenhand.training.directory import PYTHON

MOST = 3  # sentences that the answer has


@dataclass(frozen=True)
class Answer:
    """What a busy reader takes away."""

    sentences: tuple[str, ...]  # at most three, the most important first
    command: str  # what to run next

    def lines(self) -> list[str]:
        """The sentences, and the next command."""
        return [*self.sentences, *([f"Next: {self.command}"] if self.command else [])]


def answer(found: Evidence) -> Answer:
    """The most that these runs allow to say, in three sentences."""
    caveats, harm, advice, cost = (
        warnings(found),
        harm_sentence(found),
        advised(found),
        costs(found),
    )
    if caveats and advice and cost:  # nobody who pays is left out for want of room
        advice, cost = f"{advice.removesuffix('.')}; {cost}", ""
    lines = [line for line in (*caveats[:1], harm, advice, cost) if line]
    return Answer(tuple(lines[:MOST]), next_command(found))


def warnings(found: Evidence) -> list[str]:
    """What must be mended before methods are ranked, the most serious first."""
    study, lines = found.study, []
    if line := diverged_sentence(study):
        lines.append(line)
    if study.measure.part == "training":
        lines.append(
            "There are no test data: all numbers are about the samples trained on, and look better"
            " than they are."
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
        less = f", by {size(study, shift.interval)} on average" if shift is not None else ""
        lines.append(
            f"Clients are served better alone than by FedAvg{less}"
            + (
                ", though both were tuned."
                if study.tuned
                else ": tune FedAvg's step size before you conclude that joining does not pay."
            )
        )
    if line := no_better_than_guessing(study):
        lines.append(line)
    if found.like_reference:
        who, verb = listed(found.like_reference, 4), _verb(found.like_reference, "predicts")
        lines.append(
            f"{who} {verb} the same as FedAvg for every test sample: the fairness setting has no"
            " effect here, or is too weak."
        )
    return lines


def no_better_than_guessing(study: Study) -> str:
    """That FedAvg has learned nothing, where that is so."""
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
    """The mean over clients of what always predicting the same would reach."""
    cell, count = study.cells("client"), len(study.names("client"))
    merits = guessed(study.first, study.measure, cell, count)
    return None if merits is None else float(np.nanmean(merits))


def harm_sentence(found: Evidence) -> str:
    """Whether FedAvg harms a client, against staying alone, or treats a group worse."""
    study = found.study
    if study.reference is None:
        return ""
    parts = []
    if study.alone is not None:
        parts.append(_against_alone(found, study.reference, study.alone))
        parts.append(_groups_against_alone(found, study.reference, study.alone))
    views = found.groups.get("group", {})
    if study.reference in views:
        parts.append(groups_sentence(views[study.reference], "FedAvg"))
    elif len(study.names("group")) > 1 and (worst := found.worst_group):
        parts.append(f"FedAvg serves group {worst} worst")
    if not parts and len(study.names("client")) > 1:
        parts.append(_worst_client(found, study.reference))
    return "; ".join(part for part in parts if part) + "." if any(parts) else ""


def _against_alone(found: Evidence, reference: str, alone: str) -> str:
    study = found.study
    rows = found.rows(reference, alone)
    harmed = found.judged(reference, alone, "harmed")
    leaning = found.collective.get((reference, alone))
    if harmed:
        first = harmed[0]
        worst = f"{first.name} ({change(study, first.gain)})"
        if len(harmed) == 1:
            return f"FedAvg harms {worst} compared with staying alone"
        return (
            f"FedAvg harms {len(harmed)} of {count_of(len(rows), 'client')} compared with staying"
            f" alone, most of all {worst}"
        )
    if leaning is not None and leaning.lose > leaning.gain:
        return (
            f"{leaning.lose} of the {leaning.changed} clients that changed lose with FedAvg"
            f" compared with staying alone (mean {change(study, leaning.mean)}), though no single"
            " client has enough samples to show it"
        )
    if not rows:
        return ""
    least = found.detectable(reference, alone)
    if math.isnan(least):
        return f"No client has {found.least} {study.measure.part} samples, too few to judge anyone"
    return (
        "No client is shown to lose with FedAvg compared with staying alone (a loss of"
        f" {amount(study, least)} at a typical client would have shown)"
    )


def _groups_against_alone(found: Evidence, reference: str, alone: str) -> str:
    """Which groups lose by joining; clients that gain may hide it."""
    harmed = found.judged(reference, alone, "harmed", "group")
    who = [f"{entry.name} ({change(found.study, entry.gain)})" for entry in harmed]
    groups = "group" if len(harmed) == 1 else "groups"
    return f"FedAvg harms {groups} {listed(who, 3)} compared with staying alone" if harmed else ""


def _worst_client(found: Evidence, label: str) -> str:
    """Whom FedAvg serves worst, of those with enough samples."""
    study, ends = found.study, found.ends(label)
    if ends is None:
        return ""
    measure, names = study.measure, study.names("client")
    low, high = (f"{measure.show(value)}{measure.percent}" for value in (ends.low, ends.high))
    if ends.low == ends.high:
        return f"FedAvg serves all clients alike ({measure.name} {low})"
    samples = count_of(int(study.sizes()[ends.worst]), f"{measure.part} sample")
    return (
        f"FedAvg serves {names[ends.worst]} worst ({measure.name} {low} on {samples}) and"
        f" {names[ends.best]} best ({high}); compare with local-only training to see whether"
        " anyone is harmed"
    )


def advised(found: Evidence) -> str:
    """Which method to take, or to keep FedAvg, with what it gains and costs."""
    study = found.study
    if study.reference is None or not found.others:
        return ""
    if found.comparison.over == "nothing":
        return "One training without values of single samples cannot rank methods."
    name, who = found.worst
    ranked, traded = found.lifting, found.traded
    free = [label for label in ranked if not found.costs(label)]
    once = "" if len(study.seeds) > 1 or study.folds else " (one training; other seeds may differ)"
    settled = not found.improving and (study.tuned or not found.alone_is_better)
    now = "" if settled else "So far, "
    if free:
        take = f"{now}take".capitalize()
        return f"{take} {free[0]}{once}: {_effect(found, free[0])}, and nobody is shown to lose."
    if traded is not None:
        return (
            f"{now}{traded} is a trade{once}: {_effect(found, traded)}, but"
            f" {price(found, traded)}; keep FedAvg unless those served worst come first."
        )
    differences = [found.comparison.differences[label][name].interval for label in found.others]
    top = max((one.high for one in differences if not math.isnan(one.high)), default=math.nan)
    ruled = (
        ""
        if math.isnan(top)
        else f" (the most that {who} could gain is {amount(study, max(0.0, top))})"
    )
    keep = f"{now}keep".capitalize()
    group = None if found.gap is None else disadvantaged(found.gap)
    them = who if group is None else f"{who} or group {group}"
    return f"{keep} FedAvg{once}: no method is shown to serve {them} better{ruled}."


def _effect(found: Evidence, label: str) -> str:
    """What a method does for the clients, and for the group, that FedAvg serves worst."""
    study = found.study
    name, who = found.worst
    one, group = found.comparison.differences[label][name], found.group_change(label)
    what, better, _ = study.measure.words
    parts = []
    if one.better and study.clients > 1:
        parts.append(f"the {what} of {who} by {size(study, one.interval)}")
    if group is not None and group.verdict == "gains":
        parts.append(f"the {_rate(found)} of group {group.name} by {size(study, group.gain)}")
    return f"it {better} {' and '.join(parts)}"


def _rate(found: Evidence) -> str:
    """What the group that FedAvg treats worst is treated worst by."""
    gap = found.gap
    kind = "" if gap is None else RATE_OF[gap.kind]
    return kind if kind in found.of_rates else found.study.measure.words[0]


def next_command(found: Evidence) -> str:
    """What to run next."""
    study = found.study
    root = study.directories[0]
    root = root.parent if len(study.seeds) > 1 or root.name.startswith(("seed-", "fold-")) else root
    spec = shlex.quote(str(_short(root / "spec.toml")))
    if study.specs[0].data.get("name") in (NODES, PYTHON):
        return ""
    if study.diverged:
        return f"evenhand compare {spec} --tune --grid {smaller_step_sizes(study)}"
    if study.tuned and found.improving:
        return f"evenhand compare {spec} --rounds {2 * study.specs[0].rounds}"
    if not study.tuned and (found.improving or found.alone_is_better or found.like_reference):
        return f"evenhand compare {spec} --tune"
    if len(study.seeds) == 1 and study.same_data and not study.folds:
        return f"evenhand compare {spec} --seeds 5"
    return f"evenhand report {shlex.quote(str(_short(root)))}"


def _short(path: Path) -> Path:
    """The path from where the command was given, where it lies below."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def _verb(who: Sequence[str], verb: str) -> str:
    return verb if len(who) == 1 else verb.removesuffix("s")
