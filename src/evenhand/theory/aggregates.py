"""What fair methods minimise, as functions of the clients' losses: values, dual weights, conjugates
and certificates.

A method that minimises A(f_1(theta), ..., f_n(theta)) descends sum_i lam_i grad f_i with the dual
weights lam = grad A(f). They say what a method does to the clients; the Fenchel-Young gap says how
far given weights are from being these.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.errors import require, require_number, require_whole

Vector = Tensor | Sequence[float] | npt.NDArray[Any]

# weights that misplace at most this mass count as inside the domain of a conjugate
ROUND_OFF = 1e-9


class Aggregate(ABC):
    """One number from the losses (n,) of n clients with ``base`` weights (n,) of sum 1.

    Everything is computed in float64. A client of base weight 0 counts for nothing, whatever its
    loss. Losses that are not finite, as after a run that diverged, give NaN.
    """

    def value(self, losses: Vector, base: Vector) -> Tensor:
        """The aggregate A(f), a number ()."""
        f, w = loss_and_weight(losses, base)
        return self._value(f, w) if _finite(f) else torch.full_like(f.sum(), torch.nan)

    def weights(self, losses: Vector, base: Vector) -> Tensor:
        """The dual weights (n,): the gradient of A at the losses; where there are several
        subgradients, an even-handed one."""
        f, w = loss_and_weight(losses, base)
        return self._weights(f, w) if _finite(f) else torch.full_like(f, torch.nan)

    def conjugate(self, lam: Vector, base: Vector) -> Tensor:
        """A*(lam) = sup over f of <lam, f> - A(f), a number (); infinite where ``lam`` is no
        subgradient.

        ``lam`` counts as inside the domain when it misplaces a mass of at most 1e-9.
        """
        lam, w = _multiplier_and_weight(lam, base)
        return self._conjugate(lam, w)

    def gap(self, losses: Vector, base: Vector, lam: Vector) -> Tensor:
        """How far ``lam`` is from the dual weights, in units of the loss: A(f) - (<lam, f> -
        A*(lam)), zero at these alone.

        A certificate of the weights a run really used. Their size is a matter of step sizes, so
        ``lam`` is first scaled to the size that dual weights have: sum 1, for PowerMean dual norm
        1, for LogMean geometric mean 1.
        """
        f, w = loss_and_weight(losses, base)
        lam, _ = _multiplier_and_weight(lam, base)
        if not _finite(f):
            return torch.full_like(f.sum(), torch.nan)
        scaled = lam / self._size(lam, w)
        # below zero by rounding, or concave
        return (self._value(f, w) - (scaled @ f - self._conjugate(scaled, w))).abs()

    def normalised(self, losses: Vector, base: Vector) -> Tensor:
        """The dual weights (n,) scaled to sum 1, for reports: their sum differs from 1 for
        PowerMean and LogMean."""
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
        """What is 1 for dual weights."""


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

    A(f) = (sum_i w_i f_i^(q+1))^(1/(q+1)),   lam_i = w_i (f_i / A)^q                 (Li et al.,
    ICLR 2020)

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

    A(f) = (1/t) log sum_i w_i e^(t f_i),   lam_i = w_i e^(t f_i) / sum_j w_j e^(t f_j)          (Li
    et al., ICLR 2021)

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
    """The loss whose utility M - f is the clients' geometric mean utility: PropFair.

    A(f) = M - G,  G = prod_i (M - f_i)^(w_i),   lam_i = w_i G / (M - f_i)                    (Zhang
    et al., 2022)

    A* = M (sum lam - 1) where lam >= 0 and prod_i (lam_i / w_i)^(w_i) >= 1; the product is 1 at
    dual weights, whose sum is at least 1. Where a loss reaches M the value is infinite, and the
    weights are the limit of the normalised ones: all on the clients at or above M, in proportion to
    their base weights.

    Args:
        M: the utility baseline; large values tend to the mean.

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

    A(f) = max_i f_i,   lam on the worst clients,   A* = 0 on the simplex                 (Mohri et
    al., ICML 2019)

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


