"""Whether a model is proportionally fairer than another."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evenhand.errors import require, require_number
from evenhand.theory.inputs import Vector, read_vector, read_weights


class RelativeChange(NamedTuple):
    """How one model compares with another by relative changes of utility."""

    # weighted sum of the relative changes; positive: the new model is proportionally better
    total: float
    change: tuple[float, ...]  # (n,) relative change of each client's utility
    losers: tuple[int, ...]  # clients whose utility falls
    # weighted sum of log(new utility / old utility), never above total: the gain in PropFair's
    # objective
    log_gain: float


def proportionally_fairer(
    losses_new: Vector, losses_old: Vector, base: Vector | None = None, *, M: float
) -> RelativeChange:
    """Check whether some clients gain more with a new model, in proportion, than others lose.

        total = sum_i w_i (u_i(new) - u_i(old)) / u_i(old),  u_i = M - loss_i
                                                              (Zhang et al., 2022, Definition 2.1)

    A model is proportionally fair if total <= 0 for every new model. That is a test of the old
    model, not an order: total can be positive both ways, as for utilities (1, 2) and (2, 1).
    ``log_gain`` is an order; total <= 0 implies log_gain <= 0.

    Args:
        losses_new: the new model's losses, one per client.
        losses_old: the old model's losses, one per client.
        base: w_i, summing to 1; None for 1/n, as in the paper.
        M: the utility baseline, above all these losses.

    >>> result = proportionally_fairer([1.0, 1.5], [2.0, 1.0], M=3.0)
    >>> result.total, result.change, result.losers
    (0.375, (1.0, -0.25), (1,))
    """
    require_number("M", M, "(0, inf)", "take it above all losses")
    old = _utilities("losses_old", losses_old, M)
    new = _utilities("losses_new", losses_new, M, len(old))
    weight = (
        torch.full_like(old, 1 / len(old)) if base is None else read_weights("base", base, len(old))
    )
    change = (new - old) / old
    losers = tuple(torch.nonzero(change < 0).flatten().tolist())
    log_gain = float((weight * (new / old).log()).sum())
    return RelativeChange(float((weight * change).sum()), tuple(change.tolist()), losers, log_gain)


def _utilities(name: str, losses: Vector, M: float, length: int | None = None) -> Tensor:
    """Return (n,) M - loss, all positive."""
    utility = M - read_vector(name, losses, "(-inf, inf)", length=length)
    worst = int(utility.argmin())
    require(
        float(utility[worst]) > 0,
        "{} of client {} is {:g}, not below M = {:g}; use a larger M",
        name,
        worst,
        M - utility[worst],
        M,
    )
    return utility
