"""Whether fairness among clients implies fairness among groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.data.population import Census
from evenhand.errors import require, require_number
from evenhand.simplex import min_norm_weights
from evenhand.theory.inputs import Vector, read_weights


class Reach(NamedTuple):
    """Whether weights of clients can produce given weights of groups."""

    holds: bool  # whether it can
    distance: float  # Euclidean, from the group weight to the nearest that clients can reach
    client_weight: tuple[float, ...]  # (n,) lam that comes nearest
    group_weight: tuple[float, ...]  # (A,) what it reaches
    # whether clients can reach every group weight: each group has a client all of its own
    always: bool


def client_fairness_is_group_fairness(
    group_counts: Census | Tensor | npt.NDArray[Any], group_weight: Vector, tolerance: float = 1e-6
) -> Reach:
    """Check whether the worst-client model is also the worst-group model, given who holds which
    groups.

        holds  iff  v in {P' lam : lam in the simplex},  P[i, a] = share of group a in client i's
        data
                                                                               (FedMinMax, Lemma 1)

    v is the weight of the groups at a minimax solution (the last dual variable of FedMinMax). If
    the set contains it, AFL over clients and FedMinMax over groups have a common solution.
    Otherwise, minimax over clients only means minimax over the group weights in the set.

    The lemma is about distributions and implicitly assumes that a group looks the same on every
    client: given the group, data do not depend on the client. Then sum_i lam_i f_i = sum_a (P'
    lam)_a r_a; on finite samples this holds approximately.

    Args:
        group_counts: samples of each group on each client (n, A), or a census that has them.
        group_weight: v, (A,), not negative, summing to 1.
        tolerance: the largest distance that counts as zero. The distance comes from a quadratic
            programme and is accurate to about 1e-8; estimated group shares are far coarser.

    >>> client_fairness_is_group_fairness(torch.tensor([[9, 1], [6, 4]]), [0.75, 0.25]).holds
    True
    >>> counts = torch.tensor([[9, 1], [6, 4]])
    >>> round(client_fairness_is_group_fairness(counts, [0.5, 0.5]).distance, 4)
    0.1414
    """
    share = _shares(group_counts)  # (n, A)
    require_number("tolerance", tolerance, "[0, inf)")
    v = read_weights("group_weight", group_weight, share.shape[1], "[0, 1]")
    offsets = share - v
    lam = min_norm_weights(offsets @ offsets.T)
    nearest = lam @ share
    distance = float((nearest - v).norm())
    always = bool((share.amax(0) == 1).all())
    return Reach(
        distance <= tolerance, distance, tuple(lam.tolist()), tuple(nearest.tolist()), always
    )


def _shares(group_counts: Census | Tensor | npt.NDArray[Any]) -> Tensor:
    """Return (n, A) the share of each group in each client's data."""
    if isinstance(group_counts, Census):
        if group_counts.group_counts is None:
            raise ValueError(
                'the census counts no groups; give every sample a "group" in the federation'
            )
        group_counts = group_counts.group_counts
    counts = torch.as_tensor(group_counts, dtype=torch.float64, device="cpu")
    shape = list(counts.shape)
    require(
        counts.ndim == 2 and counts.numel() > 0,
        "group_counts must be a matrix (clients, groups), got shape {}",
        shape,
    )
    for end in (counts.min(), counts.max()):
        require_number("group_counts", float(end), "[0, inf)")
    size = counts.sum(1, keepdim=True)
    empty = torch.nonzero(size.flatten() == 0).flatten().tolist()
    require(
        not empty, "client {} has no samples of any group in group_counts; leave it out", *empty[:1]
    )
    return counts / size
