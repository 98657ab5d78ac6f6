"""What the papers' theorems promise, as numbers: step sizes, error bounds, generalisation bounds,
GIFAIR's limit.

A bound holds under the assumptions its docstring names; it does not look at data. Bounds are loose:
their use is to see which term dominates and how it moves with a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evenhand.errors import require, require_number, require_whole
from evenhand.theory.aggregates import Vector


class StepSize(NamedTuple):
    """The largest step size that a theorem allows."""

    value: float
    binding: str  # the condition that forbids a larger one
    smoothness: float  # the constant in it: L of FAFL, L-tilde of PropFair


# ---- FAFL (rFedFair)


def fafl_smoothness(
    smoothness: float, lipschitz: float, alpha: float | Vector, mu: float, sharp: bool = False
) -> float:
    """How curved rFedFair's client objectives can be over model and eta together.

    L = (L1 + (L2^2 + 1) / mu) max_i 1 / alpha_i                                    (FAFL, Lemma
    C.1)

    Args:
        smoothness: L1, Lipschitz constant of every client's loss gradient.
        lipschitz: L2, Lipschitz constant of every client's loss.
        alpha: levels in (0, 1], one number or one per client.
        mu: smoothing width.
        sharp: use phi_mu'' <= 1 / (4 mu), where the paper uses 1 / mu; then the constant is
            attained by linear losses at f = eta.

    >>> fafl_smoothness(2.0, 3.0, 0.25, mu=0.5)
    88.0
    """
    require_number(
        "smoothness", smoothness, "[0, inf)", "0 for losses that are linear in the model"
    )
    require_number("lipschitz", lipschitz, "[0, inf)")
    require_number("mu", mu, "(0, inf)", "the theorems need a smoothed objective")
    curvature = (lipschitz**2 + 1) / (4 * mu if sharp else mu)
    return (smoothness + curvature) / float(_levels(alpha).min())


def fafl_step_size(
    smoothness: float,
    lipschitz: float,
    alpha: float | Vector,
    mu: float,
    local_steps: int,
    cohort: int | None = None,
    sharp: bool = False,
) -> StepSize:
    """The largest step size for which rFedFair is known to converge, and the condition that binds.

    everyone:           lr <= 1 / (40 L)                   and  6 L^2 lr^2 (kappa - 1)^2 <= 1
    (FAFL, Theorem 1) cohorts of K:       L lr (3 kappa / K + 2) <= 1 / 20   and  the same
    (FAFL, Theorem 2)

    The step size is that of the model and of eta alike. L is :func:`fafl_smoothness`. The second
    condition binds from kappa = 18 local steps on when everyone takes part.

    Args:
        smoothness, lipschitz, alpha, mu, sharp: as in :func:`fafl_smoothness`.
        local_steps: kappa, full-batch steps of a client in one round.
        cohort: K draws with replacement, probabilities w_i (scheme B, ``Proportional(K)``); None
            for everyone.
    """
    joint = fafl_smoothness(smoothness, lipschitz, alpha, mu, sharp)
    return _tightest(_fafl_limits(joint, local_steps, cohort), joint)


def _fafl_limits(joint_smoothness: float, local_steps: int, cohort: int | None) -> dict[str, float]:
    """Largest step size under each condition of Theorem 1, or of Theorem 2 with a cohort."""
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
    optimisation: float  # falls with rounds
    drift: float  # from several local steps on unequal clients
    sampling: float  # from cohorts; 0 where everyone takes part
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
    """How far rFedFair's averaged model can be from the best exact (unsmoothed) objective.

    2 |start - optimum|^2 / (lr rounds) + 26 L lr^2 (kappa - 1)^2 kappa rho^2 [+ 12 lr kappa^2 rho^2
    / K] + mu tau

    (FAFL, Theorem 1; with a cohort Theorem 2, in expectation over the draws.) The clients' losses
    are convex, L1-smooth and L2-Lipschitz over the whole space, steps are full-batch, eta has the
    step size of the model, and the output is the mean of the server's models after each round.

    ``rounds`` is the paper's T_N + 1. Its first round has a single local step; with kappa steps in
    every round, as here, the same proof gives the same bound: drift vanishes right after an
    average, so one more hypothetical step costs nothing.

    Args:
        step_size: lr; a ValueError names the condition it violates.
        joint_smoothness: L of :func:`fafl_smoothness`.
        sqdistance: |theta_0 - theta*|^2 + (eta_0 - eta*)^2, to a minimiser of the smoothed
            objective.
        heterogeneity: rho^2 = sum_i w_i |gradient of client i's smoothed objective at (theta*,
            eta*)|^2.
        tau: sum_i w_i / alpha_i, at least 1.
        cohort: K draws with replacement, probabilities w_i; None for everyone.
        sharp: smoothing error mu tau ln 2 (phi_mu exceeds the positive part by at most mu ln 2) in
            place of mu tau.
    """
    require_number("step_size", step_size, "(0, inf)")
    require_whole("rounds", rounds, 1)
    require_number("sqdistance", sqdistance, "[0, inf)")
    require_number("heterogeneity", heterogeneity, "[0, inf)")
    require_number("mu", mu, "(0, inf)", "the theorems need a smoothed objective")
    require_number("tau", tau, "[1, inf)", "it is sum_i w_i / alpha_i with alpha_i <= 1")
    _refuse_beyond(_fafl_limits(joint_smoothness, local_steps, cohort), step_size)
    optimisation = 2 * sqdistance / (step_size * rounds)
    drift = (
        26 * joint_smoothness * step_size**2 * (local_steps - 1) ** 2 * local_steps * heterogeneity
    )
    sampling = 0.0 if cohort is None else 12 * step_size * local_steps**2 * heterogeneity / cohort
    smoothing = mu * tau * (math.log(2) if sharp else 1)
    terms = [float(term) for term in (optimisation, drift, sampling, smoothing)]
    return FAFLBound(sum(terms), *terms)


def fafl_mu(epsilon: float, tau: float, sharp: bool = False) -> float:
    """The smoothing width that spends half of a wanted accuracy on smoothing.

    mu = epsilon / (2 tau)                                                         (FAFL, after
    Theorem 1)

    A smaller mu wants smaller steps (L grows like 1/mu), so the rounds needed grow like 1 /
    epsilon^2. ``sharp`` divides by ln 2, as in :func:`fafl_bound`.

    >>> fafl_mu(0.1, tau=2.0)
    0.025
    """
    require_number("epsilon", epsilon, "(0, inf)")
    require_number("tau", tau, "[1, inf)", "it is sum_i w_i / alpha_i with alpha_i <= 1")
    return epsilon / (2 * tau * (math.log(2) if sharp else 1))


class Generalisation(NamedTuple):
    """What the exact FAFL objective on the population can be at most, and what contributes."""

    total: float
    empirical: float  # from the loss on the training data
    complexity: float  # from the richness of the model class
    confidence: float  # from the chance of an unlucky sample


def fafl_generalisation(
    empirical: float,
    sizes: Vector,
    base: Vector | None,
    alpha: float | Vector,
    bound: float,
    delta: float,
    rademacher: float | Vector,
    theorem: int = 3,
    measured: bool = False,
) -> Generalisation:
    """What the FAFL objective on unseen data is at most, with probability 1 - delta, for all models
    of the class at once.

    3:  tau f^ + 2 R + B sqrt(sum_i (w_i/alpha_i)^2 log(1/delta) / (2 m_i))
    (FAFL, Theorem 3) 4:  f^ + 2 sum_i (w_i/alpha_i) R_i + B sum_i (w_i/alpha_i) sqrt(log(2n/delta)
    / (2 m_i))   (RC-FL, Theorem 4; FAFL, G.1)

    tau = sum_i w_i / alpha_i. Theorem 3 pays the factor tau on the training loss, Theorem 4 larger
    other terms: few large clients favour 4, many small ones 3. Losses lie in [0, B]; the samples of
    client i are drawn independently from its own distribution; weights and levels are fixed
    beforehand.

    Both complexities belong to the class of *losses* (model and loss composed) and are expectations
    over samples and signs:

        R    E sup sum_i sum_j w_i / (alpha_i m_i) sign_ij loss(z_ij)       one number for all
        clients, scale tau R_i  E sup (1 / m_i) sum_j sign_j loss(z_ij)                        one
        number per client

    What can be computed is the complexity given *one* sample. ``measured`` pays for that: it moves
    by at most B w_i/(alpha_i m_i) with one sample point, so McDiarmid's inequality once more gives
    3 times the last term, with delta/2 for delta (3) or 3n/delta for 2n/delta (4). The papers do
    not go into this.

    Args:
        empirical: f^, the exact FAFL objective (HCVaR of the client losses) on the training data.
        sizes: m_i, training samples of each client.
        base: w_i, summing to 1; None for the clients' data shares.
        alpha: levels in (0, 1], one number or one per client.
        bound: B.
        rademacher: R for theorem 3, all R_i for theorem 4.
        measured: whether ``rademacher`` was computed from the training data (``rademacher_linear``
            on them, Monte Carlo), and does not hold for every sample (``rademacher_vc``).
    """
    counts, caps = counts_and_caps(sizes, base, alpha)
    require_number(
        "empirical", empirical, "[0, inf)", "the theorems need losses that are not negative"
    )
    require_number("bound", bound, "(0, inf)")
    require_number("delta", delta, "(0, 1)", "it is the chance that the bound fails")
    require(
        theorem in (3, 4),
        "theorem must be 3 (one weighted complexity) or 4 (one per client), got {!r}",
        theorem,
    )
    n = len(counts)
    if theorem == 3:
        complexity = read_vector(
            "rademacher (one number for theorem 3)", rademacher, "[0, inf)", length=1
        )
        first, events, weight = empirical * float(caps.sum()), 1 + measured, torch.ones(1)
        variance = (caps**2 / counts).sum(0, keepdim=True)  # (1,)
    else:
        complexity = read_vector(
            "rademacher (one number per client for theorem 4)", rademacher, "[0, inf)", length=n
        )
        first, events, weight = float(empirical), n * (2 + measured), caps
        variance = 1 / counts  # (n,)
    deviation = bound * (variance * math.log(events / delta) / 2).sqrt()
    richness = 2 * float((weight * complexity).sum())
    confidence = (3 if measured else 1) * float((weight * deviation).sum())
    terms = [float(term) for term in (first, richness, confidence)]
    return Generalisation(sum(terms), *terms)


# ---- PropFair


def propfair_smoothness(
    smoothness: float, lipschitz: float, M: float, sharp: bool = False
) -> float:
    """How curved PropFair's client objectives -log(M - f_i) can be while losses stay below M / 2.

    L~ = (4 / M^2) (3/2 M L + L0^2)                                    (Zhang et al., 2022, Theorem
    3.3)

    Args:
        smoothness: L, Lipschitz constant of every client's loss gradient.
        lipschitz: L0, Lipschitz constant of every client's loss.
        M: the utility baseline, at least twice every batch loss.
        sharp: 1/2 M L in place of 3/2 M L: splitting off the change of 1 / (M - f) instead of
            cross-multiplying gives 2 L / M + 4 L0^2 / M^2, which is attained where f = M/2.

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
    """The largest step size for which PropFair is known to converge, and the condition that binds.

    lr <= 1 / (6 L~ max_i K_i)   and   lr <= 1 / (L~ sqrt(24 (e - 2) sum_i w_i^2 sum_i K_i^4))

    (Zhang et al., 2022, Theorem 3.3, equation 8.) The paper prints L for L~ in the second
    condition; its proof applies Theorem A.1 to -log(M - f_i), whose smoothness is L~
    (:func:`propfair_smoothness`), so L~ it must be.

    Args:
        smoothness, lipschitz, M, sharp: as in :func:`propfair_smoothness`.
        base: w_i, summing to 1: the aggregation weights.
        local_steps: K_i, one number or one per client.
        cohort: clients per round, any distinct ones, weights normalised over the cohort; None for
            everyone. The sums then are the largest that a cohort can have, see
            :func:`propfair_bound`.
    """
    curvature = propfair_smoothness(smoothness, lipschitz, M, sharp)
    require(
        curvature > 0,
        "smoothness and lipschitz are both 0: the losses are constant and there is nothing to"
        " descend",
    )
    return _tightest(_propfair_limits(curvature, _Clients.of(base, local_steps, cohort)), curvature)