@dataclass(frozen=True)
class RankSpread(Aggregate):
    """The average loss and the distances between the losses of teams: GIFAIR.

    A(f) = sum_i w_i f_i + c sum_{a<b} |L_a - L_b|,   lam_i = w_i + c rho_a / |A_a|        (Yue,
    Nouiehed, Al Kontar, 2021)

    L_a is the plain mean over the clients of team a, rho_a = (teams of lower loss) - (teams of
    higher loss), ties counting 0, and c = strength * c_max with c_max = min_i w_i |A_a(i)| / (teams
    - 1), up to which no weight is negative.

    A* = 0 on the convex hull of the weights that the orders of the teams give: lam_i - w_i the same
    for all of a team, and any k teams together at most c k (teams - k) above their base weights.

    Args:
        strength: c as a fraction of c_max, in [0, 1]; 0 gives the mean.
        teams: the team of each client, whole numbers; None makes every client its own.

    >>> RankSpread(1.0).value([1.0, 2.0], [0.5, 0.5]).item()
    2.0
    """

    strength: float
    teams: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_number("strength", self.strength, "[0, 1]", "0 gives the mean")
        object.__setattr__(self, "teams", plain(self.teams))
        for team in self.teams or ():
            require_whole("a team", team, 0)

    def _value(self, f: Tensor, w: Tensor) -> Tensor:
        return self._weights(f, w) @ f

    def _weights(self, f: Tensor, w: Tensor) -> Tensor:
        team, members = self._teams(len(w))
        return w + (self._factor(w) * _rank(_team_sums(f, team, members) / members) / members)[team]

    def _conjugate(self, lam: Tensor, w: Tensor) -> Tensor:
        team, members = self._teams(len(w))
        raised = _team_sums(lam - w, team, members)  # (d,)
        uneven = (lam - w - (raised / members)[team]).abs().sum()
        first = torch.arange(1, len(members) + 1, dtype=w.dtype)
        excess = raised.sort(descending=True).values.cumsum(0) - self._factor(w) * first * (
            len(members) - first
        )
        return zero_if(
            (uneven <= ROUND_OFF) & (excess.max() <= ROUND_OFF) & (raised.sum().abs() <= ROUND_OFF)
        )

    def _size(self, lam: Tensor, w: Tensor) -> Tensor:
        return mass(lam)

    def _teams(self, clients: int) -> tuple[Tensor, Tensor]:
        """(n,) number of each client's team, counted from 0 without gaps, and (d,) its number of
        clients."""
        teams = range(clients) if self.teams is None else self.teams
        require(
            len(teams) == clients,
            "teams names {} clients, there are {}; give one team for each",
            len(teams),
            clients,
        )
        _, team, members = torch.unique(
            torch.tensor(list(teams)), return_inverse=True, return_counts=True
        )
        return team, members.double()

    def _factor(self, w: Tensor) -> Tensor:
        """c."""
        team, members = self._teams(len(w))
        return self.strength * (w * members[team]).min() / max(len(members) - 1, 1)


# ---- shared with HCVaR


def loss_and_weight(losses: Vector, base: Vector) -> tuple[Tensor, Tensor]:
    """Losses (n,) and base weights (n,) as float64; where a weight is 0, the smallest loss of the
    others, which changes nothing."""
    f, w = vector(losses), vector(base)
    require(
        f.shape == w.shape,
        "{} losses do not match {} base weights; give one of each per client",
        len(f),
        len(w),
    )
    require(
        bool((w >= 0).all()) and abs(float(w.sum()) - 1) <= 1e-6,
        "base weights must be >= 0 and sum to 1, got {}",
        w.tolist()[:10],
    )
    return torch.where(w > 0, f, f[w > 0].min()), w / w.sum()


