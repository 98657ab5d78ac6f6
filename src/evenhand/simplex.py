"""Projections onto the probability simplex."""

from __future__ import annotations

import torch
from torch import Tensor


def project_simplex(v: Tensor, floor: float = 0.0) -> Tensor:
    """The point of {x : sum x = 1, x_i >= floor} nearest to ``v`` (n,).

    x_i = floor + max(v_i - floor - theta, 0) with theta from sorting (Held, Wolfe and Crowder, 1974): with a floor, shift by
    it, project on the simplex of the mass left, shift back.

    >>> project_simplex(torch.tensor([1.0, 0.75, 0.0])).tolist()
    [0.625, 0.375, 0.0]
    """
    n = len(v)
    mass = 1 - n * floor
    if mass < 0:
        raise ValueError(f"a floor of {floor} for each of {n} entries exceeds the mass 1; use at most {1 / n:g}")
    shifted = v - floor
    shifted = shifted - shifted.max()  # a common shift changes nothing and keeps huge inputs exact
    ordered = shifted.sort(descending=True).values
    threshold = (ordered.cumsum(0) - mass) / torch.arange(1, n + 1, dtype=v.dtype, device=v.device)  # (n,)
    support = int((ordered > threshold).sum().clamp(min=1))
    return (shifted - threshold[support - 1]).clamp(min=0) + floor