class PropFairBound(NamedTuple):
    """How large PropFair's smallest squared gradient norm can still be, and what contributes."""

    total: float
    optimisation: float  # falls with rounds
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
    """How large the smallest squared gradient of PropFair's objective over the rounds can be at
    most, in expectation.

    12 / ((11 k - 9) lr) (gap / rounds + Psi),   k = sum_i w_i K_i, or min_i K_i with cohorts Psi =
    lr/2 sum_i w_i^2 [ sum_i K_i^2 (s_i^2 + 2 g^2) + 2 (e - 2) lr^2 L~^2 sum_i K_i^3 (s_i^2 + 6 K_i
    g^2) ] s_i^2 = 8 / M^4 (9 M^2 gradient_noise_i^2 + 4 L0^2 loss_noise_i^2) g = 4 / M (3/2
    gradient_spread + L0 / M loss_spread)                     (Zhang et al., 2022, Theorem 3.3)

    All batch losses lie in [0, M/2]; no convexity. The objective may weigh clients in any way (the
    paper: 1/n), because the spreads bound how far a client is from any mean. What differs from the
    paper:

    L~ in Psi where it prints L, as in :func:`propfair_step_size`. With cohorts, the paper keeps the
    sums over everyone, claiming that fewer clients lower Psi; but weights normalised over fewer
    clients have a larger sum of squares, and Psi can rise (weights .4, .4, .2, cohort of the first
    and last: 2 * .556 > 3 * .36). Here the sums are the largest that a cohort can have. With
    mini-batches (noise > 0) take the value as a guide: the proof treats the gradient of -log(M -
    batch loss) as unbiased for that of -log(M - f_i), which it is not, and drops products of noise
    and later local steps.

    Args:
        step_size: lr; a ValueError names the condition it violates.
        local_steps, smoothness, lipschitz, M, base, cohort, sharp: as in
            :func:`propfair_step_size`.
        gap: objective at the start minus its smallest value; log 2 always suffices, because losses
            lie in [0, M/2].
        gradient_spread, loss_spread: largest |grad f_i - grad f_j| and |f_i - f_j|.
        gradient_noise, loss_noise: root mean squared error of a batch's gradient and loss, one
            number or one per client.
    """
    require_number("step_size", step_size, "(0, inf)")
    require_whole("rounds", rounds, 1)
    for name, value in {
        "gap": gap,
        "gradient_spread": gradient_spread,
        "loss_spread": loss_spread,
    }.items():
        require_number(name, value, "[0, inf)")
    curvature = propfair_smoothness(smoothness, lipschitz, M, sharp)
    clients = _Clients.of(base, local_steps, cohort)
    _refuse_beyond(_propfair_limits(curvature, clients), step_size)
    n, steps = len(clients.steps), clients.steps
    gradient_rms = read_vector("gradient_noise", gradient_noise, "[0, inf)", length=n, repeat=True)
    loss_rms = read_vector("loss_noise", loss_noise, "[0, inf)", length=n, repeat=True)
    local = 8 / M**4 * (9 * M**2 * gradient_rms**2 + 4 * lipschitz**2 * loss_rms**2)  # (n,) s_i^2
    between = (4 / M * (1.5 * gradient_spread + lipschitz / M * loss_spread)) ** 2  # g^2
    late = 2 * (math.e - 2) * (step_size * curvature) ** 2
    scale = 12 / ((11 * clients.progress - 9) * step_size)
    half = scale * step_size / 2 * clients.concentration
    heterogeneity = (
        half
        * between
        * (2 * clients.largest_sum(steps**2) + late * 6 * clients.largest_sum(steps**4))
    )
    noise = half * (
        clients.largest_sum(steps**2 * local) + late * clients.largest_sum(steps**3 * local)
    )
    optimisation = scale * gap / rounds
    terms = [float(term) for term in (optimisation, heterogeneity, noise)]
    return PropFairBound(sum(terms), *terms)


