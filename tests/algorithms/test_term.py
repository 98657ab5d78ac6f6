"""TERM: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp, rel_entr

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import (
    P_A,
    P_B,
    TEAMS,
    THREE,
    F,
    G,
    at,
    clients_of,
    dot,
    f_a,
    f_b,
    federation,
    g_a,
    g_b,
    local_model,
    move,
    near,
    run,
    share,
    value,
)

# ---- by hand


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


# ---- where it is another method


@limits.every_scheme
@limits.every_local
def test_term_without_tilt_is_fedavg(engine: str, cohort: eh.Cohort, local: eh.LocalSGD) -> None:
    """Special case 10: t = 0 is a case of its own; with the unbiased scheme, FedAvg with
    coefficients that sum to one."""
    found = limits.train(eh.TERM(t=0.0), engine, local=local, cohort=cohort).params
    limits.assert_same(found, limits.fedavg(engine, cohort, local))


@limits.every_local
def test_term_without_tilt_is_fedavg_bit_for_bit_where_everyone_trains(
    engine: str, local: eh.LocalSGD
) -> None:
    """Special case 10."""
    fed = limits.federation(team=limits.TEAMS)
    expected = limits.train(eh.FedAvg(), engine, fed, local=local).params
    for method in (eh.TERM(t=0.0), eh.TERM(t=0.0, level="team"), eh.TERM(t=0.0, level="sample")):
        limits.assert_identical(limits.train(method, engine, fed, local=local).params, expected)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("level", ["client", "team", "sample"])
def test_term_with_a_small_tilt_tends_to_fedavg(level: str, sign: float) -> None:
    """Special case 10: the distance falls in proportion to t."""
    fed = limits.federation(team=limits.TEAMS)
    plain = limits.train(eh.FedAvg(), fed=fed).params
    errors = [
        limits.distance(limits.train(eh.TERM(t=sign * t, level=level), fed=fed).params, plain)
        for t in (1e-2, 1e-3, 1e-4)
    ]
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.01)
    assert errors[2] < 1e-3


def test_term_with_one_client_in_each_team_is_term_over_clients(engine: str) -> None:
    found = limits.train(
        eh.TERM(t=2.0, level="team"),
        engine,
        limits.federation(team="abcd"),
        local=limits.MINI_BATCHES,
    ).params
    limits.assert_same(
        found, limits.train(eh.TERM(t=2.0), engine, local=limits.MINI_BATCHES).params
    )


def test_term_with_one_team_is_fedavg(engine: str) -> None:
    fed = limits.federation(team="aaaa")
    limits.assert_same(
        limits.train(eh.TERM(t=2.0, level="team"), engine, fed).params,
        limits.train(eh.FedAvg(), engine, fed).params,
    )


# ---- FedEBA: the weights of largest entropy


def weights_of(
    method: eh.Algorithm, engine: str, losses: tuple[float, ...], base: str
) -> np.ndarray:
    """Each client moves its own coordinate by one, so the model shows the weights."""
    clients = clients_of((1, 0, 0), (0, 1, 0), (0, 0, 1), counts=(3, 1, 2), losses=losses)
    return -np.array(move(method, engine, clients, weights=base))


@pytest.mark.parametrize("base", ["data", "uniform"])
@pytest.mark.parametrize("tau", [0.5, 2.0, 30.0])
def test_weights_have_the_largest_entropy_for_their_mean_loss(
    engine: str, tau: float, base: str
) -> None:
    """FedEBA's problem, solved by SciPy: TERM with t = 1 / tau."""
    losses = np.array([1.0, 4.0, 2.0])
    q = np.array([3, 1, 2]) / 6 if base == "data" else np.full(3, 1 / 3)
    found = weights_of(eh.TERM(t=1 / tau), engine, tuple(losses), base)
    mass = {"type": "eq", "fun": lambda lam: lam.sum() - 1}
    mean = {"type": "eq", "fun": lambda lam: lam @ losses - found @ losses}
    options = {"ftol": 1e-15, "maxiter": 1000}

    def surplus(lam: np.ndarray) -> float:  # minus the entropy relative to q
        return float(rel_entr(lam, q).sum())

    def priced(lam: np.ndarray) -> float:
        return surplus(lam) - float(lam @ losses) / tau

    for value_of, constraints in ((surplus, [mass, mean]), (priced, [mass])):
        best = minimize(
            value_of, q, bounds=[(1e-12, 1)] * 3, constraints=constraints, options=options
        )
        assert found == pytest.approx(best.x, abs=2e-5)
        assert value_of(found) <= best.fun + 1e-12
    assert np.abs(found - q).max() > 0.01


def test_without_temperature_the_worst_client_has_all_weight(engine: str) -> None:
    found = weights_of(eh.TERM(t=1 / 0.01), engine, (1.0, 4.0, 2.0), "data")
    assert found.tolist() == near([0, 1, 0])


# ---- the optimum


def tilted_mean(values: convex.Vector, t: float, weights: convex.Vector) -> float:
    """(1/t) log of the weighted mean of e^(t value)"""
    return float(logsumexp(t * values, b=weights)) / t


def mean_risks_of_teams(theta: convex.Vector) -> tuple[convex.Vector, convex.Vector]:
    """Mean loss over the samples of each team, and the share of the samples it has."""
    member = np.array([[team == name for team in convex.TEAMS] for name in ("north", "south")])
    share = member @ convex.P
    return member @ (convex.P * convex.losses(theta)) / share, share


@pytest.mark.parametrize(("t", "lr"), [(0.5, 0.1), (2.0, 0.03)])
def test_term_reaches_the_least_tilted_mean_of_clients(t: float, lr: float) -> None:
    def objective(theta: convex.Vector) -> float:
        return tilted_mean(convex.losses(theta), t, convex.P)

    theta = convex.parameters(convex.train(eh.TERM(t=t), lr=lr, rounds=110))
    convex.assert_reaches(objective, convex.minimise(objective), theta)


def test_term_reaches_the_least_tilted_mean_of_teams() -> None:
    t = 1.0

    def objective(theta: convex.Vector) -> float:
        risks, share = mean_risks_of_teams(theta)
        return tilted_mean(risks, t, share)

    theta = convex.parameters(
        convex.train(eh.TERM(t=t, level="team"), lr=0.2, rounds=50, teams=True)
    )
    convex.assert_reaches(objective, convex.minimise(objective), theta)


def test_term_reaches_the_least_tilted_mean_of_samples() -> None:
    t = 0.2

    def objective(theta: convex.Vector) -> float:
        squared = np.concatenate(convex.residuals(theta)) ** 2
        return tilted_mean(squared, t, np.full(len(squared), 1 / len(squared)))

    theta = convex.parameters(convex.train(eh.TERM(t=t, level="sample"), lr=0.05, rounds=100))
    convex.assert_reaches(objective, convex.minimise(objective), theta)


def test_term_with_two_tilts_reaches_the_least_tilted_mean_of_tilted_means() -> None:
    t, s = 0.5, 0.1

    def objective(theta: convex.Vector) -> float:
        within = [
            tilted_mean(error**2, s, np.full(len(error), 1 / len(error)))
            for error in convex.residuals(theta)
        ]
        return tilted_mean(np.array(within), t, convex.P)

    theta = convex.parameters(convex.train(eh.TERM(t=t, sample_t=s), lr=0.05, rounds=100))
    convex.assert_reaches(objective, convex.minimise(objective), theta)
