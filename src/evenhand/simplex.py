"""The probability simplex: nearest points, min-norm weights, weighted quantiles.

Vectors are float64; an answer has the type of what was given. Entries that are not finite, as after
a run that diverged, give NaN.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from evenhand.errors import require, require_number

ROUND_OFF = 1e-9  # bounds whose sum misses 1 by no more than this count as reaching it
EPS = 2.0**-52
BRANCHES = 32  # breaks of a projection that are looked at together
MOST_AT_ONCE = 1 << 16  # numbers that this may take at once; with more of them, fewer breaks
# of a Newton step: above rounding, so that it does not wander along flat directions; small, so that
# few are needed
DAMPING = 2.0**-34


def project_simplex(
    v: Tensor, floor: float | Tensor = 0.0, support: Tensor | None = None
) -> Tensor:
    """The point of {x : sum x = 1, x_i >= floor} nearest to ``v`` (n,); entries outside ``support``
    (n,) are 0.

    x_i = max(v_i - theta, floor), with theta from sorting (Held, Wolfe and Crowder, 1974). A floor
    that is a tensor () is taken as it is, unchecked: it stands for the floors of several runs side
    by side.

    >>> project_simplex(torch.tensor([1.0, 0.75, 0.0])).tolist()
    [0.625, 0.375, 0.0]
    """
    n = len(v)
    if not isinstance(floor, Tensor) and support is None and n * floor > 1:
        raise ValueError(
            f"a floor of {floor} for each of {n} entries exceeds the mass 1; use at most {1 / n:g}"
        )
    low = torch.as_tensor(floor, dtype=torch.float64, device=v.device).expand(n)
    high = low + 2 + n * low  # cannot bind
    if support is not None:
        low, high = torch.where(support, low, 0.0), torch.where(support, high, 0.0)
    return _projected(v, low, high)


def project_capped(v: Tensor, cap: float | Tensor) -> Tensor:
    """The point of {x : sum x = 1, 0 <= x_i <= cap_i} nearest to ``v`` (n,); one cap for all, or
    one each.

    A tensor () is taken as it is, unchecked, as the floor of :func:`project_simplex`.

    >>> project_capped(torch.tensor([5.0, 1.0, 0.75]), 0.5).tolist()
    [0.5, 0.375, 0.125]
    """
    if isinstance(cap, Tensor) and not cap.ndim:
        high = cap.to(v.device, torch.float64).expand(len(v))
        return _projected(v, torch.zeros_like(high), high)
    return project_box(v, 0.0, cap)


def project_box(v: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """The point of {x : sum x = 1, low_i <= x_i <= high_i} nearest to ``v`` (n,); bounds for all,
    or one each.

    x_i = min(max(v_i - theta, low_i), high_i). The sum falls from sum high to sum low as theta
    grows, and is linear between the 2n values v_i - high_i and v_i - low_i: a search among these,
    sorted, finds the piece that crosses 1, where theta is a quotient. No tolerance is involved, but
    for bounds that sum to 1 up to round-off (1e-9).

    >>> project_box(torch.tensor([5.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 0.25]), 0.5).tolist()
    [0.5, 0.25, 0.25]
    """
    return _projected(v, *_box(len(v), low, high, v.device))


def min_norm_weights(gram: Tensor, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> Tensor:
    """The weights (K,) of the shortest combination of K vectors, from their products ``gram`` (K,
    K).

    minimise lam' G lam  over  sum lam = 1, low <= lam <= high                 (FedMGDA+; a box on
    the min-norm point of MGDA)

    A primal active-set method: Newton steps over the entries strictly inside their bounds, each
    stopped by the first bound it meets, or bent along the bounds where that is better; at the best
    point of a face, mass moves between the pair of entries that violates optimality most, a step
    that never has length zero. So every step descends, and no face comes twice. G may be singular,
    or indefinite by rounding; its scale does not matter.

    The combination sum lam_i u_i is unique, lam need not be. Vectors with equal products and equal
    bounds get equal weights; between other optimal weights the choice is arbitrary, but always the
    same.

    >>> min_norm_weights(torch.tensor([[1.0, 0.0], [0.0, 3.0]])).tolist()
    [0.75, 0.25]
    """
    require(
        gram.dim() == 2 and gram.shape[0] == gram.shape[1],
        "gram must be a square matrix, got shape {}",
        tuple(gram.shape),
    )
    require(
        bool(gram.isfinite().all()), "gram must be finite; leave out clients whose update is not"
    )
    low, high = _box(len(gram), low, high, gram.device)
    lam = project_box(torch.full_like(low, 1 / len(gram)), low, high)
    top = gram.diagonal().double().max().item()
    if top <= 0:
        return lam.to(gram.dtype)
    G = gram.double() / top
    lam = _towards_minimum(G, lam, low, high, steps=len(gram))
    best, least, since = lam, math.inf, 0
    # rounding may keep the violation above the tolerance for good: stop when it no longer halves
    while since < len(gram) + 20:
        lam = _face_minimum(G, lam, low, high)
        exchange, violation = _worst_pair(G, lam, low, high)
        best, least, since = (
            (lam, violation, 0) if violation < least / 2 else (best, least, since + 1)
        )
        if violation <= 0:
            break
        lam = _moved(lam, exchange, low, high)
    return _shared_by_twins(G, best, low, high).to(gram.dtype)


def weighted_quantile(values: Tensor, weights: Tensor, level: float) -> Tensor:
    """The smallest value () that, with all below it, has a share of at least ``level`` in [0, 1] of
    the weight.

    Level 0 gives the smallest value that has weight, 1 the largest. Sums that miss the level by a
    relative 1e-12 reach it.

    >>> weighted_quantile(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 2.0]), 0.75).item()
    2.0
    """
    require_number("level", level, "[0, 1]")
    require(
        values.shape == weights.shape,
        "{} values do not match {} weights",
        tuple(values.shape),
        tuple(weights.shape),
    )
    require(
        bool((weights >= 0).all() and (weights > 0).any()),
        "weights must be >= 0, and one of them positive",
    )
    held = weights > 0
    order = values[held].argsort()
    ordered, weight = values[held][order], weights[held].double()[order]
    weight = weight / weight.max()  # no sum overflows
    if level <= 0.5:
        reached = weight.cumsum(0) >= level * weight.sum() * (1 - 1e-12)
    else:  # the same from the other end, where small weights are not lost in a large sum
        beyond = torch.cat([weight.flip(0).cumsum(0).flip(0)[1:], weight.new_zeros(1)])
        reached = beyond <= (1 - level) * weight.sum() * (1 + 1e-12)
    return ordered[reached.nonzero()[0, 0]]


# ---- projections


def _box(
    n: int, low: float | Tensor, high: float | Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(n,) bounds, checked; an absent upper bound becomes one that cannot bind."""
    low, high = (
        torch.as_tensor(bound, dtype=torch.float64, device=device).expand(n)
        for bound in (low, high)
    )
    require(bool(low.isfinite().all()), "lower bounds must be finite, got {}", low.tolist()[:10])
    least, most = low.sum().item(), high.sum().item()
    crossed = (~(low <= high)).nonzero()
    if len(crossed):
        first = int(crossed[0])
        raise ValueError(
            f"lower bound {low[first]:g} of entry {first} exceeds its upper bound {high[first]:g};"
            " exchange or widen them"
        )
    require(
        least <= 1 + ROUND_OFF,
        "the lower bounds sum to {:g}, more than the mass 1; divide them by at least that",
        least,
    )
    require(
        most >= 1 - ROUND_OFF,
        "the upper bounds sum to {:g}, less than the mass 1; raise them, 1 is no bound",
        most,
    )
    return low, torch.where(high.isinf(), low + 2 + abs(least), high)