class _Clients(NamedTuple):
    """What PropFair's theorem needs to know about who takes part."""

    steps: Tensor  # (n,) K_i
    cohort: int  # clients per round
    concentration: float  # largest sum of squared weights in a cohort
    progress: float  # k: mean number of local steps, or the smallest with cohorts

    @staticmethod
    def of(base: Vector, local_steps: int | Sequence[int], cohort: int | None) -> _Clients:
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
            return _Clients(steps, n, float((weight**2).sum()), float((weight * steps).sum()))
        require(cohort <= n, "cohort must be at most the number of clients, {}, got {}", n, cohort)
        return _Clients(steps, cohort, _largest_concentration(weight, cohort), float(steps.min()))

    def largest_sum(self, values: Tensor) -> float:
        """The largest sum of these (n,) values in a cohort."""
        return float(values.sort(descending=True).values[: self.cohort].sum())


def _largest_concentration(weight: Tensor, cohort: int) -> float:
    """The largest sum of squares that weights normalised over ``cohort`` clients can have.

    (A + w^2) / (B + w)^2 falls and then rises in w, so a cohort that attains it has the j heaviest
    clients and the lightest.
    """
    ordered = weight.sort(descending=True).values
    choices = (
        torch.cat([ordered[:j], ordered[len(ordered) - (cohort - j) :]]) for j in range(cohort + 1)
    )
    return max(float((chosen**2).sum() / chosen.sum() ** 2) for chosen in choices)


