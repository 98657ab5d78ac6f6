"""Where floating-point numbers, degenerate federations and wrong settings set traps: what comes out
is finite, right, and explained."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import evenhand as eh
from evenhand import theory

INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["loop", "vmap"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def targets(
    *values: float, counts: Sequence[int] | None = None, **extra: Sequence[Any]
) -> eh.Federation:
    """Client i has one sample x = 1 with target values[i], repeated: f_i(w) = (w - values[i])^2."""
    clients = []
    for i, (y, count) in enumerate(zip(values, counts or [1] * len(values), strict=True)):
        client = {"x": np.ones((count, 1)), "y": np.full(count, float(y)), "name": f"c{i}"}
        clients.append({**client, **{key: extra[key][i] for key in extra}})
    return eh.Federation.from_arrays(clients)


def weight(value: float, dtype: torch.dtype = torch.float64) -> nn.Linear:
    module = nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.fill_(value)
    return module


def run(
    algorithm: eh.Algorithm,
    fed: eh.Federation,
    engine: str = "loop",
    w: float = 0.0,
    **settings: Any,
) -> eh.Result:
    dtype = settings.pop("dtype", torch.float64)
    settings = {
        "rounds": 1,
        "local": eh.LocalSGD(lr=settings.pop("lr", 0.1), steps=settings.pop("steps", 1)),
        **settings,
    }
    return eh.fit(
        weight(w, dtype),
        fed,
        algorithm,
        loss=settings.pop("loss", "mse"),
        engine=engine,
        **settings,
    )


def value(result: eh.Result) -> float:
    return result.params["weight"].item()


def assert_nobody_left_out(result: eh.Result) -> None:
    assert {row["left_out"] for row in result.history_rows} == {""}
    assert not any(row["void"] for row in result.history_rows)


# ---- q-FFL: a client without loss


@pytest.mark.parametrize("solver", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_qffl_below_one_with_a_client_without_loss(
    engine: str, q: float, solver: str, dtype: torch.dtype
) -> None:
    # F^(q-1) is infinite at F = 0; with F + 1e-10 and g = 0 the client adds L (1e-10)^q to the
    # denominator and nothing else. the other: F = 4, slope -4, L = 10: numerator 4^q 4, denominator
    # q 4^(q-1) 16 + 10 * 4^q
    expected = 4**q * 4 / (q * 4 ** (q - 1) * 16 + 10 * 4**q + 10 * 1e-10**q)
    found = run(eh.QFFL(q=q, solver=solver), targets(0.0, 2.0), engine, dtype=dtype)
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(expected, rel=1e-5)


def test_qffl_where_nobody_has_loss_stays(engine: str) -> None:
    for q in (0.0, 0.5, 3.0):
        found = run(eh.QFFL(q=q), targets(1.0, 1.0), engine, w=1.0, rounds=3)
        assert_nobody_left_out(found)
        assert value(found) == 1.0


def test_qffl_with_a_large_power_of_a_large_loss_is_finite(engine: str) -> None:
    # F^q = 1e4^15 = 1e60 fits a double; alone, the step is F g / (q g^2 + L F) with g^2 = 4 F: 2
    # sqrt(F) / (4 q + L)
    found = run(eh.QFFL(q=15.0), targets(100.0), engine)
    assert value(found) == pytest.approx(200 / (60 + 10), rel=1e-9)


# ---- TERM: exponentials


def worst(values: Sequence[float], w: float, sign: float = 1.0) -> float:
    return max(values, key=lambda y: sign * (w - y) ** 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "values",
    [
        (10.0, 15.0, 20.0),  # losses 100, 225, 400: one above their mean
        (1.0, 19.0, 20.0),  # losses 1, 361, 400: two above their mean
        (0.0, 0.0, 0.0, 0.0, 17.0, -18.0),
    ],
    ids=str,
)
def test_term_with_a_huge_tilt_gives_all_weight_to_the_worst(
    engine: str, values: tuple[float, ...], dtype: torch.dtype
) -> None:
    # e^(1e4 * 400) is far out of range, and e^(1e4 (361 - 400)) is nothing: one step of the worst
    # client alone
    found = run(eh.TERM(t=1e4), targets(*values), engine, dtype=dtype)
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(0.2 * worst(values, 0.0), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_term_with_a_huge_negative_tilt_gives_all_weight_to_the_best(
    engine: str, dtype: torch.dtype
) -> None:
    values = (20.0, 19.0, 1.0, 2.0)
    found = run(eh.TERM(t=-1e4), targets(*values), engine, dtype=dtype)
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(0.2 * 1.0, rel=1e-5)


@pytest.mark.parametrize("t", [1e4, 300.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_term_with_a_huge_tilt_follows_the_worst_also_when_losses_fall_fast(
    engine: str, t: float, dtype: torch.dtype
) -> None:
    # from 0 the worst is -20 (loss 400), then 17, ...; losses change by tens to hundreds in a
    # round, far more than 1/t
    values, w, visited = (-20.0, 17.0, 3.0), 0.0, set()
    for _ in range(5):
        y = worst(values, w)
        visited.add(y)
        ordered = sorted((w - other) ** 2 for other in values)
        assert ordered[-1] - ordered[-2] > 1  # no tie
        w -= 0.1 * 2 * (w - y)
    assert len(visited) == 2
    found = run(eh.TERM(t=t), targets(*values), engine, dtype=dtype, rounds=5)
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(w, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_term_over_teams_and_samples_with_a_huge_tilt(engine: str, dtype: torch.dtype) -> None:
    # team means 181 and 100: the first team alone, plain inside; samples: the one at 20 alone
    values, teams = (1.0, 19.0, 10.0), ("a", "a", "b")
    found = run(eh.TERM(t=1e4, level="team"), targets(*values, team=teams), engine, dtype=dtype)
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(0.2 * 10, rel=1e-5)
    clients = [
        {"x": np.ones((2, 1)), "y": np.array([1.0, 20.0])},
        {"x": np.ones((3, 1)), "y": np.array([19.0, 19.0, 19.0])},
    ]
    found = run(
        eh.TERM(t=1e4, level="sample"), eh.Federation.from_arrays(clients), engine, dtype=dtype
    )
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(0.2 * 20, rel=1e-5)


@pytest.mark.parametrize("values", [(1.0, 19.0, 20.0), (0.0, 20.0, 20.0)], ids=str)
def test_term_by_sums_says_when_clients_tie_for_being_out_of_range(
    engine: str, values: tuple[float, ...]
) -> None:
    with pytest.warns(UserWarning, match="exact=True"):
        run(eh.TERM(t=10.0, exact=False), targets(*values), engine)


def test_term_by_sums_says_when_all_losses_fall_out_of_range_at_once(engine: str) -> None:
    # the step of 1/2 takes the loss of both clients from 1600 to 0: e^(20 (0 - 1600)) is nothing
    with pytest.warns(UserWarning, match="exact=True"):
        run(eh.TERM(t=20.0), targets(40.0, 40.0), engine, rounds=2, lr=0.5)


def test_term_asks_for_losses_only_where_its_tilt_is_large_or_it_is_told_to() -> None:
    census = targets(1.0, 2.0).census()
    assert [
        bool(eh.TERM(t=t, exact=exact).visible(census))
        for t, exact in ((20, None), (21, None), (1, True), (99, False))
    ] == [
        *(False, True),
        *(True, False),
    ]


@pytest.mark.parametrize("t", [0.01, 1.0, -0.5])
def test_term_by_sums_and_term_that_asks_are_the_same(engine: str, t: float) -> None:
    a, b = (
        run(eh.TERM(t=t, exact=exact), targets(1.0, 4.0, -3.0), engine, rounds=6)
        for exact in (False, True)
    )
    assert value(a) == pytest.approx(value(b), rel=1e-12)


def test_term_with_a_moderate_tilt_of_huge_losses_is_the_formula(engine: str) -> None:
    # losses 40000 and 40401 and t = 1/401: weights 1 : e
    found = run(eh.TERM(t=1 / 401), targets(200.0, 201.0), engine)
    assert value(found) == pytest.approx(0.2 * (200 + math.e * 201) / (1 + math.e), rel=1e-9)


# ---- PropFair: a loss beyond M


@pytest.mark.parametrize("continuation", ["paper", "linear", "huber"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_propfair_with_losses_far_beyond_M_still_descends(
    engine: str, continuation: str, dtype: torch.dtype
) -> None:
    values = (20.0, 15.0, 18.0)
    found = run(
        eh.PropFair(M=3.0, continuation=continuation),
        targets(*values),
        engine,
        dtype=dtype,
        rounds=30,
        eval_every=1,
        lr=0.05,
    )
    assert_nobody_left_out(found)
    losses = [row["loss"] for row in found.history_rows]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] / 2
    assert 0 < value(found) <= 20


@pytest.mark.parametrize("continuation", ["paper", "linear", "huber"])
def test_propfair_with_a_loss_of_exactly_M(engine: str, continuation: str) -> None:
    # f = M = 4: log(0) lies on the branch not taken; its slope must not leak. Slopes -4 times 1/M
    # or 1/epsilon
    factor = {"paper": 1 / 4, "linear": 1 / 4, "huber": 1 / 0.2}[continuation]
    found = run(eh.PropFair(M=4.0, continuation=continuation), targets(2.0), engine, lr=0.01)
    assert value(found) == pytest.approx(0.01 * 4 * factor, rel=1e-12)


# ---- groups and teams that are empty, single or tied


def with_an_unseen_group(unseen: bool) -> eh.Federation:
    """Two groups in the training data; a third in the test data alone. Its name comes first, in the
    middle or last by sorting."""
    clients = [
        {"x": np.ones((3, 1)), "y": np.array([1.0, 2.0, 3.0]), "group": ["b", "b", "d"]},
        {"x": np.full((1, 1), 2.0), "y": np.array([6.0]), "group": ["b"]},
    ]
    test = [{"x": np.ones((1, 1)), "y": np.array([9.0]), "group": ["c" if unseen else "b"]}, None]
    return eh.Federation.from_arrays(clients, test=test)


@pytest.mark.parametrize(
    "method",
    [
        eh.FedMinMax(lr_mu=0.3),
        eh.Averaged(eh.FedMinMax(lr_mu=5.0)),
        eh.AgnosticFedAvg(lr_lambda=0.3),
        eh.AgnosticFedAvg(lr_lambda=5.0, window=3),
    ],
    ids=repr,
)
def test_a_group_without_training_samples_changes_nothing(
    engine: str, method: eh.Algorithm
) -> None:
    one, other = (
        run(method, with_an_unseen_group(unseen), engine, w=1.0, rounds=5, lr=0.05)
        for unseen in (True, False)
    )
    assert value(one) == pytest.approx(value(other), rel=1e-12)
    name = "mu" if "mu" in one.state else "lam"
    assert one.state[name][1] == 0
    assert one.state[name][[0, 2]].tolist() == pytest.approx(other.state[name].tolist(), rel=1e-12)


@pytest.mark.parametrize(
    "method", [eh.FedMinMax(lr_mu=0.3), eh.AgnosticFedAvg(lr_lambda=0.3)], ids=repr
)
def test_a_group_absent_from_a_cohort_keeps_a_finite_weight(
    engine: str, method: eh.Algorithm
) -> None:
    fed = targets(2.0, -1.0, 3.0, group=[["a"], ["b"], ["a"]])
    found = run(method, fed, engine, rounds=10, cohort=eh.Uniform(1), seed=2)
    assert_nobody_left_out(found)
    weights = found.state["mu" if isinstance(method, eh.FedMinMax) else "lam"]
    assert weights.sum().item() == pytest.approx(1)
    assert bool((weights >= 0).all())
    assert -1 <= value(found) <= 3


def test_agnostic_fedavg_with_a_huge_ascent_does_not_overflow(engine: str) -> None:
    # losses 400 and 1, exponents 1e4 * 400: all weight on the worst group; the next step is its own
    fed = targets(20.0, 1.0, group=[["a"], ["b"]])
    found = run(eh.AgnosticFedAvg(lr_lambda=1e4), fed, engine, rounds=2)
    assert_nobody_left_out(found)
    w = 0.2 * (20 + 1) / 2
    assert value(found) == pytest.approx(w - 0.1 * 2 * (w - 20), rel=1e-9)


def test_gifair_needs_two_teams_and_term_does_not() -> None:
    for fed in (targets(1.0), targets(1.0, 2.0, team=["a", "a"])):
        for exact in (False, True):
            with pytest.raises(
                ValueError,
                match=r"GIFAIR compares teams.*needs at least two, but the federation has 1",
            ):
                run(eh.GIFAIR(exact_losses=exact), fed)
    # one team of equal weights: plain FedAvg, .1 * 2 * 1.5
    assert value(
        run(eh.TERM(t=3.0, level="team"), targets(1.0, 2.0, team=["a", "a"]))
    ) == pytest.approx(0.3)
    assert value(run(eh.TERM(t=3.0), targets(1.0))) == pytest.approx(0.2)


def test_term_over_teams_needs_teams() -> None:
    with pytest.raises(ValueError, match=r"TERM.*team.*Federation\.from_arrays"):
        run(eh.TERM(level="team"), targets(1.0, 2.0))


def test_gifair_exact_ties_share_their_rank(engine: str) -> None:
    # losses 1, 1 and .25: ranks +1, +1, -2. p = (2, 1, 1)/4, c = .8 * 1/8: weights .5 + .1, .25 +
    # .1, .25 - .2
    fed = targets(-1.0, 1.0, 0.5, counts=(2, 1, 1))
    found = run(eh.GIFAIR(strength=0.8, exact_losses=True), fed, engine)
    assert value(found) == pytest.approx(0.2 * (-0.6 + 0.35 + 0.05 * 0.5), rel=1e-12)
    # all tie: nobody gains
    found = run(
        eh.GIFAIR(strength=0.8, exact_losses=True), targets(-1.0, 1.0, counts=(2, 1)), engine
    )
    assert value(found) == pytest.approx(0.2 * (-2 / 3 + 1 / 3), rel=1e-12)


@pytest.mark.parametrize("exact", [False, True])
def test_a_tiny_client_leaves_gifair_little_room_and_is_never_turned_against(
    engine: str, exact: bool
) -> None:
    # p = 1/1001 for the tiny client: c_max = p, and its factor lies between 0 and 2 while the
    # other's hardly moves
    for tiny, sign in ((5.0, 1), (0.1, -1)):
        fed = targets(1.0, tiny, counts=(1000, 1))
        p, c = np.array([1000, 1]) / 1001, 0.99 / 1001
        w = 0.0
        for round in range(2):
            rho = np.array([-sign, sign]) if exact or round else np.zeros(2)
            factors = 1 + c * rho / p
            assert (factors > 0).all()
            assert factors[1] <= 2
            w -= 0.01 * 2 * (p * factors) @ (w - np.array([1.0, tiny]))
        found = run(eh.GIFAIR(strength=0.99, exact_losses=exact), fed, engine, rounds=2, lr=0.01)
        assert value(found) == pytest.approx(w, rel=1e-10)


def test_gifair_does_not_mix_exact_losses_with_personal_models() -> None:
    with pytest.raises(ValueError, match=r"exact_losses.*personal|personal.*exact_losses"):
        eh.GIFAIR(personal=True, exact_losses=True)


# ---- FedMGDA+, FedFV, AdaFed: degenerate updates


def plane(*updates: Sequence[float], counts: Sequence[int] | None = None) -> eh.Federation:
    """Clients whose update from w = 0 with lr 1/2 is the given vector: (w x + 1)^2 has the slope 2
    x there; 0 for (0, 0)."""
    counts = counts or [1] * len(updates)
    rows = [
        (np.array([u] * count, dtype=float), count)
        for u, count in zip(updates, counts, strict=True)
    ]
    return eh.Federation.from_arrays([{"x": x, "y": np.full(count, -1.0)} for x, count in rows])


def move(algorithm: eh.Algorithm, fed: eh.Federation, engine: str, rounds: int = 1) -> list[float]:
    module = nn.Linear(fed.train.x.shape[1], 1, bias=False).double()
    with torch.no_grad():
        module.weight.zero_()
    found = eh.fit(
        module,
        fed,
        algorithm,
        loss="mse",
        rounds=rounds,
        local=eh.LocalSGD(lr=0.5, steps=1),
        engine=engine,
    )
    assert_nobody_left_out(found)
    moved = found.params["weight"][0].tolist()
    assert all(math.isfinite(entry) for entry in moved)
    return moved


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("normalise", [True, False])
def test_fedmgda_with_a_singular_gram_matrix(engine: str, epsilon: float, normalise: bool) -> None:
    method = eh.FedMGDA(epsilon=epsilon, normalise=normalise)
    size = 1.0 if normalise else 5.0
    same = [-0.6 * size, -0.8 * size]
    # identical
    assert move(method, plane((3, 4), (3, 4), (3, 4), counts=(5, 1, 1)), engine) == pytest.approx(
        same, abs=1e-9
    )
    # many of them
    assert move(method, plane(*[(3, 4)] * 40), engine) == pytest.approx(same, abs=1e-9)
    assert move(method, plane((0, 0), (0, 0)), engine) == [0, 0]  # nobody wants to move
    # opposite: halves cancel; the prior (3/4, 1/4) in a box of .1 leaves .65 - .35
    left = {0.0: 0.5, 0.1: 0.3, 1.0: 0.0}[epsilon]
    found = move(method, plane((3, 4), (-3, -4), counts=(3, 1)), engine)
    assert found == pytest.approx([-0.6 * size * left, -0.8 * size * left], abs=1e-9)
    # one at its optimum: the hull holds 0, so with epsilon = 1 nobody moves; the prior 1/2 in a box
    # of .1 leaves .4
    left = {0.0: 0.5, 0.1: 0.4, 1.0: 0.0}[epsilon]
    assert move(method, plane((3, 4), (0, 0)), engine) == pytest.approx(
        [-0.6 * size * left, -0.8 * size * left], abs=1e-9
    )


@pytest.mark.parametrize("epsilon", [0.02, 0.3, 1.0])
def test_fedmgda_with_more_clients_than_weights_solves_its_program(
    engine: str, epsilon: float
) -> None:
    generator = np.random.default_rng(4)
    updates = generator.normal(size=(12, 2)) + np.array([1.0, 0.5])
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    low, high = np.maximum(1 / 12 - epsilon, 0), np.minimum(1 / 12 + epsilon, 1)
    program = scipy.optimize.minimize(
        lambda lam: ((lam @ units) ** 2).sum(),
        np.full(12, 1 / 12),
        jac=lambda lam: 2 * units @ (lam @ units),
        bounds=[(low, high)] * 12,
        constraints={"type": "eq", "fun": lambda lam: lam.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert program.success
    found = move(eh.FedMGDA(epsilon=epsilon), plane(*updates.tolist()), engine)
    assert found == pytest.approx((-program.x @ units).tolist(), abs=1e-5)
    # and not longer than what the other solver found
    assert np.linalg.norm(found) <= math.sqrt(program.fun) + 1e-9


@pytest.mark.parametrize(
    "method", [eh.FedFV(), eh.FedFV(alpha=0.0, tau=2), eh.AdaFed(), eh.AdaFed(gamma=0.0)], ids=repr
)
def test_fedfv_and_adafed_with_degenerate_updates_stay_finite(
    engine: str, method: eh.Algorithm
) -> None:
    assert move(method, plane((0, 0), (0, 0)), engine, rounds=3) == [0, 0]
    assert move(method, plane((3, 4)), engine, rounds=3) is not None
    same = move(method, plane((3, 4), (3, 4), (3, 4)), engine)
    assert same[0] / same[1] == pytest.approx(3 / 4)
    assert same[0] < 0
    for fed in (
        plane((3, 4), (0, 0)),
        plane((3, 4), (-3, -4)),
        plane((3, 4), (-6, -8), (0, 1)),
        plane((1, 0), (0, 1), (1, 1), (-1, 0.5)),
    ):
        move(method, fed, engine, rounds=3)


def test_fedfv_with_opposite_updates_stays(engine: str) -> None:
    # the plain mean is zero, so the step has length zero
    assert move(eh.FedFV(), plane((3, 4), (-3, -4)), engine) == pytest.approx([0, 0], abs=1e-12)


def test_fedfv_keeps_the_largest_losses_as_its_code_counts_them(engine: str) -> None:
    """Of K = 4 all but the ceil(3 * .7) = 3 smallest losses keep their updates at alpha = .3: the
    largest alone.

    Losses are r^2 and updates u for (w x + r)^2 with x = u / r, lr = 1/2. Updates a = (2, 0), b =
    (0, 2), c = (-1, 1), d = (0, 4) with losses 1, 4, 9, 16: a is cleared of c: (2, 0) + (-1, 1) =
    (1, 1); b conflicts with nobody; c is cleared of a: (0, 1). At alpha = .4, ceil(3 * .6) = 2, c
    and d are kept.
    """
    updates = np.array([(2.0, 0.0), (0.0, 2.0), (-1.0, 1.0), (0.0, 4.0)])
    roots = (1.0, 2.0, 3.0, 4.0)
    fed = eh.Federation.from_arrays(
        [{"x": (u / r)[None], "y": np.array([-r])} for u, r in zip(updates, roots, strict=True)]
    )
    for alpha, third in ((0.3, (0, 1)), (0.4, (-1, 1))):
        expected = np.array([(1, 1), (0, 2), third, (0, 4)]).sum(0).astype(float)
        expected *= np.linalg.norm(updates.sum(0)) / np.linalg.norm(expected) / 4
        assert move(eh.FedFV(alpha=alpha), fed, engine) == pytest.approx(
            (-expected).tolist(), rel=1e-9, abs=1e-12
        )


# ---- FAFL: levels below the weights, floors that leave no room


def test_fafl_below_the_weights_warns_and_keeps_its_exact_objective() -> None:
    # p = (3/4, 1/4); from alpha = p on the exact objective is the largest loss
    losses, p = [1.0, 9.0], [0.75, 0.25]
    assert [
        float(theory.HCVaR(alpha).value(losses, p))
        for alpha in ((0.75, 0.25), (0.5, 0.1), (1e-3, 1e-6))
    ] == pytest.approx([9.0] * 3)
    fed = targets(1.0, 3.0, counts=(3, 1))
    for alpha in ((0.75, 0.1), (0.5, 0.1), 0.01):
        with pytest.warns(
            UserWarning,
            match=r"alpha of client c\d .*below its weight.*does not change the exact objective",
        ):
            found = run(eh.FAFL(alpha=alpha, mu=0.0), fed, lr=0.001)
        assert found.certificate is not None
        w = value(found)
        assert float(found.certificate.value) == pytest.approx(
            max((w - 1) ** 2, (w - 3) ** 2), rel=1e-9
        )


def test_fafl_with_a_tiny_width_does_not_overflow(engine: str) -> None:
    # (f - eta)/mu = 1e8: the smoothed method is the exact one
    fed = targets(1.0, 20.0, counts=(3, 1))
    found, exact = (
        run(eh.FAFL(alpha=0.8, mu=mu, eta0=100.0), fed, engine, rounds=3, lr=0.01)
        for mu in (1e-6, 0.0)
    )
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(value(exact), rel=1e-9)


@pytest.mark.parametrize("eta0", ["mean", "quantile", 0.0])
@pytest.mark.parametrize("alpha", [1.0, 0.6])
def test_fafl_with_full_floors_leaves_every_client_its_weight(
    engine: str, alpha: float, eta0: float | str
) -> None:
    # a = 1 and sum a_i w_i = 1: the exact objective is the plain mean, and certified so
    fed = targets(1.0, 3.0, counts=(2, 2))
    found = run(eh.FAFL(alpha=alpha, mu=0.0, floor=1.0, eta0=eta0), fed, engine, rounds=4)
    assert_nobody_left_out(found)
    w = value(found)
    assert found.certificate is not None
    assert float(found.certificate.value) == pytest.approx(
        ((w - 1) ** 2 + (w - 3) ** 2) / 2, rel=1e-9
    )
    if alpha == 1:  # no room at all: FedAvg bit for bit
        assert w == value(run(eh.FedAvg(), fed, engine, rounds=4))
        assert torch.equal(
            found.state["eta"],
            run(eh.FAFL(alpha=1.0, mu=0.0, floor=1.0, eta0=eta0), fed, engine).state["eta"],
        )


def test_drfa_with_floors_that_sum_to_one_keeps_equal_weights(engine: str) -> None:
    fed = targets(1.0, 3.0, -2.0, counts=(5, 1, 2))
    found = run(eh.DRFA(lr_lambda=10.0, floor=1 / 3), fed, engine, rounds=4)
    assert value(found) == pytest.approx(
        value(run(eh.FedAvg(), fed, engine, rounds=4, weights="uniform")), rel=1e-12
    )


@pytest.mark.parametrize("n", [3, 49, 98])
def test_one_over_the_number_of_clients_is_an_admissible_floor_and_cap(n: int) -> None:
    """In floating point 49 * (1/49) < 1; a cap of 1/n is still what the message offers, and means
    equal weights."""
    fed = targets(*np.linspace(-1, 2, n).tolist(), counts=[1 + i % 3 for i in range(n)])
    expected = value(run(eh.FedAvg(), fed, weights="uniform", engine="vmap"))
    assert value(run(eh.LossGuard(cap=1 / n), fed, engine="vmap")) == pytest.approx(
        expected, rel=1e-9
    )
    assert value(run(eh.DRFA(floor=1 / n), fed, engine="vmap")) == pytest.approx(expected, rel=1e-9)


# ---- ties and outliers of losses


@pytest.mark.parametrize("tail", [0.01, 0.5, 1.0])
def test_deltafl_with_equal_losses_trains_everyone(engine: str, tail: float) -> None:
    # from 0 the losses of targets 1 and -1 tie: nobody is below the quantile
    found = run(eh.DeltaFL(tail=tail), targets(1.0, -1.0, 1.0, counts=(2, 1, 1)), engine)
    assert [row["asked"] for row in found.history_rows] == [3]
    assert value(found) == pytest.approx(0.2 * (3 - 1) / 4, rel=1e-12)


def test_deltafl_takes_the_lower_quantile_where_the_tail_ends_between_two_clients(
    engine: str,
) -> None:
    # four alike, half of them: the 1/2-quantile is the second smallest loss, as in the authors'
    # code, so three are at or above it
    found = run(eh.DeltaFL(tail=0.5), targets(1.0, 2.0, 3.0, 4.0), engine)
    assert value(found) == pytest.approx(0.2 * (2 + 3 + 4) / 3, rel=1e-12)


def test_lossguard_without_deviation_cuts_at_the_median(engine: str) -> None:
    # losses 1, 1, 1, 400: median 1, MAD 0, all reported as 1: lam stays at the weights
    fed = targets(1.0, -1.0, 1.0, 20.0, counts=(2, 1, 1, 1))
    found = run(eh.LossGuard(mads=3.0, cap=1.0, inner=eh.AFL(lr_lambda=0.1)), fed, engine)
    assert found.state["lam"].tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2], rel=1e-12)


def test_lossguard_with_equal_losses_changes_nothing(engine: str) -> None:
    fed = targets(1.0, -1.0, 1.0, counts=(2, 1, 1))
    for inner in (eh.AFL(lr_lambda=0.1), eh.DeltaFL(tail=0.5), eh.AAggFF(), eh.DRFA(lr_lambda=0.1)):
        found = run(eh.LossGuard(cap=1.0, inner=inner), fed, engine, rounds=1)
        assert value(found) == pytest.approx(value(run(inner, fed, engine, rounds=1)), rel=1e-12)


def test_lossguard_withstands_a_client_that_reports_a_huge_loss(engine: str) -> None:
    # losses 1, 2.25, 4 and 1e12 from 0: median 3.125, deviations 2.125, .875, .875, huge: MAD 1.5;
    # the liar counts as 7.625
    fed = targets(1.0, 1.5, 2.0, 1e6)
    found = run(eh.LossGuard(mads=3.0, cap=0.5, inner=eh.AFL(lr_lambda=0.05)), fed, engine, lr=1e-9)
    raised = np.array([0.25, 0.25, 0.25, 0.25]) + 0.05 * np.array([1, 2.25, 4, 3.125 + 3 * 1.5])
    lam = raised - (raised.sum() - 1) / 4
    assert lam.min() > 0
    assert lam.max() < 0.5
    assert found.state["lam"].tolist() == pytest.approx(lam.tolist(), rel=1e-9)


def test_aaggff_with_losses_of_zero_keeps_finite_weights(engine: str) -> None:
    for solver in ("newton", "ftrl"):
        for cdf in ("normal", "weibull", "exponential", "frechet", "gumbel", "logistic"):
            for fed, w in ((targets(1.0, 1.0), 1.0), (targets(1.0, 2.0), 1.0), (targets(3.0), 0.0)):
                found = run(eh.AAggFF(solver=solver, cdf=cdf), fed, engine, w=w, rounds=2)
                assert_nobody_left_out(found)
                assert found.state["lam"].sum().item() == pytest.approx(1)
                assert bool((found.state["lam"] >= -1e-12).all())
                assert math.isfinite(value(found))


def test_aaggff_of_many_rounds_stays_on_the_simplex_and_favours_the_worst(engine: str) -> None:
    for solver in ("newton", "ftrl"):
        found = run(
            eh.AAggFF(solver=solver),
            targets(1.0, 0.0, 30.0, -1.0, counts=(4, 1, 1, 2)),
            engine,
            rounds=30,
            lr=1e-6,
        )
        lam = found.state["lam"].tolist()
        assert sum(lam) == pytest.approx(1)
        assert min(lam) >= -1e-12
        relative = [x / p for x, p in zip(lam, (0.5, 1 / 8, 1 / 8, 1 / 4), strict=True)]
        assert max(relative) == relative[2]


# ---- wrappers with nothing to do


@pytest.mark.parametrize(
    "method",
    [eh.Clipped(norm=1e-3), eh.FedProx(mu=1.0), eh.FedAvgM(), eh.FedAdam(), eh.FineTuned()],
    ids=repr,
)
def test_wrappers_of_updates_of_length_zero_stay_finite(engine: str, method: eh.Algorithm) -> None:
    found = run(method, targets(1.0, 1.0), engine, w=1.0, rounds=3)
    assert_nobody_left_out(found)
    assert value(found) == 1.0


def test_an_update_whose_square_overflows_is_clipped_to_the_norm(engine: str) -> None:
    # float32: an update of 1e29, finite, with a square that is not
    found = run(
        eh.Clipped(norm=1.0),
        targets(1e30),
        engine,
        dtype=torch.float32,
        loss=absolute,
        lr=1e29,
        steps=1,
    )
    assert_nobody_left_out(found)
    assert value(found) == pytest.approx(1.0, rel=1e-5)


def absolute(output: Tensor, target: Tensor) -> Tensor:
    return (output.squeeze(-1) - target).abs()


def test_what_has_no_local_model_cannot_be_clipped_and_feels_no_pull(engine: str) -> None:
    sgd = eh.QFFL(q=1.0, solver="fedsgd")
    with pytest.raises((ValueError, eh.ClientError), match=r"no local model"):
        run(eh.Clipped(norm=1.0, inner=sgd), targets(1.0, 2.0), engine)
    assert value(run(eh.FedProx(mu=3.0, inner=sgd), targets(1.0, 2.0), engine)) == value(
        run(sgd, targets(1.0, 2.0), engine)
    )


# ---- a client whose loss is not a number


def breaks_for_high_targets(output: Tensor, target: Tensor) -> Tensor:
    return (output.squeeze(-1) - target) ** 2 * torch.where(target > 50, NAN, 1.0)


def infinite_for_high_targets(output: Tensor, target: Tensor) -> Tensor:
    return (output.squeeze(-1) - target) ** 2 * torch.where(target > 50, INF, 1.0)


SURVEYS: dict[str, eh.Algorithm] = {
    "AFL before": eh.AFL(lr_lambda=0.05, order="before"),
    "FAFL mean": eh.FAFL(alpha=0.7, mu=0.5, eta0="mean"),
    "FAFL quantile": eh.FAFL(alpha=0.7, mu=0.5, eta0="quantile"),
    "TERM": eh.TERM(t=0.5),
    "TERM team": eh.TERM(t=0.5, level="team"),
    "GIFAIR exact": eh.GIFAIR(strength=0.8, exact_losses=True),
    "DeltaFL": eh.DeltaFL(tail=0.6),
    "DRFA": eh.DRFA(lr_lambda=0.05),
    "AAggFF newton": eh.AAggFF(),
    "AAggFF ftrl": eh.AAggFF(solver="ftrl"),
    "guarded AFL": eh.LossGuard(cap=0.6, inner=eh.AFL(lr_lambda=0.05, order="before")),
    "guarded DeltaFL": eh.LossGuard(cap=0.9, inner=eh.DeltaFL(tail=0.6)),
}
TEAMED = {"team": ["a", "b", "a", "b"]}


@pytest.mark.parametrize("method", SURVEYS.values(), ids=SURVEYS.keys())
def test_a_client_whose_loss_is_not_a_number_is_left_out_and_named(
    engine: str, method: eh.Algorithm
) -> None:
    fed = targets(1.0, 2.0, 99.0, -1.0, counts=(3, 2, 2, 1), **TEAMED)
    found = run(method, fed, engine, rounds=3, loss=breaks_for_high_targets, lr=0.05, eval_every=1)
    assert [row["left_out"] for row in found.history_rows] == ["c2"] * 3
    assert not any(row["void"] for row in found.history_rows)
    assert math.isfinite(value(found))
    assert value(found) != 0
    for name in ("lam", "eta"):
        assert bool(found.state.get(name, torch.zeros(())).isfinite().all())


@pytest.mark.parametrize("name", ["FAFL mean", "FAFL quantile", "TERM", "TERM team", "DeltaFL"])
def test_the_others_train_as_if_the_broken_client_were_not_there(engine: str, name: str) -> None:
    """These methods normalise over those who answer, so the missing one leaves no trace."""
    broken = targets(1.0, 2.0, 99.0, -1.0, counts=(3, 2, 2, 1), **TEAMED)
    without = targets(1.0, 2.0, -1.0, counts=(3, 2, 1), team=["a", "b", "b"])
    one, other = (
        run(
            SURVEYS[name],
            fed,
            engine,
            rounds=3,
            loss=breaks_for_high_targets,
            lr=0.05,
            eval_every=1,
        )
        for fed in (broken, without)
    )
    assert value(one) == pytest.approx(value(other), rel=1e-9)


@pytest.mark.parametrize("method", SURVEYS.values(), ids=SURVEYS.keys())
def test_where_every_loss_is_infinite_every_round_is_void(
    engine: str, method: eh.Algorithm
) -> None:
    fed = targets(91.0, 92.0, 93.0, team=["a", "b", "a"])
    found = run(method, fed, engine, rounds=2, loss=infinite_for_high_targets)
    assert [row["void"] for row in found.history_rows] == [True, True]
    assert [row["left_out"] for row in found.history_rows] == ["c0, c1, c2"] * 2
    assert value(found) == 0.0
    for name in ("lam", "eta"):
        assert bool(found.state.get(name, torch.zeros(())).isfinite().all())


# ---- settings


def refused(call: Callable[[], Any], name: str, value: Any) -> None:
    """A ValueError (TypeError for objects) in one line, with the name, what is allowed, and the
    value."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(rf"\b{name}\b", message), message
    assert re.search(re.escape(f"got {value!r}"), message) or (
        isinstance(value, float) and f"got {value:g}" in message
    ), message
    assert "must be" in message, message


