"""Rademacher complexities: how well functions can fit random signs on the clients' samples.

All are weighted by w_i / (alpha_i m_i), as in FAFL's Theorem 3; for its Theorem 4, use one client
at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.errors import require, require_number, require_whole
from evenhand.theory.inputs import Vector, counts_and_caps

# (D, m) weighted signs to (D,) suprema over a class of functions
Supremum = Callable[[Tensor], Tensor]

BLOCK = 2**22  # signs drawn at once: 32 MB of float64


def rademacher_linear(
    x: Sequence[Tensor | npt.NDArray[Any]],
    radius: float,
    base: Vector | None = None,
    alpha: float | Vector = 1.0,
    lipschitz: float = 1.0,
) -> float:
    """Bound how well a linear model of bounded norm can fit random signs, in closed form.

        lip radius sqrt(sum_i (w_i / (alpha_i m_i))^2 sum_j |x_ij|^2)

    bounds the complexity R of FAFL's Theorem 3, given the samples, for losses that are
    ``lipschitz`` in the single output <w, x>, |w| <= radius (Talagrand's contraction and Jensen's
    inequality; Mohri, Rostamizadeh and Talwalkar 2018, ch. 5). For the linear functions themselves
    it is at most a factor sqrt(2) too large (Latala and Oleszkiewicz), and exact if the samples are
    orthogonal. If all |x| <= r, samples of norm r give a bound for every sample.

    Theorem 4's R_i is the same for one client: ``rademacher_linear([x_i], radius, lipschitz=...)``.

    Args:
        x: an array (m_i, ...) per client; add a column of ones for a bias.
        radius: largest norm of the weights.
        base: w_i, summing to 1; None for the clients' data shares.
        alpha: levels in (0, 1], one number or one per client.
        lipschitz: of the loss in the output: 1 for hinge and logistic loss with one output.

    >>> rademacher_linear([torch.eye(4)], radius=2.0)
    1.0
    """
    require_number("radius", radius, "[0, inf)")
    require_number("lipschitz", lipschitz, "[0, inf)")
    samples = _samples(x)
    counts, caps = counts_and_caps([len(rows) for rows in samples], base, alpha)
    squares = torch.stack([(rows**2).sum() for rows in samples])  # (n,)
    return lipschitz * radius * math.sqrt(float(((caps / counts) ** 2 * squares).sum()))


def rademacher_vc(
    dimension: int, sizes: Vector, base: Vector | None = None, alpha: float | Vector = 1.0
) -> float:
    """Bound how well classifiers of a VC dimension can fit random signs, for any samples.

        sqrt(sum_i 2 d (w_i / alpha_i)^2 log(e m / d) / m_i),  m = sum_i m_i       (FAFL, Remark 3)

    The remark has losses in {-1, +1}, but Theorem 3 needs them in [0, B]. The value is right for
    both. For losses in {0, 1} half of it is enough, because shifting a class changes nothing and
    halving it halves its complexity. Needs m >= d.

    Theorem 4's R_i is the same for one client: ``rademacher_vc(d, [m_i])``.
    """
    require_whole("dimension", dimension, 1)
    counts, caps = counts_and_caps(sizes, base, alpha)
    total = float(counts.sum())
    require(
        total >= dimension,
        "the formula needs at least as many samples ({:g}) as the VC dimension, got {}",
        total,
        dimension,
    )
    return math.sqrt(
        2 * dimension * (1 + math.log(total / dimension)) * float((caps**2 / counts).sum())
    )


class Estimate(NamedTuple):
    """A mean over random draws."""

    value: float
    standard_error: float


def rademacher_monte_carlo(
    supremum: Supremum,
    sizes: Vector,
    base: Vector | None = None,
    alpha: float | Vector = 1.0,
    draws: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Estimate how well a class of functions fits random signs on these samples, by drawing signs.

        the mean over draws of  sup_h sum_i sum_j w_i / (alpha_i m_i) sign_ij h(z_ij)
                                                                          (FAFL, before Theorem 3)

    It is the complexity given the samples; pass it to ``fafl_generalisation`` with
    ``measured=True``. A complexity is never negative, so a mean below 0 is returned as 0. Theorem
    4's R_i is the same for one client.

    Args:
        supremum: for (D, m) weighted signs, client by client, returns the (D,) largest weighted
            sums over the class: ``linear_class``, ``finite_class``, or your own function.
        sizes: m_i, samples of each client.
        base: w_i, summing to 1; None for the clients' data shares.
        alpha: levels in (0, 1], one number or one per client.
        draws: at least 2; the standard error falls like 1 / sqrt(draws).
        seed: of the draws.
    """
    require_whole("draws", draws, 2)
    require_whole("seed", seed, 0)
    counts, caps = counts_and_caps(sizes, base, alpha)
    weight = torch.repeat_interleave(caps / counts, counts.long())  # (m,)
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, BLOCK // len(weight))
    found = []
    for first in range(0, draws, rows):
        shape = (min(rows, draws - first), len(weight))
        signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        values = supremum(signs * weight)
        require(
            values.shape == shape[:1],
            "supremum must return one value per row, {}, got shape {}",
            shape[0],
            list(values.shape),
        )
        found.append(values.double())
    all_values = torch.cat(found)
    return Estimate(max(0.0, float(all_values.mean())), float(all_values.std()) / math.sqrt(draws))


def linear_class(x: Sequence[Tensor | npt.NDArray[Any]], radius: float) -> Supremum:
    """Return the class of all <w, x> with |w| <= radius: the supremum is radius |sum_j s_j x_j|.

    ``x`` has an array (m_i, ...) per client, as in ``rademacher_linear``.
    """
    require_number("radius", radius, "[0, inf)")
    joined = torch.cat(_samples(x))  # (m, d)
    return lambda weighted: radius * (weighted @ joined).norm(dim=1)


def finite_class(values: Tensor | npt.NDArray[Any]) -> Supremum:
    """Return the class of functions with these values, one row (m,) of the matrix per function."""
    table = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    require(
        table.ndim == 2 and len(table) > 0,
        "values must be a matrix (functions, samples), got shape {}",
        list(table.shape),
    )
    return lambda weighted: (weighted @ table.T).amax(1)


def _samples(x: Sequence[Tensor | npt.NDArray[Any]]) -> list[Tensor]:
    """Return each client's samples as (m_i, d) float64."""
    arrays = [torch.as_tensor(rows, dtype=torch.float64, device="cpu").detach() for rows in x]
    require(len(arrays) > 0, "x must hold an array for each client, got none")
    for client, rows in enumerate(arrays):
        require(
            rows.ndim >= 2 and len(rows) > 0,
            "x of client {} must be (samples, features), got {}",
            client,
            list(rows.shape),
        )
    return [rows.reshape(len(rows), -1) for rows in arrays]