def _propfair_limits(curvature: float, clients: _Clients) -> dict[str, float]:
    """Largest step size under each condition of Theorem 3.3."""
    longest = float(clients.steps.max())
    spread = math.sqrt(
        24 * (math.e - 2) * clients.concentration * clients.largest_sum(clients.steps**4)
    )
    return {
        "lr <= 1 / (6 L~ max K_i)": 1 / (6 * curvature * longest),
        "lr <= 1 / (L~ sqrt(24 (e - 2) sum w_i^2 sum K_i^4))": 1 / (curvature * spread),
    }


# ---- GIFAIR


class GIFAIRLimit(NamedTuple):
    """How strong GIFAIR's pull can be, and which client stands in the way."""

    c_max: float
    client: int  # the one that limits it (the first of several)
    weight: float  # its weight w_i
    # c_max if it were left out; None where fewer than two teams would be left
    without: float | None
    # the lightest other client of its team (without teams: of all); None where there is none
    partner: int | None
    merged: float | None  # c_max if it were pooled with that client; None where it cannot be

    def __str__(self) -> str:
        text = (
            f"client {self.client} with {self.weight:.3g} of the weight limits c to below"
            f" {self.c_max:.3g}"
        )
        text += "" if self.without is None else f"; left out: {self.without:.3g}"
        return text + (
            "" if self.merged is None else f"; pooled with client {self.partner}: {self.merged:.3g}"
        )


