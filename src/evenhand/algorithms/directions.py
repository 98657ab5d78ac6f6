"""Directions that lower several losses at once, and updates of clients that are absent."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.algorithm import State
from evenhand.simplex import min_norm_weights

# sine of an angle, and length relative to the other rows, below which there is only rounding
ROUNDING = 1e-10
# a direction conflicts with a row if the cosine of their angle is below minus this
CONFLICT = 1e-6


def away_from_unequal(losses: Tensor) -> Tensor:
    """Return (K,) the gradient of -cos(losses, 1) by the losses, at length one.

    Zeros if the losses are equal: then nothing makes them more equal.
    """
    one = torch.full_like(losses, len(losses) ** -0.5)
    length = losses.norm()
    unit = losses / length.clamp(min=1e-300)
    slope = (one @ unit) * unit - one
    sine = slope.norm()
    return torch.where((length > 0) & (sine > ROUNDING), slope / sine.clamp(min=1e-300), 0.0)


def angle(losses: Tensor) -> Tensor:
    """Return the angle between losses (K,) and equal losses, in degrees; 0 if all are zero."""
    one = torch.full_like(losses, len(losses) ** -0.5)
    along = losses @ one
    # accurate for small angles, where the arc cosine is not
    return torch.rad2deg(torch.atan2((losses - along * one).norm(), along))


def at_length(rows: Tensor, length: Tensor) -> Tensor:
    """Scale every row to ``length``; rows of zeros stay."""
    norm = rows.norm(dim=-1, keepdim=True)
    return torch.where(norm > 0, rows * (length / norm.clamp(min=1e-300)), 0.0)


def mean_length(rows: Tensor) -> Tensor:
    """Return the mean length of the rows that are not zero."""
    norm = rows.norm(dim=1)
    mean: Tensor = norm.sum() / (norm > 0).sum().clamp(min=1)
    return mean


def least_norm(rows: Tensor) -> Tensor:
    """Return the shortest point in the convex hull of the rows, ignoring rows of zeros.

    It has a product of at least its squared length with every row.
    """
    norm = rows.norm(dim=1)
    rows = rows[norm > ROUNDING * norm.max()] if len(rows) else rows
    if not len(rows):
        return rows.new_zeros(rows.shape[1])
    return min_norm_weights((rows @ rows.T).cpu()).to(rows) @ rows


def stretched(direction: Tensor, rows: Tensor) -> Tensor:
    """Scale ``direction`` to the length of the mean of the rows.

    Near a point where no direction helps all clients, ``direction`` is rounding. If it conflicts
    with a row, it is not stretched.
    """
    length = direction.norm()
    cosine = (rows @ direction) / (rows.norm(dim=1) * length).clamp(min=1e-300)
    longer = at_length(direction, rows.mean(0).norm())
    return torch.where((cosine >= -CONFLICT).all(), longer, direction)


def nobody(size: int) -> State:
    """Return the part of a state that remembers updates of length ``size``, before any."""
    ids = torch.zeros(0, dtype=torch.int64)
    return {"heard": ids, "age": ids, "past": torch.zeros(0, size, dtype=torch.float64)}


def remembered(state: State, ids: Tensor, updates: Tensor, oldest: int) -> State:
    """Return the last update of every client that took part at most ``oldest`` rounds ago.

    ``age`` counts the rounds since then; it is 0 for the participants of this round.
    """
    kept = ~torch.isin(state["heard"], ids) & (state["age"] < oldest)
    return {
        "heard": torch.cat([state["heard"][kept], ids]),
        "age": torch.cat([state["age"][kept] + 1, torch.zeros_like(ids)]),
        "past": torch.cat([state["past"][kept].to(updates.device), updates]),
    }