NUMBERS: dict[str, tuple[type[eh.Algorithm], str, tuple[Any, ...]]] = {
    "FAFL floor": (eh.FAFL, "floor", (-0.1, 1.1, NAN, "low")),
    "FAFL sigma": (eh.FAFL, "sigma", ("whole", None)),
    "FAFL eta0": (eh.FAFL, "eta0", ("median", INF)),
    "FAFL short_first_round": (eh.FAFL, "short_first_round", ("yes", 1)),
    "AFL order": (eh.AFL, "order", ("first", None)),
    "QFFL solver": (eh.QFFL, "solver", ("sgd",)),
    "QFFL lipschitz": (eh.QFFL, "lipschitz", (0.0, -1.0, INF, "big")),
    "TERM t": (eh.TERM, "t", (INF, -INF, NAN, "one")),
    "TERM level": (eh.TERM, "level", ("group", None)),
    "TERM sample_t": (eh.TERM, "sample_t", (INF, NAN)),
    "GIFAIR exact_losses": (eh.GIFAIR, "exact_losses", ("yes", 1)),
    "PropFair continuation": (eh.PropFair, "continuation", ("tangent", None)),
    "FedMGDA epsilon": (eh.FedMGDA, "epsilon", (-0.1, 1.5, NAN)),
    "FedMGDA server_lr": (eh.FedMGDA, "server_lr", (0.0, -1.0, INF)),
    "FedMGDA prior": (eh.FedMGDA, "prior", ("data",)),
    "FedMGDA normalise": (eh.FedMGDA, "normalise", ("no", 0)),
    "DeltaFL tail": (eh.DeltaFL, "tail", (0.0, 1.1, -0.5, NAN)),
    "DRFA lr_lambda": (eh.DRFA, "lr_lambda", (-0.1, INF)),
    "DRFA sample": (eh.DRFA, "sample", (0, -1, 1.5)),
    "DRFA floor": (eh.DRFA, "floor", (-0.1, 1.0, 2.0)),
    "AgnosticFedAvg lr_lambda": (eh.AgnosticFedAvg, "lr_lambda", (-0.1, INF)),
    "AgnosticFedAvg window": (eh.AgnosticFedAvg, "window", (0, 1.5, None)),
    "FedFV alpha": (eh.FedFV, "alpha", (-0.1, 1.1, NAN)),
    "FedFV tau": (eh.FedFV, "tau", (-1, 0.5)),
    "AdaFed gamma": (eh.AdaFed, "gamma", (-1.0, INF)),
    "AdaFed server_lr": (eh.AdaFed, "server_lr", (0.0, INF)),
    "AAggFF solver": (eh.AAggFF, "solver", ("ons",)),
    "AAggFF cdf": (eh.AAggFF, "cdf", ("cauchy",)),
    "FedProx mu": (eh.FedProx, "mu", (-0.1, INF)),
    "FedAvgM lr": (eh.FedAvgM, "lr", (0.0, -1.0, INF)),
    "FedAvgM momentum": (eh.FedAvgM, "momentum", (1.0, -0.1)),
    "FedAdam lr": (eh.FedAdam, "lr", (0.0, INF)),
    "FedAdam b1": (eh.FedAdam, "b1", (1.0, -0.1)),
    "FedAdam b2": (eh.FedAdam, "b2", (1.0, -0.1)),
    "FedAdam tau": (eh.FedAdam, "tau", (0.0, -1.0, INF)),
    "Clipped norm": (eh.Clipped, "norm", (0.0, -1.0, NAN)),
    "LossGuard mads": (eh.LossGuard, "mads", (-1.0, NAN)),
    "LossGuard cap": (eh.LossGuard, "cap", (0.0, 1.5, NAN)),
    "FineTuned epochs": (eh.FineTuned, "epochs", (0, 1.5)),
}


