"""FedAvgM and FedAdam: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import math

import pytest

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import P_A, P_B, clients_of, g_a, g_b, move, near, run, value

# ---- by hand


def test_fedavgm_two_rounds_in_numbers(engine: str) -> None:
    # Delta_1 = -.55, theta = 1.55; Delta_2 = .1 (.75 (-.9) + .25 * 4 (3.1 - 6)) = -.3575, v = .5
    # (-.55) - .3575 = -.6325
    assert value(run(eh.FedAvgM(lr=1.0, momentum=0.5), engine, lr=0.1, rounds=2).params) == near(
        1.55 + 0.6325
    )


def test_fedavgm_scales_the_step_not_the_momentum(engine: str) -> None:
    w, v = 1.0, 0.0
    for _ in range(3):
        v = 0.8 * v + 0.1 * (P_A * g_a(w) + P_B * g_b(w))
        w -= 0.3 * v
    assert value(run(eh.FedAvgM(lr=0.3, momentum=0.8), engine, lr=0.1, rounds=3).params) == near(w)


def test_fedadam_two_rounds_in_numbers(engine: str) -> None:
    # m_1 = .1 (-.55), v_1 = .99 tau^2 + .01 * .3025, no correction
    b1, b2, tau, lr = 0.9, 0.99, 0.5, 0.2
    m, v = (1 - b1) * -0.55, b2 * tau**2 + (1 - b2) * 0.3025
    assert (m, v) == near((-0.055, 0.250525))
    w = 1 - lr * m / (math.sqrt(v) + tau)
    method = eh.FedAdam(lr=lr, b1=b1, b2=b2, tau=tau)
    assert value(run(method, engine, lr=0.1).params) == near(w)
    delta = 0.1 * (P_A * g_a(w) + P_B * g_b(w))
    m, v = b1 * m + (1 - b1) * delta, b2 * v + (1 - b2) * delta**2
    w -= lr * m / (math.sqrt(v) + tau)
    assert value(run(method, engine, lr=0.1, rounds=2).params) == near(w)


def test_fedadam_scales_each_weight_by_itself(engine: str) -> None:
    # one client, update (3, -4): m = (.3, -.4), v = .99 tau^2 + .01 (9, 16), default tau = .001
    expected = [
        -0.01 * m / (math.sqrt(0.99e-6 + 0.01 * d**2) + 0.001) for m, d in ((0.3, 3), (-0.4, 4))
    ]
    assert move(eh.FedAdam(), engine, clients_of((3, -4))) == near(expected)


# ---- where it is another method


def test_a_server_step_of_one_of_a_server_optimiser_is_that_optimiser(engine: str) -> None:
    for inner in (
        eh.FedAdam(lr=0.1),
        eh.FedAvgM(lr=0.5, momentum=0.5, inner=eh.AFL(lr_lambda=0.3)),
    ):
        limits.assert_same(
            limits.train(eh.FedAvgM(lr=1.0, momentum=0.0, inner=inner), engine).params,
            limits.train(inner, engine).params,
        )


# ---- the optimum

WAYS = {
    "fedavgm": eh.FedAvgM(lr=0.5, momentum=0.5),
    "fedadam": eh.FedAdam(lr=0.05),
}


@pytest.mark.parametrize("name", WAYS)
def test_server_optimisers_reach_the_least_mean_loss(name: str) -> None:
    theta = convex.parameters(convex.train(WAYS[name], lr=0.3, rounds=100))
    optimum = convex.minimise(lambda theta: convex.P @ convex.losses(theta))
    assert convex.P @ convex.losses(theta) <= convex.WITHIN * optimum
    assert theta == pytest.approx(convex.fedavg_minimiser(), abs=0.01)
