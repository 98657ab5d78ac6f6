"""FAFL's risk: the worst reweighting of clients within bounds, by one threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.errors import require, require_number
from evenhand.theory.aggregates import Aggregate
from evenhand.theory.inputs import Vector, loss_and_weight, plain
from evenhand.theory.numerics import ROUND_OFF, mass, unweighted_mass
from evenhand.theory.thresholds import (
    Bounds,
    exact_share,
    exact_threshold,
    is_mean,
    positive_part,
    smooth_threshold,
)

Levels = float | tuple[float, ...]


@dataclass(frozen=True)
class HCVaR(Aggregate):
    """The worst average loss over all client weights in [a_i w_i, w_i / alpha_i]: FAFL with a
    floor.

        A(f) = max { sum_i lam_i f_i : a_i w_i <= lam_i <= w_i / alpha_i, sum_i lam_i = 1 }
             = min over eta of  eta + sum_i w_i [a_i (f_i - eta) + (1/alpha_i - a_i) (f_i - eta)_+]
                                                                     (docs/explanation/hcvar.md)

    a = 0 is FAFL's HCVaR; a > 0 is our extension, in which no client is ever ignored. With mu > 0,
    phi_mu(x) = mu log(1 + e^(x/mu)) replaces (x)_+, which adds at most ``smoothing_bound``; the
    dual weights are then lam_i = w_i [a_i + (1/alpha_i - a_i) sigma((f_i - eta*)/mu)]. With mu = 0,
    clients that tie at the threshold share the remaining mass in proportion to their room. A* = 0
    (mu = 0), or -mu sum_i room_i H(s_i) with s_i = (lam_i - w_i a_i)/room_i and H the binary
    entropy, on the set of weights above.

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
        """Return a minimiser eta* of the dual: the loss above which a client gets more than its
        floor.

        With mu = 0 it is the loss of the last client to receive mass. With mu > 0 it is -inf if tau
        = 1 (all alpha = 1) and +inf if all floors are 1: the dual then has no finite minimiser and
        approaches the mean.
        """
        f, w = loss_and_weight(losses, base)
        if not f.isfinite().all():
            return torch.full_like(f.sum(), torch.nan)
        bounds = self._bounds(w)
        if self.mu == 0:
            return exact_threshold(f, bounds)
        if is_mean(bounds):
            return torch.full_like(
                f.sum(), -torch.inf if bounds.spare <= bounds.mass else torch.inf
            )
        anchor, shift = smooth_threshold(f, bounds, self.mu)
        return anchor + shift

    def dual_value(self, losses: Vector, base: Vector, eta: float | Tensor) -> Tensor:
        """Return the dual objective at a threshold ``eta``: at least the value, and equal to it
        at eta*."""
        f, w = loss_and_weight(losses, base)
        bounds = self._bounds(w)
        at = torch.as_tensor(eta, dtype=torch.float64, device="cpu").detach()
        if at.isinf():  # the limit, finite only if no mass depends on eta
            left, slope = (
                (bounds.spare, bounds.lower + bounds.room)
                if at < 0
                else (bounds.mass, bounds.lower)
            )
            return torch.where(left <= ROUND_OFF, slope @ f, torch.inf)
        return at + bounds.lower @ (f - at) + bounds.room @ positive_part(f - at, self.mu)

    def duality_gap(self, losses: Vector, base: Vector, eta: float | Tensor) -> Tensor:
        """Return dual_value(eta) - value >= 0: how far ``eta`` is from the best threshold."""
        return (self.dual_value(losses, base, eta) - self.value(losses, base)).clamp(min=0)

    def deviation(self, losses: Vector, base: Vector) -> Tensor:
        """Return what the value adds to the mean loss with weights w_i / (alpha_i tau), a scalar.

        This is the price of unequal losses: FAFL's deviation form A = E + D. It is >= 0 if these
        weights respect the floors, as with floor 0.
        """
        f, w = loss_and_weight(losses, base)
        cap = w / self._alpha(len(w))
        return self.value(losses, base) - (cap / cap.sum()) @ f

    def tau(self, base: Vector) -> Tensor:
        """Return sum_i w_i / alpha_i >= 1: how many times the caps could hold a mass of 1."""
        _, w = loss_and_weight(base, base)
        return (w / self._alpha(len(w))).sum()

    def smoothing_bound(self, base: Vector) -> Tensor:
        """Return the most that smoothing adds to the value: mu ln 2 sum_i w_i (1/alpha_i - a_i).

        It is attained if all losses are eta. FAFL, Lemma 2, has mu tau; ln 2 makes it sharp.
        """
        _, w = loss_and_weight(base, base)
        return self.mu * math.log(2) * self._bounds(w).room.sum()

    # ---- the aggregate

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        bounds = self._bounds(w)
        if self.mu == 0 or is_mean(bounds):
            return self._weights(f, w) @ f
        anchor, shift = smooth_threshold(f, bounds, self.mu)
        above = (f - anchor) - shift
        return anchor + (shift + bounds.lower @ above + bounds.room @ positive_part(above, self.mu))

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        bounds = self._bounds(w)
        if self.mu == 0:
            return bounds.lower + bounds.room * exact_share(f, bounds)
        if is_mean(bounds):
            return w
        anchor, shift = smooth_threshold(f, bounds, self.mu)
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
    """Return the conditional value at risk: the mean loss of the worst 1 - ``level`` of the weight.

    >>> cvar([1.0, 2.0, 3.0, 4.0], [0.25] * 4, 0.75).item()
    4.0
    """
    require_number("level", level, "[0, 1)", "0 gives the mean")
    return HCVaR(1 - level).value(losses, base)


def superquantile(losses: Vector, base: Vector, tail: float) -> Tensor:
    """Return the mean loss of the worst ``tail`` of the weight, in (0, 1]: what Delta-FL minimises.

    >>> superquantile([1.0, 2.0, 3.0, 4.0], [0.25] * 4, 0.5).item()
    3.5
    """
    require_number("tail", tail, "(0, 1]", "1 gives the mean")
    return HCVaR(tail).value(losses, base)


def _several(levels: Levels) -> tuple[float, ...]:
    return levels if isinstance(levels, tuple) else (levels,)


def _levels(name: str, levels: Levels, clients: int) -> Tensor:
    """Return (n,) one level per client."""
    values = torch.tensor(_several(levels), dtype=torch.float64)
    require(
        len(values) in (1, clients),
        "{} has {} entries for {} clients; pass one number, or one per client",
        name,
        len(values),
        clients,
    )
    return values.expand(clients)
