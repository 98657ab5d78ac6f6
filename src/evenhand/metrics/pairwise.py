"""Compare the shares of two groups: difference, ratio, test, and detectable difference.

A share is ``k`` of ``n``; with sample weights both are effective sizes and need not be whole
(:func:`kish`). No interval has zero width and no p-value is 0.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require_number
from evenhand.metrics.uncertainty import Interval, wilson

Floats = NDArray[np.float64]

SMALLEST_P = 1e-300  # a p-value is never 0
NOTHING = Interval(math.nan, math.nan, math.nan)
MOST_EXACT = 10**7  # samples; the exact test is slow beyond


def kish(weights: ArrayLike, squares: ArrayLike) -> Floats:
    """Kish's effective sample size, (sum of weights)^2 / sum of squared weights; 0 without samples.

    >>> float(kish(1 + 1 + 2, 1 + 1 + 4))
    2.6666666666666665
    """
    total, below = np.asarray(weights, np.float64), np.asarray(squares, np.float64)
    return np.where(below > 0, total * (total / np.where(below > 0, below, 1.0)), 0.0)


def difference(k1: float, n1: float, k2: float, n2: float, level: float = 0.95) -> Interval:
    """k1/n1 - k2/n2 with Newcombe's interval, which combines two Wilson intervals (method 10).

    >>> value, low, high = difference(56, 70, 48, 80)
    >>> print(f"{value:.4f} {low:.4f} {high:.4f}")
    0.2000 0.0524 0.3339
    """
    if not (n1 > 0 and n2 > 0):
        return NOTHING
    p1, p2, (l1, u1), (l2, u2) = _shares(k1, n1, k2, n2, level)
    apart = p1 - p2
    return Interval(
        apart,
        apart - math.hypot(p1 - l1, u2 - p2),
        apart + math.hypot(u1 - p1, p2 - l2),
    )


def ratio(k1: float, n1: float, k2: float, n2: float, level: float = 0.95) -> Interval:
    """(k1/n1) / (k2/n2) with Zou and Donner's interval, which combines two Wilson intervals.

    The lower end is the ratio r at which p1 - r p2 is as far above 0 as chance goes, the upper end
    the one at which it is as far below. Without any k2 the upper end is infinite.
    """
    if not (n1 > 0 and n2 > 0):
        return NOTHING
    p1, p2, (l1, u1), (l2, u2) = _shares(k1, n1, k2, n2, level)
    value = p1 / p2 if p2 > 0 else math.nan
    # (p1 - r p2)^2 = (p1 - l1)^2 + r^2 (u2 - p2)^2, in a form that holds where u2 > 2 p2, too
    a, b, c = u2 * (2 * p2 - u2), p1 * p2, l1 * (2 * p1 - l1)
    low = c / (b + math.sqrt(max(0.0, b**2 - a * c))) if c > 0 else 0.0
    # (p1 - r p2)^2 = (u1 - p1)^2 + r^2 (p2 - l2)^2
    a, c = l2 * (2 * p2 - l2), u1 * (2 * p1 - u1)
    high = (b + math.sqrt(max(0.0, b**2 - a * c))) / a if a > 0 else math.inf
    return Interval(value, low, high)


def difference_p(k1: float, n1: float, k2: float, n2: float) -> float:
    """The p-value of no difference between two shares: Fisher's exact test for whole counts, the
    score test for weighted or very large ones.

    >>> print(f"{difference_p(8, 10, 1, 10):.5f}")
    0.00548
    """
    from scipy import stats

    if not (n1 > 0 and n2 > 0):
        return math.nan
    whole = all(float(number).is_integer() for number in (k1, n1, k2, n2))
    if whole and n1 + n2 <= MOST_EXACT:
        table = np.array([[k1, n1 - k1], [k2, n2 - k2]]).astype(np.int64)
        return max(SMALLEST_P, min(1.0, float(stats.fisher_exact(table)[1])))
    pooled = (k1 + k2) / (n1 + n2)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / n1 + 1 / n2))
    z = abs(k1 / n1 - k2 / n2) / spread if spread > 0 else 0.0
    return max(SMALLEST_P, min(1.0, 2 * float(stats.norm.sf(z))))


def detectable(
    n1: float, n2: float, share: float, level: float = 0.95, power: float = 0.8
) -> float:
    """The difference between two shares around ``share`` that a test detects with this power.

    >>> print(f"{detectable(100, 100, 0.5):.3f}")
    0.198
    """
    require_number("level", level, "(0, 1)")
    require_number("power", power, "(0, 1)")
    if not (n1 > 0 and n2 > 0):
        return math.nan
    inside = (share * (n1 + n2) + 1) / (n1 + n2 + 2)  # a share of 0 or 1 still has a variance
    z = NormalDist().inv_cdf((1 + level) / 2) + NormalDist().inv_cdf(power)
    return min(1.0, z * math.sqrt(inside * (1 - inside) * (1 / n1 + 1 / n2)))


def _shares(
    k1: float, n1: float, k2: float, n2: float, level: float
) -> tuple[float, float, tuple[float, float], tuple[float, float]]:
    ends = (wilson(k, n, level) for k, n in ((k1, n1), (k2, n2)))
    one, other = ((float(low), float(high)) for low, high in ends)
    return k1 / n1, k2 / n2, one, other
