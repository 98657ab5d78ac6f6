"""Whether a step exists that lowers all losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evenhand.data.federation import Federation
from evenhand.errors import require, require_kind
from evenhand.losses import LossFunction
from evenhand.model import Model
from evenhand.simplex import min_norm_weights
from evenhand.theory.gradients import COLUMNS, Unit, chosen, gram, loss_and_gradient, split


class Stationarity(NamedTuple):
    """How far a model is from one where no step lowers all losses."""

    residual: float  # norm of the shortest convex combination of the gradients
    weights: tuple[float, ...]  # of that combination; 0 for one without samples
    losses: tuple[float, ...]  # mean loss of each; NaN for one without samples


def pareto_residual(
    module: nn.Module,
    federation: Federation,
    loss: str | LossFunction = "cross_entropy",
    params: Mapping[str, Tensor] | None = None,
    by: str = "client",
    normalised: bool = False,
) -> Stationarity:
    """Measure how far a model is from Pareto-stationary, where no step lowers all losses to first
    order.

        residual = min over lam in the simplex of |sum_i lam_i grad f_i(theta)|
                                                                         (Desideri, 2012; FedMGDA+)

    Every weighted optimum is Pareto-stationary, so fair methods differ in the weights, not in the
    residual of their limits. For convex losses, a residual of 0 with positive weights means that no
    model is better for one client and worse for none. Otherwise every loss falls along the negative
    combination, to first order by at least the residual per unit of length.

    Gradients are full-batch gradients on the training data, in evaluation mode (dropout off), one
    at a time; products are computed in float64.

    Args:
        module: as in ``fit``.
        federation: the clients' data.
        loss: as in ``fit``.
        params: the model to check, such as ``result.params``; None uses the module's own
            parameters.
        by: "client", "group" (mean loss over all samples of a group), or "team" (plain mean over
            the team's clients of their mean losses, as in GIFAIR).
        normalised: first scale the gradients to norm 1, as FedMGDA+ does: the residual is then in
            [0, 1] and does not depend on the scale of the losses.
    """
    require_kind("federation", federation, Federation, "Federation.from_arrays(...)")
    model = Model(module, loss)
    model.check(federation)
    units, place = _units(federation, by), chosen(model, params)
    samples = federation.train.samples(model.dtype, model.device)
    present = [k for k, unit in enumerate(units) if len(unit.rows)]
    losses, rows = torch.full((len(units),), math.nan, dtype=torch.float64), []
    for k in present:
        losses[k], gradient = loss_and_gradient(model, place, samples, units[k])
        require(
            bool(torch.isfinite(gradient).all()),
            "the gradient of {} {} is not finite; the model has diverged",
            by,
            k,
        )
        rows.append(gradient)
    gradients = torch.stack(rows)  # (U, P)
    if normalised:
        gradients /= gradients.norm(dim=1, keepdim=True).clamp(
            min=torch.finfo(gradients.dtype).tiny
        )
    weight = torch.zeros(len(units), dtype=torch.float64)
    weight[present], residual = _shortest(gradients)
    return Stationarity(residual, tuple(weight.tolist()), tuple(losses.tolist()))


def _shortest(gradients: Tensor) -> tuple[Tensor, float]:
    """Return (U,) weights of the shortest convex combination of the rows, and its norm."""
    pieces = torch.split(gradients, COLUMNS, 1)
    lam = min_norm_weights(gram(gradients))
    combined = torch.cat([lam.to(piece.device) @ piece.double() for piece in pieces])
    # not from the Gram matrix, because a square root would turn its rounding of 1e-16 into 1e-8
    return lam, float(combined.norm())


def _units(federation: Federation, by: str) -> list[Unit]:
    train = federation.train
    owner = torch.repeat_interleave(torch.arange(federation.clients), train.sizes)  # (N,)
    if by == "client":
        return split(owner, federation.clients, torch.ones(len(owner)))
    if by == "group":
        if train.group is None:
            raise ValueError(
                'by="group" needs a group for every sample, but the federation has none; use'
                ' by="client"'
            )
        return split(train.group, federation.groups, torch.ones(len(owner)))
    if by == "team":
        if federation.teams is None:
            raise ValueError(
                'by="team" needs a team for every client, the federation has none; use by="client"'
            )
        return split(
            federation.teams[owner], len(federation.team_names), 1 / train.sizes[owner].double()
        )
    raise ValueError(f'by must be "client", "group" or "team", got {by!r}')
