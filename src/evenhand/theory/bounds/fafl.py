"""FAFL (rFedFair): step sizes, and how far the averaged model can be from the optimum."""

from __future__ import annotations

import math
from typing import NamedTuple

from evenhand.errors import require_number, require_whole
from evenhand.theory.bounds.step_size import StepSize, refuse_beyond, tightest
from evenhand.theory.inputs import Vector, read_levels


def fafl_smoothness(
    smoothness: float, lipschitz: float, alpha: float | Vector, mu: float, sharp: bool = False
) -> float:
    """Bound the curvature of rFedFair's client objectives over model and eta together.

        L = (L1 + (L2^2 + 1) / mu) max_i 1 / alpha_i                              (FAFL, Lemma C.1)

    Args:
        smoothness: L1, Lipschitz constant of every client's loss gradient.
        lipschitz: L2, Lipschitz constant of every client's loss.
        alpha: levels in (0, 1], one number or one per client.
        mu: smoothing width.
        sharp: use phi_mu'' <= 1 / (4 mu) instead of the paper's 1 / mu; linear losses at f = eta
            then attain the constant.

    >>> fafl_smoothness(2.0, 3.0, 0.25, mu=0.5)
    88.0
    """
    require_number(
        "smoothness", smoothness, "[0, inf)", "0 for losses that are linear in the model"
    )
    require_number("lipschitz", lipschitz, "[0, inf)")
    require_number("mu", mu, "(0, inf)", "the theorems need a smoothed objective")
    curvature = (lipschitz**2 + 1) / (4 * mu if sharp else mu)
    return (smoothness + curvature) / float(read_levels(alpha).min())


def fafl_step_size(
    smoothness: float,
    lipschitz: float,
    alpha: float | Vector,
    mu: float,
    local_steps: int,
    cohort: int | None = None,
    sharp: bool = False,
) -> StepSize:
    """Return the largest step size for which rFedFair is known to converge, and the binding
    condition.

        all clients:   lr <= 1 / (40 L)                   and  6 L^2 lr^2 (kappa - 1)^2 <= 1
        cohorts of K:  L lr (3 kappa / K + 2) <= 1 / 20   and  the same     (FAFL, Theorems 1 and 2)

    Model and eta have the same step size. L is ``fafl_smoothness``, whose arguments are the same
    here. If all clients take part, the second condition binds from kappa = 18 local steps on.

    Args:
        local_steps: kappa, full-batch steps of a client per round.
        cohort: K draws with replacement and probabilities w_i (scheme B, ``Proportional(K)``); None
            for all clients.
    """
    joint = fafl_smoothness(smoothness, lipschitz, alpha, mu, sharp)
    return tightest(_fafl_limits(joint, local_steps, cohort), joint)


def _fafl_limits(joint_smoothness: float, local_steps: int, cohort: int | None) -> dict[str, float]:
    """Return the largest step size under each condition of Theorem 1, or of Theorem 2 with a
    cohort."""
    require_number("joint_smoothness", joint_smoothness, "(0, inf)", "fafl_smoothness gives it")
    require_whole("local_steps", local_steps, 1)
    require_whole("cohort", cohort, 1, optional=True)
    drift = math.sqrt(6) * joint_smoothness * (local_steps - 1)
    descent = (
        {"lr <= 1 / (40 L)": 1 / (40 * joint_smoothness)}
        if cohort is None
        else {
            "L lr (3 kappa / K + 2) <= 1 / 20": (
                1 / (20 * joint_smoothness * (3 * local_steps / cohort + 2))
            )
        }
    )
    return descent | {"6 L^2 lr^2 (kappa - 1)^2 <= 1": 1 / drift if drift else math.inf}


class FAFLBound(NamedTuple):
    """How far rFedFair's averaged model can be from the optimum, and what contributes."""

    total: float
    optimisation: float  # decreases with rounds
    drift: float  # from several local steps on different clients
    sampling: float  # from cohorts; 0 if all clients take part
    smoothing: float  # from mu


def fafl_bound(
    step_size: float,
    rounds: int,
    local_steps: int,
    joint_smoothness: float,
    sqdistance: float,
    heterogeneity: float,
    mu: float,
    tau: float,
    cohort: int | None = None,
    sharp: bool = False,
) -> FAFLBound:
    """Bound how far rFedFair's averaged model is from the best exact (unsmoothed) objective.

        2 |start - optimum|^2 / (lr rounds) + 26 L lr^2 (kappa - 1)^2 kappa rho^2
            [+ 12 lr kappa^2 rho^2 / K] + mu tau

    FAFL, Theorem 1; with a cohort Theorem 2, in expectation over the draws. The clients' losses are
    convex, L1-smooth and L2-Lipschitz over the whole space, steps are full-batch, eta has the step
    size of the model, and the result is the mean of the server's models after each round.

    ``rounds`` is the paper's T_N + 1. Its first round has a single local step. With kappa steps in
    every round, as here, the same proof gives the same bound: drift vanishes right after an
    average, so one more hypothetical step costs nothing.

    Args:
        step_size: lr; a ValueError names the condition it violates.
        rounds: number of rounds.
        local_steps: kappa, full-batch steps of a client per round.
        joint_smoothness: L of ``fafl_smoothness``.
        sqdistance: |theta_0 - theta*|^2 + (eta_0 - eta*)^2, to a minimiser of the smoothed
            objective.
        heterogeneity: rho^2 = sum_i w_i |gradient of client i's smoothed objective at (theta*,
            eta*)|^2.
        mu: smoothing width.
        tau: sum_i w_i / alpha_i, at least 1.
        cohort: K draws with replacement and probabilities w_i; None for all clients.
        sharp: use the smoothing error mu tau ln 2 (phi_mu exceeds the positive part by at most mu
            ln 2) instead of mu tau.
    """
    require_number("step_size", step_size, "(0, inf)")
    require_whole("rounds", rounds, 1)
    require_number("sqdistance", sqdistance, "[0, inf)")
    require_number("heterogeneity", heterogeneity, "[0, inf)")
    require_number("mu", mu, "(0, inf)", "the theorems need a smoothed objective")
    require_number("tau", tau, "[1, inf)", "it is sum_i w_i / alpha_i with alpha_i <= 1")
    refuse_beyond(_fafl_limits(joint_smoothness, local_steps, cohort), step_size)
    optimisation = 2 * sqdistance / (step_size * rounds)
    drift = (
        26 * joint_smoothness * step_size**2 * (local_steps - 1) ** 2 * local_steps * heterogeneity
    )
    sampling = 0.0 if cohort is None else 12 * step_size * local_steps**2 * heterogeneity / cohort
    smoothing = mu * tau * (math.log(2) if sharp else 1)
    terms = [float(term) for term in (optimisation, drift, sampling, smoothing)]
    return FAFLBound(sum(terms), *terms)


def fafl_mu(epsilon: float, tau: float, sharp: bool = False) -> float:
    """Return the smoothing width that spends half of a desired accuracy on smoothing.

        mu = epsilon / (2 tau)                                              (FAFL, after Theorem 1)

    A smaller mu needs smaller steps (L grows like 1/mu), so the number of rounds grows like 1 /
    epsilon^2. ``sharp`` divides by ln 2, as in ``fafl_bound``.

    >>> fafl_mu(0.1, tau=2.0)
    0.025
    """
    require_number("epsilon", epsilon, "(0, inf)")
    require_number("tau", tau, "[1, inf)", "it is sum_i w_i / alpha_i with alpha_i <= 1")
    return epsilon / (2 * tau * (math.log(2) if sharp else 1))