def _projected(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """:func:`project_box` for bounds that were checked. It never looks at a value, so torch.func
    can stack it over runs."""
    both = _levelled(v.double(), _bracket(v.double(), low, high), low, high)  # (2, n)
    miss = _excess(both, low, high).abs()
    x = torch.where(miss[0] <= miss[1], both[0], both[1])
    free = (low < x) & (x < high)
    x = torch.where(free, x - _excess(x, low, high) / free.sum().clamp(min=1), x).clamp(low, high)
    return torch.where(v.isfinite().all(), x, torch.nan).to(v.dtype)


def _excess(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """By how much the sum over the last dimension exceeds 1 once ``v`` is cut to its bounds."""
    return v.clamp(low, high).sum(-1) - 1


def _bracket(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(..., 2) for vectors (..., n): the neighbours among v - high and v - low between which the
    sum of v - theta, cut to its bounds, falls to 1."""
    breaks = torch.cat([v - high, v - low], -1).sort(-1).values
    last = breaks.shape[-1] - 1
    ways, stride = max(2, min(BRANCHES, MOST_AT_ONCE // v.shape[-1])), 1
    while stride * ways <= last:
        stride *= ways
    first = torch.zeros(1, dtype=torch.int64, device=v.device)
    # the last of a few evenly spaced breaks where the sum is still 1 or more; then finer, from
    # there on
    while stride >= 1:
        place = first + stride * torch.arange(1, ways, device=v.device)  # (..., ways - 1)
        theta = breaks.gather(-1, place.clamp(max=last).expand(*v.shape[:-1], -1))
        there = (_excess(v[..., None, :] - theta[..., None], low, high) >= 0) & (place <= last)
        first = first + stride * there.long().cumprod(-1).sum(-1, keepdim=True)
        stride //= ways
    return breaks.gather(-1, torch.cat([first, (first + 1).clamp(max=last)], -1))


def _levelled(v: Tensor, anchors: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(A, n) v - theta, with theta counted from ``anchors`` (A,) close to it: then no precision is
    lost, however large the entries are."""
    largest = torch.finfo(torch.float64).max
    x = (v - anchors[:, None]).clamp(-largest, largest)
    theta = _bracket(x, low, high)[:, :1]
    moving = ((x - high <= theta) & (x - low > theta)).sum(-1)
    return x - theta - (_excess(x - theta, low, high) / moving.clamp(min=1))[:, None]


# ---- min-norm weights


def _towards_minimum(G: Tensor, lam: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
    """``steps`` accelerated projected gradient steps: cheap, and they find most of the entries that
    end on a bound."""
    rate, ahead = 1 / G.abs().sum(1).max(), lam
    for k in range(1, steps + 1):
        after = project_box(ahead - rate * (G @ ahead), low, high)
        ahead, lam = after + (k - 1) / (k + 2) * (after - lam), after
    return lam


def _face_minimum(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Descend from ``lam`` over the entries strictly inside their bounds, losing those that meet
    one, to the best point."""
    while True:
        free = _inside(lam, low, high)
        if len(free) < 2:
            return lam
        direction = torch.zeros_like(lam).index_put(
            (free,), _newton(G[free][:, free], (G @ lam)[free])
        )
        stopped, bent = _moved(lam, direction, low, high), project_box(lam + direction, low, high)
        if len(_inside(stopped, low, high)) == len(free):
            return stopped
        fewer = len(_inside(bent, low, high)) < len(free)  # else there might be no end
        lam = bent if fewer and bent @ G @ bent < stopped @ G @ stopped else stopped


def _inside(lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which entries are strictly inside their bounds."""
    return ((low < lam) & (lam < high)).nonzero()[:, 0]


def _newton(G: Tensor, slope: Tensor) -> Tensor:
    """The step of sum zero towards the minimum of the quadratic form ``G``, damped just enough that
    G can be factorised.

    The shortest vector gives what the others take: relative to it, sizes that differ by many orders
    stay apart.
    """
    short = G.diagonal().argmin()
    others = torch.arange(len(G), device=G.device) != short
    relative = (G - G[short] - G[:, short, None] + G[short, short])[others][:, others]
    damping = DAMPING * relative.diagonal().maximum(EPS * G.diagonal()[others]).clamp(min=1e-100)
    factor, failed = torch.linalg.cholesky_ex(relative + torch.diag(damping))
    for power in itertools.count():
        if not failed:
            break
        factor, failed = torch.linalg.cholesky_ex(
            relative + torch.diag(damping + DAMPING * 8**power)
        )
    step = torch.zeros_like(slope)
    step[others] = -torch.cholesky_solve((slope[others] - slope[short])[:, None], factor)[:, 0]
    step[short] = -step.sum()
    return step


def _worst_pair(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, float]:
    """The best exchange of mass between the two entries where it descends fastest, and by how much
    the slope exceeds rounding."""
    slope, noise = G @ lam, 4 * EPS * math.sqrt(len(G)) * (G.abs() @ lam.abs())
    giver = torch.where(lam > low, slope, -torch.inf).argmax()
    taker = torch.where(lam < high, slope, torch.inf).argmin()
    gain = slope[giver] - slope[taker]
    curvature = G[giver, giver] + G[taker, taker] - 2 * G[giver, taker]
    mass = torch.where(curvature > gain, gain / curvature, 1.0).expand(2)
    exchange = torch.zeros_like(lam).index_put(
        (torch.stack([giver, taker]),), mass * mass.new_tensor([-1.0, 1.0])
    )
    return exchange, (gain - noise[giver] - noise[taker]).item()


def _moved(lam: Tensor, step: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``lam`` after as much of ``step`` as the bounds allow; the entry that stops it is put on its
    bound."""
    bound = torch.where(step > 0, high, low)
    # (K,) how much of the step each entry can go
    room = torch.where(step != 0, (bound - lam) / step, torch.inf)
    part = room.min().clamp(max=1.0)
    return torch.where(room <= part, bound, lam + part * step).clamp(low, high)


def _shared_by_twins(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``lam`` averaged over vectors with equal products and bounds; the combination stays what it
    is."""
    looks = torch.cat([G, low[:, None], high[:, None]], 1)
    _, twin, count = torch.unique(looks, dim=0, return_inverse=True, return_counts=True)
    one = torch.zeros(len(count), dtype=lam.dtype, device=lam.device).index_put((twin,), lam)
    # exact where all are equal
    shared: Tensor = (one + torch.zeros_like(one).index_add(0, twin, lam - one[twin]) / count)[twin]
    return shared
