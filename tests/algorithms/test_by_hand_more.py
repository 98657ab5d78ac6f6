"""More numbers worked out in plain arithmetic: the younger methods, options and wrappers, on the
problem of test_by_hand.py.

    client A: three samples   f_a(1) = 5/3   f_a'(1) = -2
    client B: one sample      f_b(1) = 16    f_b'(1) = -16
    client C: two samples     f_c(1) = 10    f_c'(1) = 6

A and B alone have p = (3/4, 1/4), all three p = (3, 1, 2)/6. Where directions matter the model has
several weights and each client one sample, repeated, chosen so that from w = 0 with lr 1/2 its
update received - local is a given vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import evenhand as eh
from tests.algorithms.test_by_hand import (
    A,
    B,
    C,
    batches,
    f_a,
    f_b,
    f_c,
    federation,
    g_a,
    g_b,
    g_c,
    near,
    project_two,
    run,
    sigmoid,
    value,
)
from tests.support.federations import with_output

P_A, P_B = 3 / 4, 1 / 4
THREE = (A, B, C)
P = (3 / 6, 1 / 6, 2 / 6)
F = (f_a, f_b, f_c)
G = (g_a, g_b, g_c)

LEFT, RIGHT = {**A, "team": "s"}, {**B, "team": "t"}
TEAMS = (LEFT, RIGHT, {**C, "team": "s"})


@pytest.fixture(params=["loop", "vmap"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def at(functions: Sequence[Callable[[float], float]], w: float) -> list[float]:
    return [function(w) for function in functions]


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(one, other, strict=True))


def share(values: Sequence[float]) -> list[float]:
    return [value / sum(values) for value in values]


def local_model(g: Callable[[float], float], w: float, lr: float, steps: int) -> float:
    for _ in range(steps):
        w -= lr * g(w)
    return w


def clients_of(
    *updates: Sequence[float],
    counts: Sequence[int] | None = None,
    losses: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """Clients whose update from w = 0 with lr 1/2 is the given vector u, and whose loss there is 1
    or the given one.

    With root^2 the loss and x = u / root, (w x + root)^2 has the slope 2 u at w = 0.
    """
    clients = []
    for u, count, loss in zip(
        updates, counts or [1] * len(updates), losses or [1.0] * len(updates), strict=True
    ):
        root = math.sqrt(loss)
        clients.append({"x": [[entry / root for entry in u]] * count, "y": [-root] * count})
    return clients


def move(
    algorithm: eh.Algorithm, engine: str, clients: list[dict[str, Any]], **settings: Any
) -> list[float]:
    """Where the model goes from 0 with lr 1/2."""
    arrays = [
        {**client, "x": np.array(client["x"]), "y": np.array(client["y"])} for client in clients
    ]
    module = nn.Linear(len(clients[0]["x"][0]), 1, bias=False).double()
    with torch.no_grad():
        module.weight.zero_()
    settings = {"rounds": 1, "local": eh.LocalSGD(lr=0.5, steps=1), **settings}
    found = eh.fit(
        module, eh.Federation.from_arrays(arrays), algorithm, loss="mse", engine=engine, **settings
    )
    return found.params["weight"][0].tolist()


def test_the_numbers_of_the_problem_are_those_in_the_docstring(engine: str) -> None:
    assert (at(F, 1.0), at(G, 1.0)) == ([5 / 3, 16, 10], [-2, -16, 6])
    # FedAvg moves by minus the mean of the updates: -(3/4 (3, 4) + 1/4 (0, 2))
    assert move(eh.FedAvg(), engine, clients_of((3, 4), (0, 2), counts=(3, 1))) == near(
        [-2.25, -3.5]
    )


# ---- TERM (Li et al., ICLR 2021)


def test_term_in_numbers(engine: str) -> None:
    # t (f_b - f_a) = t 43/3 = log 3: B counts three times its weight, 3/4 : 3 * 1/4 = 1/2 : 1/2;  1
    # + .1 (2 + 16) / 2
    assert value(run(eh.TERM(t=3 * math.log(3) / 43), engine, lr=0.1).params) == near(1.9)


def test_term_with_a_negative_tilt_favours_the_best(engine: str) -> None:
    # B counts a third of its weight: 3/4 : 1/12 = 9 : 1;  1 + .1 (9 * 2 + 16) / 10
    assert value(run(eh.TERM(t=-3 * math.log(3) / 43), engine, lr=0.1).params) == near(1.34)


def test_term_with_uniform_weights_tilts_from_one_half_each(engine: str) -> None:
    # 1 : 3;  1 + .1 (2 + 3 * 16) / 4
    assert value(
        run(eh.TERM(t=3 * math.log(3) / 43), engine, lr=0.1, weights="uniform").params
    ) == near(2.25)


def test_term_takes_the_loss_before_and_the_step_after_local_work(engine: str) -> None:
    w, t, lr = 1.0, 0.2, 0.05
    for _ in range(3):
        lam = share([P_A * math.exp(t * f_a(w)), P_B * math.exp(t * f_b(w))])
        w = lam[0] * local_model(g_a, w, lr, 2) + lam[1] * local_model(g_b, w, lr, 2)
    assert value(run(eh.TERM(t=t), engine, lr=lr, steps=2, rounds=3).params) == near(w)


def test_term_teams_in_numbers(engine: str) -> None:
    # R_s = (3 * 5/3 + 2 * 10) / 5 = 5 over samples, R_t = 16; t 11 = log 2 doubles B: 3 : 2 * 1 : 2
    # 1 - .1 (3 (-2) + 2 (-16) + 2 (6)) / 7
    assert value(
        run(eh.TERM(t=math.log(2) / 11, level="team"), engine, *TEAMS, lr=0.1).params
    ) == near(1 + 0.1 * 26 / 7)


def test_term_teams_of_uniform_weights_compare_plain_means(engine: str) -> None:
    # R_s = (5/3 + 10) / 2 = 35/6, R_t = 16; t (16 - 35/6) = log 2: 1 : 2 : 1
    t = math.log(2) / (16 - 35 / 6)
    found = run(eh.TERM(t=t, level="team"), engine, *TEAMS, lr=0.1, weights="uniform")
    assert value(found.params) == near(1 - 0.1 * (-2 + 2 * -16 + 6) / 4)


def test_term_teams_recompute_their_losses_every_round(engine: str) -> None:
    w, t, lr = 1.0, 0.1, 0.03
    for _ in range(3):
        losses = at(F, w)
        mean_s = (3 * losses[0] + 2 * losses[2]) / 5
        lam = share(
            [3 * math.exp(t * mean_s), 1 * math.exp(t * losses[1]), 2 * math.exp(t * mean_s)]
        )
        w = dot(lam, [local_model(g, w, lr, 2) for g in G])
    assert value(
        run(eh.TERM(t=t, level="team"), engine, *TEAMS, lr=lr, steps=2, rounds=3).params
    ) == near(w)


def test_term_samples_in_numbers(engine: str) -> None:
    # losses at 1: 0, 1, 4 on A and 16 on B, slopes 0, -2, -4 and -16; with e^t = 2 the samples
    # weigh 1, 2, 16 and 2^16
    step = 0.01 * (2 * 2 + 16 * 4 + 2**16 * 16) / (1 + 2 + 16 + 2**16)
    assert value(run(eh.TERM(t=math.log(2), level="sample"), engine, lr=0.01).params) == near(
        1 + step
    )
    assert value(run(eh.TERM(t=math.log(2), sample_t=math.log(2)), engine, lr=0.01).params) == near(
        1 + step
    )


def test_term_tilts_samples_inside_and_clients_outside_by_their_own_exponents(engine: str) -> None:
    # e^s = 2 inside: F_a = log2((1 + 2 + 16) / 3), slope (2 (-2) + 16 (-4)) / 19; B has one sample,
    # so F_b = 16, slope -16
    t, tilted = 0.1, math.log2(19 / 3)
    lam = share([0.75 * math.exp(t * tilted), 0.25 * math.exp(t * 16)])
    found = run(eh.TERM(t=t, sample_t=math.log(2)), engine, lr=0.01)
    assert value(found.params) == near(1 + 0.01 * (lam[0] * 68 / 19 + lam[1] * 16))
    # no tilt outside leaves the data weights
    found = run(eh.TERM(t=0.0, sample_t=math.log(2)), engine, lr=0.01)
    assert value(found.params) == near(1 + 0.01 * (0.75 * 68 / 19 + 0.25 * 16))


@pytest.mark.parametrize(
    "cohort",
    [
        eh.Uniform(2),
        eh.Uniform(2, unbiased=True),
        eh.Proportional(2),
        eh.Proportional(2, replacement=False),
    ],
    ids=["E", "D", "B", "C"],
)
def test_term_normalises_over_the_participants(engine: str, cohort: eh.Cohort) -> None:
    census, t, lr, w, cohorts = federation(*THREE).census(), 0.15, 0.03, 1.0, set()
    for round in range(4):
        ids, a, _ = cohort.draw(census, 1, round)
        cohorts.add(tuple(ids.tolist()))
        lam = share(
            [
                weight * math.exp(t * F[i](w))
                for i, weight in zip(ids.tolist(), a.tolist(), strict=True)
            ]
        )
        w = dot(lam, [w - lr * G[i](w) for i in ids.tolist()])
    assert len(cohorts) > 1
    assert value(
        run(eh.TERM(t=t), engine, *THREE, lr=lr, rounds=4, cohort=cohort, seed=1).params
    ) == near(w)


# ---- GIFAIR by exact losses


def test_gifair_exact_ranks_from_the_first_round_on(engine: str) -> None:
    # c = .6 * 1/4 = .15 and B is the worse one at w = 1: weights (3/4 - .15, 1/4 + .15);  1 + .1
    # (.6 * 2 + .4 * 16)
    assert value(run(eh.GIFAIR(strength=0.6, exact_losses=True), engine, lr=0.1).params) == near(
        1.76
    )


def test_gifair_exact_ranks_by_the_received_model_not_by_the_local_one(engine: str) -> None:
    # lr = 1/8: B's local model has no loss left, yet B stays the worse one at the server's model in
    # rounds 1 and 2
    w = 1.0
    for _ in range(2):
        assert f_b(w) > f_a(w)
        w -= (0.6 * g_a(w) + 0.4 * g_b(w)) / 8
    assert value(
        run(eh.GIFAIR(strength=0.6, exact_losses=True), engine, lr=1 / 8, rounds=2).params
    ) == near(w)
    assert f_b(1 - g_b(1) / 8) == 0


def test_gifair_exact_turns_its_weights_where_the_order_turns(engine: str) -> None:
    # at 2.5 B is the worse one, f_a = .9166.. and f_b = 1; at 2.6 A is, f_a = 1.0266.. and f_b =
    # .64
    assert f_b(2.5) > f_a(2.5)
    assert f_b(2.6) < f_a(2.6)
    for w, sign in ((2.5, 1), (2.6, -1)):
        expected = w - 0.1 * ((0.75 - sign * 0.15) * g_a(w) + (0.25 + sign * 0.15) * g_b(w))
        assert value(
            run(eh.GIFAIR(strength=0.6, exact_losses=True), engine, w=w, lr=0.1).params
        ) == near(expected)


def test_gifair_exact_asks_everyone_also_where_few_train(engine: str) -> None:
    # teams {A, C} and {B}: c_max = 1/6, c = .15; team means over clients at the received model,
    # whoever trains
    clients, cohort = TEAMS, eh.Uniform(1)
    census, lr, c, w, trained = federation(*clients).census(), 0.02, 0.15, 1.0, set()
    for round in range(6):
        i = int(cohort.draw(census, 4, round).ids)
        trained.add(i)
        higher = (f_a(w) + f_c(w)) / 2 > f_b(w)
        rho = (1, -1, 1)[i] if higher else (-1, 1, -1)[i]
        w -= lr * (1 + c * rho / (P[i] * (2, 1, 2)[i])) * G[i](w)
    assert len(trained) > 1
    found = run(
        eh.GIFAIR(strength=0.9, exact_losses=True),
        engine,
        *clients,
        lr=lr,
        rounds=6,
        cohort=cohort,
        seed=4,
    )
    assert value(found.params) == near(w)


# ---- q-FedSGD (Li et al., ICLR 2020, Algorithm 1), and another L


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


# ---- FAFL with a floor, whole local losses, other starts of eta, the average, the papers' first round


def test_fafl_floor_in_numbers(engine: str) -> None:
    # eta = 2 between the losses, a = .4: s_a = .4, s_b = .4 + (2 - .4) = 2 theta = 1 + .1 (.75 * .4
    # * 2 + .25 * 2 * 16) = 1.86;  eta = 2 - .1 (.75 (1 - .4) + .25 (1 - 2)) = 1.98
    found = run(eh.FAFL(alpha=(0.8, 0.5), mu=0.0, eta0=2.0, floor=0.4), engine, lr=0.1)
    assert value(found.params) == near(1.86)
    assert found.state["eta"].item() == near(1.98)


def test_fafl_floors_of_their_own_in_numbers(engine: str) -> None:
    # eta = 20 above both losses, a = (.4, .2): s = a;  theta = 1 + .1 (.75 * .4 * 2 + .25 * .2 *
    # 16) = 1.14 eta = 20 - .1 (.75 * .6 + .25 * .8) = 19.935
    found = run(eh.FAFL(alpha=(0.8, 0.5), mu=0.0, eta0=20.0, floor=(0.4, 0.2)), engine, lr=0.1)
    assert value(found.params) == near(1.14)
    assert found.state["eta"].item() == near(19.935)


def rfedfair_step(
    theta: float,
    eta: float,
    loss: float,
    slope: float,
    alpha: float,
    mu: float,
    lr: float,
    lr_eta: float,
    floor: float = 0.0,
) -> tuple[float, float]:
    """One simultaneous step on floor (f - eta) + (1/alpha - floor) phi_mu(f - eta) + eta."""
    s = floor + (1 / alpha - floor) * sigmoid((loss - eta) / mu)
    return theta - lr * s * slope, eta - lr_eta * (1 - s)


@pytest.mark.parametrize("floor", [0.0, 0.3, (0.6, 0.1), 1.0], ids=str)
def test_fafl_with_a_floor_moves_model_and_eta_together(
    engine: str, floor: float | tuple[float, float]
) -> None:
    floors = floor if isinstance(floor, tuple) else (floor, floor)
    w, eta, mu, lr, lr_eta = 1.0, 3.0, 2.0, 0.02, 0.3
    for _ in range(2):
        ends = []
        for f, g, alpha, least in ((f_a, g_a, 0.8, floors[0]), (f_b, g_b, 0.5, floors[1])):
            theta, height = w, eta
            for _ in range(2):
                theta, height = rfedfair_step(
                    theta, height, f(theta), g(theta), alpha, mu, lr, lr_eta, least
                )
            ends.append((theta, height))
        w, eta = (P_A * end_a + P_B * end_b for end_a, end_b in zip(*ends, strict=True))
    found = run(
        eh.FAFL(alpha=(0.8, 0.5), mu=mu, lr_eta=lr_eta, eta0=3.0, floor=floor),
        engine,
        lr=lr,
        steps=2,
        rounds=2,
    )
    assert (value(found.params), found.state["eta"].item()) == near((w, eta))


@pytest.mark.parametrize("sigma", ["batch", "local"])
@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_fafl_compares_eta_with_the_batch_or_with_the_whole_local_loss(
    engine: str, sigma: str, floor: float
) -> None:
    # batches of one sample: A takes two of its samples y in the order of the round, slope 2 (theta
    # - y), B its only one twice. "batch": s = sigmoid(((theta - y)^2 - eta) / mu) / alpha;
    # "local": s = sigmoid((f_a(theta) - eta) / mu) / alpha
    alpha, mu, lr, lr_eta = (0.8, 0.5), 3.0, 0.05, 0.2
    local = eh.LocalSGD(lr=lr, steps=2, batch_size=1)
    w, eta = 1.0, 2.0
    for round in range(2):
        targets = [A["y"][int(batch)] for batch in batches(0, 3, local, round, 6)]
        assert len(targets) == 2
        theta, height = w, eta
        for y in targets:
            loss = f_a(theta) if sigma == "local" else (theta - y) ** 2
            theta, height = rfedfair_step(
                theta, height, loss, 2 * (theta - y), alpha[0], mu, lr, lr_eta, floor
            )
        theta_b, height_b = w, eta
        for _ in range(2):
            theta_b, height_b = rfedfair_step(
                theta_b, height_b, f_b(theta_b), g_b(theta_b), alpha[1], mu, lr, lr_eta, floor
            )
        w, eta = P_A * theta + P_B * theta_b, P_A * height + P_B * height_b
    method = eh.FAFL(alpha=alpha, mu=mu, lr_eta=lr_eta, eta0=2.0, sigma=sigma, floor=floor)
    found = run(method, engine, rounds=2, local=local, seed=6)
    assert (value(found.params), found.state["eta"].item()) == near((w, eta))


def test_fafl_whole_local_loss_in_numbers(engine: str) -> None:
    # A alone, alpha = 1, mu = 0, eta = 1 < f_a(1) = 5/3: s = 1 at the first step, whatever the
    # sample. With batches of one and first y = 2: theta = 1 + .5 * 2 (2 - 1) = 2, eta stays 1;
    # f_a(2) = 2/3 < 1: s = 0, theta stays, eta = 1 - .5 = .5.
    local = eh.LocalSGD(lr=0.5, steps=2, batch_size=1)
    seed = next(
        s for s in range(100) if [int(batch) for batch in batches(0, 3, local, 0, s)] == [1, 2]
    )
    found = run(
        eh.FAFL(alpha=1.0, mu=0.0, eta0=1.0, sigma="local"), engine, A, local=local, seed=seed
    )
    assert (value(found.params), found.state["eta"].item()) == near((2.0, 0.5))
    # by the batch: loss 1 at y = 2 is not below eta = 1, s = 1, theta = 2; loss 1 at y = 3 the
    # same, s = 1: theta = 3, eta = 1
    found = run(
        eh.FAFL(alpha=1.0, mu=0.0, eta0=1.0, sigma="batch"), engine, A, local=local, seed=seed
    )
    assert (value(found.params), found.state["eta"].item()) == near((3.0, 1.0))


def test_fafl_starts_eta_at_the_mean_loss(engine: str) -> None:
    # .75 * 5/3 + .25 * 16 = 5.25; mu = 0: s = (0, 2), theta = 1.8, eta = 5.25 - .1 (.75 - .25) =
    # 5.2
    found = run(eh.FAFL(alpha=(0.8, 0.5), mu=0.0, eta0="mean"), engine, lr=0.1)
    assert (value(found.params), found.state["eta"].item()) == near((1.8, 5.2))
    # uniform: (5/3 + 16) / 2 = 53/6; eta = 53/6 - .1 (.5 - .5), theta = 1 + .1 * .5 * 2 * 16
    found = run(eh.FAFL(alpha=(0.8, 0.5), mu=0.0, eta0="mean"), engine, lr=0.1, weights="uniform")
    assert (value(found.params), found.state["eta"].item()) == near((2.6, 53 / 6))


def test_fafl_asks_the_first_cohort_once_for_the_start_of_eta(engine: str) -> None:
    cohort, census = eh.Uniform(2), federation(*THREE).census()
    w, mu, lr, alpha = 1.0, 4.0, 0.05, (0.9, 0.4, 0.5)
    for round in range(3):
        draw = cohort.draw(census, 2, round)
        members = list(zip(draw.ids.tolist(), draw.weight.tolist(), strict=True))
        if round == 0:
            eta = sum(a * F[i](w) for i, a in members)
        ends = [
            (a, *rfedfair_step(w, eta, F[i](w), G[i](w), alpha[i], mu, lr, lr)) for i, a in members
        ]
        w, eta = sum(a * theta for a, theta, _ in ends), sum(a * height for a, _, height in ends)
    found = run(
        eh.FAFL(alpha=alpha, mu=mu, eta0="mean"),
        engine,
        *THREE,
        lr=lr,
        rounds=3,
        cohort=cohort,
        seed=2,
    )
    assert (value(found.params), found.state["eta"].item()) == near((w, eta))


@pytest.mark.parametrize(
    ("alpha", "floor", "start"),
    [
        # caps p / alpha = (.5, 1/6, 1/3) / (.9, .4, .4) = (.56, .417, .833): B takes .417, C the
        # remaining .583: eta = f_c
        ((0.9, 0.4, 0.4), 0.0, 10.0),
        # caps (.56, .208, .417): B .208, C .417, A the remaining .375: eta = f_a
        ((0.9, 0.8, 0.8), 0.0, 5 / 3),
        # caps (.56, .833, .476): B .833, C the remaining .167
        ((0.9, 0.2, 0.7), 0.0, 10.0),
        # half of each weight is given: .5 left; caps above it p (1/alpha - .5) = (.31, .33, .67): B
        # .33, C .17: eta = f_c
        ((0.9, 0.4, 0.4), 0.5, 10.0),
        # .2 left; caps above the floor (.16, .283, .57): B takes it all: eta = f_b
        ((0.9, 0.4, 0.4), 0.8, 16.0),
        # floors (1, .5, .5): 1 - .5 - .25 = .25 left; caps above (.06, .33, .67): B takes it all
        ((0.9, 0.4, 0.4), (1.0, 0.5, 0.5), 16.0),
    ],
)
def test_fafl_starts_eta_where_the_mass_one_runs_out(
    engine: str, alpha: tuple[float, ...], floor: float | tuple[float, ...], start: float
) -> None:
    # s = a + (1/alpha - a) sigmoid((f - eta)/mu); theta and eta make one step of scheme A
    mu, lr = 4.0, 0.1
    floors = floor if isinstance(floor, tuple) else (floor,) * 3
    s = [
        a + (1 / level - a) * sigmoid((f - start) / mu)
        for a, level, f in zip(floors, alpha, at(F, 1.0), strict=True)
    ]
    found = run(eh.FAFL(alpha=alpha, mu=mu, eta0="quantile", floor=floor), engine, *THREE, lr=lr)
    assert value(found.params) == near(
        1 - lr * sum(p * x * g for p, x, g in zip(P, s, at(G, 1.0), strict=True))
    )
    assert found.state["eta"].item() == near(start - lr * (1 - dot(P, s)))


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


@pytest.mark.parametrize("output", ["last", "average"])
def test_fafl_short_first_round_has_one_step_and_the_others_all(engine: str, output: str) -> None:
    # averaging at iterations 0, kappa, 2 kappa, ...: one step, then kappa = 3 steps a round
    w, eta, models = 1.0, 2.0, []
    for steps in (1, 3, 3):
        ends = []
        for f, g, alpha in ((f_a, g_a, 0.8), (f_b, g_b, 0.5)):
            theta, height = w, eta
            for _ in range(steps):
                theta, height = rfedfair_step(
                    theta, height, f(theta), g(theta), alpha, 3.0, 0.03, 0.03
                )
            ends.append((theta, height))
        w, eta = (P_A * end_a + P_B * end_b for end_a, end_b in zip(*ends, strict=True))
        models.append(w)
    method = with_output(
        eh.FAFL(alpha=(0.8, 0.5), mu=3.0, eta0=2.0, short_first_round=True), output
    )
    for local in (eh.LocalSGD(lr=0.03, steps=3), eh.LocalSGD(lr=0.03, epochs=3)):
        found = run(method, engine, rounds=3, local=local)
        assert value(found.params) == near(w if output == "last" else sum(models) / 3)
        assert found.state["eta"].item() == near(eta)


# ---- AFL, lambda first


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


# ---- PropFair, past the threshold


@pytest.mark.parametrize("M", [16.125, 10.0], ids=["close to M", "above M"])
@pytest.mark.parametrize(
    ("continuation", "slope"), [("paper", "1/M"), ("linear", "1/M"), ("huber", "1/epsilon")]
)
def test_propfair_slope_past_the_threshold(
    engine: str, M: float, continuation: str, slope: str
) -> None:
    # epsilon = .2 > M - f_b: B's slope is 16 times 1/M = .062 or .1, or 1/epsilon = 5; A stays on
    # the logarithm
    factor = 1 / M if slope == "1/M" else 5
    expected = 1 + 0.01 * (0.75 * 2 / (M - 5 / 3) + 0.25 * 16 * factor)
    assert value(
        run(eh.PropFair(M=M, epsilon=0.2, continuation=continuation), engine, lr=0.01).params
    ) == near(expected)


@pytest.mark.parametrize("continuation", ["paper", "linear", "huber"])
def test_propfair_before_the_threshold_is_the_logarithm(engine: str, continuation: str) -> None:
    expected = 1 + 0.1 * (0.75 * 2 / (20 - 5 / 3) + 0.25 * 16 / 4)
    assert value(
        run(eh.PropFair(M=20.0, continuation=continuation), engine, lr=0.1).params
    ) == near(expected)


@pytest.mark.parametrize(
    ("continuation", "expected"),
    [
        ("paper", lambda loss: loss / 5),
        # meets the logarithm at M - epsilon, slope 1/M
        ("linear", lambda loss: -math.log(0.5) + (loss - 4.5) / 5),
        # its tangent there, slope 1/epsilon
        ("huber", lambda loss: -math.log(0.5) + (loss - 4.5) / 0.5),
    ],
)
def test_propfair_value_past_the_threshold(
    continuation: str, expected: Callable[[float], float]
) -> None:
    # one sample, x = 1, y = 0, so the loss is w^2; M = 5, epsilon = .5: the threshold is a loss of
    # 4.5. Up to a constant.
    method = eh.PropFair(M=5.0, epsilon=0.5, continuation=continuation)
    model = eh.Model(nn.Linear(1, 1, bias=False).double(), "mse")
    fed = federation({"x": [[1.0]], "y": [0.0]})
    one = torch.ones(1, dtype=torch.float64)
    batch = eh.Batch(
        fed.train.samples(torch.float64, torch.device("cpu")),
        torch.zeros(1, dtype=torch.int64),
        one,
    )

    def objective(loss: float) -> tuple[float, float]:
        w = torch.tensor([[math.sqrt(loss)]], dtype=torch.float64, requires_grad=True)
        value = method.objective(model, {"model": {"weight": w}}, batch, eh.Task({}))
        (slope,) = torch.autograd.grad(value, w)
        return value.item(), slope.item() / (2 * math.sqrt(loss))  # by the loss

    for loss in (0.5, 2.0, 4.4):
        assert objective(loss) == near((-math.log(5 - loss), 1 / (5 - loss)))
    for loss in (4.6, 5.0, 9.0):
        slope = 1 / 0.5 if continuation == "huber" else 1 / 5
        assert objective(loss) == near((expected(loss), slope))
    jump = objective(4.5 + 1e-9)[0] - objective(4.5 - 1e-9)[0]
    assert abs(jump) < 1e-7 or continuation == "paper"
    turn = objective(4.5 + 1e-9)[1] - objective(4.5 - 1e-9)[1]
    assert abs(turn) < 1e-7 or continuation != "huber"


# ---- FedMGDA+ (Hu et al., 2022)


@pytest.mark.parametrize(
    ("epsilon", "prior", "lam"),
    [
        (1.0, "weights", 1 / 2),  # two unit vectors are balanced by halves
        (0.1, "weights", 3 / 4 - 0.1),  # which lies outside the box around 3/4
        (0.2, "weights", 3 / 4 - 0.2),
        (0.25, "weights", 1 / 2),
        (0.0, "weights", 3 / 4),
        (0.0, "uniform", 1 / 2),
        (0.1, "uniform", 1 / 2),
    ],
)
def test_fedmgda_two_unit_vectors(engine: str, epsilon: float, prior: str, lam: float) -> None:
    # updates (3, 4) and (0, -2) become u = (.6, .8) and (0, -1)
    clients = clients_of((3, 4), (0, -2), counts=(3, 1))
    found = move(eh.FedMGDA(epsilon=epsilon, prior=prior), engine, clients)
    assert found == near([-lam * 0.6, -(lam * 0.8 - (1 - lam))])
    found = move(eh.FedMGDA(epsilon=epsilon, prior=prior, server_lr=0.3), engine, clients)
    assert found == near([-0.3 * lam * 0.6, -0.3 * (lam * 0.8 - (1 - lam))])


@pytest.mark.parametrize(
    ("updates", "lam"),
    [
        # the closed form: lam_1 = <u_2 - u_1, u_2> / |u_1 - u_2|^2, cut to [0, 1]
        (((3, 0), (0, 1)), 1 / 10),
        (((1, 0), (2, 1)), 1.0),  # (1, 1) . (2, 1) / 2 = 1.5: the first alone is the shortest
        (((2, 0), (-1, 0)), 1 / 3),  # (-3) (-1) / 9: the hull holds the origin
        (((1, 2), (1, -1)), 1 / 3),  # (0, -3) . (1, -1) / 9
    ],
)
def test_fedmgda_two_updates_as_they_are(
    engine: str, updates: tuple[tuple[int, int], ...], lam: float
) -> None:
    expected = [-(lam * x + (1 - lam) * y) for x, y in zip(*updates, strict=True)]
    for counts in ((1, 1), (5, 2)):  # the prior does not matter where the box is wide
        found = move(
            eh.FedMGDA(epsilon=1.0, normalise=False), engine, clients_of(*updates, counts=counts)
        )
        assert found == pytest.approx(expected, abs=1e-9)
    # with the prior 5/7 the box [5/7 - .1, 5/7 + .1] is active unless lam lies in it
    boxed = min(max(lam, 5 / 7 - 0.1), 5 / 7 + 0.1)
    found = move(
        eh.FedMGDA(epsilon=0.1, normalise=False), engine, clients_of(*updates, counts=(5, 2))
    )
    assert found == pytest.approx(
        [-(boxed * x + (1 - boxed) * y) for x, y in zip(*updates, strict=True)], abs=1e-9
    )


@pytest.mark.parametrize(
    ("epsilon", "normalise", "updates", "lam"),
    [
        # orthogonal: lam ~ 1 / |u|^2
        (1.0, False, ((1, 0, 0), (0, 2, 0), (0, 0, 2)), (2 / 3, 1 / 6, 1 / 6)),
        # the first stops at its box
        (0.1, False, ((1, 0, 0), (0, 2, 0), (0, 0, 2)), (1 / 3 + 0.1, 1 / 3 - 0.05, 1 / 3 - 0.05)),
        (1.0, True, ((1, 0, 0), (0, 2, 0), (0, 0, 2)), (1 / 3, 1 / 3, 1 / 3)),
        # u_3 lies between the others: the shortest point is the middle of the segment between u_1
        # and u_2
        (1.0, True, ((5, 0, 0), (0, 1, 0), (2, 2, 0)), (1 / 2, 1 / 2, 0)),
        # of |lam_1 + lam_3 r, lam_2 + lam_3 r|, r = 1/sqrt 2 > 1/2, lam_3 as small as its box
        # allows
        (0.1, True, ((5, 0, 0), (0, 1, 0), (2, 2, 0)), (1 / 3 + 0.05, 1 / 3 + 0.05, 1 / 3 - 0.1)),
    ],
)
def test_fedmgda_three_clients(
    engine: str,
    epsilon: float,
    normalise: bool,
    updates: tuple[tuple[int, ...], ...],
    lam: tuple[float, ...],
) -> None:
    u = np.array(updates, dtype=float)
    if normalise:
        u /= np.linalg.norm(u, axis=1, keepdims=True)
    found = move(eh.FedMGDA(epsilon=epsilon, normalise=normalise), engine, clients_of(*updates))
    assert found == pytest.approx((-np.array(lam) @ u).tolist(), abs=1e-9)


def test_fedmgda_takes_its_prior_from_the_cohort(engine: str) -> None:
    # two of three train, with a = p normalised over them; epsilon = 0 keeps it
    updates, counts, cohort = ((3.0, 4.0), (0.0, -2.0), (1.0, 0.0)), (3, 1, 2), eh.Uniform(2)
    clients = clients_of(*updates, counts=counts)
    units = np.array([(0.6, 0.8), (0, -1), (1, 0)])
    census = eh.Federation.from_arrays(clients).census()
    for seed in range(3):
        ids = cohort.draw(census, seed, 0).ids.tolist()
        expected = -np.array(share([counts[i] for i in ids])) @ units[ids]
        assert move(eh.FedMGDA(epsilon=0.0), engine, clients, cohort=cohort, seed=seed) == near(
            expected.tolist()
        )


# ---- Delta-FL


@pytest.mark.parametrize(
    ("tail", "training"),
    [
        # losses 5/3 (weight 1/2), 10 (1/3), 16 (1/6): the worst has more than a tenth of the weight
        (0.1, (1,)),
        (0.4, (1, 2)),  # 1/6 < .4 < 1/6 + 1/3
        (0.6, (0, 1, 2)),  # 1/2 < .6
        (1.0, (0, 1, 2)),
    ],
)
def test_deltafl_trains_the_tail_weighted_by_data(
    engine: str, tail: float, training: tuple[int, ...]
) -> None:
    counts = (3, 1, 2)
    mass = sum(counts[i] for i in training)
    expected = sum(counts[i] / mass * local_model(G[i], 1.0, 0.02, 2) for i in training)
    assert value(run(eh.DeltaFL(tail=tail), engine, *THREE, lr=0.02, steps=2).params) == near(
        expected
    )


def test_deltafl_in_numbers(engine: str) -> None:
    # B and C train: 1 - .1 (1 (-16) + 2 (6)) / 3
    assert value(run(eh.DeltaFL(tail=0.4), engine, *THREE, lr=0.1).params) == near(1 + 0.4 / 3)
    # uniform weights, thirds: the worst two of three are the tail of .4, with equal weight: 1 - .1
    # (-16 + 6) / 2
    assert value(
        run(eh.DeltaFL(tail=0.4), engine, *THREE, lr=0.1, weights="uniform").params
    ) == near(1.5)


def test_deltafl_filters_anew_every_round(engine: str) -> None:
    w, lr, seen = 1.0, 0.1, set()
    for _ in range(6):
        order = sorted(range(3), key=lambda i, w=w: -F[i](w))
        training, mass = [], 0.0
        for i in order:
            training.append(i)
            mass += P[i]
            if mass >= 0.3:
                break
        seen.add(tuple(training))
        w -= lr * sum(P[i] / mass * G[i](w) for i in training)
    assert len(seen) > 1
    assert value(run(eh.DeltaFL(tail=0.3), engine, *THREE, lr=lr, rounds=6).params) == near(w)


def test_deltafl_takes_the_tail_of_the_cohort(engine: str) -> None:
    # two of three are asked; the higher loss of the two trains alone if its share reaches the tail
    cohort, census = eh.Uniform(2), federation(*THREE).census()
    for seed in range(4):
        ids = cohort.draw(census, seed, 0).ids.tolist()
        worst = max(ids, key=lambda i: F[i](1.0))
        alone = P[worst] / sum(P[i] for i in ids) > 0.3
        training = [worst] if alone else ids
        expected = 1 - 0.1 * sum(P[i] / sum(P[j] for j in training) * G[i](1.0) for i in training)
        assert value(
            run(eh.DeltaFL(tail=0.3), engine, *THREE, lr=0.1, cohort=cohort, seed=seed).params
        ) == near(expected)


# ---- DRFA (Deng, Kamani, Mahdavi, NeurIPS 2020)


def test_drfa_two_rounds_in_numbers(engine: str) -> None:
    # round 1 by lam = p: 1.55, which is the snapshot too; f_a = .869166.., f_b = 8.41
    # lam_a = (1 + (.75 + .02 * .869166..) - (.25 + .02 * 8.41)) / 2 = .67459166..
    first = run(eh.DRFA(lr_lambda=0.02), engine, lr=0.1)
    assert value(first.params) == near(1.55)
    lam_a = (1.5 + 0.02 * (0.3025 + 0.2025 + 2.1025) / 3 - 0.02 * 8.41) / 2
    expected = 1.55 - 0.1 * (lam_a * 2 * (1.55 - 2) + (1 - lam_a) * 4 * (3.1 - 6))
    second = run(eh.DRFA(lr_lambda=0.02), engine, lr=0.1, rounds=2)
    assert value(second.params) == near(expected)


def test_drfa_keeps_raising_lambda(engine: str) -> None:
    w, lam = 1.0, project_two(P_A, P_B, 0.3)  # nobody ever has less than the floor
    for _ in range(4):
        w -= 0.05 * (lam[0] * g_a(w) + lam[1] * g_b(w))
        lam = project_two(lam[0] + 0.01 * f_a(w), lam[1] + 0.01 * f_b(w), 0.3)
    assert value(run(eh.DRFA(lr_lambda=0.01, floor=0.3), engine, lr=0.05, rounds=4).params) == near(
        w
    )


def test_drfa_snapshot_is_one_moment_of_the_round_for_everyone(engine: str) -> None:
    # three local steps: the snapshot is the mean of the local models after 1, 2 or 3 of them
    def second_round(moment: int) -> float:
        taken = P_A * local_model(g_a, 1.0, 0.02, moment) + P_B * local_model(
            g_b, 1.0, 0.02, moment
        )
        lam = project_two(P_A + 0.02 * f_a(taken), P_B + 0.02 * f_b(taken))
        w = P_A * local_model(g_a, 1.0, 0.02, 3) + P_B * local_model(g_b, 1.0, 0.02, 3)
        return lam[0] * local_model(g_a, w, 0.02, 3) + lam[1] * local_model(g_b, w, 0.02, 3)

    candidates = [second_round(moment) for moment in (1, 2, 3)]
    seen = set()
    for seed in range(12):
        found = value(
            run(eh.DRFA(lr_lambda=0.02), engine, lr=0.02, steps=3, rounds=2, seed=seed).params
        )
        hits = [
            moment for moment, candidate in enumerate(candidates, 1) if found == near(candidate)
        ]
        assert len(hits) == 1
        seen.update(hits)
    assert seen == {1, 2, 3}


def test_drfa_raises_lambda_of_those_asked_by_n_over_their_number(engine: str) -> None:
    # one of two is asked: lam + .02 * 2 f there, 0 elsewhere
    candidates = {}
    for asked in (0, 1):
        raised = [P_A, P_B]
        raised[asked] += 0.02 * 2 * F[asked](1.55)
        lam = project_two(*raised)
        candidates[asked] = 1.55 - 0.1 * (lam[0] * g_a(1.55) + lam[1] * g_b(1.55))
    seen = set()
    for seed in range(8):
        found = value(
            run(eh.DRFA(lr_lambda=0.02, sample=1), engine, lr=0.1, rounds=2, seed=seed).params
        )
        hits = [asked for asked, candidate in candidates.items() if found == near(candidate)]
        assert len(hits) == 1
        seen.update(hits)
    assert seen == {0, 1}


def test_drfa_draws_in_proportion_to_lambda(engine: str) -> None:
    # a huge ascent puts all of lam on the client that is worse at 1.., B: from round 2 on only B is
    # drawn
    cohort = eh.Proportional(2)
    first = cohort.draw(federation().census(), 3, 0)
    coefficient = dict(zip(first.ids.tolist(), first.weight.tolist(), strict=True))
    w = 1 - 0.01 * sum(a * G[i](1.0) for i, a in coefficient.items())
    for _ in range(3):
        assert f_b(w) - f_a(w) > 0.1
        w -= 0.01 * g_b(w)
    assert value(
        run(eh.DRFA(lr_lambda=100.0), engine, lr=0.01, rounds=4, cohort=cohort, seed=3).params
    ) == near(w)


# ---- FedFV (Wang et al., IJCAI 2021)


def rescaled(vector: Sequence[float], length: float) -> list[float]:
    return [entry * length / math.hypot(*vector) for entry in vector]


def test_fedfv_two_conflicting_updates_in_numbers(engine: str) -> None:
    # (2, 0) of loss 1 and (-1, 1) of loss 4 conflict: product -2. The worst keeps its own (alpha =
    # .1: one of two). (2, 0) - (-2)/2 (-1, 1) = (1, 1); mean ((1, 1) + (-1, 1))/2 = (0, 1), at the
    # length of the plain mean (1/2, 1/2)
    clients = clients_of((2, 0), (-1, 1), losses=(1, 4))
    assert move(eh.FedFV(alpha=0.1), engine, clients) == near([0, -math.sqrt(0.5)])
    # the other way round (-1, 1) is cleared of (2, 0): (0, 1); mean (1, 1/2), the same length
    clients = clients_of((2, 0), (-1, 1), losses=(4, 1))
    assert move(eh.FedFV(alpha=0.1), engine, clients) == near(
        [-x for x in rescaled((1, 0.5), math.sqrt(0.5))]
    )


def test_fedfv_with_nobody_kept_clears_every_update_of_the_others_as_received(engine: str) -> None:
    # alpha = 0: (2, 0) -> (1, 1) and (-1, 1) -> (0, 1), each against the other's received update;
    # mean (1/2, 1)
    for losses in ((1, 4), (4, 1)):
        found = move(eh.FedFV(alpha=0.0), engine, clients_of((2, 0), (-1, 1), losses=losses))
        assert found == near([-x for x in rescaled((0.5, 1), math.sqrt(0.5))])


def test_fedfv_keeping_all_is_the_plain_mean_and_so_is_the_absence_of_conflict(engine: str) -> None:
    assert move(
        eh.FedFV(alpha=1.0), engine, clients_of((2, 0), (-1, 1), losses=(1, 4), counts=(3, 1))
    ) == near([-0.5, -0.5])
    assert move(
        eh.FedFV(alpha=0.1), engine, clients_of((2, 0), (1, 1), losses=(1, 4), counts=(3, 1))
    ) == near([-1.5, -0.5])


def test_fedfv_clears_in_the_order_of_losses(engine: str) -> None:
    # u = (1, 0), v = (-1, 2), k = (-2, -1); losses 3, 1, 2, so the order is v, k, u; alpha = .1
    # keeps u, the worst (ceil .3 = 1). v: against k: 2 - 2 = 0, no conflict; against u: -1 -> (0,
    # 2) k: against v: 2 - 2 = 0, none; against u: -2 -> (0, -1) sum (1, 1); plain sum (-2, 1)
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 2), (-2, -1), losses=(3, 1, 2))
    )
    assert found == near([-x for x in rescaled((1, 1), math.sqrt(5) / 3)])
    # three in the plane that all conflict: a = (1, 0), b = (-1, 1), c = (-1, -2); losses 1, 2, 3
    # keep c. a: against b: -1 -> (1, 0) + (-1, 1)/2 = (.5, .5); against c: -1.5 -> (.5, .5) + .3
    # (-1, -2) = (.2, -.1) b: against a: -1 -> (0, 1); against c: -2 -> (0, 1) + .4 (-1, -2) = (-.4,
    # .2) sum (.2 - .4 - 1, -.1 + .2 - 2) = (-1.2, -1.9); plain sum (-1, -1)
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(1, 2, 3))
    )
    assert found == near([-x for x in rescaled((-1.2, -1.9), math.sqrt(2) / 3)])
    # losses 2, 1, 3: a meets b first as before, but b is first in order: the same clearing of each,
    # as others are as received
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(2, 1, 3))
    )
    assert found == near([-x for x in rescaled((-1.2, -1.9), math.sqrt(2) / 3)])
    # losses 3, 1, 2 keep a; b against c first: -1 -> (-1, 1) + .2 (-1, -2) = (-1.2, .6), then a:
    # (0, .6) c against b: -1 -> (-1, -2) + .5 (-1, 1) = (-1.5, -1.5), then a: (0, -1.5); sum (1,
    # -.9)
    found = move(
        eh.FedFV(alpha=0.1), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(3, 1, 2))
    )
    assert found == near([-x for x in rescaled((1, -0.9), math.sqrt(2) / 3)])


def test_fedfv_keeps_the_ceil_share_of_the_largest_losses(engine: str) -> None:
    # alpha = .5 of three keeps two, b and c of losses 2 and 3: a is cleared to (.2, -.1); sum (.2 -
    # 2, -.1 - 1)
    found = move(
        eh.FedFV(alpha=0.5), engine, clients_of((1, 0), (-1, 1), (-1, -2), losses=(1, 2, 3))
    )
    assert found == near([-x for x in rescaled((-1.8, -1.1), math.sqrt(2) / 3)])


@pytest.mark.parametrize("tau", [0, 1, 2])
def test_fedfv_remembers_those_absent_for_tau_rounds(engine: str, tau: int) -> None:
    # one of two clients in a round, x_1 = (1, 0) towards -2, x_2 = (-1, 1) towards -1: the slope of
    # (w x + c)^2 is 2 (w x + c) x
    xs, cs = np.array([(1.0, 0.0), (-1.0, 1.0)]), np.array([2.0, 1.0])
    clients = [{"x": [x.tolist()], "y": [-c]} for x, c in zip(xs, cs, strict=True)]
    cohort, census = eh.Uniform(1), eh.Federation.from_arrays(clients).census()
    w, last, cleared = np.zeros(2), {}, 0
    for round in range(6):
        i = int(cohort.draw(census, 5, round).ids)
        update = 0.1 * 2 * (w @ xs[i] + cs[i]) * xs[i]
        step, length = update, np.linalg.norm(update)
        for j, (when, old) in last.items():
            # the paper begins in round tau
            if j != i and tau <= round <= when + tau and step @ old < 0:
                step = step - (step @ old) / (old @ old) * old
                step, cleared = step * length / np.linalg.norm(step), cleared + 1
        last[i] = (round, update)
        w = w - step
    assert bool(cleared) == (tau > 0)
    found = move(
        eh.FedFV(alpha=0.1, tau=tau),
        engine,
        clients,
        rounds=6,
        cohort=cohort,
        seed=5,
        local=eh.LocalSGD(lr=0.1, steps=1),
    )
    assert found == near(w.tolist())


# ---- AdaFed (Hamidi and Yang, TMLR 2024)


def test_adafed_two_clients_in_numbers(engine: str) -> None:
    # g = (1, 0) and (.6, .8), losses 1 and 2: h_1 = (1, 0), h_2 = ((.6, .8) - .6 (1, 0)) / (2 - .6)
    # = (0, 4/7) lam ~ 1, 49/16: (16, 49)/65;  d = (16, 28)/65, and <g_2, d> = 32/65 is twice <g_1,
    # d> = 16/65
    clients = clients_of((5, 0), (3, 4), losses=(1, 2))
    assert move(eh.AdaFed(gamma=1.0), engine, clients) == near([-16 / 65, -28 / 65])
    assert move(eh.AdaFed(gamma=1.0, server_lr=0.5), engine, clients) == near([-8 / 65, -14 / 65])
    # gamma = 0: h_2 = (0, .8)/.4 = (0, 2); lam = (4/5, 1/5);  d = (.8, .4), with <g_1, d> = .8 = .6
    # * .8 + .8 * .4 = <g_2, d>
    assert move(eh.AdaFed(gamma=0.0), engine, clients) == near([-0.8, -0.4])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_adafed_lowers_each_loss_in_proportion_to_its_power(
    engine: str, gamma: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    updates, losses = generator.normal(size=(4, 6)), generator.uniform(0.5, 3, size=4)
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    # the point of the span with <g_i, d> = F_i^gamma |d|^2: with G the products of the g_i, d =
    # sum_i (G^-1 b)_i g_i scaled
    powers = losses**gamma
    direction = np.linalg.solve(units @ units.T, powers) @ units
    direction /= direction @ direction
    clients = clients_of(*updates.tolist(), losses=losses.tolist(), counts=(1, 3, 2, 1))
    d = -np.array(move(eh.AdaFed(gamma=gamma), engine, clients))
    assert units @ d == pytest.approx(powers * (d @ d), rel=1e-9)
    assert d == pytest.approx(direction, rel=1e-8)


# ---- Agnostic FedAvg (Ro et al., 2021)

# groups over clients: u = {A's y = 3}, v = {A's y = 1, 2, and B's}: shares 1/4 and 3/4
GROUPED = ({**A, "group": ["v", "v", "u"]}, {**B, "group": ["v"]})


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


# ---- AAggFF (Hahn et al., ICML 2024)


def normal_cdf(x: float) -> float:
    """Of mean and standard deviation 1."""
    return (1 + math.erf((x - 1) / math.sqrt(2))) / 2


def responses(losses: Sequence[float]) -> list[float]:
    mean = sum(losses) / len(losses)
    return [normal_cdf(loss / mean) for loss in losses]


def test_aaggff_newton_steps_have_a_closed_form_for_two_clients(engine: str) -> None:
    # p = (x, 1 - x), D_s = g_s1 - g_s2 of g = -r / (1 + <lam, r>), r = cdf / 2:
    # sum_s D_s x + 2 (x^2 + (1 - x)^2) + (2/8) sum_s D_s^2 (x - lam_s1)^2 is least where
    # sum D_s + 4 (2x - 1) + 1/2 sum D_s^2 (x - lam_s1) = 0;  the new weights weigh the same round
    w, lam, slopes, lr = 1.0, P_A, [], 0.05
    for round in range(3):
        r = [response / 2 for response in responses([f_a(w), f_b(w)])]
        inside = 1 + lam * r[0] + (1 - lam) * r[1]
        slopes.append(((r[1] - r[0]) / inside, lam))
        up = 4 - sum(D for D, _ in slopes) + sum(D**2 * past for D, past in slopes) / 2
        lam = up / (8 + sum(D**2 for D, _ in slopes) / 2)
        assert 0 < lam < 0.5
        w = lam * local_model(g_a, w, lr, 2) + (1 - lam) * local_model(g_b, w, lr, 2)
        found = run(eh.AAggFF(), engine, lr=lr, steps=2, rounds=round + 1)
        assert found.state["lam"].tolist() == pytest.approx([lam, 1 - lam], rel=1e-9)
        assert value(found.params) == pytest.approx(w, rel=1e-9)


def test_aaggff_ftrl_with_everyone(engine: str) -> None:
    # C = 1: lam ~ w exp(sum_s r_s / (1 + mean r_s) sqrt(log 3) / (3 sqrt(t + 1))), t = 1 in the
    # first round; what is common cancels
    w, total, lr = 1.0, [0.0, 0.0, 0.0], 0.05
    for round in range(3):
        r = responses(at(F, w))
        total = [sum_ + x / (1 + sum(r) / 3) for sum_, x in zip(total, r, strict=True)]
        lam = share(
            [
                p * math.exp(x * math.sqrt(math.log(3)) / (3 * math.sqrt(round + 2)))
                for p, x in zip(P, total, strict=True)
            ]
        )
        w = dot(lam, [local_model(g, w, lr, 2) for g in G])
    found = run(eh.AAggFF(solver="ftrl"), engine, *THREE, lr=lr, steps=2, rounds=3)
    assert found.state["lam"].tolist() == near(lam)
    assert value(found.params) == near(w)


def test_aaggff_ftrl_counts_those_not_asked_with_the_mean_response(engine: str) -> None:
    # C = 2/3: heard r = C cdf; asked: mean + (r - mean) / C, others: mean;  lam normalised over the
    # two who train
    cohort, census = eh.Uniform(2), federation(*THREE).census()
    w, total, lr, C = 1.0, [0.0, 0.0, 0.0], 0.03, 2 / 3
    for round in range(4):
        ids = cohort.draw(census, 1, round).ids.tolist()
        heard = [C * r for r in responses([F[i](w) for i in ids])]
        mean = sum(heard) / 2
        response = [mean + (heard[ids.index(i)] - mean) / C if i in ids else mean for i in range(3)]
        total = [sum_ + x / (1 + mean) for sum_, x in zip(total, response, strict=True)]
        lam = share(
            [
                p * math.exp(x * math.sqrt(math.log(3)) / ((2 + C) * math.sqrt(round + 2)))
                for p, x in zip(P, total, strict=True)
            ]
        )
        w -= lr * dot(share([lam[i] for i in ids]), [G[i](w) for i in ids])
    found = run(eh.AAggFF(solver="ftrl"), engine, *THREE, lr=lr, rounds=4, cohort=cohort, seed=1)
    assert found.state["lam"].tolist() == near(lam)
    assert value(found.params) == near(w)


# ---- FedProx (Li et al., MLSys 2020)


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


# ---- FedAvgM and FedAdam


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


# ---- Clipped


def test_clipped_in_numbers(engine: str) -> None:
    # updates -.2 and -1.6: the second becomes -1
    assert value(run(eh.Clipped(norm=1.0), engine, lr=0.1).params) == near(
        1 + 0.75 * 0.2 + 0.25 * 1
    )
    assert value(run(eh.Clipped(norm=0.1), engine, lr=0.1).params) == near(1.1)


def test_clipped_takes_the_length_over_all_weights(engine: str) -> None:
    # (3, 4) has length 5: a fifth of it; (0, -.5) stays
    found = move(eh.Clipped(norm=1.0), engine, clients_of((3, 4), (0, -0.5)))
    assert found == near([-(0.6 + 0) / 2, -(0.8 - 0.5) / 2])


def test_clipped_drfa_takes_its_snapshot_of_clipped_models(engine: str) -> None:
    # one local step: the snapshot is the new model, 1.4 (see above), not the unclipped 1.55
    lam = project_two(P_A + 0.02 * f_a(1.4), P_B + 0.02 * f_b(1.4))
    updates = [0.1 * g_a(1.4), max(0.1 * g_b(1.4), -1.0)]
    found = run(eh.Clipped(norm=1.0, inner=eh.DRFA(lr_lambda=0.02)), engine, lr=0.1, rounds=2)
    assert value(found.params) == near(1.4 - dot(lam, updates))


def test_clipped_qffl_computes_g_and_h_of_the_clipped_update(engine: str) -> None:
    # q = 1, L = 10: B's update -1.6 becomes -1, g = -10, h = 100 + 10 * 16; A's g = -2, h = 4 + 10
    # * 5/3
    expected = 1 + (0.75 * 5 / 3 * 2 + 0.25 * 16 * 10) / (0.75 * (4 + 50 / 3) + 0.25 * 260)
    assert value(
        run(eh.Clipped(norm=1.0, inner=eh.QFFL(q=1)), engine, lr=0.1).params
    ) == pytest.approx(expected, rel=1e-9)


# ---- LossGuard


def test_lossguard_cuts_losses_at_the_median_and_some_deviations(engine: str) -> None:
    # losses 5/3, 16, 10: median 10, deviations 25/3, 6, 0 with median 6; at most 10 + .5 * 6 = 13
    # lam = p + .02 (5/3, 13, 10) = (.5333.., .42666.., .5333..), less (.49333..)/3 each
    found = run(
        eh.LossGuard(mads=0.5, cap=1.0, inner=eh.AFL(lr_lambda=0.02)), engine, *THREE, lr=0.1
    )
    raised = [0.5 + 0.02 * 5 / 3, 1 / 6 + 0.02 * 13, 1 / 3 + 0.02 * 10]
    lam = [x - (sum(raised) - 1) / 3 for x in raised]
    assert min(lam) > 0
    assert found.state["lam"].tolist() == near(lam)
    assert value(found.params) == near(1 - 0.1 * dot(P, at(G, 1.0)))
    second = run(
        eh.LossGuard(mads=0.5, cap=1.0, inner=eh.AFL(lr_lambda=0.02)),
        engine,
        *THREE,
        lr=0.1,
        rounds=2,
    )
    w = 1 - 0.1 * dot(P, at(G, 1.0))
    assert value(second.params) == near(w - 0.1 * dot(lam, at(G, w)))


def test_lossguard_weights_are_the_nearest_under_the_cap(engine: str) -> None:
    # p = (1/2, 1/6, 1/3), cap .4: the .1 that A loses goes in equal parts to the others, not in
    # proportion to their weights
    lam = [0.4, 1 / 6 + 0.05, 1 / 3 + 0.05]
    found = run(
        eh.LossGuard(mads=3.0, cap=0.4, inner=eh.AFL(lr_lambda=0.0)), engine, *THREE, lr=0.1
    )
    assert value(found.params) == near(1 - 0.1 * dot(lam, at(G, 1.0)))


def test_lossguard_caps_the_lambda_that_the_inner_method_has_found(engine: str) -> None:
    # mads .5: losses (5/3, 13, 10). p + .1 f = (.666.., 1.4666.., 1.3333..): on the simplex (0,
    # .5666.., .4333..) cap .5: B falls to .5, A and C gain .0333.. each
    lam = [1 / 30, 0.5, 13 / 30 + 1 / 30]
    method = eh.LossGuard(mads=0.5, cap=0.5, inner=eh.AFL(lr_lambda=0.1))
    found = run(method, engine, *THREE, lr=0.1)
    assert found.state["lam"].tolist() == near(lam)
    w = value(found.params)
    assert w == near(1 - 0.1 * dot(P, at(G, 1.0)))
    assert value(run(method, engine, *THREE, lr=0.1, rounds=2).params) == near(
        w - 0.1 * dot(lam, at(G, w))
    )


def test_lossguard_median_of_an_even_number_lies_between_the_middle_two(engine: str) -> None:
    # A and B: losses 5/3 and 16, median 53/6, deviations 43/6 both: with mads 1 the limit is 16
    # itself, with .5 it is 53/6 + 43/12
    limit = 53 / 6 + 43 / 12
    lam = project_two(P_A + 0.02 * 5 / 3, P_B + 0.02 * limit)
    found = run(eh.LossGuard(mads=0.5, cap=1.0, inner=eh.AFL(lr_lambda=0.02)), engine, lr=0.1)
    assert found.state["lam"].tolist() == near(list(lam))
    unguarded = project_two(P_A + 0.02 * 5 / 3, P_B + 0.02 * 16)
    found = run(eh.LossGuard(mads=1.0, cap=1.0, inner=eh.AFL(lr_lambda=0.02)), engine, lr=0.1)
    assert found.state["lam"].tolist() == near(list(unguarded))


# ---- LocalOnly and FineTuned


def test_localonly_in_numbers(engine: str) -> None:
    # A: 1 -> 1.2 -> 1.36;  B: 1 -> 2.6 -> 2.92; the server model stays
    found = run(eh.LocalOnly(), engine, lr=0.1, rounds=2)
    assert [value(params) for params in found.personal or []] == near([1.36, 2.92])
    assert value(found.params) == 1.0


def test_localonly_absent_clients_stay_where_they_are(engine: str) -> None:
    cohort, census = eh.Uniform(1), federation().census()
    models = [1.0, 1.0]
    present = [int(cohort.draw(census, 0, round).ids) for round in range(5)]
    for i in present:
        models[i] -= 0.05 * G[i](models[i])
    assert set(present) == {0, 1}
    found = run(eh.LocalOnly(), engine, lr=0.05, rounds=5, cohort=cohort)
    assert [value(params) for params in found.personal or []] == near(models)


def test_finetuned_in_numbers(engine: str) -> None:
    # FedAvg to 1.55, then alone: A: 1.55 + .1 * .9 = 1.64, then 1.64 + .1 * .72 = 1.712;  B: 1.55 +
    # .1 * 11.6 = 2.71, then 2.942
    found = run(eh.FineTuned(), engine, lr=0.1)
    assert value(found.params) == near(1.55)
    assert [value(params) for params in found.personal or []] == near([1.64, 2.71])
    found = run(eh.FineTuned(epochs=2), engine, lr=0.1)
    assert value(found.params) == near(1.55)
    assert [value(params) for params in found.personal or []] == near(
        [1.712, 2.71 + 0.1 * 4 * 0.58]
    )


def test_finetuned_tunes_everyone_from_the_model_handed_out(engine: str) -> None:
    # AFL's average of two models, by a cohort of one: those never drawn are tuned too
    cohort = eh.Uniform(1)
    inner = eh.Averaged(eh.AFL(lr_lambda=0.02))
    shared = value(run(inner, engine, lr=0.1, rounds=2, cohort=cohort, seed=1).params)
    found = run(
        eh.FineTuned(epochs=3, inner=inner), engine, lr=0.1, rounds=2, cohort=cohort, seed=1
    )
    assert value(found.params) == near(shared)
    assert [value(params) for params in found.personal or []] == near(
        [local_model(g, shared, 0.1, 3) for g in (g_a, g_b)]
    )


# ---- wrappers of wrappers


def test_server_momentum_of_clipped_updates(engine: str) -> None:
    # clipped at 1 the round moves by .4; half of that. Next Delta: A .1 * 2 (1.2 - 2) = -.16, B .4
    # (2.4 - 6) = -1.44 -> -1 v = .5 (-.4) + .75 (-.16) + .25 (-1) = -.57
    method = eh.FedAvgM(lr=0.5, momentum=0.5, inner=eh.Clipped(norm=1.0))
    assert value(run(method, engine, lr=0.1).params) == near(1.2)
    assert value(run(method, engine, lr=0.1, rounds=2).params) == near(1.2 + 0.5 * 0.57)


def test_clipping_acts_on_the_end_of_proximal_work_in_either_order(engine: str) -> None:
    # FedProx(mu=2): A ends at 1.32, B at 2.6 (see above); clipped at .3: 1.3 and 1.3;  TERM leaves
    # weights of sum one
    for method in (
        eh.Clipped(0.3, eh.FedProx(2.0)),
        eh.FedProx(2.0, eh.Clipped(0.3)),
        eh.FedProx(2.0, eh.Clipped(0.3, eh.TERM(t=0.3))),
    ):
        assert value(run(method, engine, lr=0.1, steps=2).params) == near(1.3)


def test_server_step_of_afl_with_proximal_work(engine: str) -> None:
    # lam rises as AFL's, local work is FedProx's, the server takes half a step
    w, lam = 1.0, (P_A, P_B)
    for _ in range(3):
        ends = []
        for g in (g_a, g_b):
            theta = w
            for _ in range(2):
                theta -= 0.05 * (g(theta) + 3 * (theta - w))
            ends.append(theta)
        delta = dot(lam, [w - end for end in ends])
        lam = project_two(lam[0] + 0.01 * f_a(w), lam[1] + 0.01 * f_b(w))
        w -= 0.5 * delta
    method = eh.FedAvgM(
        lr=0.5, momentum=0.0, inner=eh.FedProx(mu=3.0, inner=eh.AFL(lr_lambda=0.01))
    )
    assert value(run(method, engine, lr=0.05, steps=2, rounds=3).params) == near(w)


def test_finetuned_of_a_server_optimiser(engine: str) -> None:
    # half a step to 1.275, then alone
    found = run(eh.FineTuned(inner=eh.FedAvgM(lr=0.5, momentum=0.0)), engine, lr=0.1)
    assert value(found.params) == near(1.275)
    assert [value(params) for params in found.personal or []] == near(
        [1.275 - 0.1 * g_a(1.275), 1.275 - 0.1 * g_b(1.275)]
    )
