"""One weight, few clients, one or two steps: the numbers worked out in plain arithmetic, following
the papers.

The problem, unless a test says otherwise. Every sample is (x, y) with prediction w x and loss (w x
- y)^2.

    client A: three samples, x = 1, y = 1, 2, 3     f_a(w) = ((w-1)^2 + (w-2)^2 + (w-3)^2) / 3
    f_a'(w) = 2 (w - 2) client B: one sample,    x = 2, y = 6           f_b(w) = (2w - 6)^2
    f_b'(w) = 4 (2w - 6)

so p = (3/4, 1/4), and at w = 1: f_a = 5/3, f_a' = -2, f_b = 16, f_b' = -16.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand.data.population import Census
from evenhand.local import permutation
from evenhand.simplex import project_simplex
from tests.support.federations import with_output

A = {"x": [[1.0], [1.0], [1.0]], "y": [1.0, 2.0, 3.0]}
B = {"x": [[2.0]], "y": [6.0]}
P_A, P_B = 3 / 4, 1 / 4


def f_a(w: float) -> float:
    return ((w - 1) ** 2 + (w - 2) ** 2 + (w - 3) ** 2) / 3


def g_a(w: float) -> float:
    return 2 * (w - 2)


def f_b(w: float) -> float:
    return (2 * w - 6) ** 2


def g_b(w: float) -> float:
    return 4 * (2 * w - 6)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def project_two(v_1: float, v_2: float, floor: float = 0.0) -> tuple[float, float]:
    """The nearest point of the segment x_1 + x_2 = 1, both >= floor: remove the excess in equal
    parts, then cut at the ends."""
    first = min(max((1 + v_1 - v_2) / 2, floor), 1 - floor)
    return first, 1 - first


def weight(value: float) -> nn.Linear:
    module = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        module.weight.fill_(value)
    return module


def arrays(client: dict[str, Any]) -> dict[str, Any]:
    return {**client, "x": np.array(client["x"]), "y": np.array(client["y"])}


def federation(*clients: dict[str, Any]) -> eh.Federation:
    return eh.Federation.from_arrays([arrays(client) for client in clients or (A, B)])


def run(
    algorithm: eh.Algorithm,
    engine: str,
    *clients: dict[str, Any],
    w: float = 1.0,
    rounds: int = 1,
    **settings: Any,
) -> eh.Result:
    local = settings.pop("local", None) or eh.LocalSGD(
        lr=settings.pop("lr"), steps=settings.pop("steps", 1)
    )
    return eh.fit(
        weight(w),
        federation(*clients),
        algorithm,
        loss="mse",
        rounds=rounds,
        local=local,
        engine=engine,
        **settings,
    )


def value(params: dict[str, Tensor]) -> float:
    return params["weight"].item()


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-13)


@pytest.fixture(params=["loop", "vmap"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_numbers_of_the_problem_are_those_in_the_docstring() -> None:
    assert (f_a(1), g_a(1), f_b(1), g_b(1)) == (5 / 3, -2, 16, -16)


# ---- FedAvg (McMahan et al., AISTATS 2017)


def test_fedavg_one_step_moves_by_the_data_weighted_gradient(engine: str) -> None:
    # w - lr (p_a f_a' + p_b f_b') = 1 - 0.1 (3/4 (-2) + 1/4 (-16)) = 1 + 0.1 * 5.5
    assert value(run(eh.FedAvg(), engine, lr=0.1).params) == near(1.55)


def test_fedavg_two_local_steps_average_the_local_models(engine: str) -> None:
    # A: 1 -> 1.2 -> 1.36;  B with lr 0.1: 1 -> 2.6 -> 2.6 - 0.4 (5.2 - 6) = 2.92
    assert value(run(eh.FedAvg(), engine, lr=0.1, steps=2).params) == near(
        0.75 * 1.36 + 0.25 * 2.92
    )


def test_fedavg_step_size_decays_by_round(engine: str) -> None:
    first = 1 + 0.1 * 5.5
    second = first - 0.05 * (P_A * g_a(first) + P_B * g_b(first))
    assert value(
        run(eh.FedAvg(), engine, rounds=2, local=eh.LocalSGD(lr=0.1, steps=1, decay=0.5)).params
    ) == near(second)


def test_uniform_weights_count_clients_not_samples(engine: str) -> None:
    # 1 - 0.1 (1/2 (-2) + 1/2 (-16)) = 1.9
    assert value(run(eh.FedAvg(), engine, lr=0.1, weights="uniform").params) == near(1.9)


def test_uniform_weights_start_afl_at_one_over_n(engine: str) -> None:
    result = run(eh.AFL(lr_lambda=0.0), engine, lr=0.1, weights="uniform")
    assert value(result.params) == near(1.9)
    assert result.state["lam"].tolist() == near([0.5, 0.5])


def test_uniform_weights_enter_qffl(engine: str) -> None:
    # q = 1, weights 1/2 cancel: numerator f_a f_a' + f_b f_b', denominator (f_a'^2 + L f_a) +
    # (f_b'^2 + L f_b), L = 10
    expected = 1 - (5 / 3 * -2 + 16 * -16) / (4 + 10 * 5 / 3 + 256 + 10 * 16)
    assert value(run(eh.QFFL(q=1), engine, lr=0.1, weights="uniform").params) == pytest.approx(
        expected, rel=1e-9
    )


def test_a_loss_given_as_a_function_is_averaged_over_samples(engine: str) -> None:
    def cubic(output: Tensor, target: Tensor) -> Tensor:
        return (output.squeeze(-1) - target).abs() ** 3

    # slopes at w = 1: A: mean of -3 (0, 1, 4) = -5;  B: x * -3 (2 - 6)^2 = -96
    result = eh.fit(
        weight(1.0),
        federation(),
        eh.FedAvg(),
        loss=cubic,
        rounds=1,
        local=eh.LocalSGD(lr=0.01),
        engine=engine,
    )
    assert value(result.params) == near(1 + 0.01 * (0.75 * 5 + 0.25 * 96))


# ---- PropFair (Zhang et al., 2022, Algorithm 1)


def test_propfair_divides_each_gradient_by_the_utility_left(engine: str) -> None:
    # M = 20: slope of -log(M - f) is f' / (M - f):  A: -2 / (20 - 5/3),  B: -16 / (20 - 16)
    expected = 1 + 0.1 * (0.75 * 2 / (20 - 5 / 3) + 0.25 * 16 / 4)
    assert value(run(eh.PropFair(M=20.0), engine, lr=0.1).params) == near(expected)


def test_propfair_recomputes_the_utility_at_every_local_step(engine: str) -> None:
    a = b = 1.0
    for _ in range(2):
        a, b = a - 0.1 * g_a(a) / (20 - f_a(a)), b - 0.1 * g_b(b) / (20 - f_b(b))
    assert value(run(eh.PropFair(M=20.0), engine, lr=0.1, steps=2).params) == near(
        0.75 * a + 0.25 * b
    )


@pytest.mark.parametrize("M", [16.125, 10.0], ids=["close to M", "above M"])
def test_propfair_takes_the_linear_branch_where_little_utility_is_left(
    engine: str, M: float
) -> None:
    # epsilon = 0.2 > M - f_b: B descends f / M; A stays on the logarithm
    expected = 1 + 0.1 * (0.75 * 2 / (M - 5 / 3) + 0.25 * 16 / M)
    assert value(run(eh.PropFair(M=M, epsilon=0.2), engine, lr=0.1).params) == near(expected)


def test_propfair_keeps_the_logarithm_when_exactly_epsilon_is_left(engine: str) -> None:
    # M - f_b = 16.25 - 16 = epsilon: slope 1 / epsilon = 4, not 1 / M
    expected = 1 + 0.01 * (0.75 * 2 / (16.25 - 5 / 3) + 0.25 * 16 * 4)
    assert value(run(eh.PropFair(M=16.25, epsilon=0.25), engine, lr=0.01).params) == near(expected)


# ---- q-FFL by q-FedAvg (Li et al., ICLR 2020, Algorithm 2)


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


# ---- AFL (Mohri et al., ICML 2019)


def test_afl_weighs_the_second_round_by_the_raised_lambda(engine: str) -> None:
    lr, ascent = 0.1, 0.02
    w, lam = 1.0, (P_A, P_B)
    iterates = []
    for _ in range(2):  # both steps from the values of this round
        slope = lam[0] * g_a(w) + lam[1] * g_b(w)
        lam = project_two(lam[0] + ascent * f_a(w), lam[1] + ascent * f_b(w))
        w -= lr * slope
        iterates.append(w)
    # in numbers: round 1 steps by lambda = p to 1.55, lambda rises to (.75 + .02 * 5/3, .25 + .02 *
    # 16) less half the excess
    assert iterates[0] == near(1.55)
    excess = 0.02 * (5 / 3 + 16)
    first = run(eh.AFL(lr_lambda=ascent), engine, lr=lr)
    assert value(first.params) == near(1.55)
    assert first.state["lam"].tolist() == near(
        [0.75 + 0.02 * 5 / 3 - excess / 2, 0.25 + 0.02 * 16 - excess / 2]
    )
    second = run(eh.AFL(lr_lambda=ascent), engine, lr=lr, rounds=2)
    assert value(second.params) == near(iterates[1])
    assert second.state["lam"].tolist() == near(list(lam))
    averaged = run(eh.Averaged(eh.AFL(lr_lambda=ascent)), engine, lr=lr, rounds=2)
    assert value(averaged.params) == near(sum(iterates) / 2)


def test_afl_with_a_large_ascent_gives_all_weight_to_the_worst_client(engine: str) -> None:
    # .25 + .2 * 16 exceeds .75 + .2 * 5/3 by more than 1: lambda = (0, 1), the second step is B's
    # alone
    result = run(eh.AFL(lr_lambda=0.2), engine, lr=0.1)
    assert result.state["lam"].tolist() == [0, 1]
    assert value(run(eh.AFL(lr_lambda=0.2), engine, lr=0.1, rounds=2).params) == near(
        1.55 - 0.1 * g_b(1.55)
    )


def test_afl_averages_local_work_by_lambda(engine: str) -> None:
    # two local steps: round 1 is FedAvg's; lambda rises by the losses at the received model
    w = 0.75 * 1.36 + 0.25 * 2.92
    lam = project_two(0.75 + 0.02 * 5 / 3, 0.25 + 0.02 * 16)
    a, b = w, w
    for _ in range(2):
        a, b = a - 0.1 * g_a(a), b - 0.1 * g_b(b)
    assert value(run(eh.AFL(lr_lambda=0.02), engine, lr=0.1, steps=2, rounds=2).params) == near(
        lam[0] * a + lam[1] * b
    )


# ---- FAFL by rFedFair


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


# ---- FedMinMax (Papadaki et al., 2021)

# groups over clients: u = {A's y = 3}, v = {A's y = 1, 2, and B's}: shares 1/4 and 3/4
GROUPED = ({**A, "group": ["v", "v", "u"]}, {**B, "group": ["v"]})


def risks(w: float) -> tuple[float, float]:
    return (w - 3) ** 2, ((w - 1) ** 2 + (w - 2) ** 2 + (2 * w - 6) ** 2) / 3


def risk_slopes(w: float) -> tuple[float, float]:
    return 2 * (w - 3), (2 * (w - 1) + 2 * (w - 2) + 4 * (2 * w - 6)) / 3


@pytest.mark.parametrize(
    ("ascent", "floor"),
    [(0.05, 0.0), (0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (0.05, 0.24), (0.05, 0.5)],
)
def test_fedminmax_descends_the_risks_by_mu_and_raises_mu_by_the_risks(
    engine: str, ascent: float, floor: float
) -> None:
    w, mu, total = 1.0, (0.25, 0.75), 0.0
    for _ in range(3):
        slope = mu[0] * risk_slopes(w)[0] + mu[1] * risk_slopes(w)[1]
        mu = project_two(mu[0] + ascent * risks(w)[0], mu[1] + ascent * risks(w)[1], floor)
        w -= 0.1 * slope
        total += w
    for output, expected in (("last", w), ("average", total / 3)):
        result = run(
            with_output(eh.FedMinMax(lr_mu=ascent, floor=floor), output),
            engine,
            *GROUPED,
            lr=0.1,
            rounds=3,
        )
        assert value(result.params) == near(expected)
        assert result.state["mu"].tolist() == near(list(mu))


def test_fedminmax_one_round_in_numbers(engine: str) -> None:
    # mu = shares, so round 1 is FedAvg's 1.55; risks at w = 1: u 4, v (0 + 1 + 16)/3 = 17/3 mu + 1
    # * risk = (4.25, 6.4166..): more than 1 apart: v takes all that the floor 0.1 of u leaves
    result = run(eh.FedMinMax(lr_mu=1.0, floor=0.1), engine, *GROUPED, lr=0.1)
    assert value(result.params) == near(1.55)
    assert result.state["mu"].tolist() == near([0.1, 0.9])


def test_fedminmax_divides_by_the_samples_of_the_client_not_by_their_weights(engine: str) -> None:
    # two local steps; round 1 is FedAvg's, and the risks 4 and 17/3 at w = 1 put all weight on v
    a = b = 1.0
    for _ in range(2):
        a, b = a - 0.05 * g_a(a), b - 0.05 * g_b(b)
    assert run(eh.FedMinMax(lr_mu=1.0), engine, *GROUPED, lr=0.05, steps=2).state[
        "mu"
    ].tolist() == [0, 1]
    # round 2: samples of u weigh 0, of v 1 / (3/4) = 4/3: A descends (4/3) ((w-1)^2 + (w-2)^2) / 3,
    # B (4/3) (2w-6)^2
    a = b = 0.75 * a + 0.25 * b
    for _ in range(2):
        a -= 0.05 * 4 / 3 * (2 * (a - 1) + 2 * (a - 2)) / 3
        b -= 0.05 * 4 / 3 * 4 * (2 * b - 6)
    result = run(eh.FedMinMax(lr_mu=1.0), engine, *GROUPED, lr=0.05, steps=2, rounds=2)
    assert value(result.params) == near(0.75 * a + 0.25 * b)


def test_shares_of_groups_count_clients_by_their_weights(engine: str) -> None:
    # u is a third of A's samples, and A half of the clients
    for method, name in (
        (eh.FedMinMax(lr_mu=0.0), "mu"),
        (eh.AgnosticFedAvg(lr_lambda=0.0), "lam"),
    ):
        result = run(method, engine, *GROUPED, lr=0.05, weights="uniform")
        assert result.state[name].tolist() == near([1 / 6, 5 / 6])


# ---- GIFAIR (Yue, Nouiehed, Al Kontar, 2021)


def test_gifair_individuals_rank_by_the_loss_at_the_local_model(engine: str) -> None:
    # lr = 1/8, round 1 plain: A -> 1.25, B -> 3, where f_a = 1.229.. > f_b = 0, although B is the
    # worse one at the received model (16 > 5/3) and at the averaged one (1.6875: 6.89 > .76).  d =
    # 2 teams of one: c_max = min p_i = 1/4, c = .6 / 4.
    c = 0.6 * 0.25
    w = 0.75 * 1.25 + 0.25 * 3
    assert f_a(1.25) > f_b(3.0)
    assert f_a(w) < f_b(w)
    expected = w - (P_A * (1 + c / P_A) * g_a(w) + P_B * (1 - c / P_B) * g_b(w)) / 8
    result = run(eh.GIFAIR(strength=0.6), engine, lr=1 / 8, rounds=2)
    assert value(run(eh.GIFAIR(strength=0.6), engine, lr=1 / 8).params) == near(w)
    assert value(result.params) == near(expected)


def test_gifair_two_local_steps_scale_each_by_the_frozen_factor(engine: str) -> None:
    # lr small: B stays the worse one. Round 2: A steps by lr (1 - c/p_a), B by lr (1 + c/p_b), c =
    # .6 * 1/4
    c, lr, w = 0.6 * 0.25, 0.01, 1.0
    for rates in ((lr, lr), (lr * (1 - c / P_A), lr * (1 + c / P_B))):
        a = b = w
        for _ in range(2):
            a, b = a - rates[0] * g_a(a), b - rates[1] * g_b(b)
        assert f_b(b) > f_a(a)
        w = P_A * a + P_B * b
    result = run(eh.GIFAIR(strength=0.6, personal=True), engine, lr=lr, steps=2, rounds=2)
    assert value(result.params) == near(w)
    assert [value(params) for params in result.personal or []] == near([a, b])


C = {"x": [[1.0], [1.0]], "y": [-1.0, -3.0]}  # f_c = ((w+1)^2 + (w+3)^2)/2, f_c' = 2 (w + 2)


def f_c(w: float) -> float:
    return ((w + 1) ** 2 + (w + 3) ** 2) / 2


def g_c(w: float) -> float:
    return 2 * (w + 2)


def test_gifair_teams_compare_plain_means_over_their_clients(engine: str) -> None:
    # A and C are team s, B is team t; p = (3, 1, 2)/6.  c_max = min(p_a 2, p_b 1, p_c 2) / (2 - 1)
    # = 1/6
    clients = ({**A, "team": "s"}, {**B, "team": "t"}, {**C, "team": "s"})
    p, lr, c, w = (3 / 6, 1 / 6, 2 / 6), 0.02, 0.9 / 6, 1.0
    rho = (0.0, 0.0, 0.0)
    for round in range(3):
        share = (2, 1, 2)  # clients in the team
        scale = [
            1 + c * rank / (weight * size) for rank, weight, size in zip(rho, p, share, strict=True)
        ]
        assert min(scale) > 0
        a, b, d = w - lr * scale[0] * g_a(w), w - lr * scale[1] * g_b(w), w - lr * scale[2] * g_c(w)
        mean_s, mean_t = (f_a(a) + f_c(d)) / 2, f_b(b)
        assert mean_s < mean_t
        rho = (-1.0, 1.0, -1.0)
        w = p[0] * a + p[1] * b + p[2] * d
        assert value(
            run(eh.GIFAIR(strength=0.9), engine, *clients, lr=lr, rounds=round + 1).params
        ) == near(w)


def test_gifair_teams_average_clients_not_samples(engine: str) -> None:
    # teams s = {A, C}, t = {B}, from w0 with lr tiny: plain mean of s above t, sample-weighted mean
    # of s below t
    clients = ({**A, "team": "s"}, {**B, "team": "t"}, {**C, "team": "s"})
    w0, lr = 1.65, 1e-4
    assert (3 * f_a(w0) + 2 * f_c(w0)) / 5 + 0.1 < f_b(w0) < (f_a(w0) + f_c(w0)) / 2 - 0.1
    p, c = (3 / 6, 1 / 6, 2 / 6), 0.9 / 6
    w = w0 - lr * (p[0] * g_a(w0) + p[1] * g_b(w0) + p[2] * g_c(w0))
    expected = w - lr * ((p[0] + c / 2) * g_a(w) + (p[1] - c) * g_b(w) + (p[2] + c / 2) * g_c(w))
    assert value(
        run(eh.GIFAIR(strength=0.9), engine, *clients, w=w0, lr=lr, rounds=2).params
    ) == near(expected)


def test_gifair_tie_leaves_every_step_as_it_is(engine: str) -> None:
    # two clients that mirror each other around w = 0 keep equal losses: rho = 0, plain FedAvg with
    # p = (2/3, 1/3)
    left, right = {"x": [[1.0], [1.0]], "y": [-1.0, -1.0]}, {"x": [[1.0]], "y": [1.0]}
    # round 1 from 0: left -> -.2, right -> .2, both with loss .64; mean -.2/3
    w = 2 / 3 * -0.2 + 1 / 3 * 0.2
    w = w - 0.1 * (2 / 3 * 2 * (w + 1) + 1 / 3 * 2 * (w - 1))
    assert value(
        run(eh.GIFAIR(strength=0.9), engine, left, right, w=0.0, lr=0.1, rounds=2).params
    ) == near(w)


def test_gifair_tied_teams_share_their_rank(engine: str) -> None:
    # left and right tie above the third: ranks (+1, +1, -2), not (0, 2, -2).  p = (2, 1, 1)/4, d =
    # 3, c_max = 1/4 / 2
    left, right = {"x": [[1.0], [1.0]], "y": [-1.0, -1.0]}, {"x": [[1.0]], "y": [1.0]}
    easy = {"x": [[1.0]], "y": [0.5]}
    c, p = 0.8 / 8, (0.5, 0.25, 0.25)
    targets, rho = (-1.0, 1.0, 0.5), (1, 1, -2)
    ends = [0 - 0.1 * 2 * (0 - target) for target in targets]
    w = sum(weight * end for weight, end in zip(p, ends, strict=True))
    slope = sum(
        (weight + c * rank) * 2 * (w - target)
        for weight, rank, target in zip(p, rho, targets, strict=True)
    )
    assert value(
        run(eh.GIFAIR(strength=0.8), engine, left, right, easy, w=0.0, lr=0.1, rounds=2).params
    ) == near(w - 0.1 * slope)


@pytest.mark.parametrize("teams", [None, (0, 1, 0, 2)], ids=["individuals", "teams"])
def test_gifair_absent_clients_count_with_the_last_loss_they_reported(
    engine: str, teams: tuple[int, ...] | None
) -> None:
    # four clients with one target each, two of them in a round, ranks over what has been heard so
    # far
    targets, counts, lr, rounds = (2.0, -1.0, 3.0, 0.0), (3, 1, 2, 4), 0.05, 8
    clients = [
        {"x": [[1.0]] * count, "y": [target] * count}
        for target, count in zip(targets, counts, strict=True)
    ]
    if teams is not None:
        clients = [{**client, "team": team} for client, team in zip(clients, teams, strict=True)]
    team = teams or (0, 1, 2, 3)
    sizes = Counter(team)
    p = [count / 10 for count in counts]
    c = 0.9 * min(p[i] * sizes[team[i]] for i in range(4)) / (len(sizes) - 1)
    cohort = eh.Uniform(2)
    census = federation(*clients).census()
    heard: dict[int, float] = {}
    w, absences = 1.0, 0
    for round in range(rounds):
        members: dict[int, list[float]] = {}
        for i, loss in heard.items():
            members.setdefault(team[i], []).append(loss)
        means = {t: sum(losses) / len(losses) for t, losses in members.items()}
        rho = {
            t: sum(np.sign(round_off(mean - other)) for other in means.values())
            for t, mean in means.items()
        }
        ids = cohort.draw(census, 3, round).ids.tolist()
        mass = sum(p[i] for i in ids)
        step = 0.0
        for i in ids:
            scale = 1 + c * rho.get(team[i], 0.0) / (p[i] * sizes[team[i]])
            end = w - lr * scale * 2 * (w - targets[i])
            heard[i] = (end - targets[i]) ** 2
            step += p[i] / mass * (w - end)
        absences += len(heard) - len(ids)
        w -= step
    assert absences > 4  # stale losses did take part
    result = run(
        eh.GIFAIR(strength=0.9), engine, *clients, lr=lr, rounds=rounds, cohort=cohort, seed=3
    )
    assert value(result.params) == pytest.approx(w, rel=1e-10)


def round_off(x: float) -> float:
    return 0.0 if abs(x) < 1e-12 else x


# ---- Ditto (Li et al., ICML 2021)


def test_ditto_two_rounds_in_numbers(engine: str) -> None:
    # lam = 2, lr = .1.  Round 1, v = received = 1, no pull: v_a = 1.2, v_b = 2.6; received next:
    # 1.55 round 2: v_a = 1.2 - .1 (2 (1.2 - 2) + 2 (1.2 - 1.55)) = 1.2 + .16 + .07;  v_b = 2.6 - .1
    # (4 (5.2 - 6) + 2 (2.6 - 1.55))
    first = run(eh.Ditto(lam=2.0), engine, lr=0.1)
    assert [value(params) for params in first.personal or []] == near([1.2, 2.6])
    second = run(eh.Ditto(lam=2.0), engine, lr=0.1, rounds=2)
    assert [value(params) for params in second.personal or []] == near([1.43, 2.6 + 0.32 - 0.21])
    assert value(second.params) == near(1.55 - 0.1 * (P_A * g_a(1.55) + P_B * g_b(1.55)))


@pytest.mark.parametrize("lam", [0.0, 0.5, 2.0])
def test_ditto_local_steps_are_anchored_at_the_received_model(engine: str, lam: float) -> None:
    lr, w, v = 0.05, 1.0, [1.0, 1.0]
    for _ in range(2):
        ends = []
        for i, g in enumerate((g_a, g_b)):
            theta = w
            for _ in range(2):
                theta, v[i] = theta - lr * g(theta), v[i] - lr * (g(v[i]) + lam * (v[i] - w))
            ends.append(theta)
        w = P_A * ends[0] + P_B * ends[1]
    result = run(eh.Ditto(lam=lam), engine, lr=lr, steps=2, rounds=2)
    assert value(result.params) == near(w)
    assert [value(params) for params in result.personal or []] == near(v)


def test_ditto_absent_clients_keep_their_model(engine: str) -> None:
    cohort = eh.Uniform(1)
    census = federation().census()
    lr, lam, w, v = 0.05, 1.0, 1.0, [1.0, 1.0]
    present = [int(cohort.draw(census, 0, round).ids) for round in range(5)]
    for i in present:
        g = (g_a, g_b)[i]
        v[i] -= lr * (g(v[i]) + lam * (v[i] - w))
        w -= lr * g(w)
    assert set(present) == {0, 1}
    result = run(eh.Ditto(lam=lam), engine, lr=lr, rounds=5, cohort=cohort)
    assert value(result.params) == near(w)
    assert [value(params) for params in result.personal or []] == near(v)


# ---- who takes part, and with which coefficient

SIZES = (1, 2, 3, 4)
SHARES = (0.1, 0.2, 0.3, 0.4)


def census_of(sizes: Sequence[int], weights: str = "data") -> Census:
    return federation(*({"x": [[1.0]] * size, "y": [0.0] * size} for size in sizes)).census(weights)


def draws(
    cohort: eh.Cohort, rounds: int, weights: str = "data", seed: int = 11
) -> list[dict[int, float]]:
    """For every round, the coefficient of each client that takes part."""
    census = census_of(SIZES, weights)
    found = (cohort.draw(census, seed, round) for round in range(rounds))
    return [dict(zip(draw.ids.tolist(), draw.weight.tolist(), strict=True)) for draw in found]


def assert_frequency(hits: int, trials: int, probability: float) -> None:
    """Within five standard deviations of a binomial count; seeds are fixed, so this cannot
    flicker."""
    spread = math.sqrt(trials * probability * (1 - probability))
    assert abs(hits - trials * probability) <= 5 * spread, (hits / trials, probability)


def test_full_takes_everyone_with_its_share_of_the_data() -> None:
    for draw in draws(eh.Full(), 3):
        assert draw == near(dict(enumerate(SHARES)))
    assert draws(eh.Full(), 1, "uniform")[0] == near(dict.fromkeys(range(4), 0.25))


def test_uniform_normalises_the_weights_over_the_cohort() -> None:
    for draw in draws(eh.Uniform(2), 20):
        assert len(draw) == 2
        mass = sum(SIZES[i] for i in draw)
        assert draw == near({i: SIZES[i] / mass for i in draw})


def test_uniform_unbiased_multiplies_the_weights_by_n_over_k() -> None:
    for draw in draws(eh.Uniform(3, unbiased=True), 20):
        assert len(draw) == 3
        assert draw == near({i: 4 / 3 * SHARES[i] for i in draw})


def test_proportional_without_replacement_gives_each_of_k_distinct_clients_one_over_k() -> None:
    for draw in draws(eh.Proportional(3, replacement=False), 20):
        assert list(draw.values()) == near([1 / 3] * 3)


def test_proportional_with_replacement_counts_a_client_once_for_each_time_drawn() -> None:
    found = draws(eh.Proportional(5), 50)
    for draw in found:
        assert list(draw) == sorted(draw)
        times = [coefficient * 5 for coefficient in draw.values()]
        assert times == near([round(time) for time in times])
        assert sum(times) == near(5)
    assert any(coefficient > 0.3 for draw in found for coefficient in draw.values())


def test_draws_depend_on_seed_and_round_alone() -> None:
    for cohort in (
        eh.Uniform(2),
        eh.Uniform(2, unbiased=True),
        eh.Proportional(2),
        eh.Proportional(2, replacement=False),
    ):
        assert draws(cohort, 30) == draws(cohort, 30)
        assert draws(cohort, 30) != draws(cohort, 30, seed=12)
        assert draws(cohort, 30)[1:] != draws(cohort, 29, seed=12)
        assert len({tuple(draw) for draw in draws(cohort, 30)}) > 1


@pytest.mark.parametrize("unbiased", [False, True])
def test_uniform_takes_every_pair_equally_often(unbiased: bool) -> None:
    trials = 3000
    seen = Counter(tuple(draw) for draw in draws(eh.Uniform(2, unbiased), trials))
    for pair in itertools.combinations(range(4), 2):
        assert_frequency(seen[pair], trials, 1 / 6)


def test_proportional_with_replacement_draws_each_multiset_with_its_multinomial_probability() -> (
    None
):
    trials = 3000
    seen = Counter(
        tuple((i, round(3 * a)) for i, a in draw.items())
        for draw in draws(eh.Proportional(3), trials)
    )
    for multiset in itertools.combinations_with_replacement(range(4), 3):
        times = Counter(multiset)
        orders = math.factorial(3) / math.prod(math.factorial(count) for count in times.values())
        assert_frequency(
            seen[tuple(times.items())], trials, orders * math.prod(SHARES[i] for i in multiset)
        )


def test_proportional_without_replacement_draws_one_by_one_among_those_left() -> None:
    trials, k = 3000, 2
    probability: Counter[tuple[int, ...]] = Counter()
    # first i with p_i, then j with p_j / (1 - p_i)
    for order in itertools.permutations(range(4), k):
        chance, left = 1.0, 1.0
        for i in order:
            chance, left = chance * SHARES[i] / left, left - SHARES[i]
        probability[tuple(sorted(order))] += chance  # type: ignore[assignment]
    assert sum(probability.values()) == near(1.0)
    seen = Counter(tuple(draw) for draw in draws(eh.Proportional(k, replacement=False), trials))
    for pair, chance in probability.items():
        assert_frequency(seen[pair], trials, chance)
    inclusion = [sum(chance for pair, chance in probability.items() if i in pair) for i in range(4)]
    for i in range(4):
        assert_frequency(
            sum(count for pair, count in seen.items() if i in pair), trials, inclusion[i]
        )


@pytest.mark.parametrize(
    "cohort", [eh.Full(), eh.Uniform(2, unbiased=True), eh.Proportional(2)], ids=["A", "D", "B"]
)
def test_coefficients_of_the_unbiased_schemes_average_to_the_weights(cohort: eh.Cohort) -> None:
    trials = 3000
    found = draws(cohort, trials)
    for i in range(4):
        values = np.array([draw.get(i, 0.0) for draw in found])
        assert abs(values.mean() - SHARES[i]) <= 5 * values.std() / math.sqrt(trials) + 1e-12


def test_uniform_weights_make_proportional_draws_uniform() -> None:
    trials = 3000
    seen = Counter(i for draw in draws(eh.Proportional(1), trials, "uniform") for i in draw)
    for i in range(4):
        assert_frequency(seen[i], trials, 1 / 4)


def test_a_client_drawn_twice_trains_once_and_counts_twice(engine: str) -> None:
    census, cohort = federation().census(), eh.Proportional(3)
    seed = next(
        s
        for s in range(100)
        if cohort.draw(census, s, 0).weight.tolist() == pytest.approx([2 / 3, 1 / 3])
    )
    result = run(eh.Ditto(lam=1.0), engine, lr=0.1, cohort=cohort, seed=seed)
    assert value(result.params) == near(2 / 3 * 1.2 + 1 / 3 * 2.6)
    # one step, not two
    assert [value(params) for params in result.personal or []] == near([1.2, 2.6])
    assert result.history_rows[0]["asked"] == 2


def test_unbiased_steps_are_not_normalised(engine: str) -> None:
    # one client of two: its coefficient is 2 p_i, so A moves the model by 1.5 of its step and B by
    # 0.5
    census, cohort = federation().census(), eh.Uniform(1, unbiased=True)
    for wanted, factor, end in ((0, 1.5, 1.2), (1, 0.5, 2.6)):
        seed = next(s for s in range(100) if cohort.draw(census, s, 0).ids.tolist() == [wanted])
        assert value(run(eh.FedAvg(), engine, lr=0.1, cohort=cohort, seed=seed).params) == near(
            1 + factor * (end - 1)
        )


def test_partial_cohorts_average_by_their_coefficients(engine: str) -> None:
    clients = (A, B, C)
    ends = (1.2, 2.6, 1 - 0.1 * g_c(1))
    census = federation(*clients).census()
    for cohort in (eh.Uniform(2), eh.Proportional(2), eh.Proportional(2, replacement=False)):
        for seed in range(4):
            ids, coefficients, _ = cohort.draw(census, seed, 0)
            expected = sum(
                a * ends[i] for i, a in zip(ids.tolist(), coefficients.tolist(), strict=True)
            )
            assert value(
                run(eh.FedAvg(), engine, *clients, lr=0.1, cohort=cohort, seed=seed).params
            ) == near(expected)


# ---- the projection, by enumeration and by a quadratic program


def nearest_by_enumeration(v: np.ndarray, floor: float) -> np.ndarray:
    """Try every set of entries above the floor: the rest sit on it, these are shifted equally; keep
    the nearest feasible point."""
    n, best, distance = len(v), None, np.inf
    for support in itertools.chain.from_iterable(
        itertools.combinations(range(n), size) for size in range(1, n + 1)
    ):
        inside = list(support)
        x = np.full(n, floor)
        x[inside] = v[inside] - (v[inside].sum() - (1 - floor * (n - len(inside)))) / len(inside)
        if x.min() >= floor - 1e-12 and ((x - v) ** 2).sum() < distance:
            best, distance = x, ((x - v) ** 2).sum()
    assert best is not None
    return best


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_projection_is_the_nearest_point_of_the_simplex_by_enumeration(
    floor: float, scale: float
) -> None:
    generator = np.random.default_rng(5)
    for n in (1, 2, 3, 5):
        for _ in range(15):
            v = generator.normal(size=n) * scale
            assert project_simplex(torch.from_numpy(v), floor).numpy() == pytest.approx(
                nearest_by_enumeration(v, floor), abs=1e-12
            )


@pytest.mark.parametrize("floor", [0.0, 0.03])
def test_projection_solves_the_quadratic_program(floor: float) -> None:
    generator = np.random.default_rng(6)
    for _ in range(5):
        v = generator.normal(size=12)
        solution = scipy.optimize.minimize(
            lambda x, v=v: ((x - v) ** 2).sum(),
            np.full(12, 1 / 12),
            jac=lambda x, v=v: 2 * (x - v),
            bounds=[(floor, 1)] * 12,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        assert solution.success
        assert project_simplex(torch.from_numpy(v), floor).numpy() == pytest.approx(
            solution.x, abs=1e-6
        )


def test_projection_keeps_points_of_the_simplex_and_breaks_ties_evenly() -> None:
    assert project_simplex(torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)).tolist() == near(
        [0.2, 0.5, 0.3]
    )
    assert project_simplex(torch.tensor([7.0, 7.0, -3.0]).double()).tolist() == near([0.5, 0.5, 0])
    # (.8, .7, .2): the largest two, less (.8 + .7 - 1)/2 each; .2 is below that
    assert project_simplex(torch.tensor([0.8, 0.7, 0.2], dtype=torch.float64)).tolist() == near(
        [0.55, 0.45, 0]
    )


# ---- the local solver against torch.optim.SGD, and a whole FedAvg against a second one


def numbers(
    sizes: Sequence[int], features: int = 3, classes: int = 3, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [
        {"x": generator.normal(size=(size, features)), "y": generator.integers(classes, size=size)}
        for size in sizes
    ]


def network(features: int = 3, classes: int = 3) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    module = nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, classes)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
            )
    return module


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-12)


def plain_fedavg(
    module: nn.Module,
    clients: list[dict[str, np.ndarray]],
    local: eh.LocalSGD,
    rounds: int,
    seed: int,
    coefficients: Sequence[dict[int, float]] | None = None,
) -> dict[str, Tensor]:
    """McMahan's loop in plain PyTorch: torch.optim.SGD on every client, then the weighted mean of
    the local models."""
    total = sum(len(client["y"]) for client in clients)
    server = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for round in range(rounds):
        taking_part = (
            coefficients[round]
            if coefficients
            else {i: len(client["y"]) / total for i, client in enumerate(clients)}
        )
        mean = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
        for i, coefficient in taking_part.items():
            x, y = torch.from_numpy(clients[i]["x"]), torch.from_numpy(clients[i]["y"])
            module.load_state_dict(server)
            rate = local.lr * local.decay**round
            optimizer = torch.optim.SGD(
                module.parameters(),
                lr=rate,
                momentum=local.momentum,
                weight_decay=local.weight_decay,
            )
            for batch in batches(i, len(y), local, round, seed):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
                optimizer.step()
            for name, tensor in module.state_dict().items():
                mean[name] += coefficient * tensor
        server = mean
    return server


def batches(client: int, size: int, local: eh.LocalSGD, round: int, seed: int) -> list[Tensor]:
    """The client's mini-batches of a round: epoch after epoch, each in its own order, the last
    batch as small as it must be."""
    if local.batch_size is None:
        return [torch.arange(size)] * (local.steps or local.epochs or 1)
    per_epoch = math.ceil(size / local.batch_size)
    epochs = math.ceil(local.steps / per_epoch) if local.steps else local.epochs or 1
    order = permutation(torch.tensor([client]), torch.tensor([size]), size, epochs, round, seed)[0]
    found = [batch for epoch in order for batch in epoch.split(local.batch_size)]
    return found[: local.steps] if local.steps else found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_momentum_and_weight_decay_are_those_of_torch_sgd(
    engine: str, momentum: float, weight_decay: float
) -> None:
    clients = numbers([6])
    local = eh.LocalSGD(lr=0.2, steps=4, momentum=momentum, weight_decay=weight_decay)
    result = eh.fit(
        network(),
        eh.Federation.from_arrays(clients),
        eh.FedAvg(),
        rounds=1,
        local=local,
        engine=engine,
    )
    module = network()
    optimizer = torch.optim.SGD(
        module.parameters(), lr=0.2, momentum=momentum, weight_decay=weight_decay
    )
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            module(torch.from_numpy(clients[0]["x"])), torch.from_numpy(clients[0]["y"])
        ).backward()
        optimizer.step()
    assert_same(result.params, module.state_dict())


def test_momentum_in_numbers(engine: str) -> None:
    # B alone, lr .05, momentum .5: v1 = -16, w1 = 1.8; slope 4 (3.6 - 6) = -9.6, v2 = -8 - 9.6 =
    # -17.6, w2 = 1.8 + .88 = 2.68 a new round starts its momentum at zero: slope 4 (5.36 - 6) =
    # -2.56, w = 2.808
    local = eh.LocalSGD(lr=0.05, steps=2, momentum=0.5)
    assert value(run(eh.FedAvg(), engine, B, local=local).params) == near(2.68)
    first = 2.68 - 0.05 * -2.56
    velocity = 0.5 * -2.56 + g_b(first)
    assert value(run(eh.FedAvg(), engine, B, local=local, rounds=2).params) == near(
        first - 0.05 * velocity
    )


LOCAL_WORK = {
    "one epoch of whole data": eh.LocalSGD(lr=0.3),
    "three steps on whole data": eh.LocalSGD(lr=0.3, steps=3),
    "epochs of mini-batches": eh.LocalSGD(lr=0.2, epochs=3, batch_size=4),
    "steps on mini-batches": eh.LocalSGD(lr=0.2, steps=5, batch_size=4),
    "everything": eh.LocalSGD(
        lr=0.2, epochs=2, batch_size=4, momentum=0.9, weight_decay=0.05, decay=0.8
    ),
}


@pytest.mark.parametrize("local", LOCAL_WORK.values(), ids=LOCAL_WORK.keys())
def test_fedavg_equals_a_plain_pytorch_fedavg(engine: str, local: eh.LocalSGD) -> None:
    clients = numbers([9, 4, 14, 1])
    result = eh.fit(
        network(),
        eh.Federation.from_arrays(clients),
        eh.FedAvg(),
        rounds=3,
        local=local,
        seed=7,
        engine=engine,
    )
    assert_same(result.params, plain_fedavg(network(), clients, local, 3, 7))


@pytest.mark.parametrize(
    "cohort",
    [eh.Uniform(2), eh.Proportional(3), eh.Proportional(2, replacement=False)],
    ids=["E", "B", "C"],
)
def test_fedavg_with_sampling_equals_a_plain_pytorch_fedavg(engine: str, cohort: eh.Cohort) -> None:
    clients, local = numbers([9, 4, 14, 1]), LOCAL_WORK["everything"]
    fed = eh.Federation.from_arrays(clients)
    found = [cohort.draw(fed.census(), 7, round) for round in range(4)]
    coefficients = [
        dict(zip(draw.ids.tolist(), draw.weight.tolist(), strict=True)) for draw in found
    ]
    result = eh.fit(
        network(), fed, eh.FedAvg(), rounds=4, local=local, seed=7, engine=engine, cohort=cohort
    )
    assert_same(result.params, plain_fedavg(network(), clients, local, 4, 7, coefficients))


def test_the_order_of_samples_is_a_permutation_of_its_own_for_every_seed_round_client_and_epoch() -> (
    None
):
    ids, sizes, width = torch.arange(3), torch.tensor([20, 13, 20]), 20
    seen = set()
    for seed, round in itertools.product(range(2), range(2)):
        order = permutation(ids, sizes, width, 2, round, seed)
        for client, epoch in itertools.product(range(3), range(2)):
            visited = order[client, epoch, : sizes[client]].tolist()
            assert sorted(visited) == list(range(int(sizes[client])))
            seen.add(tuple(visited))
    assert len(seen) == 2 * 2 * 3 * 2


def test_every_place_in_the_order_is_equally_likely() -> None:
    trials, size = 2000, 4
    first = permutation(torch.arange(trials), torch.full((trials,), size), size, 1, 0, 0)[:, 0, 0]
    for position in range(size):
        assert_frequency(int((first == position).sum()), trials, 1 / size)


def test_fedminmax_counts_an_absent_group_with_its_last_known_risk() -> None:
    """Three exchanges with the server alone: mu <- projection(mu + lr_mu * risk), risks of absent
    groups as last seen."""
    census = eh.Census(
        torch.tensor([2, 2]),
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([[2, 0], [0, 2]]),
        None,
    )
    method = eh.FedMinMax(lr_mu=0.1)
    state = method.init({"w": torch.zeros(1)}, census)

    def round_with(loss: list[float], share: list[float]) -> list[float]:
        nonlocal state
        total = {
            "delta": {"w": torch.zeros(1, dtype=torch.float64)},
            "weight": torch.tensor(1.0, dtype=torch.float64),
        }
        sums = {
            "group_loss": torch.tensor(loss, dtype=torch.float64),
            "group_share": torch.tensor(share, dtype=torch.float64),
        }
        state, _ = method.server(state, eh.Replies(torch.tensor([0]), {**total, **sums}, {}))
        return [round(value, 12) for value in state["mu"].tolist()]

    # group 1 never seen: the mean of the others' risks, 1, no change
    assert round_with([0.5, 0.0], [0.5, 0.0]) == [0.5, 0.5]
    # risks 1 (last known) and 3: difference 2, half of 0.1 * 2 each way
    assert round_with([0.0, 1.5], [0.0, 0.5]) == [0.4, 0.6]
    assert round_with([0.5, 0.0], [0.5, 0.0]) == [0.3, 0.7]  # risks 1 and 3 (last known)
