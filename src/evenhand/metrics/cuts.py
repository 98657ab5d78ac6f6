"""Where to cut scores so that groups are treated alike: exact optima from score histograms.

A histogram (A, 2, BINS) counts samples by group, label and score bin, see
:mod:`evenhand.metrics.calibration`. Cut k accepts the bins from k on: cut 0 accepts everybody, cut
BINS nobody. The rule of a group is a list of cuts with probabilities, so the chance of acceptance
never falls as the score rises.

The most accurate rules whose rates differ by at most ``bound`` solve a linear program in these
probabilities (Hardt, Price and Srebro, NeurIPS 2016, for bound 0). Integer counts make the program,
so any division of the samples over clients gives the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics.calibration import BINS, EDGES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rule = tuple[tuple[float, int], ...]  # (probability, cut), from the lowest cut to the highest

HALF = EDGES.index(0.5) + 1  # the cut of a model without thresholds
# of cuts that accept the same samples, the nearest to a score of 0.5 is taken
DISTANCE = np.abs(np.array([0.0, *EDGES, 1.0]) - 0.5)
ROUNDING = 1e-9  # rates and probabilities closer than this are equal


class Curve(NamedTuple):
    """What each cut does in one group."""

    rates: Floats  # (R, BINS + 1) the rates to equalise
    right: Ints  # (BINS + 1,) samples with a correct decision

    @property
    def best(self) -> int:
        """The most accurate cut; the nearest to 0.5 of several."""
        top = np.flatnonzero(self.right == self.right.max())
        return int(top[DISTANCE[top].argmin()])

    def under(self, rule: Rule) -> Floats:
        """(R,) the expected rates under a rule."""
        return np.asarray(sum(chance * self.rates[:, cut] for chance, cut in rule))


def accepted(histogram: NDArray[np.integer]) -> Ints:
    """(..., BINS + 1) samples that each cut accepts, from counts (..., BINS)."""
    counts = np.asarray(histogram, np.int64)
    from_top = np.cumsum(counts[..., ::-1], -1)[..., ::-1]
    return np.concatenate([from_top, np.zeros_like(counts[..., :1])], -1)


def curve(histogram: NDArray[np.integer], rates: Sequence[str]) -> Curve:
    """What cuts do in one group (2, BINS), which has samples for each of ``rates``."""
    negative, positive = accepted(histogram)
    right = positive + negative[0] - negative
    kinds = {
        "selection rate": (negative + positive, negative[0] + positive[0]),
        "true-positive rate": (positive, positive[0]),
        "false-positive rate": (negative, negative[0]),
        "accuracy": (right, negative[0] + positive[0]),
    }
    hits = [kinds[name][0] / kinds[name][1] for name in rates]
    return Curve(np.array(hits).reshape(len(hits), BINS + 1), right)


def chances(rule: Rule) -> Floats:
    """(BINS,) the chance that a rule accepts a score of each bin."""
    steps = np.zeros(BINS + 1)
    for chance, cut in rule:
        steps[cut] += chance
    return np.minimum(np.cumsum(steps)[:-1], 1.0)


def gap(curves: Sequence[Curve], rules: Sequence[Rule]) -> float:
    """The largest range over groups of a rate; 0 without rates."""
    rates = np.stack([one.under(rule) for one, rule in zip(curves, rules, strict=True)])
    return float(np.ptp(rates, axis=0).max(initial=0.0))


def alike(curves: Sequence[Curve], bound: float) -> list[Rule]:
    """The most accurate rules, one per group, whose rates differ by at most ``bound``."""
    free: list[Rule] = [((1.0, one.best),) for one in curves]
    return free if gap(curves, free) <= bound + ROUNDING else _program(curves, bound)


def useful(histogram: NDArray[np.integer]) -> tuple[NDArray[np.bool_], float]:
    """(BINS + 1,) the cuts that decide well enough for everyone (2, BINS), and their least
    accuracy.

    Rates are equal where everybody or nobody is accepted, and nearly equal where nearly everybody
    or nobody is; such cuts say nothing about a sample. So a cut must keep at least half of what the
    most accurate cut gains over the same answer for everyone.
    """
    total, right = accepted(histogram).sum(0), curve(histogram, ()).right
    proper = (total > 0) & (total < total[0])
    if not proper.any():  # all scores are in one bin
        return np.arange(BINS + 1) == HALF, 0.0
    best, constant = int(right[proper].max()), int(max(right[0], right[BINS]))
    least = (best + min(best, constant)) / 2
    return proper & (right >= least), least / int(total[0])


def shared(
    curves: Sequence[Curve], right: Ints, fit: NDArray[np.bool_], bound: float
) -> tuple[int, float]:
    """The most accurate cut that keeps the rates of all groups within ``bound``, and its gap.

    If no cut does, the one with the smallest gap.

    Args:
        right: (BINS + 1,) samples of everyone with a correct decision.
        fit: (BINS + 1,) the cuts to choose from, at least one.
    """
    gaps = np.zeros(BINS + 1)
    if curves:
        gaps = np.ptp(np.stack([one.rates for one in curves]), axis=0).max(0, initial=0.0)
    cuts = np.flatnonzero(fit)
    inside = cuts[gaps[cuts] <= max(bound, gaps[cuts].min()) + ROUNDING]
    cut = int(inside[np.lexsort((DISTANCE[inside], -right[inside]))[0]])
    return cut, float(gaps[cut])


def _program(curves: Sequence[Curve], bound: float) -> list[Rule]:
    """Solve the linear program in the probability of each cut, and the smallest value of each
    rate."""
    from scipy import optimize, sparse

    cuts = [_distinct(one) for one in curves]
    pairs, groups = list(zip(curves, cuts, strict=True)), len(curves)
    kinds, scale = len(curves[0].rates), sum(int(one.right.max()) for one in curves)
    rows = []
    for rate in range(kinds):
        # no rate is below the smallest, or above it by more than the bound
        of_group = sparse.block_diag([one.rates[rate, kept][None] for one, kept in pairs])
        smallest = np.zeros((groups, kinds))
        smallest[:, rate] = 1.0
        rows += [sparse.hstack([of_group, -smallest]), sparse.hstack([-of_group, smallest])]
    whole = sparse.block_diag([np.ones((1, len(kept))) for kept in cuts])
    found = optimize.linprog(
        np.concatenate([*(-one.right[kept] / scale for one, kept in pairs), np.zeros(kinds)]),
        A_ub=sparse.vstack(rows).tocsr(),
        b_ub=np.tile(np.repeat([bound, 0.0], groups), kinds),
        A_eq=sparse.hstack([whole, np.zeros((groups, kinds))]).tocsr(),
        b_eq=np.ones(groups),
        bounds=(0.0, 1.0),
        method="highs-ds",  # ends at a vertex, where few cuts have a probability
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.x is None:
        raise RuntimeError(f"the linear program of the thresholds failed: {found.message}")
    ends = np.cumsum([len(kept) for kept in cuts])
    parts = np.split(found.x[: ends[-1]], ends[:-1])
    return [_rule(kept, part) for kept, part in zip(cuts, parts, strict=True)]


def _distinct(one: Curve) -> Ints:
    """Cuts without those that do the same as another one, which is nearer to 0.5."""
    order = np.argsort(DISTANCE, kind="stable")
    _, first = np.unique(np.vstack([one.rates, one.right])[:, order], axis=1, return_index=True)
    return np.sort(order[first])


def _rule(cuts: Ints, chance: Floats) -> Rule:
    """The cuts that have a probability; probabilities sum to 1."""
    kept = np.flatnonzero(chance > ROUNDING)
    total = float(chance[kept].sum())
    return tuple((float(chance[place]) / total, int(cuts[place])) for place in kept)
