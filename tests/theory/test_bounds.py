"""The numbers of the theorems: by hand, by brute force, at their limits, and never violated by a
small real federation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand import theory
from evenhand.theory import bounds, rademacher
from evenhand.theory.bounds.fedavg import largest_concentration

E2 = math.e - 2


# ---- FAFL: step size and bound, by hand


def test_fafl_smoothness_by_hand() -> None:
    # (2 + (3^2 + 1) / 0.5) / 0.25 and (2 + 10 / (4 * 0.5)) / 0.25
    assert bounds.fafl_smoothness(2.0, 3.0, (0.5, 0.25, 1.0), 0.5) == 88
    assert bounds.fafl_smoothness(2.0, 3.0, (0.5, 0.25, 1.0), 0.5, sharp=True) == 28


def test_sharp_smoothness_is_attained_by_linear_losses_and_never_exceeded() -> None:
    slope, alpha, mu = 1.7, 0.4, 0.3

    def objective(variables: Tensor) -> Tensor:  # linear loss: L1 = 0, L2 = slope
        return (
            mu * torch.nn.functional.softplus((slope * variables[0] - variables[1]) / mu) / alpha
            + variables[1]
        )

    points = [torch.tensor([x, 0.2], dtype=torch.float64) for x in np.linspace(-1, 1, 41)]
    points.append(torch.tensor([0.2 / slope, 0.2], dtype=torch.float64))  # f = eta
    curvature = [
        float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(objective, point)).max())
        for point in points
    ]
    sharp = bounds.fafl_smoothness(0.0, slope, alpha, mu, sharp=True)
    assert max(curvature) == pytest.approx(sharp, rel=1e-9)
    assert bounds.fafl_smoothness(0.0, slope, alpha, mu) == pytest.approx(4 * sharp)


def test_fafl_step_size_by_hand() -> None:
    few = bounds.fafl_step_size(2.0, 3.0, 0.25, 0.5, local_steps=5)
    assert few == (pytest.approx(1 / 3520), "lr <= 1 / (40 L)", 88)
    many = bounds.fafl_step_size(2.0, 3.0, 0.25, 0.5, local_steps=21)
    assert many == (
        pytest.approx(1 / (math.sqrt(6) * 88 * 20)),
        "6 L^2 lr^2 (kappa - 1)^2 <= 1",
        88,
    )
    # 3 * 10 / 5 + 2 = 8
    cohort = bounds.fafl_step_size(2.0, 3.0, 0.25, 0.5, local_steps=10, cohort=5)
    assert cohort == (pytest.approx(1 / (20 * 8 * 88)), "L lr (3 kappa / K + 2) <= 1 / 20", 88)


@pytest.mark.parametrize(("local_steps", "drift_binds"), [(1, False), (17, False), (18, True)])
def test_drift_binds_from_eighteen_local_steps_on(local_steps: int, drift_binds: bool) -> None:
    assert (
        "kappa - 1" in bounds.fafl_step_size(1.0, 1.0, 1.0, 1.0, local_steps).binding
    ) == drift_binds


@pytest.mark.parametrize("cohort", [None, 1, 4])
@pytest.mark.parametrize("local_steps", [1, 3, 40])
def test_largest_step_meets_both_conditions_and_a_larger_one_does_not(
    local_steps: int, cohort: int | None
) -> None:
    L = bounds.fafl_smoothness(1.0, 2.0, 0.3, 0.1)

    def allowed(lr: float) -> bool:
        first = (
            lr <= 1 / (40 * L)
            if cohort is None
            else L * lr * (3 * local_steps / cohort + 2) <= 1 / 20
        )
        return first and 6 * L**2 * lr**2 * (local_steps - 1) ** 2 <= 1

    found = bounds.fafl_step_size(1.0, 2.0, 0.3, 0.1, local_steps, cohort)
    assert allowed(found.value * (1 - 1e-9))
    assert not allowed(found.value * (1 + 1e-9))
    # its own value is not refused
    bounds.fafl_bound(found.value, 1, local_steps, L, 1.0, 1.0, 0.1, 2.0, cohort)


def test_huge_cohorts_need_the_step_of_full_participation() -> None:
    everyone, huge = (
        bounds.fafl_step_size(1.0, 1.0, 0.5, 0.2, 4, cohort).value for cohort in (None, 10**12)
    )
    assert huge == pytest.approx(everyone)


def test_fafl_bound_by_hand() -> None:
    # lr .001, 50 rounds, kappa 3, L 4, |start - optimum|^2 = 5, rho^2 = 7, mu .1, tau 2
    terms = bounds.fafl_bound(0.001, 50, 3, 4.0, 5.0, 7.0, 0.1, 2.0)
    expected = (2 * 5 / 0.05, 26 * 4 * 1e-6 * 4 * 3 * 7, 0.0, 0.2)
    assert terms[1:] == pytest.approx(expected)
    assert terms.total == pytest.approx(sum(expected))
    partial = bounds.fafl_bound(0.001, 50, 3, 4.0, 5.0, 7.0, 0.1, 2.0, cohort=6)
    assert partial[1:] == pytest.approx((*expected[:2], 12 * 0.001 * 9 * 7 / 6, 0.2))
    assert bounds.fafl_bound(
        0.001, 50, 3, 4.0, 5.0, 7.0, 0.1, 2.0, sharp=True
    ).smoothing == pytest.approx(0.2 * math.log(2))


def test_one_local_step_has_no_drift() -> None:
    assert bounds.fafl_bound(0.001, 10, 1, 4.0, 1.0, 9.0, 0.1, 1.0).drift == 0


def test_sharp_smoothing_error_is_the_largest_excess_of_softplus() -> None:
    mu, excess = 0.3, torch.linspace(-5, 5, 10001, dtype=torch.float64)
    error = mu * torch.nn.functional.softplus(excess / mu) - excess.clamp(min=0)
    assert float(error.max()) == pytest.approx(
        bounds.fafl_bound(0.001, 1, 1, 1.0, 1.0, 1.0, mu, 1.0, sharp=True).smoothing
    )


def test_advised_mu_spends_half_of_epsilon() -> None:
    for sharp in (False, True):
        mu = bounds.fafl_mu(0.3, 2.5, sharp)
        assert bounds.fafl_bound(
            0.001, 1, 1, 1.0, 1.0, 1.0, mu, 2.5, sharp=sharp
        ).smoothing == pytest.approx(0.15)


# ---- FAFL: a small federation does not violate the bound

ALPHA, MU, LEVEL = (0.6, 0.5, 0.8), 0.2, 1.0  # LEVEL: where eta starts
SIZES = (12, 20, 8)
P = np.array(SIZES) / sum(SIZES)
CAPS = P / np.array(ALPHA)


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """Convex, 1-Lipschitz and 1/4-smooth in the output."""
    return torch.nn.functional.softplus(-target * output.squeeze(-1))


@cache
def clients() -> list[dict[str, Any]]:
    generator = np.random.default_rng(3)
    found = []
    for index, size in enumerate(SIZES):
        x = generator.normal(size=(size, 2))
        y = np.where(generator.random(size) < 0.25, -1.0, 1.0) * np.sign(x[:, index % 2] + 0.3)
        found.append({"x": x, "y": y})
    return found


def client_losses(theta: np.ndarray) -> np.ndarray:
    return np.array([np.logaddexp(0, -c["y"] * (c["x"] @ theta)).mean() for c in clients()])


def exact(theta: np.ndarray) -> float:
    """HCVaR of the client losses: the smallest over eta is attained at one of them."""
    losses = client_losses(theta)
    return float(min(eta + (CAPS * np.maximum(losses - eta, 0)).sum() for eta in losses))


def smoothed(variables: np.ndarray) -> float:
    losses, eta = client_losses(variables[:2]), variables[2]
    return float(eta + (CAPS * MU * np.logaddexp(0, (losses - eta) / MU)).sum())


@cache
def problem() -> dict[str, Any]:
    """Constants of the problem, its two optima, and rho^2."""
    lipschitz = max(np.linalg.norm(c["x"], axis=1).mean() for c in clients())
    smoothness = max(
        np.linalg.eigvalsh(c["x"].T @ c["x"] / len(c["x"])).max() / 4 for c in clients()
    )
    star = scipy.optimize.minimize(
        smoothed, np.array([0.0, 0.0, 0.5]), method="BFGS", options={"gtol": 1e-9}
    ).x
    # exact optimum as min eta + sum caps s, s_i >= f_i - eta, s_i >= 0
    rows = {"type": "ineq", "fun": lambda z: z[3:] - client_losses(z[:2]) + z[2]}
    start = np.concatenate([star, np.maximum(client_losses(star[:2]) - star[2], 0)])
    bounded = [(None, None)] * 3 + [(0, None)] * 3
    solved = scipy.optimize.minimize(
        lambda z: z[2] + CAPS @ z[3:],
        start,
        method="SLSQP",
        bounds=bounded,
        constraints=rows,
        options={"ftol": 1e-13},
    )
    theta = torch.tensor(star[:2], requires_grad=True)
    eta = torch.tensor(star[2], requires_grad=True)
    rho2 = 0.0
    for client, alpha, p in zip(clients(), ALPHA, P, strict=True):
        loss = logistic(
            (torch.tensor(client["x"]) @ theta)[:, None], torch.tensor(client["y"])
        ).mean()
        value = MU * torch.nn.functional.softplus((loss - eta) / MU) / alpha + eta
        rho2 += p * sum(
            float((slope**2).sum()) for slope in torch.autograd.grad(value, (theta, eta))
        )
    return {
        "lipschitz": lipschitz,
        "smoothness": smoothness,
        "star": star,
        "optimum": float(solved.fun),
        "rho2": rho2,
    }


def linear_module(theta: tuple[float, ...]) -> nn.Module:
    module = nn.Linear(len(theta), 1, bias=False).double()
    nn.init.zeros_(module.weight)
    with torch.no_grad():
        module.weight += torch.tensor([theta], dtype=torch.float64)
    return module


def server_models(
    algorithm: eh.Algorithm, module: nn.Module, federation: eh.Federation, loss: Any, **kwargs: Any
) -> list[np.ndarray]:
    """The server's model after each round."""
    seen: list[np.ndarray] = []

    class Recorded(type(algorithm)):  # type: ignore[misc]
        def server(self, state: Any, replies: Any) -> Any:
            after, info = super().server(state, replies)
            seen.append(after["model"]["weight"].numpy().copy().ravel())
            return after, info

    recorded = Recorded(
        **{field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
    )  # type: ignore[arg-type]
    eh.fit(module, federation, recorded, loss=loss, engine="loop", eval_every=10**6, **kwargs)
    return seen


def gap_and_bound(
    rounds: int, local_steps: int, sharp: bool, cohort: int | None = None, seed: int = 0
) -> tuple[float, bounds.FAFLBound]:
    known, start = problem(), (2.0, -2.0)
    step = bounds.fafl_step_size(
        known["smoothness"], known["lipschitz"], ALPHA, MU, local_steps, cohort, sharp
    )
    models = server_models(
        eh.FAFL(alpha=ALPHA, mu=MU, eta0=LEVEL),
        linear_module(start),
        eh.Federation.from_arrays(clients()),
        logistic,
        rounds=rounds,
        local=eh.LocalSGD(lr=step.value, steps=local_steps),
        cohort=eh.Full() if cohort is None else eh.Proportional(cohort),
        seed=seed,
    )
    sqdistance = float(((np.array([*start, LEVEL]) - known["star"]) ** 2).sum())
    bound = bounds.fafl_bound(
        step.value,
        rounds,
        local_steps,
        step.smoothness,
        sqdistance,
        known["rho2"],
        MU,
        CAPS.sum(),
        cohort,
        sharp,
    )
    return exact(np.mean(models, axis=0)) - known["optimum"], bound


def test_the_problem_has_a_minimiser_and_unequal_clients() -> None:
    known = problem()
    assert np.linalg.norm(known["star"]) < 5
    assert known["rho2"] > 0.01
    assert exact(known["star"][:2]) >= known["optimum"] - 1e-9
    # what smoothing costs, Lemma 2
    assert exact(known["star"][:2]) - known["optimum"] <= MU * CAPS.sum() * math.log(2)


@pytest.mark.parametrize(
    ("rounds", "local_steps", "sharp"),
    [(1, 1, False), (60, 4, False), (60, 4, True), (15, 20, True)],
)
def test_theorem_1_holds_on_a_small_federation(rounds: int, local_steps: int, sharp: bool) -> None:
    gap, bound = gap_and_bound(rounds, local_steps, sharp)
    assert 0 <= gap <= bound.total


def test_theorem_2_holds_on_average_over_cohorts() -> None:
    runs = [gap_and_bound(20, 3, True, cohort=2, seed=seed) for seed in range(5)]
    assert all(bound.sampling > 0 for _, bound in runs)
    assert 0 <= np.mean([gap for gap, _ in runs]) <= runs[0][1].total


# ---- generalisation


def test_theorem_3_by_hand() -> None:
    # caps: .25/.5 = .5 and .75/1; tau 1.25; sum caps^2/m = .25/100 + .5625/300 = .004375
    found = bounds.fafl_generalisation(0.4, [100, 300], [0.25, 0.75], [0.5, 1.0], 2.0, 0.05, 0.1)
    confidence = 2 * math.sqrt(0.004375 * math.log(20) / 2)
    assert found == pytest.approx((0.5 + 0.2 + confidence, 0.5, 0.2, confidence))


def test_theorem_4_by_hand() -> None:
    found = bounds.fafl_generalisation(
        0.4, [100, 300], [0.25, 0.75], [0.5, 1.0], 2.0, 0.05, [0.1, 0.04], theorem=4
    )
    complexity = 2 * (0.5 * 0.1 + 0.75 * 0.04)
    confidence = 2 * (0.5 * math.sqrt(math.log(80) / 200) + 0.75 * math.sqrt(math.log(80) / 600))
    assert found == pytest.approx((0.4 + complexity + confidence, 0.4, complexity, confidence))


def test_a_measured_complexity_costs_three_deviations() -> None:
    arguments = (0.4, [100, 300], [0.25, 0.75], [0.5, 1.0], 2.0, 0.05)
    third = bounds.fafl_generalisation(*arguments, 0.1, measured=True)
    assert third.confidence == pytest.approx(3 * 2 * math.sqrt(0.004375 * math.log(40) / 2))
    fourth = bounds.fafl_generalisation(*arguments, [0.1, 0.1], theorem=4, measured=True)
    assert fourth.confidence == pytest.approx(
        3 * 2 * (0.5 * math.sqrt(math.log(120) / 200) + 0.75 * math.sqrt(math.log(120) / 600))
    )


def test_data_shares_are_the_default_weights() -> None:
    arguments: tuple[Any, ...] = (0.5, 1.0, 0.1, 0.05)
    given = bounds.fafl_generalisation(0.4, [100, 300], [0.25, 0.75], *arguments)
    assert bounds.fafl_generalisation(0.4, [100, 300], None, *arguments) == given


def test_one_client_with_alpha_one_is_the_textbook_bound() -> None:
    found = bounds.fafl_generalisation(0.3, [50], [1.0], 1.0, 1.0, 0.1, 0.02)
    assert found.total == pytest.approx(0.3 + 0.04 + math.sqrt(math.log(10) / 100))
    # a single function has complexity 0; then this is Hoeffding's bound, here against the exact
    # chance of a binomial
    slack = bounds.fafl_generalisation(0.0, [50], [1.0], 1.0, 1.0, 0.1, 0.0).total
    chances = [
        scipy.stats.binom.cdf(math.floor(50 * (p - slack) - 1e-12), 50, p)
        for p in np.linspace(0.2, 0.99, 80)
    ]
    assert 0.01 < max(chances) <= 0.1


def test_huge_clients_leave_the_training_loss_alone() -> None:
    found = bounds.fafl_generalisation(
        0.4, [10**15, 10**15], None, 0.5, 1.0, 1e-9, [0.0, 0.0], theorem=4
    )
    assert found.total == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize("theorem", [3, 4])
@pytest.mark.parametrize("measured", [False, True])
def test_the_bound_holds_for_almost_all_samples_of_a_finite_class(
    theorem: int, measured: bool
) -> None:
    """Seven functions, Bernoulli losses with known means on three clients: the population objective
    is known."""
    generator, sizes, alpha = np.random.default_rng(0), [6, 9, 15], np.array([0.4, 0.5, 0.9])
    delta = 0.2
    means = generator.uniform(0.1, 0.6, size=(7, 3))  # (functions, clients)
    p = np.array(sizes) / 30
    caps = p / alpha

    def objective(losses: np.ndarray) -> float:
        return float(min(eta + (caps * np.maximum(losses - eta, 0)).sum() for eta in losses))

    def draw() -> np.ndarray:  # (functions, samples)
        return (generator.random((7, 30)) < np.repeat(means, sizes, axis=1)).astype(float)

    def complexity(sample: np.ndarray, draws: int) -> Any:
        edges = np.cumsum([0, *sizes])
        if theorem == 3:
            return theory.rademacher_monte_carlo(
                theory.finite_class(sample), sizes, p, alpha, draws=draws
            ).value
        parts = [sample[:, edges[i] : edges[i + 1]] for i in range(3)]
        return [
            theory.rademacher_monte_carlo(
                theory.finite_class(part), [part.shape[1]], draws=draws
            ).value
            for part in parts
        ]

    # the theorems' complexity: over samples too
    expected = np.mean([complexity(draw(), 50) for _ in range(60)], axis=0)
    failures = 0
    for _ in range(60):
        sample = draw()
        rademacher = complexity(sample, 200) if measured else expected
        for row, mean in zip(sample, means, strict=True):
            empirical = objective(
                np.array([part.mean() for part in np.split(row, np.cumsum(sizes)[:-1])])
            )
            bound = bounds.fafl_generalisation(
                empirical, sizes, p, alpha, 1.0, delta, rademacher, theorem, measured
            )
            if objective(mean) > bound.total:
                failures += 1
                break
    assert failures <= 60 * delta


# ---- Rademacher complexities


def two_clients() -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [generator.normal(size=(5, 3)), 2 + generator.normal(size=(8, 3))]


def test_linear_complexity_by_hand() -> None:
    # client 0: (.4/.5)/2 = .4, |x|^2 sums to 25 + 1; client 1: .6/1 = .6, |x|^2 = 4
    x = [np.array([[3.0, 4.0], [0.0, 1.0]]), np.array([[2.0, 0.0]])]
    found = theory.rademacher_linear(x, 3.0, [0.4, 0.6], [0.5, 1.0], lipschitz=0.5)
    assert found == pytest.approx(0.5 * 3 * math.sqrt(0.16 * 26 + 0.36 * 4))


def test_linear_complexity_is_within_sqrt_2_of_all_signs() -> None:
    x, base, alpha = two_clients(), [0.3, 0.7], [0.5, 0.9]
    weight = np.repeat([0.3 / 0.5 / 5, 0.7 / 0.9 / 8], [5, 8])
    signs = np.array(list(itertools.product([-1, 1], repeat=13)))
    true = 2.0 * np.linalg.norm((signs * weight) @ np.concatenate(x), axis=1).mean()
    closed = theory.rademacher_linear(x, 2.0, base, alpha)
    assert true <= closed <= math.sqrt(2) * true
    estimate = theory.rademacher_monte_carlo(
        theory.linear_class(x, 2.0), [5, 8], base, alpha, draws=4000
    )
    assert abs(estimate.value - true) <= 4 * estimate.standard_error
    assert estimate.standard_error < 0.02 * true


def test_linear_complexity_is_exact_for_orthogonal_samples() -> None:
    x = [np.diag([3.0, 4.0])]
    estimate = theory.rademacher_monte_carlo(theory.linear_class(x, 1.5), [2], draws=10)
    assert estimate == (
        pytest.approx(theory.rademacher_linear(x, 1.5)),
        pytest.approx(0.0, abs=1e-12),
    )
    assert estimate.value == pytest.approx(1.5 * 5 / 2)


def test_contraction_bounds_the_complexity_of_losses() -> None:
    """The class of logistic losses of linear models on a circle of weights, by all signs, lies
    below the closed form."""
    x = np.concatenate(two_clients())[:, :2]
    angles = np.linspace(0, 2 * np.pi, 400)
    scores = np.concatenate(
        [r * np.stack([np.cos(angles), np.sin(angles)], 1) @ x.T for r in (0.0, 0.7, 1.4)]
    )
    losses = np.logaddexp(0, scores)  # 1-Lipschitz in the score
    estimate = theory.rademacher_monte_carlo(theory.finite_class(losses), [len(x)], draws=2000)
    assert 0 < estimate.value <= theory.rademacher_linear([x], 1.4)


def test_finite_class_by_hand() -> None:
    # functions (1, 0) and (0, 1) on two samples of one client: the larger of (s1, s2)/2, on average
    # (1 + 1 + 1 - 1)/8
    estimate = theory.rademacher_monte_carlo(theory.finite_class(np.eye(2)), [2], draws=20000)
    assert abs(estimate.value - 0.25) <= 4 * estimate.standard_error
    assert estimate.standard_error == pytest.approx(math.sqrt(0.1875 / 20000), rel=0.05)


def test_a_single_function_has_no_complexity() -> None:
    estimate = theory.rademacher_monte_carlo(theory.finite_class(np.ones((1, 6))), [6], draws=400)
    assert 0 <= estimate.value <= 4 * estimate.standard_error


def test_draws_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def estimate(seed: int) -> rademacher.Estimate:
        return theory.rademacher_monte_carlo(
            theory.linear_class(two_clients(), 1.0), [5, 8], draws=100, seed=seed
        )

    whole = estimate(1)
    assert whole == estimate(1) != estimate(2)
    monkeypatch.setattr(rademacher, "BLOCK", 13 * 7)
    assert estimate(1).value == pytest.approx(whole.value)


def test_vc_complexity_by_hand() -> None:
    # caps .5 and .75, m = 400, d = 10: log(e m / d) = 1 + log 40
    found = theory.rademacher_vc(10, [100, 300], [0.25, 0.75], [0.5, 1.0])
    assert found == pytest.approx(math.sqrt(20 * (1 + math.log(40)) * (0.25 / 100 + 0.5625 / 300)))
    assert theory.rademacher_vc(3, [50]) == pytest.approx(
        math.sqrt(6 * math.log(math.e * 50 / 3) / 50)
    )


def test_vc_complexity_exceeds_that_of_thresholds() -> None:
    """Threshold classifiers on a line have VC dimension 1; on m points they give m + 1 sign
    patterns."""
    patterns = np.where(np.arange(31)[:, None] > np.arange(30), 1.0, -1.0)
    true = theory.rademacher_monte_carlo(
        theory.finite_class(patterns), [10, 20], None, [0.5, 0.9], draws=2000
    )
    assert (
        0.3 * theory.rademacher_vc(1, [10, 20], None, [0.5, 0.9])
        < true.value
        < theory.rademacher_vc(1, [10, 20], None, [0.5, 0.9])
    )


# ---- PropFair


def test_propfair_smoothness_by_hand() -> None:
    assert bounds.propfair_smoothness(2.0, 3.0, 4.0) == pytest.approx(4 / 16 * (12 + 9))
    assert bounds.propfair_smoothness(2.0, 3.0, 4.0, sharp=True) == pytest.approx(4 / 16 * (4 + 9))


def test_sharp_propfair_smoothness_is_the_curvature_at_half_of_M() -> None:
    M, slope, bend = 4.0, 3.0, 2.0

    def objective(x: Tensor) -> Tensor:  # loss M/2 with slope L0 and second derivative L at x = 0
        return -torch.log(M - (M / 2 + slope * x + bend / 2 * x**2))

    curvature = float(
        torch.autograd.functional.hessian(objective, torch.zeros((), dtype=torch.float64))
    )
    assert curvature == pytest.approx(bounds.propfair_smoothness(bend, slope, M, sharp=True))


def test_propfair_step_size_by_hand() -> None:
    # L~ = 21/4; K = (1, 3): 1/(6 * 21/4 * 3); sum w^2 = .52, sum K^4 = 82
    found = bounds.propfair_step_size(2.0, 3.0, 4.0, [0.4, 0.6], [1, 3])
    limits = 1 / (94.5), 1 / (5.25 * math.sqrt(24 * E2 * 0.52 * 82))
    assert limits[1] < limits[0]
    assert found.value == pytest.approx(limits[1])
    assert "sum K_i^4" in found.binding
    one = bounds.propfair_step_size(2.0, 3.0, 4.0, [1.0], 1)  # sqrt(24 (e - 2)) = 4.15 < 6
    assert one == (pytest.approx(1 / 31.5), "lr <= 1 / (6 L~ max K_i)", 5.25)


def test_the_printed_second_condition_would_allow_steps_that_the_proof_does_not() -> None:
    """With L in place of L~ the second condition is void here, and the first alone lets (A.39)'s
    1/4 grow to (e - 2) K^2 / 6 = 4.3."""
    smoothness, lipschitz, M, n, K = 0.01, 3.0, 2.0, 20, 6
    base = [1 / n] * n
    curvature = bounds.propfair_smoothness(smoothness, lipschitz, M)
    printed = min(1 / (6 * curvature * K), 1 / (smoothness * math.sqrt(24 * E2 / n * n * K**4)))
    ours = bounds.propfair_step_size(smoothness, lipschitz, M, base, K).value

    def consumed(lr: float) -> float:  # (A.39): must stay below 1/4
        return 6 * E2 * curvature**2 * (1 / n) * (n * K**4) * lr**2

    assert consumed(ours) <= 0.25 + 1e-12
    assert consumed(printed) == pytest.approx(E2 * K**2 / 6)


def test_propfair_bound_by_hand() -> None:
    # M = 2, L = 1, L0 = 1: L~ = 4; w = (.5, .5), K = (1, 2)
    lr, k = 0.01, 1.5
    local = 8 / 16 * (9 * 4 * 0.3**2 + 4 * 0.2**2), 8 / 16 * (9 * 4 * 0.1**2 + 4 * 0.2**2)
    between = (4 / 2 * (1.5 * 0.4 + 1 / 2 * 0.5)) ** 2
    bracket = 1 * (local[0] + 2 * between) + 4 * (local[1] + 2 * between)
    bracket += 2 * E2 * lr**2 * 16 * (1 * (local[0] + 6 * between) + 8 * (local[1] + 12 * between))
    total = 12 / ((11 * k - 9) * lr) * (0.6 / 30 + lr / 2 * 0.5 * bracket)
    found = bounds.propfair_bound(
        lr, 30, [1, 2], 1.0, 1.0, 2.0, [0.5, 0.5], 0.6, 0.4, 0.5, [0.3, 0.1], 0.2
    )
    assert found.total == pytest.approx(total)
    assert sum(found[1:]) == pytest.approx(total)
    assert found.optimisation == pytest.approx(12 / (7.5 * lr) * 0.02)
    quiet = bounds.propfair_bound(lr, 30, [1, 2], 1.0, 1.0, 2.0, [0.5, 0.5], 0.6, 0.4, 0.5)
    assert (quiet.noise, quiet.heterogeneity) == (0, pytest.approx(found.heterogeneity))


def test_propfair_bound_of_single_clients_by_hand() -> None:
    # cohorts of one: weight 1, at worst 3 steps, at least 1; M = 2, L~ = 4, g = 2 (1.5 * .4 + .5 *
    # .5) = 1.7
    lr = 0.005
    psi = lr / 2 * 1.7**2 * (2 * 9 + 2 * E2 * lr**2 * 16 * 6 * 81)
    found = bounds.propfair_bound(
        lr, 30, [1, 2, 3], 1.0, 1.0, 2.0, [0.5, 0.3, 0.2], 0.6, 0.4, 0.5, cohort=1
    )
    assert found.total == pytest.approx(12 / ((11 - 9) * lr) * (0.6 / 30 + psi))


def test_propfair_bound_accepts_its_own_step_size() -> None:
    for steps, cohort in itertools.product((1, [1, 4, 2]), (None, 1, 2, 3)):
        step = bounds.propfair_step_size(1.0, 1.0, 2.0, [0.2, 0.3, 0.5], steps, cohort)
        assert (
            bounds.propfair_bound(
                step.value, 5, steps, 1.0, 1.0, 2.0, [0.2, 0.3, 0.5], 0.5, 0.1, 0.1, cohort=cohort
            ).total
            > 0
        )


def test_the_most_concentrated_cohort_is_found() -> None:
    generator = np.random.default_rng(2)
    for n, cohort in itertools.product((1, 4, 7), (1, 2, 3, 5)):
        if cohort > n:
            continue
        weight = torch.tensor(generator.dirichlet(np.full(n, 0.7)))
        chosen = (weight[list(ids)] for ids in itertools.combinations(range(n), cohort))
        brute = max(float((w**2).sum() / w.sum() ** 2) for w in chosen)
        assert largest_concentration(weight, cohort) == pytest.approx(brute)


def test_cohorts_can_have_larger_sums_than_everyone() -> None:
    """The paper says that fewer clients lower Psi; weights .4 .4 .2 and a cohort of two say
    otherwise."""
    weight = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    assert 2 * largest_concentration(weight, 2) > 3 * float((weight**2).sum())
    arguments = (0.001, 10, 2, 1.0, 1.0, 2.0, weight, 0.5, 0.3, 0.3)
    assert (
        bounds.propfair_bound(*arguments, cohort=2).heterogeneity
        > bounds.propfair_bound(*arguments).heterogeneity
    )


def test_all_cohorts_of_everyone_are_everyone() -> None:
    arguments = (0.001, 10, 2, 1.0, 1.0, 2.0, [0.4, 0.4, 0.2], 0.5, 0.3, 0.3, 0.1)
    assert bounds.propfair_bound(*arguments, cohort=3) == pytest.approx(
        bounds.propfair_bound(*arguments)
    )


@pytest.mark.parametrize(("local_steps", "cohort"), [(1, None), (3, None), (2, 2)])
def test_propfair_bound_holds_on_a_small_federation(local_steps: int, cohort: int | None) -> None:
    """Brier losses lie in [0, 2], so M = 4 keeps them below M / 2 wherever the model is."""
    federation = eh.Federation.from_arrays(
        [{"x": c["x"], "y": (c["y"] > 0).astype(float)} for c in clients()]
    )
    score = torch.linspace(-20, 20, 40001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad((2 * score.sigmoid() ** 2).sum(), score, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), score)
    slope = slope.detach()
    lipschitz = max(
        float(slope.abs().max()) * np.linalg.norm(c["x"], axis=1).mean() for c in clients()
    )
    smoothness = max(float(bend.abs().max()) * (c["x"] ** 2).sum(1).mean() for c in clients())
    step = bounds.propfair_step_size(smoothness, lipschitz, 4.0, P, local_steps, cohort, sharp=True)
    start, rounds = (3.0, -3.0), 30
    models = server_models(
        eh.PropFair(M=4.0),
        linear_module(start),
        federation,
        "brier",
        rounds=rounds,
        local=eh.LocalSGD(lr=step.value, steps=local_steps),
        cohort=None if cohort is None else eh.Uniform(cohort),
    )

    def sqgradient(theta: np.ndarray) -> float:
        variable = torch.tensor(theta, requires_grad=True)
        losses = [
            2
            * ((torch.tensor(c["x"]) @ variable).sigmoid() - torch.tensor(c["y"] > 0).double())
            .square()
            .mean()
            for c in clients()
        ]
        value = -sum(p * torch.log(4 - loss) for p, loss in zip(P, losses, strict=True))
        return float((torch.autograd.grad(value, variable)[0] ** 2).sum())

    smallest = min(sqgradient(theta) for theta in [np.array(start), *models[:-1]])
    bound = bounds.propfair_bound(
        step.value,
        rounds,
        local_steps,
        smoothness,
        lipschitz,
        4.0,
        P,
        math.log(2),
        2 * lipschitz,
        2.0,
        cohort=cohort,
        sharp=True,
    )
    assert 0 < smallest <= bound.total


# ---- GIFAIR


def test_gifair_limit_by_hand() -> None:
    found = bounds.gifair_limit([0.5, 0.3, 0.2])
    # .2/2; without it two clients with .625 and .375: .375/1; pooled with client 1: .5 and .5
    assert found == (pytest.approx(0.1), 2, 0.2, pytest.approx(0.375), 1, pytest.approx(0.5))
    teams = bounds.gifair_limit([0.4, 0.05, 0.25, 0.3], ["a", "b", "b", "a"])
    # rooms .8 .1 .5 .6 and d = 2; without client 1 team b is client 2 alone: .25/.95; pooled with
    # client 2: .3 alone
    assert teams == (pytest.approx(0.1), 1, 0.05, pytest.approx(0.25 / 0.95), 2, pytest.approx(0.3))


def test_gifair_weights_are_positive_below_the_limit_and_not_above() -> None:
    generator = np.random.default_rng(4)
    for _ in range(20):
        n, d = 6, 3
        weight = generator.dirichlet(np.ones(n))
        team = np.array([0, 1, 2, *generator.integers(0, d, n - d)])
        found = bounds.gifair_limit(weight, team)
        ranks = [np.array(order) for order in itertools.permutations((-2, 0, 2))]
        size = np.bincount(team)[team]

        def lightest(
            c: float,
            rows: list[np.ndarray] = ranks,
            w: np.ndarray = weight,
            s: np.ndarray = size,
            t: Any = team,
        ) -> float:
            return min(float((w + c * rank[t] / s).min()) for rank in rows)

        assert lightest(found.c_max * 0.999) > 0 > lightest(found.c_max * 1.001)
        assert lightest(found.c_max) == pytest.approx(0, abs=1e-12)


def test_gifair_limit_is_what_the_algorithm_uses() -> None:
    x = {"x": np.zeros((1, 1)), "y": [0]}
    federation = eh.Federation.from_arrays(
        [
            {"x": np.zeros((m, 1)), "y": [0] * m, "team": t}
            for m, t in ((3, "a"), (9, "b"), (5, "a"))
        ]
    )
    census = federation.census()
    state = eh.GIFAIR(strength=0.5).init(x, census)
    found = bounds.gifair_limit(census.weight, census.teams)
    assert float(state["factor"].max()) == pytest.approx(
        0.5 * found.c_max / float(census.weight[found.client] * 2)
    )


def test_gifair_advice_is_the_limit_of_the_smaller_federation() -> None:
    weight, team = np.array([0.3, 0.02, 0.28, 0.3, 0.1]), np.array([0, 1, 1, 2, 0])
    found = bounds.gifair_limit(weight, team)
    assert found.client == 1
    kept = [0, 2, 3, 4]
    assert found.without == pytest.approx(
        bounds.gifair_limit(weight[kept] / 0.98, team[kept]).c_max
    )
    assert found.merged == pytest.approx(
        bounds.gifair_limit([0.3, 0.3, 0.3, 0.1], team[kept]).c_max
    )


def test_gifair_advice_where_there_is_none() -> None:
    two = bounds.gifair_limit([0.9, 0.1])
    assert (two.c_max, two.client, two.without, two.partner, two.merged) == (
        pytest.approx(0.1),
        1,
        None,
        0,
        None,
    )
    assert str(two) == "client 1 with 0.1 of the weight limits c to below 0.1"
    alone = bounds.gifair_limit([0.1, 0.5, 0.4], [7, 8, 9])  # nobody of its team to pool with
    assert (alone.partner, alone.merged) == (None, None)


def test_gifair_limit_of_a_million_clients() -> None:
    found = bounds.gifair_limit(torch.full((10**6,), 1e-6, dtype=torch.float64))
    assert found.c_max == pytest.approx(1e-6 / (10**6 - 1))


# ---- refusals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bounds.fafl_smoothness(1.0, 1.0, [0.5, 1.5], 0.1),
            r"alpha must be in \(0, 1\], got 1.5; 1 gives the plain average",
        ),
        (
            lambda: bounds.fafl_smoothness(1.0, 1.0, 0.5, 0.0),
            "mu must be a finite number > 0, got 0.0",
        ),
        (
            lambda: bounds.fafl_smoothness(-1.0, 1.0, 0.5, 1.0),
            "smoothness must be a finite number >= 0, got -1.0",
        ),
        (
            lambda: bounds.fafl_step_size(1.0, 1.0, 0.5, 1.0, 0),
            "local_steps must be a whole number >= 1, got 0",
        ),
        (
            lambda: bounds.fafl_step_size(1.0, 1.0, 0.5, 1.0, 1, cohort=0),
            "cohort must be a whole number >= 1, got 0",
        ),
        (
            lambda: bounds.fafl_bound(0.1, 1, 1, 1.0, 1.0, 1.0, 0.1, 1.0),
            r"step_size 0.1 violates lr <= 1 / \(40 L\); .* up to 0.025",
        ),
        (
            lambda: bounds.fafl_bound(0.02, 1, 40, 1.0, 1.0, 1.0, 0.1, 1.0),
            r"violates 6 L\^2 lr\^2 \(kappa - 1\)\^2 <= 1",
        ),
        (
            lambda: bounds.fafl_bound(0.02, 1, 4, 1.0, 1.0, 1.0, 0.1, 1.0, cohort=2),
            r"violates L lr \(3 kappa / K \+ 2\) <= 1 / 20",
        ),
        (
            lambda: bounds.fafl_bound(0.02, 1, 1, 1.0, 1.0, 1.0, 0.1, 0.9),
            "tau must be a finite number >= 1, got 0.9",
        ),
        (lambda: bounds.fafl_mu(0.0, 1.0), "epsilon must be a finite number > 0"),
        (
            lambda: bounds.fafl_generalisation(0.1, [5, 5], [0.5, 0.4], 1.0, 1.0, 0.1, 0.1),
            "base must sum to 1, got 0.9",
        ),
        (
            lambda: bounds.fafl_generalisation(0.1, [5, 0], None, 1.0, 1.0, 0.1, 0.1),
            "sizes must be a finite number >= 1, got 0.0",
        ),
        (
            lambda: bounds.fafl_generalisation(0.1, [5, 5], None, 1.0, 1.0, 1.0, 0.1),
            r"delta must be in \(0, 1\), got 1.0",
        ),
        (
            lambda: bounds.fafl_generalisation(0.1, [5, 5], None, 1.0, 1.0, 0.1, [0.1, 0.1]),
            "theorem 3.* must have 1 entries, got 2",
        ),
        (
            lambda: bounds.fafl_generalisation(0.1, [5, 5], None, 1.0, 1.0, 0.1, 0.1, 4),
            "theorem 4.* must have 2 entries, got 1",
        ),
        (
            lambda: bounds.fafl_generalisation(0.1, [5, 5], None, 1.0, 1.0, 0.1, 0.1, 5),
            "theorem must be 3 .* or 4 .*, got 5",
        ),
        (
            lambda: bounds.fafl_generalisation(0.1, [5, 5], None, [1.0] * 3, 1.0, 0.1, 0.1),
            "alpha must have 2 entries, got 3",
        ),
        (
            lambda: bounds.fafl_generalisation(0.1, [5.5], None, 1.0, 1.0, 0.1, 0.1),
            "sizes must be whole numbers",
        ),
        (
            lambda: theory.rademacher_linear([], 1.0),
            "x must hold an array for each client, got none",
        ),
        (
            lambda: theory.rademacher_linear([np.ones((2, 1)), np.ones(3)], 1.0),
            r"x of client 1 must be \(samples, features\), got \[3\]",
        ),
        (
            lambda: theory.rademacher_vc(10, [4, 5]),
            r"at least as many samples \(9\) as the VC dimension, got 10",
        ),
        (
            lambda: theory.rademacher_monte_carlo(lambda s: s, [3]),
            "supremum must return one value per row",
        ),
        (
            lambda: theory.rademacher_monte_carlo(lambda s: s[:, 0], [3], draws=1),
            "draws must be a whole number >= 2",
        ),
        (
            lambda: theory.finite_class(np.ones(3)),
            r"values must be a matrix \(functions, samples\), got shape \[3\]",
        ),
        (lambda: bounds.propfair_step_size(0.0, 0.0, 2.0, [1.0], 1), "losses are constant"),
        (
            lambda: bounds.propfair_step_size(1.0, 1.0, 2.0, [0.5, 0.5], [1, 2, 3]),
            "local_steps must have 2 entries, got 3",
        ),
        (
            lambda: bounds.propfair_step_size(1.0, 1.0, 2.0, [0.5, 0.5], 1, cohort=3),
            "cohort must be at most the number of clients, 2",
        ),
        (
            lambda: bounds.propfair_bound(1.0, 1, 1, 1.0, 1.0, 2.0, [1.0], 0.5, 0.0, 0.0),
            r"step_size 1 violates lr <= 1 / \(6 L~ max K_i\)",
        ),
        (lambda: bounds.gifair_limit([1.0]), "it needs at least two"),
        (
            lambda: bounds.gifair_limit([0.5, 0.5], ["a"]),
            "teams must have one label per client, 2, got 1",
        ),
        (lambda: bounds.gifair_limit([0.5, float("nan")]), r"weight must be in \(0, 1\], got nan"),
        (lambda: bounds.gifair_limit([]), "weight is empty"),
        (lambda: bounds.gifair_limit(["a", "b"]), "weight must hold numbers"),  # type: ignore[list-item]
    ],
)
def test_bad_arguments_are_named_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