@pytest.mark.parametrize(("method", "name", "values"), NUMBERS.values(), ids=NUMBERS.keys())
def test_a_setting_out_of_range_is_refused_with_its_name_its_value_and_what_is_allowed(
    method: type[eh.Algorithm], name: str, values: tuple[Any, ...]
) -> None:
    for bad in values:
        refused(lambda bad=bad: method(**{name: bad}), name, bad)


@pytest.mark.parametrize(
    "wrapper", [eh.FedProx, eh.FedAvgM, eh.FedAdam, eh.Clipped, eh.LossGuard, eh.FineTuned]
)
def test_what_is_wrapped_must_be_a_method(wrapper: type[eh.Algorithm]) -> None:
    with pytest.raises(
        TypeError,
        match=(
            r"inner must be an Algorithm object such as FedAvg\(\), got .*did you mean QFFL\(\)\?"
        ),
    ):
        wrapper(inner=eh.QFFL)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"inner.*'fedavg'"):
        wrapper(inner="fedavg")  # type: ignore[call-arg]


MISFITS: dict[str, tuple[eh.Algorithm, eh.Federation, str]] = {
    "floors for other clients": (
        eh.FAFL(floor=(0.1, 0.2, 0.3)),
        targets(1.0, 2.0),
        r"floor has 3 entries for 2 clients",
    ),
    "more asked than there are": (eh.DRFA(sample=3), targets(1.0, 2.0), r"sample.*3.*2"),
    "floors above the mass": (
        eh.DRFA(floor=0.6),
        targets(1.0, 2.0),
        r"floor 0\.6 for 2 clients.*at most 0\.5",
    ),
    "a cap below the mass": (
        eh.LossGuard(cap=0.4),
        targets(1.0, 2.0),
        r"cap 0\.4 for 2 clients.*at least 0\.5",
    ),
    "a guard without losses": (
        eh.LossGuard(inner=eh.FedAvg()),
        targets(1.0, 2.0),
        r"LossGuard needs a method whose server sees losses in every round, but that of FedAvg\(\) does not",
    ),
    "a guard of team losses": (
        eh.LossGuard(inner=eh.GIFAIR()),
        targets(1.0, 2.0, team=["a", "b"]),
        r"LossGuard needs.*losses",
    ),
    "no groups": (
        eh.AgnosticFedAvg(),
        targets(1.0, 2.0),
        r"AgnosticFedAvg needs a group for every training sample; name a column",
    ),
}


@pytest.mark.parametrize(("method", "fed", "pattern"), MISFITS.values(), ids=MISFITS.keys())
def test_what_does_not_fit_the_federation_is_refused_before_training(
    method: eh.Algorithm, fed: eh.Federation, pattern: str
) -> None:
    with pytest.raises(ValueError, match=pattern) as caught:
        run(method, fed)
    assert "\n" not in str(caught.value)


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sample_t.*got 0\.5"):
        eh.TERM(t=1.0, level="sample", sample_t=0.5)
    with pytest.raises(ValueError, match=r"already gives each client its own model"):
        eh.FineTuned(inner=eh.Ditto())
    with pytest.raises(ValueError, match=r"already gives each client its own model"):
        eh.FineTuned(inner=eh.Clipped(inner=eh.GIFAIR(personal=True)))
