"""Ditto: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import evenhand as eh
from evenhand.local import permutation
from tests.support import convex, limits
from tests.support.by_hand import P_A, P_B, federation, g_a, g_b, near, run, value

# ---- by hand


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


# ---- where it is another method


@limits.every_scheme
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_ditto_server_model_is_fedavgs(cohort: eh.Cohort, lam: float) -> None:
    """Special case 16: the personal part never touches the global one."""
    found = limits.train(eh.Ditto(lam=lam), local=limits.MINI_BATCHES, cohort=cohort).params
    limits.assert_same(
        found, limits.train(eh.FedAvg(), local=limits.MINI_BATCHES, cohort=cohort).params
    )


@limits.every_local
def test_ditto_without_pull_is_training_alone(engine: str, local: eh.LocalSGD) -> None:
    """Special case 16: lam = 0, v_i is client i's own SGD, round after round, as if there were no
    server."""
    result = limits.train(eh.Ditto(lam=0.0), engine, local=local)
    for i, client in enumerate(limits.samples()):
        x, y, alone = torch.from_numpy(client["x"]), torch.from_numpy(client["y"]), limits.module()
        for round in range(limits.ROUNDS):
            rate = local.lr * local.decay**round
            optimizer = torch.optim.SGD(
                alone.parameters(),
                lr=rate,
                momentum=local.momentum,
                weight_decay=local.weight_decay,
            )
            order = permutation(
                torch.tensor([i]),
                torch.tensor([len(y)]),
                len(y),
                local.epochs or 1,
                round,
                limits.SEED,
            )[0]
            for batch in (
                piece for epoch in order for piece in epoch.split(local.batch_size or len(y))
            ):
                optimizer.zero_grad()
                cross_entropy(alone(x[batch]), y[batch]).backward()
                optimizer.step()
        limits.assert_same((result.personal or [])[i], dict(alone.state_dict()))


# ---- the optimum


def test_ditto_clients_reach_the_least_of_their_own_objectives() -> None:
    lam = 1.0
    result = convex.train(eh.Ditto(lam=lam), lr=0.2, rounds=60)
    assert convex.parameters(result) == pytest.approx(convex.fedavg_minimiser(), abs=1e-6)
    for i, own in enumerate(result.personal or []):

        def objective(v: convex.Vector, i: int = i) -> float:
            return convex.losses(v)[i] + lam / 2 * ((v - convex.fedavg_minimiser()) ** 2).sum()

        convex.assert_reaches(objective, convex.minimise(objective), own["weight"].numpy()[0])
