"""Find thresholds for groups or clients from their score histograms, and judge them on others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import plain, require, require_choice, require_number, require_whole
from evenhand.metrics.calibration import BINS, EDGES
from evenhand.metrics.cuts import HALF, Rule, alike, chances, curve, gap, shared, useful
from evenhand.metrics.group_rates import PARITIES, fractions
from evenhand.metrics.threshold_effect import effect
from evenhand.metrics.thresholds import Thresholds

BY = ("group", "client")
# the rates that each notion equalises; precision is no mean over samples
NOTIONS: Mapping[str, tuple[str, ...]] = {
    **{kind: rates for kind, rates in PARITIES.items() if kind != "predictive parity"},
    "accuracy": (),
}
THRESHOLDS = (0.0, *EDGES, math.inf)  # of each cut: 0 accepts everybody, infinity nobody


def find_thresholds(
    found: NDArray[np.integer],
    judged: NDArray[np.integer],
    names: Sequence[str],
    notion: str = "equalised odds",
    bound: float = 0.0,
    *,
    by: str = "group",
    common: bool = False,
    least: int = 10,
    found_on: str = "validation",
    judged_on: str = "test",
    positive: str = "1",
) -> Thresholds:
    """Find thresholds on one set of score histograms (A, 2, BINS) and judge them on another.

    Args:
        names: (A,) of the groups or clients.
        notion: a name from ``NOTIONS``: what is to be alike.
        bound: how far rates may be apart, in [0, 1]; 0 makes them equal.
        by: "group" or "client": whose histograms these are.
        common: one threshold for everyone.
        least: those with fewer samples for a rate keep 0.5, and their rates are not bounded.
    """
    notion = notion_of(notion)
    require_number("bound", bound, "[0, 1]", "0 makes rates equal")
    require_choice("by", by, BY)
    require_whole("least", least, 0)
    require(isinstance(common, bool), "common must be true or false, got {!r}", common)
    counts, shape = np.asarray(found, np.int64), (len(names), 2, BINS)
    for given in (counts, np.asarray(judged)):
        require(given.shape == shape, "histograms must be {}, got {}", shape, given.shape)
    enough = _enough(counts, notion, least)
    kept = [curve(one, NOTIONS[notion]) for one in counts[enough]]
    needed = 2 if NOTIONS[notion] else 1
    if len(kept) < needed:
        known = [name for name, there in zip(names, enough, strict=True) if there]
        count = f"{max(1, least)} {found_on} sample" + "s" * (least > 1)
        have = f'only {by} "{known[0]}" has' if known else f"no {by} has"
        raise ValueError(
            f"{notion} needs at least {needed} {by}{'s' * (needed > 1)} with {count} for each rate;"
            f" {have} that many"
        )
    half: Rule = ((1.0, HALF),)
    notes = [
        f"{by} {name} has {int(one.sum())} {found_on} samples, too few for {notion}; "
        + (
            "its rates are not bounded."
            if common
            else "it keeps the threshold 0.5 and is left out of the gap."
        )
        for name, one, there in zip(names, counts, enough, strict=True)
        if not there
    ]
    if common:
        everyone = counts.sum(0)
        fit, least_accuracy = useful(everyone)
        cut, apart = shared(kept, curve(everyone, ()).right, fit, bound)
        rules: list[Rule] = [((1.0, cut),)] * len(names)
    else:
        own = iter(alike(kept, bound))
        rules = [next(own) if there else half for there in enough]
        apart = gap(kept, [rule for rule, there in zip(rules, enough, strict=True) if there])
    reached = apart <= bound + 1e-6 or not NOTIONS[notion]
    if not reached:
        notes.append(
            f"No useful common threshold keeps {notion} within {100 * bound:g} percentage points on"
            f" {found_on} data; the smallest gap is {_above(100 * apart, 100 * bound)}. A threshold"
            " is useful if it keeps half of the accuracy that the best one gains over the same"
            f" answer for everyone: at least {100 * least_accuracy:.1f} % there."
            if least_accuracy
            else f"The {found_on} scores are all alike, so no threshold tells them apart."
        )
    chance = np.stack([chances(rule) for rule in rules])
    rows = effect(np.asarray(judged), chance, names, notion, least=least)
    return Thresholds(
        notion,
        float(bound),
        by,
        bool(common),
        found_on,
        judged_on,
        positive,
        tuple(names),
        tuple(tuple((chance, THRESHOLDS[cut]) for chance, cut in rule) for rule in rules),
        apart,
        reached,
        tuple(note[0].upper() + note[1:] for note in notes),
        tuple(rows),
    )


def notion_of(given: str) -> str:
    """The notion with this name; hyphens, underscores and American spelling are accepted.

    >>> notion_of("Equalized_odds"), notion_of("false positive parity")
    ('equalised odds', 'false-positive parity')
    """
    for notion in NOTIONS:
        if plain(str(given)) == plain(notion):
            return notion
    require_choice("notion", given, tuple(NOTIONS))
    raise AssertionError(given)


def _above(value: float, limit: float) -> str:
    """A value with as many digits as show that it is above a limit, at least one.

    >>> _above(8.42, 0), _above(2.0004, 2)
    ('8.4', '2.0004')
    """
    digits = next((n for n in range(1, 12) if round(value, n) > limit), 12)
    return f"{value:.{digits}f}"


def _enough(counts: NDArray[np.int64], notion: str, least: int) -> NDArray[np.bool_]:
    """(A,) whether there are ``least`` samples for each rate."""
    table = np.concatenate([counts.sum(-1)[..., None], np.zeros((len(counts), 2, 2))], -1)
    rates = NOTIONS[notion] or ("accuracy",)
    return np.asarray(
        np.all([fractions(table, 1, rate)[1] >= max(1, least) for rate in rates], axis=0)
    )