def gifair_limit(
    weight: Vector, teams: Sequence[int] | Sequence[str] | Tensor | npt.NDArray[Any] | None = None
) -> GIFAIRLimit:
    """The largest strength c of GIFAIR that keeps every client's weight positive, and the client
    that limits it.

    c_max = min_i w_i |A_i| / (d - 1),  A_i the team of client i, d teams                  (Yue et
    al., 2021, Section 2)

    The smallest client decides: leaving it out or pooling it with another of its team shows what it
    costs.

    Args:
        weight: w_i, summing to 1, as in ``federation.census().weight``.
        teams: a label for each client, as in ``federation.census().teams``; None makes every client
            its own team.

    >>> str(gifair_limit([0.5, 0.4, 0.1])).split("; ")  # doctest: +NORMALIZE_WHITESPACE
    ['client 2 with 0.1 of the weight limits c to below 0.05', 'left out: 0.444',
     'pooled with client 1: 0.5']
    """
    w = read_weights("weight", weight)
    n = len(w)
    labels = (
        np.arange(n)
        if teams is None
        else np.unique(np.asarray(teams), return_inverse=True)[1].reshape(-1)
    )
    require(len(labels) == n, "teams must have one label per client, {}, got {}", n, len(labels))
    team = torch.from_numpy(labels)
    found = _c_max(w, team)
    if found is None:
        raise ValueError(
            "GIFAIR compares teams of clients (without teams, clients), there is 1; it needs at"
            " least two"
        )
    c_max, client = found
    others = torch.arange(n) != client
    left_out = _c_max(w[others] / w[others].sum(), team[others])
    mates = torch.nonzero(others if teams is None else others & (team == team[client])).flatten()
    partner = int(mates[w[mates].argmin()]) if len(mates) else None
    pooled = None
    if partner is not None:
        joined = w.clone()
        joined[partner] += w[client]
        pooled = _c_max(joined[others], team[others])
    return GIFAIRLimit(
        c_max, client, float(w[client]), left_out and left_out[0], partner, pooled and pooled[0]
    )


