"""The nearest point of the simplex, with bounds on its entries."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.errors import require

ROUND_OFF = 1e-9  # bounds whose sum misses 1 by at most this count as reaching it
BRANCHES = 32  # breakpoints of a projection that are evaluated together
MOST_AT_ONCE = 1 << 16  # numbers in memory at once; with longer vectors, fewer breakpoints


def project_simplex(
    v: Tensor, floor: float | Tensor = 0.0, support: Tensor | None = None
) -> Tensor:
    """The point of {x : sum x = 1, x_i >= floor} nearest to ``v`` (n,).

    x_i = max(v_i - theta, floor), with theta from sorting (Held, Wolfe and Crowder, 1974). Entries
    outside ``support`` (n,) are 0. A floor that is a tensor () is not checked: it stands for the
    floors of several runs side by side.

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
    """The point of {x : sum x = 1, 0 <= x_i <= cap_i} nearest to ``v`` (n,).

    One cap for all entries, or one each. A tensor () is not checked, like the floor of
    :func:`project_simplex`.

    >>> project_capped(torch.tensor([5.0, 1.0, 0.75]), 0.5).tolist()
    [0.5, 0.375, 0.125]
    """
    if isinstance(cap, Tensor) and not cap.ndim:
        high = cap.to(v.device, torch.float64).expand(len(v))
        return _projected(v, torch.zeros_like(high), high)
    return project_box(v, 0.0, cap)


def project_box(v: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """The point of {x : sum x = 1, low_i <= x_i <= high_i} nearest to ``v`` (n,).

    Bounds are for all entries, or one each. x_i = min(max(v_i - theta, low_i), high_i). As theta
    grows, the sum falls from sum high to sum low, and is linear between the 2n values v_i - high_i
    and v_i - low_i. A search among these, sorted, finds the piece that crosses 1; there theta is a
    quotient.
    There is no tolerance, except for bounds that sum to 1 up to round-off (1e-9).

    >>> project_box(torch.tensor([5.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 0.25]), 0.5).tolist()
    [0.5, 0.25, 0.25]
    """
    return _projected(v, *checked_box(len(v), low, high, v.device))


def checked_box(
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
            " swap or widen them"
        )
    require(
        least <= 1 + ROUND_OFF,
        "the lower bounds sum to {:g}, more than the mass 1; divide them by at least that",
        least,
    )
    require(
        most >= 1 - ROUND_OFF,
        "the upper bounds sum to {:g}, less than the mass 1; raise them; 1 means no bound",
        most,
    )
    return low, torch.where(high.isinf(), low + 2 + abs(least), high)


def _projected(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """:func:`project_box` for bounds that were checked."""
    # no branch depends on a value, so torch.func can stack this over runs
    both = _levelled(v.double(), _bracket(v.double(), low, high), low, high)  # (2, n)
    miss = _excess(both, low, high).abs()
    x = torch.where(miss[0] <= miss[1], both[0], both[1])
    free = (low < x) & (x < high)
    x = torch.where(free, x - _excess(x, low, high) / free.sum().clamp(min=1), x).clamp(low, high)
    return torch.where(v.isfinite().all(), x, torch.nan).to(v.dtype)


def _excess(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """By how much the sum over the last dimension exceeds 1 after clamping ``v`` to its bounds."""
    return v.clamp(low, high).sum(-1) - 1


def _bracket(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(..., 2) for vectors (..., n): the values of theta between which the sum falls to 1.

    They are neighbours among v - high and v - low; the sum is that of v - theta, clamped to bounds.
    """
    breaks = torch.cat([v - high, v - low], -1).sort(-1).values
    last = breaks.shape[-1] - 1
    ways, stride = max(2, min(BRANCHES, MOST_AT_ONCE // v.shape[-1])), 1
    while stride * ways <= last:
        stride *= ways
    first = torch.zeros(1, dtype=torch.int64, device=v.device)
    # the last of a few evenly spaced breakpoints where the sum is still at least 1; then finer
    # from there
    while stride >= 1:
        place = first + stride * torch.arange(1, ways, device=v.device)  # (..., ways - 1)
        theta = breaks.gather(-1, place.clamp(max=last).expand(*v.shape[:-1], -1))
        there = (_excess(v[..., None, :] - theta[..., None], low, high) >= 0) & (place <= last)
        first = first + stride * there.long().cumprod(-1).sum(-1, keepdim=True)
        stride //= ways
    return breaks.gather(-1, torch.cat([first, (first + 1).clamp(max=last)], -1))


def _levelled(v: Tensor, anchors: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(A, n) v - theta, with theta counted from ``anchors`` (A,) close to it.

    So no precision is lost, however large the entries are.
    """
    largest = torch.finfo(torch.float64).max
    x = (v - anchors[:, None]).clamp(-largest, largest)
    theta = _bracket(x, low, high)[:, :1]
    moving = ((x - high <= theta) & (x - low > theta)).sum(-1)
    return x - theta - (_excess(x - theta, low, high) / moving.clamp(min=1))[:, None]
