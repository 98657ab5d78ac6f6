"""FAFL: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch

import evenhand as eh
from evenhand import theory
from tests.support import convex, limits
from tests.support.by_hand import (
    P_A,
    P_B,
    f_a,
    f_b,
    g_a,
    g_b,
    near,
    rfedfair_step,
    run,
    sigmoid,
    value,
)

# ---- by hand


def rfedfair(
    w: float,
    eta: float,
    alpha: tuple[float, float],
    mu: float,
    lr: float,
    lr_eta: float,
    steps: int,
    rounds: int,
) -> tuple[float, float]:
    """theta <- theta - lr s f', eta <- eta - lr_eta (1 - s), s = sigmoid((f - eta)/mu) / alpha,
    simultaneously; averages by p."""
    for _ in range(rounds):
        ends = []
        for level, f, g in ((alpha[0], f_a, g_a), (alpha[1], f_b, g_b)):
            theta, height = w, eta
            for _ in range(steps):
                excess = f(theta) - height
                s = (sigmoid(excess / mu) if mu else float(excess >= 0)) / level
                theta, height = theta - lr * s * g(theta), height - lr_eta * (1 - s)
            ends.append((theta, height))
        w, eta = (P_A * end_a + P_B * end_b for end_a, end_b in zip(*ends, strict=True))
    return w, eta


def test_fafl_exact_one_step_in_numbers(engine: str) -> None:
    # eta = 2 lies between the losses: s_a = 0, s_b = 1 / 0.5 = 2
    # theta = 1 - .1 (.25 * 2 * -16) = 1.8;  eta = 2 - .1 (.75 (1 - 0) + .25 (1 - 2)) = 1.95
    result = run(eh.FAFL(alpha=(0.8, 0.5), mu=0.0, eta0=2.0), engine, lr=0.1)
    assert value(result.params) == near(1.8)
    assert result.state["eta"].item() == near(1.95)


def test_fafl_smoothed_one_step_in_numbers(engine: str) -> None:
    s_a, s_b = 1 / (1 + math.exp(-(5 / 3 - 2) / 4)) / 0.8, 1 / (1 + math.exp(-(16 - 2) / 4)) / 0.5
    result = run(eh.FAFL(alpha=(0.8, 0.5), mu=4.0, eta0=2.0), engine, lr=0.1)
    assert value(result.params) == near(1 - 0.1 * (0.75 * s_a * -2 + 0.25 * s_b * -16))
    assert result.state["eta"].item() == near(2 - 0.1 * (0.75 * (1 - s_a) + 0.25 * (1 - s_b)))


def test_fafl_at_the_threshold_exactly_takes_slope_one(engine: str) -> None:
    # eta = f_b = 16, mu = 0: s_b = 1 / 0.5, s_a = 0
    result = run(eh.FAFL(alpha=(0.8, 0.5), mu=0.0, eta0=16.0), engine, lr=0.1)
    assert value(result.params) == near(1 + 0.1 * 0.25 * 2 * 16)
    assert result.state["eta"].item() == near(16 - 0.1 * (0.75 - 0.25))


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
@pytest.mark.parametrize(("steps", "rounds"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("lr_eta", [None, 0.7])
def test_fafl_moves_model_and_eta_together(
    engine: str, mu: float, steps: int, rounds: int, lr_eta: float | None
) -> None:
    expected = rfedfair(
        1.0, 2.0, (0.8, 0.5), mu, 0.05, 0.05 if lr_eta is None else lr_eta, steps, rounds
    )
    result = run(
        eh.FAFL(alpha=(0.8, 0.5), mu=mu, lr_eta=lr_eta, eta0=2.0),
        engine,
        lr=0.05,
        steps=steps,
        rounds=rounds,
    )
    assert (value(result.params), result.state["eta"].item()) == near(expected)


def test_fafl_one_level_for_all_is_the_same_level_for_each(engine: str) -> None:
    expected = rfedfair(1.0, 0.0, (0.8, 0.8), 0.5, 0.05, 0.05, 2, 2)
    for alpha in (0.8, (0.8, 0.8)):
        result = run(eh.FAFL(alpha=alpha, mu=0.5), engine, lr=0.05, steps=2, rounds=2)
        assert (value(result.params), result.state["eta"].item()) == near(expected)


def test_fafl_eta_does_not_decay_with_weights_but_its_rate_follows_the_round(engine: str) -> None:
    # weight decay adds wd * w to the model's slope alone; with lr_eta None eta uses lr decay^r
    w, eta = 1.0, 2.0
    for lr in (0.1, 0.05):
        s_a, s_b = sigmoid((f_a(w) - eta) / 3) / 0.8, sigmoid((f_b(w) - eta) / 3) / 0.5
        slope = P_A * s_a * g_a(w) + P_B * s_b * g_b(w) + 0.3 * w
        slope_eta = P_A * (1 - s_a) + P_B * (1 - s_b)
        w, eta = w - lr * slope, eta - lr * slope_eta
    local = eh.LocalSGD(lr=0.1, steps=1, decay=0.5, weight_decay=0.3)
    result = run(eh.FAFL(alpha=(0.8, 0.5), mu=3.0, eta0=2.0), engine, rounds=2, local=local)
    assert (value(result.params), result.state["eta"].item()) == near((w, eta))


def test_fafl_warns_where_a_level_lies_below_the_weight() -> None:
    with pytest.warns(UserWarning, match="below its weight"):
        run(eh.FAFL(alpha=(0.7, 0.5)), "loop", lr=0.01)


def test_fafl_average_is_the_mean_of_the_models_after_each_round(engine: str) -> None:
    method = {"alpha": (0.8, 0.5), "mu": 3.0, "eta0": 2.0}
    w, eta, models = 1.0, 2.0, []
    for _ in range(3):
        a = rfedfair_step(w, eta, f_a(w), g_a(w), 0.8, 3.0, 0.05, 0.05)
        b = rfedfair_step(w, eta, f_b(w), g_b(w), 0.5, 3.0, 0.05, 0.05)
        w, eta = P_A * a[0] + P_B * b[0], P_A * a[1] + P_B * b[1]
        models.append(w)
    assert value(run(eh.FAFL(**method), engine, lr=0.05, rounds=3).params) == near(w)
    assert value(run(eh.Averaged(eh.FAFL(**method)), engine, lr=0.05, rounds=3).params) == near(
        sum(models) / 3
    )


# ---- where it is another method


@limits.every_local
@pytest.mark.parametrize("cohort", [eh.Full(), eh.Proportional(3)], ids=["A", "B"])
def test_fafl_at_level_one_without_smoothing_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """Special case 1: alpha = 1, mu = 0, eta_0 = 0 below every loss; slope of (x)_+ is 1."""
    result = limits.train(eh.FAFL(alpha=1.0, mu=0.0, eta0=0.0), engine, local=local, cohort=cohort)
    limits.assert_identical(
        result.params, limits.train(eh.FedAvg(), engine, local=local, cohort=cohort).params
    )
    assert result.state["eta"].item() == 0


@limits.every_local
@pytest.mark.parametrize("cohort", [eh.Full(), eh.Proportional(3)], ids=["A", "B"])
@pytest.mark.parametrize(
    ("dtype", "widths"), [(torch.float64, 37.5), (torch.float32, 17.5)], ids=["float64", "float32"]
)
def test_fafl_at_level_one_far_above_eta_is_fedavg(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD, dtype: torch.dtype, widths: float
) -> None:
    """Special case 1: alpha = 1, mu > 0 and (f - eta_0) / mu so large that the sigmoid rounds to 1:
    eta never moves."""
    mu = 0.25  # losses are positive, so f - eta_0 > widths * mu for every batch
    settings: dict[str, Any] = {"local": local, "cohort": cohort, "module": limits.module(dtype)}
    result = limits.train(eh.FAFL(alpha=1.0, mu=mu, eta0=-widths * mu), engine, **settings)
    limits.assert_identical(result.params, limits.train(eh.FedAvg(), engine, **settings).params)
    assert result.state["eta"].item() == -widths * mu


def test_fafl_at_level_one_near_eta_is_only_close_to_fedavg() -> None:
    """Special case 1, the other way: where the sigmoid is not 1, eta moves and the iterates
    differ."""
    result = limits.train(eh.FAFL(alpha=1.0, mu=0.5, eta0=0.5))
    assert result.state["eta"].item() != 0.5
    assert limits.distance(result.params, limits.train(eh.FedAvg()).params) > 1e-3


@pytest.mark.parametrize("mu", [0.05, 0.5])
def test_rfedfair_with_one_step_is_gradient_descent_on_the_smoothed_objective(
    engine: str, mu: float
) -> None:
    """Special case 4: kappa = 1, everyone, whole data: joint descent on eta + sum (p_i / alpha_i)
    phi_mu(f_i - eta)."""
    alpha, lr, eta0 = (0.9, 0.5, 0.6, 0.3), 0.2, 1.0
    linear, eta = limits.module(), torch.tensor(eta0, dtype=torch.float64, requires_grad=True)
    for _ in range(10):
        value = eta + sum(
            p
            / level
            * mu
            * torch.logaddexp(torch.zeros((), dtype=torch.float64), (loss - eta) / mu)
            for p, level, loss in zip(
                limits.SHARES, alpha, limits.client_losses(linear), strict=True
            )
        )
        variables = [*linear.parameters(), eta]
        slopes = torch.autograd.grad(value, variables)
        with torch.no_grad():
            for variable, slope in zip(variables, slopes, strict=True):
                variable -= lr * slope
    result = limits.train(
        eh.FAFL(alpha=alpha, mu=mu, eta0=eta0), engine, local=eh.LocalSGD(lr=lr, steps=1), rounds=10
    )
    limits.assert_same(
        result.params, {name: tensor.detach() for name, tensor in linear.state_dict().items()}
    )
    assert result.state["eta"].item() == pytest.approx(eta.item(), rel=1e-11)


@pytest.mark.parametrize("shrink", [1.0, 0.5, 0.01])
def test_fafl_with_levels_at_or_below_the_weights_has_the_objective_of_afl(shrink: float) -> None:
    """Special case 2: every cap is at least 1, so the worst client may have all the weight."""
    for seed in range(5):
        losses, weights = limits.random_losses(seed)
        alpha = tuple(shrink * weight for weight in weights)
        assert float(theory.HCVaR(alpha).value(losses, weights)) == pytest.approx(
            max(losses), rel=1e-12
        )
        assert float(theory.Maximum().value(losses, weights)) == max(losses)


def test_fafl_and_afl_certify_the_same_objective_at_the_same_model() -> None:
    """Special case 2, by what runs report of the model that they hand out."""
    with pytest.warns(UserWarning, match="below its weight"):
        fafl = limits.train(
            eh.FAFL(alpha=tuple(0.9 * share for share in limits.SHARES), mu=0.0, eta0="mean"),
            local=eh.LocalSGD(lr=0.02, steps=1),
        )
    afl = limits.train(eh.AFL(lr_lambda=0.1))
    for result in (fafl, afl):
        assert result.certificate is not None
        assert float(result.certificate.value) == pytest.approx(
            max(limits.losses_of(result.params)), rel=1e-9
        )


@pytest.mark.parametrize("tail", [0.07, 0.3, 0.5, 0.9, 1.0])
def test_fafl_with_one_level_has_the_objective_of_deltafl(tail: float) -> None:
    """Special case 3: the mean of the worst ``tail`` of the weight, the client at the edge counting
    in part."""
    for seed in range(5):
        losses, weights = limits.random_losses(seed)
        expected = limits.worst_mixture(losses, [weight / tail for weight in weights])
        assert float(theory.HCVaR(tail).value(losses, weights)) == pytest.approx(
            expected, rel=1e-12
        )
        assert float(theory.superquantile(losses, weights, tail)) == pytest.approx(
            expected, rel=1e-12
        )
        assert float(theory.cvar(losses, weights, 1 - tail)) == pytest.approx(expected, rel=1e-9)


def test_smoothed_fafl_with_small_levels_weighs_clients_as_term() -> None:
    """Special case 20: lam_i ~ (p_i / alpha_i) e^(f_i / mu) as all alpha_i fall in fixed ratios,
    the error in proportion."""
    for seed in range(4):
        losses, weights = limits.random_losses(seed, 4)
        ratio, mu = np.array([1.0, 0.5, 0.8, 0.3]), 0.4
        tilted = np.array(weights) / ratio * np.exp(np.array(losses) / mu)
        tilted /= tilted.sum()
        errors = []
        for scale in (1e-1, 1e-2, 1e-3, 1e-4):
            alpha = tuple((scale * ratio).tolist())
            found = theory.HCVaR(alpha, mu).weights(losses, weights).numpy()
            assert found.sum() == pytest.approx(1, abs=1e-9)
            errors.append(np.abs(found - tilted).max())
        assert errors[1] < 0.05
        assert errors[1] / errors[2] == pytest.approx(10, rel=0.3)
        assert errors[2] / errors[3] == pytest.approx(10, rel=0.05)


def test_smoothed_fafl_is_close_to_term_already_at_an_eighth_of_the_weights() -> None:
    """Special case 20: "already close at alpha = p/8"."""
    losses, mu = [0.3, 0.5, 0.9], 0.3
    weights = [1 / 3] * 3
    found = theory.HCVaR(1 / 24, mu).weights(losses, weights).numpy()
    tilted = np.exp(np.array(losses) / mu)
    assert np.abs(found - tilted / tilted.sum()).max() < 0.03


@pytest.mark.parametrize("floor", [0.0, (0.0, 0.5, 0.2, 1.0), 0.7], ids=str)
@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_one_full_step_of_fafl_descends_its_joint_objective(
    engine: str, mu: float, floor: float | tuple[float, ...]
) -> None:
    """Special case 18: eta + sum p_i [a_i (f_i - eta) + (1/alpha_i - a_i) phi_mu(f_i - eta)] over
    model and eta."""
    alpha, lr = (0.9, 0.5, 0.6, 0.3), 0.2
    floors = floor if isinstance(floor, tuple) else (floor,) * 4
    linear, eta = limits.module(), torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    for _ in range(10):
        total = eta
        for p, level, least, loss in zip(
            limits.SHARES, alpha, floors, limits.client_losses(linear), strict=True
        ):
            excess = loss - eta
            positive = (
                excess.clamp(min=0)
                if mu == 0
                else mu * torch.logaddexp(torch.zeros_like(excess), excess / mu)
            )
            total = total + p * (least * excess + (1 / level - least) * positive)
        variables = [*linear.parameters(), eta]
        slopes = torch.autograd.grad(total, variables)
        with torch.no_grad():
            for variable, slope in zip(variables, slopes, strict=True):
                variable -= lr * slope
    method = eh.FAFL(alpha=alpha, mu=mu, eta0=1.0, floor=floor)
    result = limits.train(method, engine, local=eh.LocalSGD(lr=lr, steps=1), rounds=10)
    limits.assert_same(
        result.params, {name: tensor.detach() for name, tensor in linear.state_dict().items()}
    )
    assert result.state["eta"].item() == pytest.approx(eta.item(), rel=1e-10)


def test_on_identical_clients_fafl_is_fedavg_up_to_the_step(engine: str) -> None:
    """Special case 19: the step is lr s with s = sigmoid((f - eta)/mu)/alpha, eta <- eta - lr (1 -
    s)."""
    eta = 0.8

    def step_of(loss: float, norm: float) -> float:
        nonlocal eta
        s = 1 / (1 + math.exp(-(loss - eta) / 0.3)) / 0.5
        eta -= limits.LR * (1 - s)
        return limits.LR * s

    expected = limits.scaled_descent(step_of)
    found = limits.train(eh.FAFL(alpha=0.5, mu=0.3, eta0=0.8), engine, limits.copies())
    limits.assert_same(found.params, expected)
    assert found.state["eta"].item() == pytest.approx(eta, rel=1e-10)


# ---- the optimum


def test_filling_caps_from_the_top_solves_the_linear_program() -> None:
    generator = np.random.default_rng(3)
    for _ in range(10):
        values, caps = generator.random(5), convex.P / generator.uniform(convex.P, 1)
        program = scipy.optimize.linprog(
            -values, A_eq=np.ones((1, 5)), b_eq=[1], bounds=[(0, cap) for cap in caps]
        )
        assert convex.worst_mixture(values, caps) == pytest.approx(-program.fun, rel=1e-9)


@pytest.mark.parametrize(
    "alpha", [0.5, (0.9, 0.4, 0.5, 0.3, 0.6)], ids=["one level", "a level each"]
)
def test_fafl_reaches_the_least_worst_mixture_under_its_caps(
    alpha: float | tuple[float, ...],
) -> None:
    caps = convex.P / np.array(alpha)

    def objective(theta: convex.Vector) -> float:
        return convex.worst_mixture(convex.losses(theta), caps)

    def slack(z: convex.Vector) -> convex.Vector:  # z = (theta, eta, s): s_i >= f_i - eta, s_i >= 0
        theta, eta, s = z[: convex.FEATURES], z[convex.FEATURES], z[convex.FEATURES + 1 :]
        return np.concatenate([s - (convex.losses(theta) - eta), s])

    start = np.concatenate(
        [convex.fedavg_minimiser(), [0.0], convex.losses(convex.fedavg_minimiser())]
    )
    optimum = convex.minimise_epigraph(
        lambda z: z[convex.FEATURES] + caps @ z[convex.FEATURES + 1 :], slack, start
    )
    theta = convex.parameters(
        convex.train(eh.FAFL(alpha=alpha, mu=0.02, lr_eta=0.1), lr=0.1, rounds=200, decay=0.98)
    )
    convex.assert_reaches(objective, optimum, theta)
