"""AFL: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import pytest
from torch.nn.functional import cross_entropy

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import (
    P_A,
    P_B,
    f_a,
    f_b,
    g_a,
    g_b,
    local_model,
    near,
    project_two,
    run,
    value,
)
from tests.support.federations import with_output

# ---- by hand


def test_uniform_weights_start_afl_at_one_over_n(engine: str) -> None:
    result = run(eh.AFL(lr_lambda=0.0), engine, lr=0.1, weights="uniform")
    assert value(result.params) == near(1.9)
    assert result.state["lam"].tolist() == near([0.5, 0.5])


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


def test_afl_before_weighs_the_round_by_the_raised_lambda(engine: str) -> None:
    # (.75 + .02 * 5/3, .25 + .02 * 16) less half the excess .35333..: (.60666.., .39333..);  1 + .1
    # (.60666.. * 2 + .39333.. * 16)
    found = run(eh.AFL(lr_lambda=0.02, order="before"), engine, lr=0.1)
    assert value(found.params) == near(1 + 0.1 * (0.91 / 1.5 * 2 + 0.59 / 1.5 * 16))
    assert found.state["lam"].tolist() == near([0.91 / 1.5, 0.59 / 1.5])


@pytest.mark.parametrize("output", ["last", "average"])
def test_afl_before_takes_losses_at_the_received_model(engine: str, output: str) -> None:
    w, lam, models = 1.0, (P_A, P_B), []
    for _ in range(3):
        lam = project_two(lam[0] + 0.02 * f_a(w), lam[1] + 0.02 * f_b(w))
        w = lam[0] * local_model(g_a, w, 0.05, 2) + lam[1] * local_model(g_b, w, 0.05, 2)
        models.append(w)
    found = run(
        with_output(eh.AFL(lr_lambda=0.02, order="before"), output),
        engine,
        lr=0.05,
        steps=2,
        rounds=3,
    )
    assert value(found.params) == near(w if output == "last" else sum(models) / 3)
    assert found.state["lam"].tolist() == near(list(lam))


# ---- where it is another method


def test_afl_without_ascent_is_full_batch_gradient_descent(engine: str) -> None:
    """Special case 12: lr_lambda = 0 keeps lambda = p."""
    result = limits.train(eh.AFL(lr_lambda=0.0), engine)
    limits.assert_same(
        result.params,
        limits.descend(
            lambda linear: cross_entropy(linear(limits.pooled()[0]), limits.pooled()[1]),
            limits.FULL_STEP.lr,
        ),
    )
    limits.assert_same(result.params, limits.train(eh.FedAvg(), engine).params)
    assert result.state["lam"].tolist() == pytest.approx(limits.SHARES, abs=1e-15)


def test_afl_before_without_ascent_is_fedavg(engine: str) -> None:
    found = limits.train(
        eh.AFL(lr_lambda=0.0, order="before"), engine, local=limits.MINI_BATCHES
    ).params
    limits.assert_same(found, limits.train(eh.FedAvg(), engine, local=limits.MINI_BATCHES).params)


# ---- the optimum


@pytest.mark.parametrize(("output", "rounds"), [("last", 110), ("average", 300)])
def test_afl_reaches_the_least_worst_client_loss(output: str, rounds: int) -> None:
    theta = convex.parameters(
        convex.train(with_output(eh.AFL(lr_lambda=0.03), output), lr=0.2, rounds=rounds)
    )
    convex.assert_reaches(
        lambda theta: convex.losses(theta).max(), convex.minimax(convex.losses), theta
    )


def test_afl_whose_lam_rises_first_reaches_the_least_worst_client_loss() -> None:
    theta = convex.parameters(
        convex.train(eh.AFL(lr_lambda=0.03, order="before"), lr=0.2, rounds=110)
    )
    convex.assert_reaches(
        lambda theta: convex.losses(theta).max(), convex.minimax(convex.losses), theta
    )
