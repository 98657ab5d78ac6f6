"""Agnostic FedAvg: numbers by hand, the optimum."""

from __future__ import annotations

import math

import evenhand as eh
from tests.support import convex
from tests.support.by_hand import (
    GROUPED,
    P_A,
    P_B,
    C,
    federation,
    g_a,
    g_b,
    local_model,
    near,
    run,
    value,
)

# ---- by hand


def test_agnostic_fedavg_two_rounds_in_numbers(engine: str) -> None:
    # round 1 by the shares is FedAvg's 1.55; risks at 1: u 4, v 17/3. With e^(lr_lambda 5/3) = 2,
    # lam ~ 1/4 : 2 * 3/4 = 1 : 6
    method = eh.AgnosticFedAvg(lr_lambda=0.6 * math.log(2))
    first = run(method, engine, *GROUPED, lr=0.1)
    assert value(first.params) == near(1.55)
    assert first.state["lam"].tolist() == near([1 / 7, 6 / 7])
    # one step each: lam_u r_u' + lam_v r_v' = 1/7 * 2 (1.55 - 3) + 6/7 * (2 (.55) + 2 (-.45) + 4
    # (3.1 - 6)) / 3
    slope = 1 / 7 * 2 * (1.55 - 3) + 6 / 7 * (2 * 0.55 - 2 * 0.45 + 4 * (3.1 - 6)) / 3
    assert value(run(method, engine, *GROUPED, lr=0.1, rounds=2).params) == near(1.55 - 0.1 * slope)


def test_agnostic_fedavg_local_work_descends_the_weighted_mean_and_counts_by_its_weight(
    engine: str,
) -> None:
    # scales lam/N = (4/7, 8/7): A descends (4 (w-3)^2 + 8 (w-1)^2 + 8 (w-2)^2) / 20, B its own
    # loss; they count 20 : 8
    method, lr = eh.AgnosticFedAvg(lr_lambda=0.6 * math.log(2)), 0.03
    w = P_A * local_model(g_a, 1.0, lr, 2) + P_B * local_model(g_b, 1.0, lr, 2)
    a = local_model(lambda w: (8 * (w - 3) + 16 * (w - 1) + 16 * (w - 2)) / 20, w, lr, 2)
    b = local_model(g_b, w, lr, 2)
    found = run(method, engine, *GROUPED, lr=lr, steps=2, rounds=2)
    assert value(found.params) == near((20 * a + 8 * b) / 28)


def test_agnostic_fedavg_raises_lambda_by_the_losses_of_the_cohort_over_its_recent_shares(
    engine: str,
) -> None:
    # client C is all of group u; two of three train. N_a: mean share of the group in the last two
    # cohorts, at first its share
    clients = (*GROUPED, {**C, "group": ["u", "u"]})
    # group, x, y
    samples = [[("v", 1, 1), ("v", 1, 2), ("u", 1, 3)], [("v", 2, 6)], [("u", 1, -1), ("u", 1, -3)]]
    cohort, census, lr, ascent = eh.Uniform(2), federation(*clients).census(), 0.02, 0.05
    w, lam, recent = 1.0, {"u": 1 / 2, "v": 1 / 2}, [{"u": 1 / 2, "v": 1 / 2}] * 2
    for round in range(5):
        ids = cohort.draw(census, 3, round).ids.tolist()
        scale = {a: lam[a] / (sum(shares[a] for shares in recent) / 2) for a in "uv"}
        present = [sample for i in ids for sample in samples[i]]
        slope = sum(scale[a] * 2 * x * (w * x - y) for a, x, y in present) / sum(
            scale[a] for a, _, _ in present
        )
        losses = {a: [(w * x - y) ** 2 for group, x, y in present if group == a] for a in "uv"}
        assert all(losses.values())
        raised = {a: lam[a] * math.exp(ascent * sum(losses[a]) / len(losses[a])) for a in "uv"}
        lam = {a: raised[a] / sum(raised.values()) for a in "uv"}
        recent = [recent[1], {a: len(losses[a]) / len(present) for a in "uv"}]
        w -= lr * slope
    found = run(
        eh.AgnosticFedAvg(lr_lambda=ascent, window=2),
        engine,
        *clients,
        lr=lr,
        rounds=5,
        cohort=cohort,
        seed=3,
    )
    assert value(found.params) == near(w)
    assert found.state["lam"].tolist() == near([lam["u"], lam["v"]])


# ---- the optimum


def test_agnostic_fedavg_reaches_the_least_worst_group_risk() -> None:
    theta = convex.parameters(convex.train(eh.AgnosticFedAvg(lr_lambda=0.3), lr=0.2, rounds=110))
    convex.assert_reaches(
        lambda theta: convex.group_risks(theta).max(), convex.minimax(convex.group_risks), theta
    )
