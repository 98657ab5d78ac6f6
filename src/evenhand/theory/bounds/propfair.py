"""PropFair: step sizes, and how large its gradient can still be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evenhand.errors import require, require_number
from evenhand.theory.bounds.fedavg import Participants, gradient_limits, gradient_terms
from evenhand.theory.bounds.step_size import StepSize, tightest
from evenhand.theory.inputs import Vector, read_vector


def propfair_smoothness(
    smoothness: float, lipschitz: float, M: float, sharp: bool = False
) -> float:
    """Bound the curvature of PropFair's client objectives -log(M - f_i) for losses below M / 2.

        L~ = (4 / M^2) (3/2 M L + L0^2)                          (Zhang et al., 2022, Theorem 3.3)

    Args:
        smoothness: L, Lipschitz constant of every client's loss gradient.
        lipschitz: L0, Lipschitz constant of every client's loss.
        M: the utility baseline, at least twice every batch loss.
        sharp: use 1/2 M L instead of 3/2 M L: splitting off the change of 1 / (M - f) instead of
            cross-multiplying gives 2 L / M + 4 L0^2 / M^2, which is attained at f = M/2.

    >>> propfair_smoothness(1.0, 1.0, M=2.0)
    4.0
    """
    require_number("smoothness", smoothness, "[0, inf)")
    require_number("lipschitz", lipschitz, "[0, inf)")
    require_number("M", M, "(0, inf)", "take it at least twice the largest loss")
    return 4 / M**2 * ((0.5 if sharp else 1.5) * M * smoothness + lipschitz**2)


def propfair_step_size(
    smoothness: float,
    lipschitz: float,
    M: float,
    base: Vector,
    local_steps: int | Sequence[int],
    cohort: int | None = None,
    sharp: bool = False,
) -> StepSize:
    """Return the largest step size for which PropFair is known to converge, and the binding
    condition.

        lr <= 1 / (6 L~ max_i K_i)   and   lr <= 1 / (L~ sqrt(24 (e - 2) sum_i w_i^2 sum_i K_i^4))

    (Zhang et al., 2022, Theorem 3.3, equation 8.) The paper prints L for L~ in the second
    condition. Its proof applies Theorem A.1 to -log(M - f_i), whose smoothness is L~
    (``propfair_smoothness``), so it must be L~. ``smoothness``, ``lipschitz``, ``M`` and ``sharp``
    are those of ``propfair_smoothness``.

    Args:
        base: w_i, summing to 1: the aggregation weights.
        local_steps: K_i, one number or one per client.
        cohort: number of distinct clients per round, with weights normalised over the cohort; None
            for all clients. The sums are then the largest that a cohort can have, see
            ``propfair_bound``.
    """
    curvature = propfair_smoothness(smoothness, lipschitz, M, sharp)
    require(
        curvature > 0,
        "smoothness and lipschitz are both 0: the losses are constant and there is nothing to"
        " descend",
    )
    participants = Participants.of(base, local_steps, cohort)
    return tightest(gradient_limits("L~", curvature, participants), curvature)


class PropFairBound(NamedTuple):
    """How large PropFair's mean squared gradient norm can still be, and what contributes."""

    total: float
    optimisation: float  # decreases with rounds
    heterogeneity: float  # from clients whose gradients and losses differ
    noise: float  # from mini-batches


def propfair_bound(
    step_size: float,
    rounds: int,
    local_steps: int | Sequence[int],
    smoothness: float,
    lipschitz: float,
    M: float,
    base: Vector,
    gap: float,
    gradient_spread: float,
    loss_spread: float,
    gradient_noise: float | Vector = 0.0,
    loss_noise: float | Vector = 0.0,
    cohort: int | None = None,
    sharp: bool = False,
) -> PropFairBound:
    """Bound the expected squared gradient, averaged over rounds.

        12 / ((11 k - 9) lr) (gap / rounds + Psi),   k = sum_i w_i K_i, or min_i K_i with cohorts
        Psi = lr/2 sum_i w_i^2 [ sum_i K_i^2 (s_i^2 + 2 g^2)
                                 + 2 (e - 2) lr^2 L~^2 sum_i K_i^3 (s_i^2 + 6 K_i g^2) ]
        s_i^2 = 8 / M^4 (9 M^2 gradient_noise_i^2 + 4 L0^2 loss_noise_i^2)
        g = 4 / M (3/2 gradient_spread + L0 / M loss_spread)     (Zhang et al., 2022, Theorem 3.3)

    This is ``evenhand.theory.fedavg_bound`` for the client objectives -log(M - f_i). The gradient
    is that of PropFair's objective. All batch losses lie in [0, M/2]; they need not be convex. The
    objective may weight clients in any way (in the paper 1/n), because the spreads bound how far a
    client is from any mean.

    Differences from the paper: L~ in Psi where it prints L, as in ``propfair_step_size``. With
    cohorts, the paper keeps the sums over all clients, claiming that fewer clients lower Psi. But
    weights normalised over fewer clients have a larger sum of squares, and Psi can rise (weights
    .4, .4, .2, cohort of the first and last: 2 * .556 > 3 * .36). Here the sums are the largest
    that a cohort can have. With mini-batches (noise > 0) the value is only a guide: the proof
    treats the gradient of -log(M - batch loss) as unbiased for that of -log(M - f_i), which it is
    not.

    ``local_steps``, ``smoothness``, ``lipschitz``, ``M``, ``base``, ``cohort`` and ``sharp`` are
    those of ``propfair_step_size``.

    Args:
        step_size: lr; a ValueError names the condition it violates.
        rounds: number of rounds.
        gap: objective at the start minus its smallest value; log 2 always suffices, because losses
            lie in [0, M/2].
        gradient_spread: largest |grad f_i - grad f_j|.
        loss_spread: largest |f_i - f_j|.
        gradient_noise: root mean squared error of a batch's gradient, one number or one per client.
        loss_noise: root mean squared error of a batch's loss, one number or one per client.
    """
    require_number("gradient_spread", gradient_spread, "[0, inf)")
    require_number("loss_spread", loss_spread, "[0, inf)")
    curvature = propfair_smoothness(smoothness, lipschitz, M, sharp)
    participants = Participants.of(base, local_steps, cohort)
    n = len(participants.steps)
    gradient_rms = read_vector("gradient_noise", gradient_noise, "[0, inf)", length=n, repeat=True)
    loss_rms = read_vector("loss_noise", loss_noise, "[0, inf)", length=n, repeat=True)
    local = 8 / M**4 * (9 * M**2 * gradient_rms**2 + 4 * lipschitz**2 * loss_rms**2)  # (n,) s_i^2
    between = (4 / M * (1.5 * gradient_spread + lipschitz / M * loss_spread)) ** 2  # g^2
    return PropFairBound(
        *gradient_terms(step_size, rounds, "L~", curvature, participants, gap, between, local)
    )
