"""Whether a step is left that lowers all losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evenhand.data.federation import Federation
from evenhand.data.samples import Batch, Samples
from evenhand.errors import require, require_kind
from evenhand.losses import LossFunction
from evenhand.model import Model
from evenhand.simplex import min_norm_weights
from evenhand.tree import Tree

PIECE = 2048  # samples of one backward pass; the sums do not depend on it
COLUMNS = 2**16  # gradient entries converted to float64 at once


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
    """How far a model is from Pareto-stationary, where no step lowers all losses at first order.

    residual = min over lam in the simplex of |sum_i lam_i grad f_i(theta)|
                                                                     (Desideri, 2012; FedMGDA+)

    Every weighted optimum is Pareto-stationary, so fair methods differ in the weights, not in the
    residual of their limits. For convex losses a residual of 0 with positive weights means that no
    model is better for one and worse for none. Otherwise every loss falls along the negative
    combination, at first order by at least the residual per unit of length.

    Full-batch gradients on the training data, in evaluation mode (dropout off), one at a time; the
    products are taken in float64.

    Args:
        module, loss: as in ``fit``.
        params: the model to judge, such as ``result.params``; None takes the module's own
            parameters.
        by: "client", "group" (mean loss over all samples of a group), or "team" (plain mean over
            the team's clients of their mean losses, as in GIFAIR).
        normalised: scale the gradients to norm 1 first, as FedMGDA+ does: the residual then lies in
            [0, 1] and does not depend on the scale of the losses.
    """
    require_kind("federation", federation, Federation, "Federation.from_arrays(...)")
    model = Model(module, loss)
    model.check(federation)
    units, chosen = _units(federation, by), _chosen(model, params)
    samples = federation.train.samples(model.dtype, model.device)
    present = [k for k, unit in enumerate(units) if len(unit.rows)]
    losses, rows = torch.full((len(units),), math.nan, dtype=torch.float64), []
    for k in present:
        losses[k], gradient = _loss_and_gradient(model, chosen, samples, units[k])
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
    """(U,) weights of the shortest convex combination of the rows, and its norm."""
    pieces = torch.split(gradients, COLUMNS, 1)
    gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64, device=gradients.device)
    for piece in pieces:
        gram += piece.double() @ piece.double().T
    lam = min_norm_weights(gram.cpu())
    combined = torch.cat([lam.to(piece.device) @ piece.double() for piece in pieces])
    # not from the Gram matrix: a square root would turn its rounding of 1e-16 into 1e-8
    return lam, float(combined.norm())


class _Unit(NamedTuple):
    """Samples whose weighted sum of losses is one of the losses to lower."""

    rows: Tensor  # (B,) of the training data
    weight: Tensor  # (B,) float64, sum 1


def _units(federation: Federation, by: str) -> list[_Unit]:
    train = federation.train
    owner = torch.repeat_interleave(torch.arange(federation.clients), train.sizes)  # (N,)
    if by == "client":
        return _split(owner, federation.clients, torch.ones(len(owner)))
    if by == "group":
        if train.group is None:
            raise ValueError(
                'by="group" needs a group for every sample, the federation has none; use'
                ' by="client"'
            )
        return _split(train.group, federation.groups, torch.ones(len(owner)))
    if by == "team":
        if federation.teams is None:
            raise ValueError(
                'by="team" needs a team for every client, the federation has none; use by="client"'
            )
        return _split(
            federation.teams[owner], len(federation.team_names), 1 / train.sizes[owner].double()
        )
    raise ValueError(f'by must be "client", "group" or "team", got {by!r}')


def _split(label: Tensor, labels: int, weight: Tensor) -> list[_Unit]:
    """A unit for every label, its weights scaled to sum 1; empty where nobody has the label."""
    order = label.argsort(stable=True)
    parts = torch.split(order, torch.bincount(label, minlength=labels).tolist())
    return [_Unit(rows, weight[rows].double() / weight[rows].double().sum()) for rows in parts]


def _chosen(model: Model, params: Mapping[str, Tensor] | None) -> Tree:
    """The trained parameters out of ``params``, or the module's own."""
    own = model.init()
    if params is None:
        return own
    for name, value in own.items():
        require(
            name in params,
            "params lacks {!r}; give a state_dict of this module, such as result.params",
            name,
        )
        got, wanted = list(params[name].shape), list(value.shape)
        require(got == wanted, "{!r} in params has shape {}, in the module {}", name, got, wanted)
    return {name: params[name].to(model.device, model.dtype) for name in own}


def _loss_and_gradient(
    model: Model, params: Tree, samples: Samples, unit: _Unit
) -> tuple[Tensor, Tensor]:
    """() the unit's loss, and (P,) its gradient."""
    variables = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    total = torch.zeros((), dtype=torch.float64)
    gradient = torch.zeros((), dtype=model.dtype, device=model.device)
    for rows, share in zip(
        torch.split(unit.rows, PIECE), torch.split(unit.weight, PIECE), strict=True
    ):
        weight = share.to(model.device, model.dtype)
        value = (
            model.losses(variables, Batch(samples, rows.to(model.device), weight)) * weight
        ).sum()
        pieces = torch.autograd.grad(value, list(variables.values()), materialize_grads=True)
        gradient = gradient + torch.cat([piece.flatten() for piece in pieces])
        total = total + value.detach().double().cpu()
    return total, gradient
