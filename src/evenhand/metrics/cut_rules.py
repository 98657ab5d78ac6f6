"""Rules for groups and clients from score histograms: what is equalised, and where data are few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require, require_choice, require_number
from evenhand.metrics.cuts import HALF, Curve, Floats, Rule, accepted, alike, common, gap_of

# the rates that a notion equalises, in the order of Curve.rates
NOTIONS: Mapping[str, tuple[str, ...]] = {
    "equalised odds": ("false positives", "true positives"),
    "equal opportunity": ("true positives",),
    "demographic parity": ("selected",),
    "false positive parity": ("false positives",),
}
OBJECTIVES = ("accuracy", "balanced accuracy")
CELLS = {"false positives": "negative", "true positives": "positive", "selected": ""}


class Rules(NamedTuple):
    """A rule for each group, and how it was found."""

    rules: list[Rule]  # (A,)
    gap: float  # on the data it was found on
    reached: bool  # whether the gap is within the bound
    notes: list[str]


def notion_of(given: str) -> str:
    """The notion with this name; underscores, hyphens and American spelling are accepted."""
    plain = str(given).lower().replace("_", " ").replace("-", " ").strip()
    plain = plain.replace("equalized", "equalised").replace("positive rate", "positive")
    require_choice("notion", plain, tuple(NOTIONS))
    return plain


def objective_of(given: str) -> str:
    """The objective with this name."""
    plain = str(given).lower().replace("_", " ")
    require_choice("objective", plain, OBJECTIVES)
    return plain


def group_rules(
    histogram: NDArray[np.generic],
    groups: Sequence[str],
    notion: str = "equalised odds",
    bound: float = 0.0,
    objective: str = "accuracy",
    one_for_all: bool = False,
) -> Rules:
    """The best rules whose rates differ by at most ``bound`` over groups.

    Args:
        histogram: (A, 2, BINS) samples by group, label and score bin.
        notion: a name from NOTIONS.
        bound: on the range of each rate, in [0, 1]; 0 asks for equal rates.
        objective: "accuracy" or "balanced accuracy", the mean of the overall true-positive and
            true-negative rates.
        one_for_all: whether all groups get the same rule.

    A group without samples for a rate is not bounded and gets its own best cut.
    """
    notion, objective = notion_of(notion), objective_of(objective)
    require_number("bound", bound, "[0, 1]", "0 asks for equal rates")
    counts = np.asarray(histogram, np.float64)
    require(counts.sum() > 0, "there are no samples to find thresholds on")
    curves, of = _curves(counts, NOTIONS[notion], objective)
    bounded = (of > 0).all(1)
    notes = _few(groups, NOTIONS[notion], of, counts.sum((1, 2)), one_for_all)
    chosen = [curve for curve, there in zip(curves, bounded, strict=True) if there]
    if one_for_all:
        total = accepted(counts.sum((0, 1)))
        rates = np.stack([c.rates for c in chosen]) if chosen else np.zeros((0, 1, len(total)))
        proper = (total > 0) & (total < total[0])
        gain = np.sum([curve.gain for curve in curves], axis=0)
        rule, reached = common(rates, gain, proper, bound)
        rules = [rule] * len(curves)
        gap = gap_of(chosen, [rule] * len(chosen))
        if not reached:
            notes.append(
                f"no common threshold, randomised or not, keeps the gap within {bound:g};"
                f" the smallest gap of a single one is {gap:.3f}"
            )
        return Rules(rules, gap, reached, notes)
    found = iter(alike(chosen, bound))
    rules = [
        next(found) if there else ((1.0, curve.best if curve.gain.any() else HALF),)
        for curve, there in zip(curves, bounded, strict=True)
    ]
    gap = gap_of(chosen, [rule for rule, there in zip(rules, bounded, strict=True) if there])
    if len(chosen) < 2:
        notes.append("fewer than two groups can be compared, so nothing is equalised")
    return Rules(rules, gap, True, notes)


def client_rules(
    histograms: NDArray[np.generic],
    clients: Sequence[str],
    groups: Sequence[str],
    notion: str,
    bound: float,
    objective: str = "accuracy",
    one_for_all: bool = False,
    least: int = 10,
) -> tuple[dict[int, list[Rule]], list[str]]:
    """The rules of clients that have enough samples, each from its own histogram (n, A, 2, BINS).

    A client gets rules of its own if every group it has samples of has at least ``least`` for each
    rate, and if it has two such groups. The others are named in the notes. A group that a client
    does not have is absent from its rules (an empty rule).
    """
    counts = np.asarray(histograms)
    found: dict[int, list[Rule]] = {}
    left, missed = [], []
    for client, own in enumerate(counts):
        there = own.sum((1, 2)) > 0
        _, of = _curves(own.astype(np.float64), NOTIONS[notion], "accuracy")
        if there.sum() < 2 or not (of[there] >= max(1, least)).all():
            left.append(clients[client])
            continue
        names = [group for group, here in zip(groups, there, strict=True) if here]
        rules = group_rules(own[there], names, notion, bound, objective, one_for_all)
        taken = iter(rules.rules)
        found[client] = [next(taken) if here else () for here in there]
        missed += [clients[client]] * (not rules.reached)
    notes = []
    if left:
        notes.append(
            f"{_listed(left)} use{'s' * (len(left) == 1)} the rule of all clients: a client needs"
            f" two groups or more, each with at least {least} validation samples for every rate"
        )
    if missed:
        notes.append(f"no common threshold reaches the bound at {_listed(missed)}")
    return found, notes


def _curves(counts: Floats, rates: Sequence[str], objective: str) -> tuple[list[Curve], Floats]:
    """What cuts do in each group, and (A, R) the samples of each rate."""
    negatives, positives = accepted(counts[:, 0]), accepted(counts[:, 1])  # (A, BINS + 1)
    hits = {
        "selected": negatives + positives,
        "true positives": positives,
        "false positives": negatives,
    }
    n0, n1 = float(counts[:, 0].sum()), float(counts[:, 1].sum())
    weights = (1 / (n0 + n1), 1 / (n0 + n1)) if n0 + n1 else (0.0, 0.0)
    if objective == "balanced accuracy":
        require(
            min(n0, n1) > 0,
            "balanced accuracy needs samples of both labels; use objective='accuracy'",
        )
        weights = (0.5 / n0, 0.5 / n1)
    of = np.stack([hits[rate][:, 0] for rate in rates], 1)  # cut 0 accepts all
    gain = weights[1] * positives - weights[0] * negatives
    curves = [
        Curve(np.stack([hits[r][a] for r in rates]) / np.maximum(of[a], 1.0)[:, None], gain[a])
        for a in range(len(counts))
    ]
    return curves, of


def _few(
    groups: Sequence[str], rates: Sequence[str], of: Floats, samples: Floats, one_for_all: bool
) -> list[str]:
    """A note for each group without samples for some rate."""
    notes = []
    for group, counts, size in zip(groups, of, samples, strict=True):
        if counts.all():
            continue
        kinds = [CELLS[rate] for rate, count in zip(rates, counts, strict=True) if not count]
        lack = " or ".join(kinds) + " samples" if size and any(kinds) else "samples"
        given = "its threshold is the one that is best for itself" if size else "it gets 0.5"
        given = "it is not bounded" if one_for_all else given
        notes.append(f"group {group} has no {lack} among the data of the thresholds; {given}")
    return notes


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
