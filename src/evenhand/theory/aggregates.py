"""What fair methods minimise: values, dual weights, conjugates and gaps of the clients' losses.

A method that minimises A(f_1(theta), ..., f_n(theta)) descends along sum_i lam_i grad f_i with the
dual weights lam = grad A(f). They say how much each client counts; the Fenchel-Young gap says how
far given weights are from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.errors import require, require_number
from evenhand.theory.inputs import Vector, loss_and_weight, vector
from evenhand.theory.numerics import (
    ROUND_OFF,
    log_ratio,
    mass,
    on_simplex,
    power_mean,
    relative_entropy,
    share_out,
    unweighted_mass,
    zero_if,
)


class Aggregate(ABC):
    """One number from the losses (n,) of n clients with ``base`` weights (n,) that sum to 1.

    Everything is computed in float64. A client with base weight 0 has no effect, whatever its loss.
    Losses that are not finite, as after a diverged run, give NaN.
    """

    def value(self, losses: Vector, base: Vector) -> Tensor:
        """Return the aggregate A(f), a scalar."""
        f, w = loss_and_weight(losses, base)
        return self._value(f, w) if _finite(f) else torch.full_like(f.sum(), torch.nan)

    def weights(self, losses: Vector, base: Vector) -> Tensor:
        """Return the dual weights (n,): the gradient of A at the losses.

        If there are several subgradients, it is one that treats equal clients alike.
        """
        f, w = loss_and_weight(losses, base)
        return self._weights(f, w) if _finite(f) else torch.full_like(f, torch.nan)

    def conjugate(self, lam: Vector, base: Vector) -> Tensor:
        """Return A*(lam) = sup over f of <lam, f> - A(f), a scalar.

        It is infinite if ``lam`` is not a subgradient. ``lam`` counts as inside the domain if it
        misplaces a mass of at most 1e-9.
        """
        lam, w = _multiplier_and_weight(lam, base)
        return self._conjugate(lam, w)

    def gap(self, losses: Vector, base: Vector, lam: Vector) -> Tensor:
        """Return how far ``lam`` is from the dual weights, in units of the loss; zero only for
        these.

            A(f) - (<lam, f> - A*(lam))                                     (the Fenchel-Young gap)

        It certifies the weights that a run actually used. Their scale depends on step sizes, so
        ``lam`` is first scaled like dual weights: to sum 1, for PowerMean to dual norm 1, for
        LogMean to geometric mean 1.
        """
        f, w = loss_and_weight(losses, base)
        lam, _ = _multiplier_and_weight(lam, base)
        if not _finite(f):
            return torch.full_like(f.sum(), torch.nan)
        scaled = lam / self._size(lam, w)
        # below zero by rounding, or concave
        return (self._value(f, w) - (scaled @ f - self._conjugate(scaled, w))).abs()

    def normalised(self, losses: Vector, base: Vector) -> Tensor:
        """Return the dual weights (n,) scaled to sum 1; those of PowerMean and LogMean have
        other sums."""
        lam = self.weights(losses, base)
        return lam / lam.sum()

    @abstractmethod
    def _value(self, f: Tensor, w: Tensor) -> Tensor: ...

    @abstractmethod
    def _weights(self, f: Tensor, w: Tensor) -> Tensor: ...

    @abstractmethod
    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor: ...

    @abstractmethod
    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        """Return a quantity that is 1 for dual weights."""


@dataclass(frozen=True)
class Mean(Aggregate):
    """The average loss: FedAvg.

    A(f) = sum_i w_i f_i,   lam = w,   A* = 0 at w alone

    >>> Mean().value([1.0, 3.0], [0.5, 0.5]).item()
    2.0
    """

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        return w @ f

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        return w

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        return zero_if((lam - w).abs().sum() <= ROUND_OFF)

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        return mass(lam)


@dataclass(frozen=True)
class PowerMean(Aggregate):
    """The power mean of non-negative losses: q-FFL.

    A(f) = (sum_i w_i f_i^(q+1))^(1/(q+1)),   lam_i = w_i (f_i / A)^q     (Li et al., ICLR 2020)

    A* = 0 where the dual norm (sum_i w_i (lam_i / w_i)^p)^(1/p), p = (q+1)/q, is at most 1; it is 1
    at dual weights, whose sum is at most 1. Negative entries of lam count as 0 there, losses being
    >= 0. Where all losses are 0 the dual weights are w.

    Args:
        q: 0 gives the mean, large values the maximum.

    >>> PowerMean(1.0).value([1.0, 7.0], [0.5, 0.5]).item()
    5.0
    """

    q: float

    def __post_init__(self) -> None:
        require_number("q", self.q, "[0, inf)", "0 gives the mean")

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        return power_mean(_not_negative(f), w, self.q + 1)

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        top = _not_negative(f).max()
        if self.q == 0 or top == 0:
            return w
        log_f = log_ratio(f, top)
        log_mean = (w @ ((self.q + 1) * log_f).exp()).log() / (self.q + 1)
        return w * (self.q * (log_f - log_mean)).exp()

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        return zero_if(
            (self._size(lam, w) <= 1 + ROUND_OFF) & (unweighted_mass(lam, w) <= ROUND_OFF)
        )

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        ratio = torch.where(w > 0, lam.clamp(min=0) / w, 0.0)
        # q = 0: the maximum, in all digits
        norm = power_mean(ratio, w, 1 + 1 / max(self.q, 1e-300))
        return torch.where(norm > 0, norm, 1.0)


@dataclass(frozen=True)
class TiltedMean(Aggregate):
    """The exponentially tilted mean: TERM.

    A(f) = (1/t) log sum_i w_i e^(t f_i),   lam_i = w_i e^(t f_i) / sum_j w_j e^(t f_j)
                                                                          (Li et al., ICLR 2021)

    A* = KL(lam || w) / t on the simplex. For t < 0 the aggregate is concave, and A* is its concave
    conjugate, the infimum of <lam, f> - A(f), -inf outside the simplex; the gap is still >= 0.

    Args:
        t: 0 gives the mean, large values the maximum; below 0 the clients of low loss count most.

    >>> TiltedMean(2.0).weights([5.0, 5.0], [0.25, 0.75]).tolist()
    [0.25, 0.75]
    """

    t: float

    def __post_init__(self) -> None:
        require_number("t", self.t, "(-inf, inf)", "0 gives the mean")

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        pivot = self._pivot(f)
        tilt = self.t * (f - pivot)
        # also t = 0: the next term of the series is below rounding
        if -tilt.min() < torch.finfo(tilt.dtype).eps:
            return w @ f
        drop = w @ tilt.expm1()  # in (-1, 0]
        return pivot + (torch.log1p(drop) if drop > -0.5 else (w @ tilt.exp()).log()) / self.t

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        tilted = w * (self.t * (f - self._pivot(f))).exp()
        return tilted / tilted.sum()

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        if self.t == 0:
            return Mean()._conjugate(lam, w)
        if not on_simplex(lam, w):
            return torch.full_like(lam.sum(), math.copysign(torch.inf, self.t))
        return relative_entropy(lam.clamp(min=0) / lam.clamp(min=0).sum(), w) / self.t

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        return mass(lam)

    def _pivot(self, f: Tensor) -> Tensor:
        """The loss of the largest tilt: relative to it no exponential overflows."""
        return f.max() if self.t > 0 else f.min()


@dataclass(frozen=True)
class LogMean(Aggregate):
    """The loss whose utility M - f is the geometric mean of the clients' utilities: PropFair.

        A(f) = M - G,  G = prod_i (M - f_i)^(w_i),   lam_i = w_i G / (M - f_i)   (Zhang et al.,
        2022)

    A* = M (sum lam - 1) if lam >= 0 and prod_i (lam_i / w_i)^(w_i) >= 1; the product is 1 at dual
    weights, whose sum is at least 1. If a loss reaches M, the value is infinite, and the weights
    are the limit of the normalised ones: all on the clients at or above M, in proportion to their
    base weights.

    Args:
        M: the utility baseline; large values approach the mean.

    >>> LogMean(5.0).value([1.0, 4.0], [0.5, 0.5]).item()
    3.0
    """

    M: float

    def __post_init__(self) -> None:
        require_number("M", self.M, "(0, inf)", "take it above every loss")

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        if f.max() >= self.M:
            return torch.full_like(f.sum(), torch.inf)
        best = f.min()
        return best - (self.M - best) * (w @ self._log_utility(f)).expm1()

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        if f.max() >= self.M:
            return share_out(w, f >= self.M)
        log_utility = self._log_utility(f)
        return w * (w @ log_utility - log_utility).exp()

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        stray = (-lam).clamp(min=0).sum() + unweighted_mass(lam, w)
        inside = (stray <= ROUND_OFF) & (self._size(lam, w) >= 1 - ROUND_OFF)
        return torch.where(inside, self.M * (lam.sum() - 1), torch.inf)

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        held = w > 0
        if (lam[held] <= 0).any():
            return torch.full_like(lam.sum(), torch.finfo(lam.dtype).tiny)
        return (w[held] @ (lam[held].log() - w[held].log())).exp()

    def _log_utility(self, f: Tensor) -> Tensor:
        """(n,) log of each client's utility over the largest."""
        best = f.min()
        return log_ratio(self.M - f, self.M - best, best - f)


@dataclass(frozen=True)
class Maximum(Aggregate):
    """The loss of the worst client: AFL.

    A(f) = max_i f_i,   lam on the worst clients,   A* = 0 on the simplex
                                                                       (Mohri et al., ICML 2019)

    Clients that tie share the weight in proportion to their base weights: the limit of PowerMean
    and TiltedMean.

    >>> Maximum().weights([1.0, 7.0, 7.0], [0.5, 0.375, 0.125]).tolist()
    [0.0, 0.75, 0.25]
    """

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        return f.max()

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        return share_out(w, f == f.max())

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        return zero_if(on_simplex(lam, w))

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        return mass(lam)


def _finite(f: Tensor) -> bool:
    return bool(f.isfinite().all())


def _multiplier_and_weight(lam: Vector, base: Vector) -> tuple[Tensor, Tensor]:
    return vector(lam), loss_and_weight(torch.zeros_like(vector(lam)), base)[1]


def _not_negative(f: Tensor) -> Tensor:
    require(
        bool((f >= 0).all()),
        "PowerMean needs losses >= 0, got {}; use TiltedMean, which takes any",
        f.min().item(),
    )
    return f
