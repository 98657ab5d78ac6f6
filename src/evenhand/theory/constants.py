"""The constants of the bounds, measured on a federation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from evenhand.data.federation import Federation
from evenhand.data.samples import Samples
from evenhand.errors import require, require_kind, require_memory, require_whole
from evenhand.losses import LossFunction
from evenhand.model import Model
from evenhand.theory.gradients import (
    Unit,
    chosen,
    gradient_variance,
    gram,
    hessian_product,
    loss_and_gradient,
    sample_losses,
    split,
)
from evenhand.tree import Tree

LEAST, RISE = 10, 1e-6  # products before power iteration may stop; relative rise that stops it


@dataclass(frozen=True)
class Constants:
    """Constants of the theorems, the largest over the parameters where they were measured.

    These are local measurements: the theorems need the largest values over all parameters, which
    are at least as large.
    """

    smoothness: float  # L, largest of client_smoothness
    lipschitz: float  # L0, largest |grad f_i|
    gradient_spread: float  # largest |grad f_i - grad f_j|
    loss_spread: float  # largest |f_i - f_j|
    gradient_noise: tuple[float, ...]  # root mean squared error of a client's batch gradient
    loss_noise: tuple[float, ...]  # and of its batch loss
    largest_loss: float  # of one sample: PropFair's M is at least twice that
    base: tuple[float, ...]  # w_i
    client_smoothness: tuple[float, ...]  # largest absolute eigenvalue of each client's Hessian
    mean_smoothness: float  # the same of sum_i w_i f_i, at most smoothness
    objective: tuple[float, ...]  # sum_i w_i f_i at each of the parameters
    sqgradient: tuple[float, ...]  # and the squared norm of its gradient


def estimate(
    module: nn.Module,
    federation: Federation,
    loss: str | LossFunction = "cross_entropy",
    params: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]] | None = None,
    batch_size: int | None = None,
    weights: str = "data",
    iterations: int = 100,
    seed: int = 0,
) -> Constants:
    """Measure the constants for ``fedavg_bound``, ``propfair_bound`` and ``fafl_step_size``.

    **These are lower estimates.** The theorems need constants that hold for all parameters (or, for
    spreads, at all of the server's models); this measures them at the given parameters, on the
    training data. A bound with them is what the theorem would say if training met nothing worse.
    Kinks have no Hessian: with ReLU or a hinge loss the true smoothness is infinite.

        smoothness by power iteration on products with the Hessian, |H^(k+1) v| / |H^k v|, which
        rises
            to the largest absolute eigenvalue and never exceeds it;
        spreads from the full gradients and losses of all clients;
        noise of client i with m_i samples and batches of b without replacement, as LocalSGD takes
        them:
            s_i^2 = V_i / b (m_i - b) / (m_i - 1),   V_i = mean_s |grad l_s - grad f_i|^2
            where b is the smallest batch of an epoch, the rest of m_i / batch_size if there is one.

    Measurements are in evaluation mode (dropout off), client by client. The gradients of all
    clients are in memory at once; sample gradients and Hessian products are computed in pieces.

    Args:
        module: as in ``fit``.
        federation: the clients' data.
        loss: as in ``fit``.
        params: where to measure: a state_dict such as ``result.params``, or a list of them, such as
            models of several rounds; None uses the module's own parameters.
        batch_size: as in ``LocalSGD``; None uses all local data at once, without noise.
        weights: "data" for w_i = m_i / m, "uniform" for 1 / n.
        iterations: maximum number of Hessian products per eigenvalue.
        seed: of the vector that power iteration starts from.
    """
    require_kind("federation", federation, Federation, "Federation.from_arrays(...)")
    require_whole("batch_size", batch_size, 1, optional=True)
    require_whole("iterations", iterations, 1)
    model = Model(module, loss)
    require(
        not model.summed,
        "a client's loss is a sum over samples with loss={!r}, but the theorems need means;"
        ' use loss="hinge"',
        loss,
    )
    model.check(federation)
    given = [params] if params is None or isinstance(params, Mapping) else list(params)
    require(len(given) > 0, "params is an empty list; give at least one model")
    places = [chosen(model, one) for one in given]
    sizes = federation.train.sizes
    units = split(
        torch.repeat_interleave(torch.arange(federation.clients), sizes),
        federation.clients,
        torch.ones(int(sizes.sum())),
    )
    base, n = federation.census(weights).weight, federation.clients
    # one by one, stacked and centred; their products three times in float64
    require_memory("the gradients of all clients", n * (model.size * 12.0 + n * 24.0))
    start = torch.randn(model.size, generator=torch.Generator().manual_seed(seed))
    start = start.to(model.device, model.dtype)
    samples = federation.train.samples(model.dtype, model.device)
    measured = [
        _measure(_Objectives(model, place, samples, units, base), batch_size, iterations, start)
        for place in places
    ]
    return _largest(measured, tuple(base.tolist()))


class _Objectives(NamedTuple):
    """The clients' losses at one set of parameters."""

    model: Model
    params: Tree
    samples: Samples
    units: list[Unit]  # of the clients
    base: Tensor  # (n,) float64


class _Measured(NamedTuple):
    """What was measured at one set of parameters."""

    losses: Tensor  # (n,) float64, like all of these
    slopes: Tensor  # (n,) |grad f_i|
    spread: float
    gradient_noise: Tensor  # (n,)
    loss_noise: Tensor  # (n,)
    largest_loss: float
    smoothness: Tensor  # (n,)
    mean_smoothness: float
    objective: float
    sqgradient: float


def _measure(at: _Objectives, batch_size: int | None, iterations: int, start: Tensor) -> _Measured:
    model, params, samples = at.model, at.params, at.samples
    losses, gradients, bends, noise, highest = [], [], [], [], []
    for k, unit in enumerate(at.units):
        loss, gradient = loss_and_gradient(model, params, samples, unit)
        require(
            bool(torch.isfinite(gradient).all()),
            "the gradient of client {} is not finite; the model has diverged",
            k,
        )
        single = sample_losses(model, params, samples, unit)
        share = _variance_share(len(unit.rows), batch_size)
        noise.append(
            (
                math.sqrt(share * gradient_variance(model, params, samples, unit, gradient)),
                math.sqrt(share * float(((single - loss) ** 2).mean())),
            )
            if share
            else (0.0, 0.0)
        )
        product = hessian_product(model, params, samples, unit)
        bends.append(_largest_eigenvalue(product, start, iterations))
        losses.append(loss)
        gradients.append(gradient)
        highest.append(float(single.max()))
    slopes = torch.stack(gradients)  # (n, P)
    mean = at.base.to(slopes) @ slopes
    centred = gram(slopes - mean)  # (n, n); centred, or small spreads would drown in rounding
    squares = centred.diagonal()
    spread = float((squares[:, None] + squares - 2 * centred).max().clamp(min=0).sqrt())
    value = torch.stack(losses)
    gradient_noise, loss_noise = torch.tensor(noise, dtype=torch.float64).T
    return _Measured(
        value,
        slopes.norm(dim=1, dtype=torch.float64).cpu(),
        spread,
        gradient_noise,
        loss_noise,
        max(highest),
        torch.tensor(bends, dtype=torch.float64),
        _largest_eigenvalue(_mean_product(at), start, iterations),
        float(at.base @ value),
        float((mean.double() ** 2).sum()),
    )


def _variance_share(size: int, batch_size: int | None) -> float:
    """Return the variance of the smallest batch's mean, as a share of that of one sample."""
    if batch_size is None or batch_size >= size:
        return 0.0
    batch = size % batch_size or batch_size
    return (size - batch) / (batch * (size - 1))


def _mean_product(at: _Objectives) -> Callable[[Tensor], Tensor]:
    """Return multiplication by the Hessian of sum_i w_i f_i."""
    rows = torch.cat([unit.rows for unit in at.units])
    weight = torch.cat([w * unit.weight for w, unit in zip(at.base, at.units, strict=True)])
    return hessian_product(at.model, at.params, at.samples, Unit(rows, weight))


def _largest_eigenvalue(
    product: Callable[[Tensor], Tensor], start: Tensor, iterations: int
) -> float:
    """Return the largest absolute eigenvalue of a symmetric matrix, from below, by power
    iteration."""
    vector, before, length = start / start.norm(), 0.0, 0.0
    for done in range(iterations):
        image = product(vector)
        length = float(image.norm(dtype=torch.float64))
        if length == 0 or (done >= LEAST and length - before <= RISE * length):
            break
        vector, before = image / length, length
    return max(length, before)


def _largest(measured: list[_Measured], base: tuple[float, ...]) -> Constants:
    """Return the largest of each constant over all parameters."""

    def each(values: list[Tensor]) -> tuple[float, ...]:
        return tuple(torch.stack(values).amax(0).tolist())

    smoothness = each([m.smoothness for m in measured])
    return Constants(
        smoothness=max(smoothness),
        lipschitz=max(float(m.slopes.max()) for m in measured),
        gradient_spread=max(m.spread for m in measured),
        loss_spread=max(float(m.losses.max() - m.losses.min()) for m in measured),
        gradient_noise=each([m.gradient_noise for m in measured]),
        loss_noise=each([m.loss_noise for m in measured]),
        largest_loss=max(m.largest_loss for m in measured),
        base=base,
        client_smoothness=smoothness,
        mean_smoothness=max(m.mean_smoothness for m in measured),
        objective=tuple(m.objective for m in measured),
        sqgradient=tuple(m.sqgradient for m in measured),
    )
