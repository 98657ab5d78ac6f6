"""Losses, gradients and curvature of sets of samples, in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from evenhand.data.samples import Batch, Samples
from evenhand.errors import require
from evenhand.model import Model
from evenhand.tree import Tree

PIECE = 2048  # samples of one backward pass; the sums do not depend on it
CURVED = 512  # samples of one product with a Hessian, which holds three passes at once
COLUMNS = 2**16  # gradient entries converted to float64 at once
ENTRIES = 2**24  # numbers in the sample gradients that are held at once


class Unit(NamedTuple):
    """Samples whose weighted sum of losses is one loss."""

    rows: Tensor  # (B,) of the training data
    weight: Tensor  # (B,) float64, sum 1


def split(label: Tensor, labels: int, weight: Tensor) -> list[Unit]:
    """Return a unit for every label, with weights scaled to sum 1; empty if no sample has the
    label."""
    order = label.argsort(stable=True)
    parts = torch.split(order, torch.bincount(label, minlength=labels).tolist())
    return [Unit(rows, weight[rows].double() / weight[rows].double().sum()) for rows in parts]


def chosen(model: Model, params: Mapping[str, Tensor] | None) -> Tree:
    """Return the trained parameters out of ``params``, or the module's own."""
    own = model.init()
    if params is None:
        return own
    for name, value in own.items():
        require(
            name in params,
            "params lacks {!r}; pass a state_dict of this module, such as result.params",
            name,
        )
        got, wanted = list(params[name].shape), list(value.shape)
        require(got == wanted, "{!r} in params has shape {}, in the module {}", name, got, wanted)
    return {name: params[name].to(model.device, model.dtype) for name in own}


def loss_and_gradient(
    model: Model, params: Tree, samples: Samples, unit: Unit
) -> tuple[Tensor, Tensor]:
    """Return the unit's loss, and its gradient (P,)."""
    variables = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    total = torch.zeros((), dtype=torch.float64)
    gradient = torch.zeros((), dtype=model.dtype, device=model.device)
    for piece in _pieces(unit, model, PIECE):
        value = _loss(model, samples, piece, variables)
        pieces = torch.autograd.grad(value, list(variables.values()), materialize_grads=True)
        gradient = gradient + torch.cat([piece.flatten() for piece in pieces])
        total = total + value.detach().double().cpu()
    return total, gradient


def hessian_product(
    model: Model, params: Tree, samples: Samples, unit: Unit
) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies (P,) vectors by the Hessian of the unit's loss."""

    def of_piece(piece: Unit) -> Callable[[Tree], tuple[Tree]]:
        def loss(variables: Tree) -> Tensor:
            return _loss(model, samples, piece, variables)

        # twice backward: several layers of ours have no forward derivative
        back: Callable[[Tree], tuple[Tree]] = vjp(grad(loss), params)[1]
        return back

    pieces = _pieces(unit, model, CURVED)
    # a client of one piece keeps its graph for all products
    kept = of_piece(pieces[0]) if len(pieces) == 1 else None

    def product(vector: Tensor) -> Tensor:
        leaves = torch.split(vector, [leaf.numel() for leaf in params.values()])
        direction = {
            name: part.view_as(leaf)
            for (name, leaf), part in zip(params.items(), leaves, strict=True)
        }
        total = torch.zeros_like(vector)
        for piece in pieces:
            (image,) = (kept or of_piece(piece))(direction)
            total = total + torch.cat([image[name].flatten() for name in params])
        return total

    return product


def sample_losses(model: Model, params: Tree, samples: Samples, unit: Unit) -> Tensor:
    """Return (B,) the loss of each sample in float64."""
    with torch.no_grad():
        values = [
            model.losses(params, _batch(samples, piece)) for piece in _pieces(unit, model, PIECE)
        ]
    return torch.cat(values).double().cpu()


def gradient_variance(
    model: Model, params: Tree, samples: Samples, unit: Unit, mean: Tensor
) -> float:
    """Return the mean squared distance of the samples' gradients from ``mean`` (P,)."""

    def gradient(row: Tensor) -> Tensor:
        def loss(variables: Tree) -> Tensor:
            batch = Batch(samples, row[None], torch.ones_like(row, dtype=model.dtype)[None])
            return model.losses(variables, batch)[0]

        slopes = grad(loss)(params)
        return torch.cat([slopes[name].flatten() for name in params])

    width, total = max(1, min(PIECE, ENTRIES // len(mean))), 0.0
    for rows in torch.split(unit.rows.to(model.device), width):
        total += float(((vmap(gradient)(rows) - mean) ** 2).sum(dtype=torch.float64))
    return total / len(unit.rows)


def gram(rows: Tensor) -> Tensor:
    """Return (U, U) products of the rows (U, P), in float64."""
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for piece in torch.split(rows, COLUMNS, 1):
        found += piece.double() @ piece.double().T
    return found.cpu()


def _pieces(unit: Unit, model: Model, width: int) -> list[Unit]:
    """Yield parts of a unit, on the model's device and in its dtype."""
    weight = unit.weight.to(model.device, model.dtype)
    parts = torch.split(unit.rows.to(model.device), width), torch.split(weight, width)
    return [Unit(*part) for part in zip(*parts, strict=True)]


def _batch(samples: Samples, piece: Unit) -> Batch:
    return Batch(samples, piece.rows, piece.weight)


def _loss(model: Model, samples: Samples, piece: Unit, variables: Tree) -> Tensor:
    return (model.losses(variables, _batch(samples, piece)) * piece.weight).sum()
