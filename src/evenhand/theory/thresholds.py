"""HCVaR's threshold: the loss above which a client counts more than its floor."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Bounds(NamedTuple):
    """The weights HCVaR may choose: lower <= lam <= lower + room, sum 1."""

    lower: Tensor  # (n,) w_i a_i
    room: Tensor  # (n,) w_i (1/alpha_i - a_i)
    mass: Tensor  # () the remaining mass, 1 - sum w_i a_i
    spare: Tensor  # () room that stays empty, sum w_i / alpha_i - 1


def exact_threshold(f: Tensor, bounds: Bounds) -> Tensor:
    order = f.argsort(descending=True)
    last = torch.searchsorted(bounds.room[order].cumsum(0), bounds.mass).clamp(max=len(f) - 1)
    return f[order[last]]


def exact_share(f: Tensor, bounds: Bounds) -> Tensor:
    """Return (n,) the part of its room that each client fills: all above the threshold, none below.

    Clients at the threshold share the rest.
    """
    eta = exact_threshold(f, bounds)
    above, at = bounds.room[f > eta].sum(), bounds.room[f == eta].sum()
    rest = ((bounds.mass - above) / torch.where(at > 0, at, 1.0)).clamp(0, 1)
    return torch.where(f > eta, 1.0, torch.where(f == eta, rest, 0.0))


def positive_part(x: Tensor, mu: float) -> Tensor:
    """Return phi_mu(x) = mu log(1 + e^(x/mu)), and (x)_+ for mu = 0."""
    return x.clamp(min=0) + (mu * torch.log1p((-x.abs() / mu).exp()) if mu > 0 else 0)


def is_mean(bounds: Bounds) -> bool:
    """Whether the base weights are the only choice: every alpha is 1, or every floor."""
    return bool(torch.minimum(bounds.mass, bounds.spare) <= 1e-15)


def smooth_threshold(f: Tensor, bounds: Bounds, mu: float) -> tuple[Tensor, Tensor]:
    """Return eta* as anchor + shift, with a loss as anchor: f - eta* is then exact for large
    losses.

    The condition is sum room sigma((f - eta)/mu) = mass or, equivalently, sum room sigma((eta -
    f)/mu) = spare; the smaller right-hand side has the better relative precision.
    """
    if bounds.mass <= bounds.spare:
        return _tail_threshold(f, bounds.room, bounds.mass, mu)
    anchor, shift = _tail_threshold(-f, bounds.room, bounds.spare, mu)
    return -anchor, -shift


def _tail_threshold(f: Tensor, room: Tensor, target: Tensor, mu: float) -> tuple[Tensor, Tensor]:
    """Return the eta with sum room sigma((f - eta)/mu) = target.

    The target is at most half the room, so eta >= min f.
    """

    def filled(anchor: Tensor, shift: Tensor | float) -> Tensor:
        return (room * torch.sigmoid(((f - anchor) - shift) / mu)).sum()

    ordered = f.sort().values
    # the sum falls from ordered[first] >= target to below it at ordered[last]
    first, last = 0, len(ordered)
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if filled(ordered[middle], 0.0) >= target else (first, middle)
    # farther than this from every loss, the sum no longer changes
    reach = mu * (40 + (room.sum() / target).log())
    below = ordered[first]
    above = ordered[last] if last < len(ordered) else torch.full_like(reach, torch.inf)
    if above - below <= reach or filled(below, reach) < target:
        return below, _root(
            f - below,
            room,
            target,
            mu,
            torch.zeros_like(reach),
            torch.minimum(reach, above - below),
        )
    return above, _root(f - above, room, target, mu, -reach, torch.zeros_like(reach))


def _root(x: Tensor, room: Tensor, target: Tensor, mu: float, low: Tensor, high: Tensor) -> Tensor:
    """Return the shift in [low, high] with sum room sigma((x - shift)/mu) = target.

    Newton's method on the logarithm, kept inside by bisection.
    """
    shift = (low + high) / 2
    for step in range(300):
        share = torch.sigmoid((x - shift) / mu)
        filled, slope = (room * share).sum(), (room * share * torch.sigmoid((shift - x) / mu)).sum()
        low, high = (shift, high) if filled >= target else (low, shift)
        newton = shift + mu * (filled / target).log() * filled / slope
        if (newton - shift).abs() <= 2**-52 * (
            shift.abs() + mu
        ) or high - low <= 2**-52 * high.abs().maximum(low.abs()):
            break
        shift = newton if low < newton < high and step % 3 < 2 else (low + high) / 2
    return shift
