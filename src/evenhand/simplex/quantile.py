"""Quantiles of weighted values."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.errors import require, require_number


def weighted_quantile(values: Tensor, weights: Tensor, level: float) -> Tensor:
    """The smallest value () such that values up to it have at least ``level`` of the weight.

    Level 0 gives the smallest value with positive weight, 1 the largest. Sums within a relative
    1e-12 of the level reach it.

    >>> weighted_quantile(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 2.0]), 0.75).item()
    2.0
    """
    require_number("level", level, "[0, 1]")
    require(
        values.shape == weights.shape,
        "{} values do not match {} weights",
        tuple(values.shape),
        tuple(weights.shape),
    )
    require(
        bool((weights >= 0).all() and (weights > 0).any()),
        "weights must be >= 0, and one of them positive",
    )
    held = weights > 0
    order = values[held].argsort()
    ordered, weight = values[held][order], weights[held].double()[order]
    weight = weight / weight.max()  # so that no sum overflows
    if level <= 0.5:
        reached = weight.cumsum(0) >= level * weight.sum() * (1 - 1e-12)
    else:  # the same from the other end, where small weights are not lost in a large sum
        beyond = torch.cat([weight.flip(0).cumsum(0).flip(0)[1:], weight.new_zeros(1)])
        reached = beyond <= (1 - level) * weight.sum() * (1 + 1e-12)
    return ordered[reached.nonzero()[0, 0]]
