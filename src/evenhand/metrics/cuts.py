"""Where to cut scores so that groups are treated alike: exact optima from score histograms.

A histogram (A, 2, BINS) counts samples by group, label and score bin. Cut k accepts the bins from k
on: cut 0 accepts everybody, cut BINS nobody. A rule of a group is a list of cuts with their
probabilities, that is, a chance of acceptance that does not decrease with the score.

With one rate to equalise, the best rules lie on each group's upper concave hull of (rate,
objective), and the optimum over groups is at a breakpoint of these hulls. With two (equalised odds)
they solve a linear program over ROC points (Hardt, Price and Srebro, NeurIPS 2016). One cut for all groups
is found among all pairs of cuts.
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
NOBODY = BINS
CLOSE = 1e-9  # of two rates or objectives that rounding alone may separate
# how far each cut is from a score of 0.5; of equivalent cuts, the nearest is taken
DISTANCE = np.abs(np.array([0.0, *EDGES, 1.0]) - 0.5)


class Curve(NamedTuple):
    """What each cut does in one group. ``gain`` is the objective in any unit, without constants."""

    rates: Floats  # (R, BINS + 1) the rates to equalise
    gain: Floats  # (BINS + 1,)

    @property
    def best(self) -> int:
        """The cut with the largest gain, the nearest to 0.5 of several."""
        top = np.flatnonzero(self.gain >= self.gain.max() - CLOSE * max(1.0, abs(self.gain.max())))
        return int(top[DISTANCE[top].argmin()])


def accepted(histogram: NDArray[np.generic]) -> Floats:
    """(..., BINS + 1) samples that each cut accepts, from counts (..., BINS)."""
    from_top = np.cumsum(np.asarray(histogram, np.float64)[..., ::-1], -1)[..., ::-1]
    return np.concatenate([from_top, np.zeros((*from_top.shape[:-1], 1))], -1)


def chances(rule: Rule) -> Floats:
    """(BINS,) the chance that a rule accepts a score of each bin."""
    steps = np.zeros(BINS + 1)
    for probability, cut in rule:
        steps[cut] += probability
    return np.minimum(np.cumsum(steps)[:-1], 1.0)


def expected(rule: Rule, values: Floats) -> Floats:
    """(...) the mean of values (..., BINS + 1) of cuts under a rule."""
    return np.asarray(sum(probability * values[..., cut] for probability, cut in rule))


def alike(curves: Sequence[Curve], bound: float) -> list[Rule]:
    """The rules with the largest total gain whose rates differ by at most ``bound``."""
    if not curves:
        return []
    free: list[Rule] = [((1.0, curve.best),) for curve in curves]
    if gap_of(curves, free) <= bound:
        return free
    return _one_rate(curves, bound) if len(curves[0].rates) == 1 else _two_rates(curves, bound)


def common(
    rates: Floats, gain: Floats, proper: NDArray[np.bool_], bound: float
) -> tuple[Rule, bool]:
    """One rule for all groups, and whether it keeps the bound.

    The rule is the one with the largest gain of all cuts, and mixtures of two cuts, whose rates
    (A, R, BINS + 1) differ by at most ``bound``; if there is none, the cut with the smallest gap.
    ``proper`` marks the cuts to choose from: without those that treat everybody the same, which
    would reach any bound.
    """
    cuts = np.flatnonzero(proper)
    cuts = cuts[np.argsort(DISTANCE[cuts], kind="stable")]  # of equals, the nearest to 0.5 wins
    if not len(cuts):
        return ((1.0, HALF),), bool(np.ptp(rates[..., HALF], axis=0).max(initial=0.0) <= bound)
    chosen, value = rates[..., cuts], gain[cuts]
    apart = (chosen[:, None] - chosen[None]).reshape(-1, len(cuts))  # (M, K) of ordered pairs
    gap = apart.max(0, initial=0.0)
    inside = np.flatnonzero(gap <= bound + 1e-12)
    rule: Rule = ()
    best = -np.inf
    if len(inside):
        first = inside[value[inside].argmax()]
        rule, best = ((1.0, int(cuts[first])),), float(value[first])
    for place in range(len(cuts) - 1):
        low, high = _shares(apart[:, place], apart[:, place + 1 :], bound)
        for share in (low, high):
            mixed = np.where(
                low <= high, (1 - share) * value[place] + share * value[place + 1 :], -np.inf
            )
            other = int(mixed.argmax())
            if mixed[other] > best + CLOSE:
                best, weight = float(mixed[other]), float(share[other])
                pair = [(1 - weight, int(cuts[place])), (weight, int(cuts[place + 1 + other]))]
                rule = _ordered(pair)
    if rule:
        return rule, True
    least = np.flatnonzero(gap <= gap.min() + 1e-12)
    return ((1.0, int(cuts[least[value[least].argmax()]])),), False


def _shares(one: Floats, others: Floats, bound: float) -> tuple[Floats, Floats]:
    """(K,) the smallest and largest share of another cut with which differences are in bounds.

    ``one`` (M,) and ``others`` (M, K) are differences of rates. Without such a share, the smallest
    is above the largest.
    """
    slope, room = others - one[:, None], (bound - one)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = room / slope
    high = np.where(slope > 0, meet, 1.0).min(0, initial=1.0)
    low = np.where(slope < 0, meet, 0.0).max(0, initial=0.0)
    never = ((slope == 0) & (room < -1e-12)).any(0)
    return np.where(never, 2.0, low), high


def gap_of(curves: Sequence[Curve], rules: Sequence[Rule]) -> float:
    """The largest range of a rate over groups; 0 without groups."""
    if not curves:
        return 0.0
    rates = np.stack([expected(r, c.rates) for c, r in zip(curves, rules, strict=True)])
    return float(np.ptp(rates, axis=0).max())


# ---- one rate


def _one_rate(curves: Sequence[Curve], bound: float) -> list[Rule]:
    """Choose rates within an interval [low, low + bound].

    Given ``low``, each group takes the rate in the interval that is nearest to its best one. The
    total gain is concave and piecewise linear in ``low``; its breakpoints are where an end of the
    interval meets a vertex of a hull or a best rate.
    """
    hulls = [_hull(curve.rates[0], curve.gain) for curve in curves]
    best = [curve.rates[0, curve.best] for curve in curves]
    corners = np.concatenate([*(c.rates[0, h] for c, h in zip(curves, hulls, strict=True)), best])
    lows = np.unique(np.clip(np.concatenate([corners, corners - bound]), 0.0, 1.0))
    total, moved = np.zeros(len(lows)), np.zeros(len(lows))
    for curve, hull, own in zip(curves, hulls, best, strict=True):
        rate = np.clip(own, lows, np.minimum(lows + bound, 1.0))
        total += np.interp(rate, curve.rates[0, hull], curve.gain[hull])
        moved += np.abs(rate - curve.rates[0, HALF])
    top = np.flatnonzero(total >= total.max() - CLOSE * max(1.0, abs(total.max())))
    low = lows[top[moved[top].argmin()]]
    return [
        _on_hull(curve, hull, float(np.clip(own, low, min(low + bound, 1.0))))
        for curve, hull, own in zip(curves, hulls, best, strict=True)
    ]


def _on_hull(curve: Curve, hull: Ints, rate: float) -> Rule:
    """The rule with the largest gain of a given first rate: one cut, or two neighbours."""
    x, y = curve.rates[0], curve.gain
    wanted = np.interp(rate, x[hull], y[hull])
    same = (np.abs(x - rate) <= 1e-12) & (y >= wanted - CLOSE * max(1.0, abs(wanted)))
    if same.any():
        cuts = np.flatnonzero(same)
        return ((1.0, int(cuts[DISTANCE[cuts].argmin()])),)
    right = int(np.searchsorted(x[hull], rate))
    lower, upper = int(hull[right - 1]), int(hull[right])
    share = float((rate - x[lower]) / (x[upper] - x[lower]))
    return _ordered([(1.0 - share, lower), (share, upper)])


def _hull(x: Floats, y: Floats) -> Ints:
    """The vertices of the upper concave hull, by ascending x; equivalent cuts near 0.5 first."""
    order = np.lexsort((DISTANCE, -y, x))
    found: list[int] = []
    for cut in order.tolist():
        if found and x[cut] == x[found[-1]]:
            continue  # a smaller gain at the same rate, or an equivalent cut
        while len(found) > 1 and _turn(x, y, found[-2], found[-1], cut) >= 0:
            found.pop()
        found.append(cut)
    return np.array(found, np.int64)


def _turn(x: Floats, y: Floats, a: int, b: int, c: int) -> float:
    """Positive if b lies below the line from a to c, zero if on it."""
    return float((x[b] - x[a]) * (y[c] - y[a]) - (y[b] - y[a]) * (x[c] - x[a]))


def _ordered(parts: Sequence[tuple[float, int]]) -> Rule:
    """A rule with equal cuts merged, impossible ones removed, and probabilities that sum to 1."""
    merged: dict[int, float] = {}
    for probability, cut in parts:
        merged[cut] = merged.get(cut, 0.0) + probability
    kept = {cut: chance for cut, chance in sorted(merged.items()) if chance > 1e-12}
    whole = sum(kept.values())
    return tuple((chance / whole, cut) for cut, chance in kept.items())


# ---- two rates


def _two_rates(curves: Sequence[Curve], bound: float) -> list[Rule]:
    """Mix cuts so that both rates differ by at most ``bound``.

    ``rates`` are the false-positive and the true-positive rate. The program has a probability for
    every cut of every group, and the smallest value of each rate.
    """
    from scipy import linalg, optimize

    points = [np.unique(curve.rates, axis=1, return_index=True)[1] for curve in curves]
    pairs, groups = list(zip(curves, points, strict=True)), len(curves)
    starts = np.cumsum([0, *map(len, points)])
    rows = []
    for rate in range(2):
        # rate - smallest <= bound, and smallest - rate <= 0
        of_group = linalg.block_diag(*(curve.rates[rate, chosen][None] for curve, chosen in pairs))
        smallest = np.zeros((groups, 2))
        smallest[:, rate] = 1.0
        rows += [np.hstack([of_group, -smallest]), np.hstack([-of_group, smallest])]
    whole = linalg.block_diag(*(np.ones((1, len(chosen))) for chosen in points))
    found = optimize.linprog(
        np.concatenate([*(-curve.gain[chosen] for curve, chosen in pairs), np.zeros(2)]),
        A_ub=np.vstack(rows),
        b_ub=np.tile(np.repeat([bound, 0.0], groups), 2),
        A_eq=np.hstack([whole, np.zeros((groups, 2))]),
        b_eq=np.ones(groups),
        bounds=(0.0, 1.0),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if found.x is None:
        raise RuntimeError(f"the linear program of equalised odds failed: {found.message}")
    targets = [
        curve.rates[:, chosen] @ found.x[starts[group] : starts[group + 1]]
        for group, (curve, chosen) in enumerate(pairs)
    ]
    if bound == 0:  # equal up to rounding: take one point for all
        targets = [np.mean(targets, axis=0)] * groups
    return [_reach(curve, target) for curve, target in zip(curves, targets, strict=True)]


def _reach(curve: Curve, target: Floats) -> Rule:
    """A rule with given false- and true-positive rates: two cuts, or two cuts and a constant.

    A point below the ROC hull is mixed from a point on the hull and "nobody", or from one on the
    hull and "everybody"; the way that ignores the score less often is taken.
    """
    fpr, tpr = curve.rates
    hull = _hull(fpr, tpr)
    if float(np.interp(target[0], fpr[hull], tpr[hull])) <= target[1] + CLOSE:
        return _on_hull(Curve(curve.rates, tpr), hull, float(target[0]))
    if tpr[hull[0]] > 0:  # the edge from nobody to the first vertex belongs to the polygon
        hull = np.append(NOBODY, hull)
    down = _toward(fpr[hull], tpr[hull], target[0], target[1])
    # seen from "everybody", the hull is mirrored
    up = _toward(1 - tpr[hull][::-1], 1 - fpr[hull][::-1], 1 - target[1], 1 - target[0])
    first = down[0] >= up[0]
    share, place, weight = down if first else up
    cuts = hull if first else hull[::-1]
    return _ordered(
        [
            (1.0 - share, NOBODY if first else 0),
            (share * (1.0 - weight), int(cuts[place])),
            (share * weight, int(cuts[place + 1])),
        ]
    )


def _toward(x: Floats, y: Floats, left: float, top: float) -> tuple[float, int, float]:
    """Write a point as a share of a point on a hull, as seen from the origin.

    Returns the share, the number of the hull's edge, and the place on that edge.
    """
    if max(left, top) <= 1e-12:
        return 0.0, 0, 0.0
    side = left * y - top * x  # not negative up to where the ray leaves the hull
    place = min(int(np.flatnonzero(np.append(True, side[1:] >= 0))[-1]), len(x) - 2)
    fall = float(side[place] - side[place + 1])
    weight = float(np.clip(side[place] / fall, 0.0, 1.0)) if fall > 0 else 1.0
    ends = np.array([x[place : place + 2], y[place : place + 2]])
    reached = ends @ np.array([1.0 - weight, weight])
    return float(min(1.0, (left + top) / reached.sum())), place, weight
