"""FAFL's risk: the worst reweighting of clients inside bounds, by one threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand.errors import require, require_number
from evenhand.theory.aggregates import (
    ROUND_OFF,
    Aggregate,
    Vector,
    loss_and_weight,
    mass,
    plain,
    unweighted_mass,
)

Levels = float | tuple[float, ...]


class Bounds(NamedTuple):
    """The weights HCVaR may choose: lower <= lam <= lower + room, sum 1."""

    lower: Tensor  # (n,) w_i a_i
    room: Tensor  # (n,) w_i (1/alpha_i - a_i)
    mass: Tensor  # () what is left to give, 1 - sum w_i a_i
    spare: Tensor  # () room that stays empty, sum w_i / alpha_i - 1


@dataclass(frozen=True)
class HCVaR(Aggregate):
    """The worst average loss over all reweightings of clients between a_i w_i and w_i / alpha_i:
    FAFL, with a floor.

    A(f) = max { sum_i lam_i f_i : a_i w_i <= lam_i <= w_i / alpha_i, sum_i lam_i = 1 }
         = min over eta of  eta + sum_i w_i [a_i (f_i - eta) + (1/alpha_i - a_i) (f_i - eta)_+]
         (docs/theory.md)

    a = 0 is FAFL's HCVaR; a > 0 is our extension: no client is ever ignored. With mu > 0, phi_mu(x)
    = mu log(1 + e^(x/mu)) takes the place of (x)_+, which adds at most ``smoothing_bound``; the
    dual weights are then lam_i = w_i [a_i + (1/alpha_i - a_i) sigma((f_i - eta*)/mu)]. With mu = 0
    clients that tie at the threshold share what is left in proportion to their room. A* = 0 (mu =
    0), or -mu sum_i room_i H(s_i) with s_i = (lam_i - w_i a_i)/room_i and H the binary entropy, on
    the set of weights above.

    Args:
        alpha: level in (0, 1], one number or one per client. 1 gives the mean, all alpha_i <= w_i
            the maximum.
        mu: smoothing width; 0 is exact.
        floor: a_i in [0, 1], one number or one per client. 1 gives the mean.

    >>> HCVaR(0.5).value([1.0, 2.0, 3.0, 4.0], [0.25] * 4).item()
    3.5
    >>> HCVaR(0.5, floor=0.2).weights([1.0, 2.0, 3.0, 4.0], [0.25] * 4).tolist()
    [0.05, 0.05, 0.4, 0.5]
    """

    alpha: Levels
    mu: float = 0.0
    floor: Levels = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "floor"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        for level in _several(self.alpha):
            require_number("alpha", level, "(0, 1]", "1 gives the mean")
        for level in _several(self.floor):
            require_number("floor", level, "[0, 1]", "0 asks for nothing, 1 gives the mean")
        require_number("mu", self.mu, "[0, inf)", "0 is exact")

    # ---- the threshold and what it certifies

    def threshold(self, losses: Vector, base: Vector) -> Tensor:
        """A minimiser eta* of the dual, a number (): the loss from which a client counts for more
        than its floor.

        mu = 0: the loss of the last client to receive mass. mu > 0: -inf where tau = 1 (all alpha =
        1) and +inf where all floors are 1: the dual has no finite minimiser there, and approaches
        the mean.
        """
        f, w = loss_and_weight(losses, base)
        if not f.isfinite().all():
            return torch.full_like(f.sum(), torch.nan)
        bounds = self._bounds(w)
        if self.mu == 0:
            return _exact_threshold(f, bounds)
        if _is_mean(bounds):
            return torch.full_like(
                f.sum(), -torch.inf if bounds.spare <= bounds.mass else torch.inf
            )
        anchor, shift = _smooth_threshold(f, bounds, self.mu)
        return anchor + shift

    def dual_value(self, losses: Vector, base: Vector, eta: float | Tensor) -> Tensor:
        """The dual objective at a threshold ``eta``, a number (): at least the value for every eta,
        equal at eta*."""
        f, w = loss_and_weight(losses, base)
        bounds = self._bounds(w)
        at = torch.as_tensor(eta, dtype=torch.float64, device="cpu").detach()
        if at.isinf():  # the limit, finite only where no mass depends on eta
            left, slope = (
                (bounds.spare, bounds.lower + bounds.room)
                if at < 0
                else (bounds.mass, bounds.lower)
            )
            return torch.where(left <= ROUND_OFF, slope @ f, torch.inf)
        return at + bounds.lower @ (f - at) + bounds.room @ _positive_part(f - at, self.mu)

    def duality_gap(self, losses: Vector, base: Vector, eta: float | Tensor) -> Tensor:
        """How far ``eta`` is from the best threshold, in units of the loss: dual_value(eta) - value
        >= 0, a certificate."""
        return (self.dual_value(losses, base, eta) - self.value(losses, base)).clamp(min=0)

    def deviation(self, losses: Vector, base: Vector) -> Tensor:
        """What the value adds to the mean loss under weights w_i / (alpha_i tau): the price of
        unequal losses, a number ().

        FAFL's deviation form A = E + D. It is >= 0 where these weights respect the floors, as with
        floor 0.
        """
        f, w = loss_and_weight(losses, base)
        cap = w / self._alpha(len(w))
        return self.value(losses, base) - (cap / cap.sum()) @ f

    def tau(self, base: Vector) -> Tensor:
        """sum_i w_i / alpha_i, a number >= 1: how often the caps would hold a mass of 1."""
        _, w = loss_and_weight(base, base)
        return (w / self._alpha(len(w))).sum()

    def smoothing_bound(self, base: Vector) -> Tensor:
        """The most that smoothing adds to the value: mu ln 2 sum_i w_i (1/alpha_i - a_i), attained
        where all losses are eta.

        FAFL, Lemma 2, has mu tau; ln 2 makes it sharp.
        """
        _, w = loss_and_weight(base, base)
        return self.mu * math.log(2) * self._bounds(w).room.sum()

    # ---- the aggregate

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        bounds = self._bounds(w)
        if self.mu == 0 or _is_mean(bounds):
            return self._weights(f, w) @ f
        anchor, shift = _smooth_threshold(f, bounds, self.mu)
        above = (f - anchor) - shift
        return anchor + (
            shift + bounds.lower @ above + bounds.room @ _positive_part(above, self.mu)
        )

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        bounds = self._bounds(w)
        if self.mu == 0:
            return bounds.lower + bounds.room * _exact_share(f, bounds)
        if _is_mean(bounds):
            return w
        anchor, shift = _smooth_threshold(f, bounds, self.mu)
        return bounds.lower + bounds.room * torch.sigmoid(((f - anchor) - shift) / self.mu)

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        lower, room, _, _ = self._bounds(w)
        outside = (lower - lam).clamp(min=0).sum() + (lam - lower - room).clamp(min=0).sum()
        inside = outside + (lam.sum() - 1).abs() + unweighted_mass(lam, w) <= ROUND_OFF
        share = torch.where(room > 0, (lam - lower) / room, 0.0).clamp(0, 1)
        entropy = torch.special.entr(share) - torch.special.xlog1py(1 - share, -share)
        return torch.where(inside, 0.0 - self.mu * (room @ entropy), torch.inf)

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        return mass(lam)

    def _alpha(self, clients: int) -> Tensor:
        return _levels("alpha", self.alpha, clients).clamp(min=1e-300)  # the inverse stays finite

    def _bounds(self, w: Tensor) -> Bounds:
        alpha, floor = self._alpha(len(w)), _levels("floor", self.floor, len(w))
        # sums, not inner products, here and below: torch adds in pairs, and a hundred thousand
        # weights lose no digit
        return Bounds(
            w * floor,
            w * (1 / alpha - floor),
            (w * (1 - floor)).sum(),
            (w * ((1 - alpha) / alpha)).sum(),
        )


def cvar(losses: Vector, base: Vector, level: float) -> Tensor:
    """The mean loss of the worst 1 - ``level`` of the weight: conditional value at risk, for a
    level in [0, 1).

    >>> cvar([1.0, 2.0, 3.0, 4.0], [0.25] * 4, 0.75).item()
    4.0
    """
    require_number("level", level, "[0, 1)", "0 gives the mean")
    return HCVaR(1 - level).value(losses, base)


def superquantile(losses: Vector, base: Vector, tail: float) -> Tensor:
    """The mean loss of the worst ``tail`` of the weight, in (0, 1]: what Delta-FL minimises.

    >>> superquantile([1.0, 2.0, 3.0, 4.0], [0.25] * 4, 0.5).item()
    3.5
    """
    require_number("tail", tail, "(0, 1]", "1 gives the mean")
    return HCVaR(tail).value(losses, base)


# ---- mu = 0


def _exact_threshold(f: Tensor, bounds: Bounds) -> Tensor:
    order = f.argsort(descending=True)
    last = torch.searchsorted(bounds.room[order].cumsum(0), bounds.mass).clamp(max=len(f) - 1)
    return f[order[last]]


def _exact_share(f: Tensor, bounds: Bounds) -> Tensor:
    """(n,) part of its room that each client fills: all above the threshold, none below, the rest
    shared at it."""
    eta = _exact_threshold(f, bounds)
    above, at = bounds.room[f > eta].sum(), bounds.room[f == eta].sum()
    rest = ((bounds.mass - above) / torch.where(at > 0, at, 1.0)).clamp(0, 1)
    return torch.where(f > eta, 1.0, torch.where(f == eta, rest, 0.0))


# ---- mu > 0


def _positive_part(x: Tensor, mu: float) -> Tensor:
    """phi_mu(x) = mu log(1 + e^(x/mu)), and (x)_+ for mu = 0."""
    return x.clamp(min=0) + (mu * torch.log1p((-x.abs() / mu).exp()) if mu > 0 else 0)


def _is_mean(bounds: Bounds) -> bool:
    """Whether the bounds leave one choice, the base weights: every alpha is 1, or every floor
    is."""
    return bool(torch.minimum(bounds.mass, bounds.spare) <= 1e-15)


def _smooth_threshold(f: Tensor, bounds: Bounds, mu: float) -> tuple[Tensor, Tensor]:
    """eta* as anchor + shift, with a loss as anchor: f - eta* is then exact however large the
    losses are.

    The condition is sum room sigma((f - eta)/mu) = mass or, the other way round, sum room
    sigma((eta - f)/mu) = spare: the smaller right-hand side has the better relative precision.
    """
    if bounds.mass <= bounds.spare:
        return _tail_threshold(f, bounds.room, bounds.mass, mu)
    anchor, shift = _tail_threshold(-f, bounds.room, bounds.spare, mu)
    return -anchor, -shift


def _tail_threshold(f: Tensor, room: Tensor, target: Tensor, mu: float) -> tuple[Tensor, Tensor]:
    """The eta with sum room sigma((f - eta)/mu) = target, for a target of at most half the room, so
    that eta >= min f."""

    def filled(anchor: Tensor, shift: Tensor | float) -> Tensor:
        return (room * torch.sigmoid(((f - anchor) - shift) / mu)).sum()

    ordered = f.sort().values
    # the sum falls from ordered[first] >= target to below it at ordered[last]
    first, last = 0, len(ordered)
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if filled(ordered[middle], 0.0) >= target else (first, middle)
    # farther from every loss than this, the sum no longer moves
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
    """The shift in [low, high] with sum room sigma((x - shift)/mu) = target: Newton on the
    logarithm, kept inside by bisection."""
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


def _several(levels: Levels) -> tuple[float, ...]:
    return levels if isinstance(levels, tuple) else (levels,)


def _levels(name: str, levels: Levels, clients: int) -> Tensor:
    """(n,) one level for each client."""
    values = torch.tensor(_several(levels), dtype=torch.float64)
    require(
        len(values) in (1, clients),
        "{} has {} entries for {} clients; give one number, or one for each",
        name,
        len(values),
        clients,
    )
    return values.expand(clients)