def vector(values: Vector) -> Tensor:
    """``values`` as a float64 tensor (n,) on the CPU."""
    # torch takes no reversed arrays
    values = values.copy() if isinstance(values, np.ndarray) else values
    x = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    require(
        x.dim() == 1,
        "expected one number for each client, got a tensor of shape {}",
        tuple(x.shape),
    )
    return x


def plain(values: Any) -> Any:
    """A list, array or tensor as a tuple, so that settings can be compared and hashed; anything
    else as it is."""
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    return tuple(values) if isinstance(values, list) else values


def mass(lam: Tensor) -> Tensor:
    """The sum of ``lam`` where it is positive, else 1: nothing to scale."""
    total = lam.sum()
    return torch.where(total > 0, total, 1.0)


def on_simplex(lam: Tensor, w: Tensor) -> bool:
    """Whether ``lam`` is a distribution over the clients that have weight, up to round-off."""
    stray = (-lam).clamp(min=0).sum() + (lam.sum() - 1).abs() + unweighted_mass(lam, w)
    return bool(stray <= ROUND_OFF)


def unweighted_mass(lam: Tensor, w: Tensor) -> Tensor:
    """What ``lam`` gives to clients of base weight 0."""
    return lam[w == 0].abs().sum()


def zero_if(inside: Tensor | bool) -> Tensor:
    """0 inside a set, infinity outside: the conjugate of its support function."""
    return torch.tensor(0.0 if inside else torch.inf, dtype=torch.float64)


def share_out(w: Tensor, among: Tensor) -> Tensor:
    """A mass of 1 shared ``among`` clients in proportion to ``w``."""
    part = torch.where(among, w, 0.0)
    return part / part.sum()


# ---- numerics


def log_ratio(x: Tensor, top: Tensor, difference: Tensor | None = None) -> Tensor:
    """log(x / top) for 0 <= x <= top to full relative precision: near 1, and where the ratio itself
    would underflow.

    ``difference`` is x - top where the caller knows it better.
    """
    near = torch.log1p((x - top if difference is None else difference) / top)
    (part, power), (top_part, top_power) = torch.frexp(x), torch.frexp(top)
    far = (part / top_part).log() + (power - top_power).double() * math.log(2)
    return torch.where(x > top / 2, near, far)


def power_mean(x: Tensor, w: Tensor, p: float) -> Tensor:
    """(sum w x^p)^(1/p) for x >= 0, relative to the largest so that nothing overflows."""
    top = x.max()
    return top * ((w @ (p * log_ratio(x, top)).exp()).log() / p).exp() if top > 0 else top


def relative_entropy(lam: Tensor, w: Tensor) -> Tensor:
    """KL(lam || w) of distributions, as a sum of terms that are >= 0: exact where the two are
    close."""
    held = w > 0
    lam, w = lam[held], w[held]
    return (torch.xlogy(lam, lam / w) - lam + w).clamp(min=0).sum()


def _finite(f: Tensor) -> bool:
    return bool(f.isfinite().all())


def _multiplier_and_weight(lam: Vector, base: Vector) -> tuple[Tensor, Tensor]:
    return vector(lam), loss_and_weight(torch.zeros_like(vector(lam)), base)[1]


def _not_negative(f: Tensor) -> Tensor:
    require(
        bool((f >= 0).all()),
        "PowerMean needs losses >= 0, got {}; TiltedMean takes any",
        f.min().item(),
    )
    return f


def _team_sums(x: Tensor, team: Tensor, members: Tensor) -> Tensor:
    """(d,) sums over teams. Added in increasing order, so that teams of the same numbers tie
    whatever the order of clients."""
    order = x.argsort()
    return torch.zeros_like(members).index_add(0, team[order], x[order])


def _rank(loss: Tensor) -> Tensor:
    """(d,) number of entries with lower loss minus those with higher."""
    ordered = loss.sort().values
    lower = torch.searchsorted(ordered, loss, right=False)
    higher = len(loss) - torch.searchsorted(ordered, loss, right=True)
    return (lower - higher).double()
