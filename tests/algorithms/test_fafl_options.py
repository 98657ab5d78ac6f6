"""FAFL with a floor, whole local losses, other starts of eta and the papers' first round: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import (
    P_A,
    P_B,
    THREE,
    A,
    F,
    G,
    P,
    at,
    batches,
    dot,
    f_a,
    f_b,
    federation,
    g_a,
    g_b,
    near,
    rfedfair_step,
    run,
    sigmoid,
    value,
)
from tests.support.federations import with_output

# ---- by hand


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


# ---- where it is another method


@limits.every_local
def test_fafl_by_whole_local_losses_is_fafl_where_batches_are_whole(
    engine: str, local: eh.LocalSGD
) -> None:
    method = {"alpha": (0.9, 0.5, 0.6, 0.3), "mu": 0.1, "eta0": 1.0, "floor": 0.2}
    one, other = (
        limits.train(eh.FAFL(**method, sigma=sigma), engine, local=local)
        for sigma in ("local", "batch")
    )
    if local is limits.FULL_STEP:
        limits.assert_same(one.params, other.params)
        assert one.state["eta"].item() == pytest.approx(other.state["eta"].item(), rel=1e-12)
    else:
        assert limits.distance(one.params, other.params) > 1e-4


def test_fafl_by_whole_local_losses_needs_no_smoothing_to_have_the_right_weights(
    engine: str,
) -> None:
    """alpha = 1, mu = 0, eta below every local loss: s = 1, FedAvg but for the order of sums;
    single batches may lie below eta."""
    eta0 = 0.5 * min(limits.losses_of(dict(limits.module().state_dict())))
    local = eh.LocalSGD(lr=0.01, epochs=1, batch_size=1)
    found = limits.train(eh.FAFL(alpha=1.0, mu=0.0, eta0=eta0, sigma="local"), engine, local=local)
    assert (
        limits.distance(found.params, limits.train(eh.FedAvg(), engine, local=local).params) < 1e-15
    )
    assert found.state["eta"].item() == eta0
    by_batch = limits.train(
        eh.FAFL(alpha=1.0, mu=0.0, eta0=eta0, sigma="batch"), engine, local=local
    )
    assert by_batch.state["eta"].item() < eta0


def test_fafl_with_full_floors_is_fedavg_where_eta_is_above_every_loss(engine: str) -> None:
    """a = 1 leaves no room: s = 1 + (1/alpha - 1) 0 = 1, eta never moves."""
    found = limits.train(
        eh.FAFL(alpha=0.5, mu=0.0, eta0=50.0, floor=1.0), engine, local=limits.MINI_BATCHES
    )
    limits.assert_identical(
        found.params, limits.train(eh.FedAvg(), engine, local=limits.MINI_BATCHES).params
    )
    assert found.state["eta"].item() == 50.0


# ---- the optimum

LEVELS = [(0.5, 0.4), ((0.9, 0.4, 0.5, 0.3, 0.6), (0.8, 0.1, 0.5, 0.9, 0.0))]


def worst_mixture_between(values: convex.Vector, low: convex.Vector, high: convex.Vector) -> float:
    """The largest lam . f over the simplex with low_i <= lam_i <= high_i: the floors, then the rest
    by filling from the top."""
    rest = 1 - low.sum()
    return float(low @ values + rest * convex.worst_mixture(values, (high - low) / rest))


def test_floors_and_filling_the_rest_from_the_top_solve_the_linear_program() -> None:
    generator = np.random.default_rng(4)
    for _ in range(10):
        values, low = generator.random(5), convex.P * generator.random(5)
        high = convex.P / generator.uniform(convex.P, 1)
        program = scipy.optimize.linprog(
            -values, A_eq=np.ones((1, 5)), b_eq=[1], bounds=list(zip(low, high, strict=True))
        )
        assert worst_mixture_between(values, low, high) == pytest.approx(-program.fun, rel=1e-9)


@pytest.mark.parametrize(("alpha", "floor"), LEVELS, ids=["one level", "a level each"])
def test_fafl_with_floors_reaches_the_least_worst_mixture_between_them(
    alpha: object, floor: object
) -> None:
    low, high = convex.P * np.array(floor), convex.P / np.array(alpha)

    def objective(theta: convex.Vector) -> float:
        return worst_mixture_between(convex.losses(theta), low, high)

    def cost(
        z: convex.Vector,
    ) -> float:  # z = (theta, eta, s): lam = low + (high - low) where f_i > eta
        theta, eta, s = z[: convex.FEATURES], z[convex.FEATURES], z[convex.FEATURES + 1 :]
        return float(eta + low @ (convex.losses(theta) - eta) + (high - low) @ s)

    def slack(z: convex.Vector) -> convex.Vector:  # s_i >= f_i - eta, s_i >= 0
        s = z[convex.FEATURES + 1 :]
        return np.concatenate([s - (convex.losses(z[: convex.FEATURES]) - z[convex.FEATURES]), s])

    start = np.concatenate(
        [convex.fedavg_minimiser(), [0.0], convex.losses(convex.fedavg_minimiser())]
    )
    optimum = convex.minimise_epigraph(cost, slack, start)
    theta, without = (
        convex.parameters(
            convex.train(
                eh.FAFL(alpha=alpha, floor=a, mu=0.05, lr_eta=0.3), lr=0.1, rounds=150, decay=0.97
            )
        )
        for a in (floor, 0.0)
    )
    convex.assert_reaches(objective, optimum, theta)
    assert objective(without) > convex.WITHIN * optimum  # the floors matter
