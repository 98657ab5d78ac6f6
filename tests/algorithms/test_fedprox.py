"""FedProx: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import torch
from torch import nn

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import P_A, P_B, g_a, g_b, near, run, value

# ---- by hand


def test_fedprox_two_steps_in_numbers(engine: str) -> None:
    # mu = 2: A: 1 -> 1.2 -> 1.2 - .1 (2 (-.8) + 2 (.2)) = 1.32;  B: 1 -> 2.6 -> 2.6 - .1 (4 (-.8) +
    # 2 (1.6)) = 2.6
    assert value(run(eh.FedProx(mu=2.0), engine, lr=0.1, steps=2).params) == near(
        0.75 * 1.32 + 0.25 * 2.6
    )


def test_fedprox_one_step_feels_no_pull(engine: str) -> None:
    assert value(run(eh.FedProx(mu=5.0), engine, lr=0.1).params) == near(1.55)


def test_fedprox_pulls_towards_the_model_received_this_round(engine: str) -> None:
    w = 1.0
    for _ in range(3):
        a = b = w
        for _ in range(3):
            a, b = a - 0.05 * (g_a(a) + 2 * (a - w)), b - 0.05 * (g_b(b) + 2 * (b - w))
        w = P_A * a + P_B * b
    assert value(run(eh.FedProx(mu=2.0), engine, lr=0.05, steps=3, rounds=3).params) == near(w)


# ---- where it is another method


def test_fedprox_of_ditto_pulls_the_shared_model_alone(engine: str) -> None:
    """The shared model is FedProx's. In the first round Ditto's own models, which FedProx does not
    touch, are plain Ditto's."""
    found = limits.train(
        eh.FedProx(mu=1.5, inner=eh.Ditto(lam=0.5)), engine, local=limits.MINI_BATCHES
    )
    limits.assert_same(
        found.params, limits.train(eh.FedProx(mu=1.5), engine, local=limits.MINI_BATCHES).params
    )
    first, plain = (
        limits.train(method, engine, local=limits.MINI_BATCHES, rounds=1)
        for method in (eh.FedProx(1.5, eh.Ditto(lam=0.5)), eh.Ditto(lam=0.5))
    )
    for one, other in zip(first.personal or [], plain.personal or [], strict=True):
        limits.assert_same(one, other)


# ---- the optimum


def test_fedprox_takes_long_local_work_nearer_to_the_least_mean_loss() -> None:
    def mean_loss(mu: float) -> float:
        module = nn.Linear(convex.FEATURES, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(module.weight)
        local, fed = eh.LocalSGD(lr=0.1, steps=40), eh.Federation.from_arrays(convex.clients())
        result = eh.fit(
            module,
            fed,
            eh.FedProx(mu=mu),
            loss="mse",
            rounds=40,
            local=local,
            eval_every=40,
            engine="vmap",
        )
        return float(convex.P @ convex.losses(convex.parameters(result)))

    optimum = convex.minimise(lambda theta: convex.P @ convex.losses(theta))
    drifted, held = mean_loss(0.0), mean_loss(5.0)
    assert held <= convex.WITHIN * optimum
    assert held - optimum < (drifted - optimum) / 4
