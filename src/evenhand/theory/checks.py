"""Does a fairness claim hold here? Checks on data and models: client against group fairness, Pareto
stationarity, proportional fairness."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor, nn

from evenhand.data.federation import Federation
from evenhand.data.population import Census
from evenhand.data.samples import Batch, Samples
from evenhand.errors import require, require_kind, require_number
from evenhand.losses import LossFunction
from evenhand.model import Model
from evenhand.simplex import min_norm_weights
from evenhand.theory.aggregates import Vector
from evenhand.theory.bounds import read_vector, read_weights
from evenhand.tree import Tree

PIECE = 2048  # samples of one backward pass; the sums do not depend on it
COLUMNS = 2**16  # gradient entries converted to float64 at once


# ---- client fairness and group fairness


class Reach(NamedTuple):
    """Whether weighting clients can reach a weighting of groups."""

    holds: bool  # whether it can
    distance: float  # Euclidean, from the group weight to the nearest that clients can reach
    client_weight: tuple[float, ...]  # (n,) lam that comes nearest
    group_weight: tuple[float, ...]  # (A,) what it reaches
    # whether clients can reach every group weight: each group has a client all of its own
    always: bool


def client_fairness_is_group_fairness(
    group_counts: Census | Tensor | npt.NDArray[Any], group_weight: Vector, tolerance: float = 1e-6
) -> Reach:
    """Whether the worst-client model is also the worst-group model, from who holds which groups.

    holds  iff  v in {P' lam : lam in the simplex},  P[i, a] = share of group a in client i's data
    (FedMinMax, Lemma 1)

    v is the weight of the groups at a minimax solution (the last dual variable of FedMinMax). Where
    the set contains it, AFL over clients and FedMinMax over groups have a common solution. Being
    minimax over clients otherwise means being minimax over the group weights in the set alone.

    The lemma speaks of distributions and, without saying so, needs a group to look the same on
    every client: data given the group do not depend on the client. Then sum_i lam_i f_i = sum_a (P'
    lam)_a r_a; on finite samples only nearly.

    Args:
        group_counts: samples of each group on each client (n, A), or a census that has them.
        group_weight: v, (A,), not negative, summing to 1.
        tolerance: the largest distance that counts as none. The distance is that of a quadratic
            programme's solution, good to about 1e-8; estimated group shares are far coarser.

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
    """(n, A) share of each group in each client's data."""
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


# ---- Pareto stationarity


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
    """How far a model is from Pareto-stationary: 0 means that no direction lowers the losses of all
    at first order.

    residual = min over lam in the simplex of |sum_i lam_i grad f_i(theta)|            (Desideri,
    2012; FedMGDA+)

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
    """A unit for every label, its weights scaled to sum 1; an empty one where nobody has the
    label."""
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
        slopes = torch.autograd.grad(value, list(variables.values()), materialize_grads=True)
        gradient = gradient + torch.cat([slope.flatten() for slope in slopes])
        total = total + value.detach().double().cpu()
    return total, gradient


# ---- proportional fairness


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
    """Whether moving from an old to a new model gains some clients more, in proportion, than it
    costs others.

    total = sum_i w_i (u_i(new) - u_i(old)) / u_i(old),  u_i = M - loss_i          (Zhang et al.,
    2022, Definition 2.1)

    A model is proportionally fair if total <= 0 for every new model. That is a test of the old
    model, not an order: total can be positive both ways, as for utilities (1, 2) and (2, 1).
    ``log_gain`` is an order; total <= 0 implies log_gain <= 0.

    Args:
        losses_new, losses_old: one per client.
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
    """(n,) M - loss, all positive."""
    utility = M - read_vector(name, losses, "(-inf, inf)", length=length)
    worst = int(utility.argmin())
    require(
        float(utility[worst]) > 0,
        "{} of client {} is {:g}, not below M = {:g}; take a larger M",
        name,
        worst,
        M - utility[worst],
        M,
    )
    return utility
