"""Arithmetic on weights and losses without loss of precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# weights that misplace at most this mass count as inside the domain of a conjugate
ROUND_OFF = 1e-9


def mass(lam: Tensor) -> Tensor:
    """Return the sum of ``lam`` if it is positive, else 1."""
    total = lam.sum()
    return torch.where(total > 0, total, 1.0)


def on_simplex(lam: Tensor, w: Tensor) -> bool:
    """Whether ``lam`` is a distribution over the clients that have weight, up to rounding."""
    stray = (-lam).clamp(min=0).sum() + (lam.sum() - 1).abs() + unweighted_mass(lam, w)
    return bool(stray <= ROUND_OFF)


def unweighted_mass(lam: Tensor, w: Tensor) -> Tensor:
    """Return the mass that ``lam`` gives to clients with base weight 0."""
    return lam[w == 0].abs().sum()


def zero_if(inside: Tensor | bool) -> Tensor:
    """Return 0 inside a set and infinity outside: the conjugate of its support function."""
    return torch.tensor(0.0 if inside else torch.inf, dtype=torch.float64)


def share_out(w: Tensor, among: Tensor) -> Tensor:
    """Share a mass of 1 ``among`` clients in proportion to ``w``."""
    part = torch.where(among, w, 0.0)
    return part / part.sum()


def log_ratio(x: Tensor, top: Tensor, difference: Tensor | None = None) -> Tensor:
    """Return log(x / top) for 0 <= x <= top, precise near 1 and where the ratio would underflow.

    ``difference`` is x - top, if the caller knows it more precisely.
    """
    near = torch.log1p((x - top if difference is None else difference) / top)
    (part, power), (top_part, top_power) = torch.frexp(x), torch.frexp(top)
    far = (part / top_part).log() + (power - top_power).double() * math.log(2)
    return torch.where(x > top / 2, near, far)


def power_mean(x: Tensor, w: Tensor, p: float) -> Tensor:
    """Return (sum w x^p)^(1/p) for x >= 0, relative to the largest so that nothing overflows."""
    top = x.max()
    return top * ((w @ (p * log_ratio(x, top)).exp()).log() / p).exp() if top > 0 else top


def relative_entropy(lam: Tensor, w: Tensor) -> Tensor:
    """Return KL(lam || w) as a sum of terms >= 0, which is exact if the two are close."""
    held = w > 0
    lam, w = lam[held], w[held]
    return (torch.xlogy(lam, lam / w) - lam + w).clamp(min=0).sum()
