"""The weights of the shortest convex combination of vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from evenhand.errors import require
from evenhand.simplex.projections import checked_box, project_box

EPS = 2.0**-52
# damping of a Newton step: above rounding, so that it does not drift along flat directions; small,
# so that few steps are needed
DAMPING = 2.0**-34
# steps to find a start: of the gradient, of the power iteration for their length, for the level of
# a projection, and of the active-set method
GRADIENT_STEPS, POWER_STEPS, THETA_STEPS, SET_STEPS = 60, 12, 12, 12


def min_norm_weights(gram: Tensor, low: float | Tensor = 0.0, high: float | Tensor = 1.0) -> Tensor:
    """The weights (K,) of the shortest combination of K vectors, from their ``gram`` matrix (K, K).

    minimise lam' G lam  over  sum lam = 1, low <= lam <= high
                                                (FedMGDA+; a box on the min-norm point of MGDA)

    A primal active-set method: Newton steps over the entries strictly inside their bounds, each
    stopped by the first bound it meets, or bent along the bounds where that is better; at the best
    point of a face, mass moves between the pair of entries that violates optimality most, a step
    that never has length zero. So every step descends, and no face comes twice. It starts close to
    the minimum, so that a few steps are enough. G may be singular, or indefinite by rounding; its
    scale does not matter.

    The combination sum lam_i u_i is unique, but lam need not be. Vectors with equal products and
    equal bounds get equal weights; between other optimal weights the choice is arbitrary, but
    always the same.

    >>> min_norm_weights(torch.tensor([[1.0, 0.0], [0.0, 3.0]])).tolist()
    [0.75, 0.25]
    """
    require(
        gram.dim() == 2 and gram.shape[0] == gram.shape[1],
        "gram must be a square matrix, got shape {}",
        tuple(gram.shape),
    )
    require(bool(gram.isfinite().all()), "gram must be finite; exclude clients whose update is not")
    low, high = checked_box(len(gram), low, high, gram.device)
    lam = project_box(torch.full_like(low, 1 / len(gram)), low, high)
    top = gram.diagonal().double().max().item()
    if top <= 0:
        return lam.to(gram.dtype)
    G = gram.double() / top
    lam = _towards_minimum(G, lam, low, high)
    best, least, since = lam, math.inf, 0
    # rounding may keep the violation above the tolerance forever: stop when it no longer halves
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


def _towards_minimum(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """A point close to the minimum: gradient steps find most entries on a bound, and changing many
    entries at once finds the others. A good start is enough."""
    near = _descended(G, lam, low, high)
    candidates = [lam, *(project_box(x, low, high) for x in (near, *_by_sets(G, near, low, high)))]
    best = min(candidates, key=lambda x: float(x @ (G @ x)))
    for bound in (low, high):  # a projection may miss sum 1 in the last bits
        best = torch.where((best - bound).abs() <= 4 * EPS * bound.abs(), bound, best)
    return best


def _descended(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``lam`` after accelerated gradient steps; they end where nothing moves any more."""
    rate, ahead, theta = 1 / _curvature(G), lam, torch.zeros((), dtype=G.dtype, device=G.device)
    for k in range(1, GRADIENT_STEPS + 1):
        before = ahead, lam, theta
        lam, theta = _nearly_projected(ahead - rate * (G @ ahead), low, high, theta)
        ahead = lam + (k - 1) / (k + 2) * (lam - before[1])
        if all(map(torch.equal, (ahead, lam, theta), before)):
            break
    return lam


def _curvature(G: Tensor) -> Tensor:
    """About the largest curvature along directions of sum zero: power iterations, plus a fifth for
    safety, limited by the bound from row sums."""
    bound = G.abs().sum(1)
    v = bound - bound.mean() + torch.linspace(-1, 1, len(G), dtype=G.dtype, device=G.device)
    found = torch.zeros((), dtype=G.dtype, device=G.device)
    for _ in range(POWER_STEPS):
        v = v / v.norm().clamp(min=1e-300)
        w = G @ v
        found, v = v @ w, w - w.mean()
    return (1.2 * found).minimum(bound.max()).clamp(min=1e-300)


def _nearly_projected(v: Tensor, low: Tensor, high: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest point of sum 1 between the bounds, by a few Newton steps for theta, with
    bisection where they leave its range."""
    least, most = (v - high).min(), (v - low).max()
    for _ in range(THETA_STEPS):
        x = v - theta
        excess = x.clamp(low, high).sum() - 1
        least, most = torch.where(excess > 0, theta, least), torch.where(excess > 0, most, theta)
        after = theta + excess / ((x > low) & (x < high)).sum()
        before, theta = (
            theta,
            torch.where((least <= after) & (after <= most), after, (least + most) / 2),
        )
        if torch.equal(theta, before):  # it would stay there
            break
    return (v - theta).clamp(low, high), theta


def _by_sets(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Iterator[Tensor]:
    """Points of a primal-dual active-set method, which moves many entries from and to their bounds
    at once; close to the minimum it finds it in a few steps."""
    before: Tensor | None = None
    for _ in range(SET_STEPS):
        slope = G @ lam
        inside = (low < lam) & (lam < high)
        level = slope[inside].mean() if bool(inside.any()) else slope.mean()
        # entries between their bounds stay free, those on one by where their slope drives them
        wanted = lam - EPS * (slope - level)
        sets = torch.where(wanted <= low, -1, torch.where(wanted >= high, 1, 0))
        free = (sets == 0).nonzero()[:, 0]
        if len(free) < 2 or (before is not None and bool((sets == before).all())):
            return
        before, lam = sets, torch.where(sets < 0, low, torch.where(sets > 0, high, lam))
        lam = lam.index_add(0, free, ((1 - lam.sum()) / len(free)).expand(len(free)))
        lam = lam.index_add(0, free, _newton(G[free][:, free], (G @ lam)[free]))
        yield lam


def _face_minimum(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Descend from ``lam`` over the entries inside their bounds, losing those that meet one."""
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
        fewer = len(_inside(bent, low, high)) < len(free)  # otherwise it might never end
        lam = bent if fewer and bent @ G @ bent < stopped @ G @ stopped else stopped


def _inside(lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which entries are strictly inside their bounds."""
    return ((low < lam) & (lam < high)).nonzero()[:, 0]


def _newton(G: Tensor, slope: Tensor) -> Tensor:
    """The step of sum zero towards the minimum of the quadratic form ``G``.

    It is damped just enough that G can be factorised. The entry of the shortest vector balances
    the others: relative to it, sizes that differ by many orders of magnitude stay apart.
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
    """The best exchange of mass between the two entries where it descends fastest.

    Also returns by how much the slope there exceeds rounding.
    """
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
    """``lam`` after as much of ``step`` as the bounds allow."""
    bound = torch.where(step > 0, high, low)
    # (K,) how much of the step each entry can go
    room = torch.where(step != 0, (bound - lam) / step, torch.inf)
    part = room.min().clamp(max=1.0)
    return torch.where(room <= part, bound, lam + part * step).clamp(low, high)


def _shared_by_twins(G: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``lam`` averaged over vectors with equal products and bounds: the same combination."""
    looks = torch.cat([G, low[:, None], high[:, None]], 1)
    _, twin, count = torch.unique(looks, dim=0, return_inverse=True, return_counts=True)
    one = torch.zeros(len(count), dtype=lam.dtype, device=lam.device).index_put((twin,), lam)
    # exact if all are equal
    shared: Tensor = (one + torch.zeros_like(one).index_add(0, twin, lam - one[twin]) / count)[twin]
    return shared