def _c_max(weight: Tensor, team: Tensor) -> tuple[float, int] | None:
    """c_max and the client that limits it; None where there are fewer than two teams."""
    members = torch.bincount(team)
    teams = int((members > 0).sum())
    if teams < 2:
        return None
    room = weight * members[team]
    client = int(room.argmin())
    return float(room[client]) / (teams - 1), client


# ---- arguments


def read_vector(
    name: str,
    values: float | Vector,
    interval: str,
    hint: str = "",
    length: int | None = None,
    repeat: bool = False,
) -> Tensor:
    """(n,) float64, every entry inside ``interval``; one number counts as a vector of length 1, or
    of any with ``repeat``."""
    try:
        # torch takes no reversed or read-only arrays
        values = values.copy() if isinstance(values, np.ndarray) else values
        vector = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must hold numbers, got {values!r}") from error
    require(
        vector.ndim < 2, "{} must be a number or a vector, got shape {}", name, list(vector.shape)
    )
    require(vector.numel() > 0, "{} is empty; give one number per client", name)
    vector = vector.reshape(-1)
    for end in (vector.min(), vector.max()):  # NaN is both
        require_number(name, float(end), interval, hint)
    if repeat and len(vector) == 1 and length is not None:
        vector = vector.expand(length)
    require(
        length in (None, len(vector)), "{} must have {} entries, got {}", name, length, len(vector)
    )
    return vector


def read_weights(
    name: str, values: Vector, length: int | None = None, interval: str = "(0, 1]"
) -> Tensor:
    """(n,) weights inside ``interval`` that sum to 1."""
    weight = read_vector(name, values, interval, "weights are shares of 1", length)
    total = float(weight.sum())
    require(abs(total - 1) < 1e-6, "{} must sum to 1, got {:g}; divide it by its sum", name, total)
    return weight


def _levels(alpha: float | Vector, length: int | None = None) -> Tensor:
    """(n,) or (1,) levels alpha_i."""
    return read_vector("alpha", alpha, "(0, 1]", "1 gives the plain average", length, repeat=True)


def counts_and_caps(
    sizes: Vector, base: Vector | None, alpha: float | Vector
) -> tuple[Tensor, Tensor]:
    """(n,) samples m_i and (n,) caps w_i / alpha_i, both float64."""
    counts = read_vector("sizes", sizes, "[1, inf)", "leave out clients without samples")
    require(bool((counts == counts.round()).all()), "sizes must be whole numbers, got {}", sizes)
    weight = counts / counts.sum() if base is None else read_weights("base", base, len(counts))
    return counts, weight / _levels(alpha, len(counts))


def _tightest(limits: dict[str, float], smoothness: float) -> StepSize:
    """The smallest of the limits."""
    binding = min(limits, key=limits.__getitem__)
    return StepSize(float(limits[binding]), binding, float(smoothness))


def _refuse_beyond(limits: dict[str, float], step_size: float) -> None:
    """Raise where a step size violates a condition."""
    for condition, limit in limits.items():
        require(
            step_size <= limit,
            "step_size {:g} violates {}; the bound holds up to {:g}",
            step_size,
            condition,
            limit,
        )
