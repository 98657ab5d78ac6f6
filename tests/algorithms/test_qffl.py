"""q-FFL: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import P_A, P_B, B, f_a, f_b, g_a, g_b, run, value

# ---- by hand


def test_uniform_weights_enter_qffl(engine: str) -> None:
    # q = 1, weights 1/2 cancel: numerator f_a f_a' + f_b f_b', denominator (f_a'^2 + L f_a) +
    # (f_b'^2 + L f_b), L = 10
    expected = 1 - (5 / 3 * -2 + 16 * -16) / (4 + 10 * 5 / 3 + 256 + 10 * 16)
    assert value(run(eh.QFFL(q=1), engine, lr=0.1, weights="uniform").params) == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("q", [0.5, 1, 2])
def test_qffl_divides_the_weighted_gradients_by_the_weighted_curvature_bounds(
    engine: str, q: float
) -> None:
    # one step: g = L (w - w_i) = f';  h = q F^(q-1) g^2 + L F^q;  w - sum p F^q g / sum p h
    lr, up, down = 0.1, 0.0, 0.0
    for p, loss, g in ((P_A, 5 / 3, -2), (P_B, 16, -16)):
        up += p * loss**q * g
        down += p * (q * loss ** (q - 1) * g**2 + loss**q / lr)
    # F carries +1e-10
    assert value(run(eh.QFFL(q=q), engine, lr=lr).params) == pytest.approx(1 - up / down, rel=1e-9)


def test_qffl_half_in_numbers(engine: str) -> None:
    # B alone, q = 1/2, lr = 0.1: F^q = 4, g = -16, h = 1/2 / 4 * 256 + 10 * 4 = 72; step 64 / 72
    assert value(run(eh.QFFL(q=0.5), engine, B, lr=0.1).params) == pytest.approx(
        1 + 64 / 72, rel=1e-9
    )


def test_qffl_two_in_numbers(engine: str) -> None:
    # B alone, q = 2, lr = 0.1: F^q = 256, g = -16, h = 2 * 16 * 256 + 10 * 256 = 10752; step 4096 /
    # 10752
    assert value(run(eh.QFFL(q=2), engine, B, lr=0.1).params) == pytest.approx(
        1 + 4096 / 10752, rel=1e-9
    )


def test_qffl_takes_the_loss_before_and_the_step_after_local_work(engine: str) -> None:
    # two local steps (A: 1 -> 1.36, B: 1 -> 2.92, see FedAvg), F still at w = 1
    lr, up, down = 0.1, 0.0, 0.0
    for p, loss, end in ((P_A, 5 / 3, 1.36), (P_B, 16, 2.92)):
        g = (1 - end) / lr
        up += p * loss * g
        down += p * (g**2 + loss / lr)
    assert value(run(eh.QFFL(q=1), engine, lr=lr, steps=2).params) == pytest.approx(
        1 - up / down, rel=1e-9
    )


def test_qffl_uses_the_step_size_of_the_round_as_its_constant(engine: str) -> None:
    w = 1.0
    for lr in (0.1, 0.05):  # L = 1 / lr of the round
        up = P_A * f_a(w) * g_a(w) + P_B * f_b(w) * g_b(w)
        w -= up / (P_A * (g_a(w) ** 2 + f_a(w) / lr) + P_B * (g_b(w) ** 2 + f_b(w) / lr))
    assert value(
        run(eh.QFFL(q=1), engine, rounds=2, local=eh.LocalSGD(lr=0.1, steps=1, decay=0.5)).params
    ) == pytest.approx(w, rel=1e-9)


def test_qfedsgd_in_numbers(engine: str) -> None:
    # B alone, q = 1, L = 20: F g = -256, h = 256 + 20 * 16 = 576
    assert value(
        run(eh.QFFL(q=1, solver="fedsgd", lipschitz=20.0), engine, B, lr=0.1).params
    ) == pytest.approx(1 + 256 / 576, rel=1e-9)
    # L from lr: h = 256 + 10 * 16
    assert value(run(eh.QFFL(q=1, solver="fedsgd"), engine, B, lr=0.1).params) == pytest.approx(
        1 + 256 / 416, rel=1e-9
    )


def test_qfedavg_with_its_own_constant_in_numbers(engine: str) -> None:
    # B alone, q = 1, lr = .1, L = 20: g = 20 (1 - 2.6) = -32, h = 32^2 + 20 * 16 = 1344; step 16 *
    # 32 / 1344
    assert value(run(eh.QFFL(q=1, lipschitz=20.0), engine, B, lr=0.1).params) == pytest.approx(
        1 + 512 / 1344, rel=1e-9
    )


@pytest.mark.parametrize("q", [0.5, 2.0])
def test_qfedsgd_does_no_local_work(engine: str, q: float) -> None:
    # g is the slope at the received model, however many steps the local solver would do
    w, L = 1.0, 15.0
    for _ in range(2):
        up = down = 0.0
        for p, loss, g in ((P_A, f_a(w), g_a(w)), (P_B, f_b(w), g_b(w))):
            up += p * loss**q * g
            down += p * (q * loss ** (q - 1) * g**2 + L * loss**q)
        w -= up / down
    found = run(
        eh.QFFL(q=q, solver="fedsgd", lipschitz=L),
        engine,
        rounds=2,
        local=eh.LocalSGD(lr=0.3, steps=3),
    )
    assert value(found.params) == pytest.approx(w, rel=1e-9)


# ---- where it is another method


@limits.every_scheme
@limits.every_local
def test_qffl_at_zero_is_fedavg_under_the_same_cohort(
    engine: str, cohort: eh.Cohort, local: eh.LocalSGD
) -> None:
    """Special case 7: q = 0 for any L (here 1/lr of each round), each term weighted by the cohort's
    coefficient.

    The ratio normalises itself: with the unbiased scheme it is FedAvg with the same draws and
    coefficients that sum to one.
    """
    normalised = eh.Uniform(2) if cohort == limits.SCHEMES["D uniform unbiased"] else cohort
    found = limits.train(eh.QFFL(q=0.0), engine, local=local, cohort=cohort).params
    limits.assert_same(
        found, limits.train(eh.FedAvg(), engine, local=local, cohort=normalised).params
    )


def mean_of_local_models(chosen: Sequence[dict[int, int]], local: eh.LocalSGD) -> dict[str, Tensor]:
    """Rounds of the plain mean over the models of those drawn (client: how often drawn), one
    full-batch step each."""
    linear = limits.module()
    for times in chosen:
        server = {name: tensor.clone() for name, tensor in linear.state_dict().items()}
        mean = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for i, count in times.items():
            linear.load_state_dict(server)
            slopes = torch.autograd.grad(limits.client_losses(linear)[i], list(linear.parameters()))
            for (name, tensor), slope in zip(server.items(), slopes, strict=True):
                mean[name] += count / sum(times.values()) * (tensor - local.lr * slope)
        linear.load_state_dict(mean)
    return {name: tensor.clone() for name, tensor in linear.state_dict().items()}


def test_qffl_at_zero_with_uniform_weights_is_the_plain_mean_of_local_models(engine: str) -> None:
    """Special case 7: a_i = 1/K for everyone, whatever their sizes."""
    expected = mean_of_local_models(
        [dict.fromkeys(range(len(limits.SIZES)), 1)] * limits.ROUNDS, limits.FULL_STEP
    )
    limits.assert_same(limits.train(eh.QFFL(q=0.0), engine, weights="uniform").params, expected)
    # with data weights it is not
    assert limits.distance(limits.train(eh.QFFL(q=0.0), engine).params, expected) > 1e-3


@pytest.mark.parametrize(
    "cohort", [eh.Proportional(3), eh.Proportional(3, replacement=False)], ids=["B", "C"]
)
def test_qffl_at_zero_with_proportional_draws_is_the_plain_mean_over_the_draws(
    engine: str, cohort: eh.Proportional
) -> None:
    """Special case 7: a_i = 1/K for each draw; a client drawn twice counts twice."""
    found = [
        cohort.draw(limits.federation().census(), limits.SEED, round)
        for round in range(limits.ROUNDS)
    ]
    chosen = [
        {i: round(3 * a) for i, a in zip(draw.ids.tolist(), draw.weight.tolist(), strict=True)}
        for draw in found
    ]
    limits.assert_same(
        limits.train(eh.QFFL(q=0.0), engine, cohort=cohort).params,
        mean_of_local_models(chosen, limits.FULL_STEP),
    )


def test_qffl_at_zero_with_one_full_step_is_gradient_descent_with_step_one_over_L(
    engine: str,
) -> None:
    """Special case 8: q-FedSGD at q = 0 is FedSGD with step 1/L = lr, by data weights or by uniform
    ones."""
    by_data = limits.descend(
        lambda linear: cross_entropy(linear(limits.pooled()[0]), limits.pooled()[1]),
        limits.FULL_STEP.lr,
    )
    limits.assert_same(limits.train(eh.QFFL(q=0.0), engine).params, by_data)
    uniform = limits.descend(
        lambda linear: sum(limits.client_losses(linear)) / len(limits.SIZES), limits.FULL_STEP.lr
    )
    limits.assert_same(limits.train(eh.QFFL(q=0.0), engine, weights="uniform").params, uniform)


@pytest.mark.parametrize("lipschitz", [1e-3, 1.0, 700.0])
@limits.every_local
def test_qffl_at_zero_does_not_depend_on_L(
    engine: str, local: eh.LocalSGD, lipschitz: float
) -> None:
    """Special case 7: any L > 0 cancels."""
    found = limits.train(eh.QFFL(q=0.0, lipschitz=lipschitz), engine, local=local).params
    limits.assert_same(found, limits.train(eh.FedAvg(), engine, local=local).params)


@pytest.mark.parametrize("lipschitz", [None, 0.7, 20.0])
def test_qfedsgd_at_zero_is_gradient_descent_with_step_one_over_L(
    engine: str, lipschitz: float | None
) -> None:
    """Special case 8: FedSGD with step 1/L, 1/L = lr by default, whatever the local solver."""
    rate = limits.FULL_STEP.lr if lipschitz is None else 1 / lipschitz
    by_data = limits.descend(
        lambda linear: cross_entropy(linear(limits.pooled()[0]), limits.pooled()[1]), rate
    )
    uniform = limits.descend(
        lambda linear: sum(limits.client_losses(linear)) / len(limits.SIZES), rate
    )
    for local in (limits.FULL_STEP, eh.LocalSGD(lr=limits.FULL_STEP.lr, epochs=2, batch_size=4)):
        method = eh.QFFL(q=0.0, solver="fedsgd", lipschitz=lipschitz)
        limits.assert_same(limits.train(method, engine, local=local).params, by_data)
        limits.assert_same(
            limits.train(method, engine, local=local, weights="uniform").params, uniform
        )


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qfedsgd_is_qfedavg_with_one_full_step_of_size_one_over_L(engine: str, q: float) -> None:
    """Then L (received - local) is the gradient itself."""
    limits.assert_same(
        limits.train(eh.QFFL(q=q, solver="fedsgd"), engine).params,
        limits.train(eh.QFFL(q=q), engine).params,
    )


# ---- the optimum


@pytest.mark.parametrize("q", [1.0, 3.0])
def test_qffl_reaches_the_least_sum_of_powers(q: float) -> None:
    def objective(theta: convex.Vector) -> float:
        return float(convex.P @ convex.losses(theta) ** (q + 1)) / (q + 1)

    theta = convex.parameters(convex.train(eh.QFFL(q=q), lr=0.3, rounds=80))
    convex.assert_reaches(objective, convex.minimise(objective), theta)


@pytest.mark.parametrize("q", [1.0, 3.0])
def test_q_fedsgd_reaches_the_least_sum_of_powers(q: float) -> None:
    def objective(theta: convex.Vector) -> float:
        return float(convex.P @ convex.losses(theta) ** (q + 1)) / (q + 1)

    theta = convex.parameters(convex.train(eh.QFFL(q=q, solver="fedsgd"), lr=0.3, rounds=80))
    convex.assert_reaches(objective, convex.minimise(objective), theta)
