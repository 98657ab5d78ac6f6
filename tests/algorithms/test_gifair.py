"""GIFAIR: numbers by hand, where it is another method, the optimum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import evenhand as eh
from tests.support import convex, limits
from tests.support.by_hand import (
    P_A,
    P_B,
    TEAMS,
    A,
    B,
    C,
    G,
    P,
    f_a,
    f_b,
    f_c,
    federation,
    g_a,
    g_b,
    g_c,
    near,
    run,
    value,
)

# ---- by hand


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


# ---- where it is another method


@limits.every_scheme
@limits.every_local
@pytest.mark.parametrize("teams", [None, "abab"], ids=["individuals", "teams"])
def test_gifair_at_strength_zero_is_fedavg(
    cohort: eh.Cohort, local: eh.LocalSGD, teams: str | None
) -> None:
    """Special case 5: c = 0, the same sampling scheme, nothing else."""
    fed = limits.federation(team=teams) if teams else limits.federation()
    found = limits.train(eh.GIFAIR(strength=0.0), fed=fed, local=local, cohort=cohort).params
    limits.assert_identical(
        found, limits.train(eh.FedAvg(), fed=fed, local=local, cohort=cohort).params
    )


@limits.every_scheme
@pytest.mark.parametrize("teams", [None, "abab"], ids=["individuals", "teams"])
def test_gifair_global_and_per_have_the_same_server_model(
    cohort: eh.Cohort, teams: str | None
) -> None:
    """Special case 6: what is handed out differs, the trajectory of the server does not."""
    fed = limits.federation(team=teams) if teams else limits.federation()
    one, other = (
        limits.train(eh.GIFAIR(0.7, personal), fed=fed, local=limits.MINI_BATCHES, cohort=cohort)
        for personal in (False, True)
    )
    limits.assert_identical(one.params, other.params)
    assert one.personal is None
    assert other.personal is not None
    assert max(limits.distance(own, other.params) for own in other.personal) > 1e-3


def test_gifair_per_hands_out_the_first_model_to_a_client_never_asked() -> None:
    """Special case 6: clients never sampled keep theta^0."""
    cohort = eh.Proportional(1)
    asked = set(cohort.draw(limits.federation().census(), limits.SEED, 0).ids.tolist())
    result = limits.train(eh.GIFAIR(0.7, personal=True), rounds=1, cohort=cohort)
    for i, own in enumerate(result.personal or []):
        moved = limits.distance(own, dict(limits.module().state_dict())) > 0
        assert moved == (i in asked)


def test_one_full_step_of_gifair_individuals_descends_the_global_objective(engine: str) -> None:
    """Special case 18, where every client is its own team."""
    found = limits.train(eh.GIFAIR(strength=0.95, exact_losses=True), engine, rounds=8)
    limits.assert_same(
        found.params,
        limits.descend(
            lambda linear: limits.gifair(linear, 0.95, "abcd"), limits.FULL_STEP.lr, rounds=8
        ),
    )


@pytest.mark.parametrize("exact", [False, True])
def test_on_identical_clients_gifair_is_fedavg(engine: str, exact: bool) -> None:
    """Special case 19: losses tie, nobody gains rank. Where rounding breaks the tie the ranks still
    sum to zero: one step."""
    method = eh.GIFAIR(strength=0.9, exact_losses=exact)
    for fed, local in (
        (limits.copies(counts=(1, 1, 1, 1)), eh.LocalSGD(lr=0.3, steps=2)),
        (limits.copies(), limits.FULL_STEP),
    ):
        limits.assert_same(
            limits.train(method, engine, fed, local=local).params,
            limits.train(eh.FedAvg(), engine, fed, local=local).params,
        )


# ---- the optimum


def team_losses(theta: convex.Vector) -> convex.Vector:
    """Plain mean over the clients of each team."""
    return np.array(
        [
            convex.losses(theta)[[team == name for team in convex.TEAMS]].mean()
            for name in ("north", "south")
        ]
    )


def test_gifair_teams_reach_the_least_penalised_mean() -> None:
    strength = 0.9
    members = np.array([convex.TEAMS.count(team) for team in convex.TEAMS])
    c = strength * (convex.P * members).min() / (2 - 1)

    def objective(theta: convex.Vector) -> float:
        north, south = team_losses(theta)
        return float(convex.P @ convex.losses(theta) + c * abs(north - south))

    theta = convex.parameters(
        convex.train(eh.GIFAIR(strength=strength), lr=0.1, rounds=110, decay=0.95, teams=True)
    )
    convex.assert_reaches(objective, minimise_penalised(team_losses, c), theta)


def test_gifair_individuals_reach_the_least_penalised_mean() -> None:
    strength, n = 0.95, len(convex.P)
    c = strength * convex.P.min() / (n - 1)

    def objective(theta: convex.Vector) -> float:
        f = convex.losses(theta)
        return float(convex.P @ f + c * sum(abs(f[a] - f[b]) for a in range(n) for b in range(a)))

    theta = convex.parameters(
        convex.train(eh.GIFAIR(strength=strength), lr=0.1, rounds=110, decay=0.95)
    )
    convex.assert_reaches(objective, minimise_penalised(convex.losses, c), theta)


def minimise_penalised(values: Callable[[convex.Vector], convex.Vector], c: float) -> float:
    """The least P . f + c sum over pairs of s_ab with s_ab >= both differences."""
    first = values(convex.fedavg_minimiser())
    pairs = [(a, b) for a in range(len(first)) for b in range(a)]
    start = np.append(convex.fedavg_minimiser(), [abs(first[a] - first[b]) for a, b in pairs])

    def slack(z: convex.Vector) -> convex.Vector:
        v = values(z[: convex.FEATURES])
        gap = np.array([v[a] - v[b] for a, b in pairs])
        return np.concatenate([z[convex.FEATURES :] - gap, z[convex.FEATURES :] + gap])

    return convex.minimise_epigraph(
        lambda z: convex.P @ convex.losses(z[: convex.FEATURES]) + c * z[convex.FEATURES :].sum(),
        slack,
        start,
    )


@pytest.mark.parametrize("teams", [True, False], ids=["teams", "individuals"])
def test_gifair_with_exact_losses_reaches_the_least_penalised_mean(teams: bool) -> None:
    strength, n = 0.95, len(convex.P)
    members = np.array([convex.TEAMS.count(team) for team in convex.TEAMS])
    c = strength * ((convex.P * members).min() if teams else convex.P.min() / (n - 1))
    values = team_losses if teams else convex.losses

    def objective(theta: convex.Vector) -> float:
        v = values(theta)
        return float(
            convex.P @ convex.losses(theta)
            + c * sum(abs(v[a] - v[b]) for a in range(len(v)) for b in range(a))
        )

    theta = convex.parameters(
        convex.train(
            eh.GIFAIR(strength=strength, exact_losses=True),
            lr=0.1,
            rounds=110,
            decay=0.95,
            teams=teams,
        )
    )
    convex.assert_reaches(objective, minimise_penalised(values, c), theta)
