"""FedAvg: step sizes, and how large its gradient can still be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand.errors import require, require_number, require_whole
from evenhand.theory.bounds.step_size import StepSize, refuse_beyond, tightest
from evenhand.theory.inputs import Vector, read_vector, read_weights


def fedavg_step_size(
    smoothness: float,
    base: Vector,
    local_steps: int | Sequence[int],
    cohort: int | None = None,
) -> StepSize:
    """Return the largest step size for which FedAvg is known to converge, and the binding
    condition.

        lr <= 1 / (6 L max_i K_i)   and   lr <= 1 / (L sqrt(24 (e - 2) sum_i w_i^2 sum_i K_i^4))

    (Zhang et al., 2022, Theorem A.1.) With equal weights and steps, the second condition binds from
    two local steps on.

    Args:
        smoothness: L, Lipschitz constant of every client's loss gradient.
        base: w_i, summing to 1: the aggregation weights.
        local_steps: K_i, one number or one per client.
        cohort: number of distinct clients per round, with weights normalised over the cohort; None
            for all clients. The sums are then the largest that a cohort can have, see
            ``fedavg_bound``.

    >>> fedavg_step_size(0.5, [0.5, 0.5], 1).binding
    'lr <= 1 / (6 L max K_i)'
    """
    require_number("smoothness", smoothness, "(0, inf)")
    participants = Participants.of(base, local_steps, cohort)
    return tightest(gradient_limits("L", smoothness, participants), smoothness)


class FedAvgBound(NamedTuple):
    """How large FedAvg's mean squared gradient norm can still be, and what contributes."""

    total: float
    optimisation: float  # decreases with rounds
    heterogeneity: float  # from clients whose gradients differ
    noise: float  # from mini-batches


def fedavg_bound(
    step_size: float,
    rounds: int,
    local_steps: int | Sequence[int],
    smoothness: float,
    base: Vector,
    gap: float,
    gradient_spread: float,
    gradient_noise: float | Vector = 0.0,
    cohort: int | None = None,
) -> FedAvgBound:
    """Bound the expected squared gradient, averaged over rounds.

        12 / ((11 k - 9) lr) (gap / rounds + Psi),   k = sum_i w_i K_i, or min_i K_i with cohorts
        Psi = lr/2 sum_i w_i^2 [ sum_i K_i^2 (s_i^2 + 2 g^2)
                                 + 2 (e - 2) lr^2 L^2 sum_i K_i^3 (s_i^2 + 6 K_i g^2) ]
        g = gradient_spread, s_i = gradient_noise_i               (Zhang et al., 2022, Theorem A.1)

    The gradient is that of the objective at the server's models, before each round. Losses need not
    be convex. The paper states the bound for the smallest squared gradient; its proof (A.42) shows
    it for the mean. The objective may weight clients in any way (in the paper 1/n), because the
    spread bounds how far a client is from any mean. Spread and noise do not vanish with the step
    size, so the value never falls below about g^2; it is useful if clients are similar.

    Differences from the paper: with cohorts, the sums are the largest that a cohort can have, as in
    ``evenhand.theory.propfair_bound``. The proof drops products of one step's noise with later
    local steps (A.18); they are small enough for the value to hold anyway
    (docs/explanation/bounds-and-papers.md). It assumes that batches are drawn independently at
    every step; ``LocalSGD`` goes through the data in a random order, so with several mini-batch
    steps per round the value is only a guide.

    ``local_steps``, ``smoothness``, ``base`` and ``cohort`` are those of ``fedavg_step_size``.

    Args:
        step_size: lr; a ValueError names the condition it violates.
        rounds: number of rounds.
        gap: objective at the start minus its smallest value.
        gradient_spread: largest |grad f_i - grad f_j|, at the server's models.
        gradient_noise: root mean squared error of a batch's gradient, one number or one per client.
    """
    require_number("smoothness", smoothness, "(0, inf)")
    require_number("gradient_spread", gradient_spread, "[0, inf)")
    participants = Participants.of(base, local_steps, cohort)
    rms = read_vector(
        "gradient_noise", gradient_noise, "[0, inf)", length=len(participants.steps), repeat=True
    )
    return FedAvgBound(
        *gradient_terms(
            step_size, rounds, "L", smoothness, participants, gap, gradient_spread**2, rms**2
        )
    )


