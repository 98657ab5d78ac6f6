"""The further methods on the convex problem of test_optimum.py: each comes within 1 % of the
optimum that SciPy finds.

Methods without an objective (FedMGDA+, AdaFed) end where no step lowers all losses. As there, the
objectives are written down from the papers, and nothing is taken from the library but the
parameters it returns.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.special import logsumexp
from torch import nn

import evenhand as eh
from evenhand.theory.checks import pareto_residual
from tests.algorithms.test_optimum import (
    FEATURES,
    TEAMS,
    WITHIN,
    P,
    Vector,
    assert_reaches,
    clients,
    fedavg_minimiser,
    group_risks,
    losses,
    minimax,
    minimise,
    minimise_epigraph,
    minimise_penalised,
    parameters,
    residuals,
    team_losses,
    train,
    worst_mixture,
)


def tilted_mean(values: Vector, t: float, weights: Vector) -> float:
    """(1/t) log of the weighted mean of e^(t value)"""
    return float(logsumexp(t * values, b=weights)) / t


def mean_risks_of_teams(theta: Vector) -> tuple[Vector, Vector]:
    """Mean loss over the samples of each team, and the share of the samples it has."""
    member = np.array([[team == name for team in TEAMS] for name in ("north", "south")])
    share = member @ P
    return member @ (P * losses(theta)) / share, share


def own_minimiser(i: int) -> Vector:
    x, y = clients()[i]["x"], clients()[i]["y"]
    return np.linalg.solve(x.T @ x, x.T @ y)


# ---- TERM


@pytest.mark.parametrize(("t", "lr"), [(0.5, 0.1), (2.0, 0.03)])
def test_term_reaches_the_least_tilted_mean_of_clients(t: float, lr: float) -> None:
    def objective(theta: Vector) -> float:
        return tilted_mean(losses(theta), t, P)

    theta = parameters(train(eh.TERM(t=t), lr=lr, rounds=110))
    assert_reaches(objective, minimise(objective), theta)


def test_term_reaches_the_least_tilted_mean_of_teams() -> None:
    t = 1.0

    def objective(theta: Vector) -> float:
        risks, share = mean_risks_of_teams(theta)
        return tilted_mean(risks, t, share)

    theta = parameters(train(eh.TERM(t=t, level="team"), lr=0.2, rounds=50, teams=True))
    assert_reaches(objective, minimise(objective), theta)


def test_term_reaches_the_least_tilted_mean_of_samples() -> None:
    t = 0.2

    def objective(theta: Vector) -> float:
        squared = np.concatenate(residuals(theta)) ** 2
        return tilted_mean(squared, t, np.full(len(squared), 1 / len(squared)))

    theta = parameters(train(eh.TERM(t=t, level="sample"), lr=0.05, rounds=100))
    assert_reaches(objective, minimise(objective), theta)


def test_term_with_two_tilts_reaches_the_least_tilted_mean_of_tilted_means() -> None:
    t, s = 0.5, 0.1

    def objective(theta: Vector) -> float:
        within = [
            tilted_mean(error**2, s, np.full(len(error), 1 / len(error)))
            for error in residuals(theta)
        ]
        return tilted_mean(np.array(within), t, P)

    theta = parameters(train(eh.TERM(t=t, sample_t=s), lr=0.05, rounds=100))
    assert_reaches(objective, minimise(objective), theta)


# ---- worst mixtures of clients, or of groups


def test_afl_whose_lam_rises_first_reaches_the_least_worst_client_loss() -> None:
    theta = parameters(train(eh.AFL(lr_lambda=0.03, order="before"), lr=0.2, rounds=110))
    assert_reaches(lambda theta: losses(theta).max(), minimax(losses), theta)


def test_drfa_reaches_the_least_worst_client_loss() -> None:
    theta = parameters(train(eh.DRFA(lr_lambda=0.03), lr=0.2, rounds=110))
    assert_reaches(lambda theta: losses(theta).max(), minimax(losses), theta)


def test_agnostic_fedavg_reaches_the_least_worst_group_risk() -> None:
    theta = parameters(train(eh.AgnosticFedAvg(lr_lambda=0.3), lr=0.2, rounds=110))
    assert_reaches(lambda theta: group_risks(theta).max(), minimax(group_risks), theta)


LEVELS = [(0.5, 0.4), ((0.9, 0.4, 0.5, 0.3, 0.6), (0.8, 0.1, 0.5, 0.9, 0.0))]


def worst_mixture_between(values: Vector, low: Vector, high: Vector) -> float:
    """The largest lam . f over the simplex with low_i <= lam_i <= high_i: the floors, then the rest
    by filling from the top."""
    rest = 1 - low.sum()
    return float(low @ values + rest * worst_mixture(values, (high - low) / rest))


def test_floors_and_filling_the_rest_from_the_top_solve_the_linear_program() -> None:
    generator = np.random.default_rng(4)
    for _ in range(10):
        values, low = generator.random(5), P * generator.random(5)
        high = P / generator.uniform(P, 1)
        program = scipy.optimize.linprog(
            -values, A_eq=np.ones((1, 5)), b_eq=[1], bounds=list(zip(low, high, strict=True))
        )
        assert worst_mixture_between(values, low, high) == pytest.approx(-program.fun, rel=1e-9)


@pytest.mark.parametrize(("alpha", "floor"), LEVELS, ids=["one level", "a level each"])
def test_fafl_with_floors_reaches_the_least_worst_mixture_between_them(
    alpha: object, floor: object
) -> None:
    low, high = P * np.array(floor), P / np.array(alpha)

    def objective(theta: Vector) -> float:
        return worst_mixture_between(losses(theta), low, high)

    def cost(z: Vector) -> float:  # z = (theta, eta, s): lam = low + (high - low) where f_i > eta
        theta, eta, s = z[:FEATURES], z[FEATURES], z[FEATURES + 1 :]
        return float(eta + low @ (losses(theta) - eta) + (high - low) @ s)

    def slack(z: Vector) -> Vector:  # s_i >= f_i - eta, s_i >= 0
        s = z[FEATURES + 1 :]
        return np.concatenate([s - (losses(z[:FEATURES]) - z[FEATURES]), s])

    start = np.concatenate([fedavg_minimiser(), [0.0], losses(fedavg_minimiser())])
    optimum = minimise_epigraph(cost, slack, start)
    theta, without = (
        parameters(
            train(
                eh.FAFL(alpha=alpha, floor=a, mu=0.05, lr_eta=0.3), lr=0.1, rounds=150, decay=0.97
            )
        )
        for a in (floor, 0.0)
    )
    assert_reaches(objective, optimum, theta)
    assert objective(without) > WITHIN * optimum  # the floors matter


def superquantile(theta: Vector, tail: float) -> float:
    """Mean loss in the upper tail of the clients, the one at its edge counting in part."""
    return worst_mixture(losses(theta), P / tail)


def least_superquantile(tail: float) -> float:
    def slack(z: Vector) -> Vector:  # z = (theta, eta, s): s_i >= f_i - eta, s_i >= 0
        s = z[FEATURES + 1 :]
        return np.concatenate([s - (losses(z[:FEATURES]) - z[FEATURES]), s])

    start = np.concatenate([fedavg_minimiser(), [0.0], losses(fedavg_minimiser())])
    return minimise_epigraph(
        lambda z: z[FEATURES] + P @ z[FEATURES + 1 :] / tail, slack, start, ftol=1e-8
    )


@pytest.mark.parametrize("tail", [0.1, 0.25, 0.4])
def test_delta_fl_reaches_the_least_superquantile_where_the_tail_nearly_holds_whole_clients(
    tail: float,
) -> None:
    theta = parameters(train(eh.DeltaFL(tail=tail), lr=0.1, rounds=100, decay=0.95))
    assert_reaches(lambda theta: superquantile(theta, tail), least_superquantile(tail), theta)


def test_delta_fl_stays_above_the_least_superquantile_where_the_tail_cuts_a_client() -> None:
    """It counts the client at the edge whole, by intention; FAFL with the same level counts the
    part."""
    tail = 0.35
    optimum = least_superquantile(tail)
    whole = parameters(train(eh.DeltaFL(tail=tail), lr=0.1, rounds=100, decay=0.95))
    part = parameters(
        train(eh.FAFL(alpha=tail, mu=0.05, lr_eta=0.3), lr=0.1, rounds=150, decay=0.97)
    )
    assert 1.02 * optimum < superquantile(whole, tail) < 1.1 * optimum
    assert_reaches(lambda theta: superquantile(theta, tail), optimum, part)


# ---- means of another kind


@pytest.mark.parametrize("q", [1.0, 3.0])
def test_q_fedsgd_reaches_the_least_sum_of_powers(q: float) -> None:
    def objective(theta: Vector) -> float:
        return float(P @ losses(theta) ** (q + 1)) / (q + 1)

    theta = parameters(train(eh.QFFL(q=q, solver="fedsgd"), lr=0.3, rounds=80))
    assert_reaches(objective, minimise(objective), theta)


def test_propfair_along_the_tangent_reaches_the_optimum_beyond_its_threshold() -> None:
    M, epsilon = 3.0, 0.5

    def objective(theta: Vector) -> float:
        f = losses(theta)
        inside = -np.log(np.maximum(M - f, epsilon))
        return float(P @ (inside + np.maximum(f - (M - epsilon), 0) / epsilon))

    theta = parameters(
        train(eh.PropFair(M=M, epsilon=epsilon, continuation="huber"), lr=0.2, rounds=100)
    )
    # someone lies on the tangent, where the paper's rule would count them least
    assert losses(theta).max() > M - epsilon
    assert_reaches(objective, minimise(objective), theta)


@pytest.mark.parametrize("teams", [True, False], ids=["teams", "individuals"])
def test_gifair_with_exact_losses_reaches_the_least_penalised_mean(teams: bool) -> None:
    strength, n = 0.95, len(P)
    members = np.array([TEAMS.count(team) for team in TEAMS])
    c = strength * ((P * members).min() if teams else P.min() / (n - 1))
    values = team_losses if teams else losses

    def objective(theta: Vector) -> float:
        v = values(theta)
        return float(
            P @ losses(theta) + c * sum(abs(v[a] - v[b]) for a in range(len(v)) for b in range(a))
        )

    theta = parameters(
        train(
            eh.GIFAIR(strength=strength, exact_losses=True),
            lr=0.1,
            rounds=110,
            decay=0.95,
            teams=teams,
        )
    )
    assert_reaches(objective, minimise_penalised(values, c), theta)


# ---- another way to the same optimum, and models of one's own


WAYS = {
    "fedavgm": eh.FedAvgM(lr=0.5, momentum=0.5),
    "fedadam": eh.FedAdam(lr=0.05),
}


@pytest.mark.parametrize("name", WAYS)
def test_server_optimisers_reach_the_least_mean_loss(name: str) -> None:
    theta = parameters(train(WAYS[name], lr=0.3, rounds=100))
    optimum = minimise(lambda theta: P @ losses(theta))
    assert P @ losses(theta) <= WITHIN * optimum
    assert theta == pytest.approx(fedavg_minimiser(), abs=0.01)


def test_fedprox_takes_long_local_work_nearer_to_the_least_mean_loss() -> None:
    def mean_loss(mu: float) -> float:
        module = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(module.weight)
        local, fed = eh.LocalSGD(lr=0.1, steps=40), eh.Federation.from_arrays(clients())
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
        return float(P @ losses(parameters(result)))

    optimum = minimise(lambda theta: P @ losses(theta))
    drifted, held = mean_loss(0.0), mean_loss(5.0)
    assert held <= WITHIN * optimum
    assert held - optimum < (drifted - optimum) / 4


def test_clients_alone_reach_their_own_optima() -> None:
    result = train(eh.LocalOnly(), lr=0.3, rounds=80)
    # nobody trained the server's model
    assert parameters(result) == pytest.approx(np.zeros(FEATURES))
    for i, own in enumerate(result.personal or []):
        assert_reaches(
            lambda theta, i=i: losses(theta)[i],
            losses(own_minimiser(i))[i],
            own["weight"].numpy()[0],
        )


def test_fine_tuning_moves_every_client_towards_its_own_optimum() -> None:
    for epochs in (1, 60):
        result = train(eh.FineTuned(epochs=epochs), lr=0.2, rounds=50)
        assert parameters(result) == pytest.approx(fedavg_minimiser(), abs=1e-4)
        for i, own in enumerate(result.personal or []):
            tuned, best = own["weight"].numpy()[0], own_minimiser(i)
            assert losses(tuned)[i] < losses(fedavg_minimiser())[i]
            assert np.linalg.norm(tuned - best) < np.linalg.norm(fedavg_minimiser() - best)
            if epochs == 60:
                assert tuned == pytest.approx(best, abs=1e-3)


# ---- no objective, but a place to stop


@cache
def enough_parameters() -> eh.Federation:
    """Three clients and six parameters: more directions than clients, so that one can help all."""
    generator, rows = np.random.default_rng(5), []
    for size in (30, 20, 12):
        x, target = generator.normal(size=(size, 6)), generator.normal(size=6)
        rows.append({"x": x, "y": x @ target + 0.3 * generator.normal(size=size)})
    return eh.Federation.from_arrays(rows)


@pytest.mark.parametrize(
    "algorithm",
    [eh.FedMGDA(epsilon=1.0, server_lr=0.5), eh.AdaFed(gamma=1.0, server_lr=1.0)],
    ids=["fedmgda", "adafed"],
)
def test_common_descent_ends_where_no_step_lowers_all_losses(algorithm: eh.Algorithm) -> None:
    module = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(module.weight)
    fed, local = enough_parameters(), eh.LocalSGD(lr=0.1, steps=1)
    first = pareto_residual(module, fed, "mse")
    result = eh.fit(
        module, fed, algorithm, loss="mse", rounds=100, local=local, eval_every=100, engine="vmap"
    )
    last = pareto_residual(module, fed, "mse", result.params)
    assert first.residual > 1
    assert last.residual < 1e-3
    # nobody is at its optimum: the residual is small because the gradients balance
    assert min(last.weights) > 0.01
    assert all(after < before for after, before in zip(last.losses, first.losses, strict=True))

    slopes = [
        2 * (x.T @ (x @ result.params["weight"][0] - y)) / len(y)
        for x, y, _ in (fed.train.client(i) for i in range(3))
    ]
    combined = sum(weight * slope for weight, slope in zip(last.weights, slopes, strict=True))
    # the library's check, by hand
    assert combined.norm().item() == pytest.approx(last.residual, rel=1e-6)