def gradient_limits(symbol: str, smoothness: float, participants: Participants) -> dict[str, float]:
    """Return the largest step size under each condition of Theorem A.1; ``symbol`` names the
    smoothness."""
    longest = float(participants.steps.max())
    spread = math.sqrt(24 * (math.e - 2) * participants.concentration * participants.largest_sum(4))
    return {
        f"lr <= 1 / (6 {symbol} max K_i)": 1 / (6 * smoothness * longest),
        f"lr <= 1 / ({symbol} sqrt(24 (e - 2) sum w_i^2 sum K_i^4))": 1 / (smoothness * spread),
    }


def gradient_terms(
    step_size: float,
    rounds: int,
    symbol: str,
    smoothness: float,
    participants: Participants,
    gap: float,
    between: float,
    local: Tensor,
) -> tuple[float, float, float, float]:
    """Return the bound of Theorem A.1 and its terms: optimisation, heterogeneity, noise.

    ``between`` is g^2, ``local`` (n,) has s_i^2.
    """
    require_number("step_size", step_size, "(0, inf)")
    require_whole("rounds", rounds, 1)
    require_number("gap", gap, "[0, inf)")
    refuse_beyond(gradient_limits(symbol, smoothness, participants), step_size)
    late = 2 * (math.e - 2) * (step_size * smoothness) ** 2
    scale = 12 / ((11 * participants.progress - 9) * step_size)
    half = scale * step_size / 2 * participants.concentration
    sums = participants.largest_sum
    optimisation = float(scale * gap / rounds)
    heterogeneity = float(half * between * (2 * sums(2) + late * 6 * sums(4)))
    noise = float(half * (sums(2, local) + late * sums(3, local)))
    return optimisation + heterogeneity + noise, optimisation, heterogeneity, noise


class Participants(NamedTuple):
    """What Theorem A.1 needs to know about the participants."""

    steps: Tensor  # (n,) K_i
    cohort: int  # clients per round
    concentration: float  # largest sum of squared weights in a cohort
    progress: float  # k: mean number of local steps, or the smallest with cohorts

    @staticmethod
    def of(base: Vector, local_steps: int | Sequence[int], cohort: int | None) -> Participants:
        weight = read_weights("base", base)
        n = len(weight)
        steps = read_vector("local_steps", local_steps, "[1, inf)", length=n, repeat=True)
        require(
            bool((steps == steps.round()).all()),
            "local_steps must be whole numbers, got {}",
            local_steps,
        )
        require_whole("cohort", cohort, 1, optional=True)
        if cohort is None:
            return Participants(steps, n, float((weight**2).sum()), float((weight * steps).sum()))
        require(cohort <= n, "cohort must be at most the number of clients, {}, got {}", n, cohort)
        return Participants(
            steps, cohort, largest_concentration(weight, cohort), float(steps.min())
        )

    def largest_sum(self, power: int, factor: Tensor | float = 1.0) -> float:
        """Return the largest sum of K_i^power times (n,) factors in a cohort."""
        values = self.steps**power * factor
        return float(values.sort(descending=True).values[: self.cohort].sum())


def largest_concentration(weight: Tensor, cohort: int) -> float:
    """Return the largest sum of squares of weights normalised over ``cohort`` clients.

    (A + w^2) / (B + w)^2 first falls and then rises in w, so a cohort that attains it has the j
    heaviest clients and the lightest ones.
    """
    ordered = weight.sort(descending=True).values
    choices = (
        torch.cat([ordered[:j], ordered[len(ordered) - (cohort - j) :]]) for j in range(cohort + 1)
    )
    return max(float((chosen**2).sum() / chosen.sum() ** 2) for chosen in choices)
