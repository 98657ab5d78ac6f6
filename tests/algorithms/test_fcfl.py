"""FCFL: numbers by hand, special cases, both linear programs, and the optimum that SciPy finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch

import evenhand as eh
from evenhand.algorithms.fcfl import between, for_everyone
from tests.support import binary, limits
from tests.support.by_hand import near, sigmoid

FOREVER = 10**6  # more rounds than any run has
FREE: dict[str, Any] = {"bound": 1.0, "smallest": 0}
UNIFORM: dict[str, Any] = {"weights": "uniform"}


def step(
    method: eh.FCFL,
    updates: Sequence[Sequence[float]],
    losses: Sequence[float],
    gradients: Sequence[Sequence[float]],
    gaps: Sequence[float | None],
    lr: float = 0.5,
    rounds: int = 1,
) -> tuple[list[float], dict[str, Any], dict[str, Any]]:
    """The server's last step from these replies, its state and its info; None: without a gap."""

    def rows(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    state = method.init({"a": torch.zeros(len(updates[0])).double()}, binary.eight().census())
    each = {
        "delta": {"a": rows(updates)},
        "loss_at_start": rows(losses),
        "gap_gradient": {"a": rows(gradients)},
        "gap": rows([9.0 if gap is None else gap for gap in gaps]),  # not to be read
        "has_gap": rows([gap is not None for gap in gaps]),
    }
    total = {"lr": rows(lr * len(updates))}
    for _ in range(rounds):
        before = state
        state, info = method.server(state, eh.Replies(torch.arange(len(updates)), total, each))
    return (before["model"]["a"] - state["model"]["a"]).tolist(), state, info


# ---- stage 1 by hand: with delta = .1, losses and gaps that differ by .1 log 3 have weights 1:3

LOSSES, GAPS = [1.0, 1.0 + 0.1 * math.log(3)], [0.3, 0.3 + 0.1 * math.log(3)]
UPDATES = [[4.0, 0.0], [0.0, 4.0]]  # u = (1, 3)
ONE = {"delta": 0.1, "decay": 1.0, "bound": 0.3}


def slopes(v: Sequence[float]) -> list[list[float]]:
    """Gradients of the gaps whose step, with weights 1:3 and lr 1/2, is ``v``."""
    return [[8 * v[0], 0.0], [0.0, 8 * v[1] / 3]]


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        # <u, v> = -6, |u|^2 = 10: t = 10/16, 3/8 (1, 3) + 5/8 (-3, -1), at a right angle to u
        ((-3, -1), (-1.5, 0.5)),
        ((3, 1), (3, 1)),  # <u, v> = 6 < |v|^2 = 10: v lowers the gap more
        ((0.3, 0.1), (1, 3)),  # <u, v> = .6 > |v|^2 = .1: u does
        ((0, 0), (1, 3)),  # no step lowers the gap
    ],
)
def test_one_step_of_stage_1(v: tuple[float, float], expected: tuple[float, float]) -> None:
    found, _, info = step(eh.FCFL(**ONE), UPDATES, LOSSES, slopes(v), GAPS)
    assert found == near(expected)
    assert info["largest_loss"] == LOSSES[1]
    assert info["group_gap"] == GAPS[1]
    assert (info["stage"], info["group_bound"], info["without_gap"]) == (1, 0.3, 0)
    assert info["direction_norm"] == near(math.hypot(*expected))


def test_within_the_bound_only_losses_count() -> None:
    for gaps in ([0.3, 0.2], [None, 0.1], [None, None]):
        found, _, info = step(eh.FCFL(**ONE), UPDATES, LOSSES, slopes((-3, -1)), gaps)
        assert found == near([1, 3])
        assert info["without_gap"] == gaps.count(None)


def test_a_client_without_a_gap_is_skipped() -> None:
    # the second alone: (0, 8) with lr 1/2
    found, _, info = step(eh.FCFL(**ONE), UPDATES, LOSSES, [[9, 9], [0, 8]], [None, 0.4])
    assert found == near([0, 4])
    assert info["without_gap"] == 1


def test_temperatures_fall_when_their_gradients_are_short() -> None:
    def temperatures(delta: float, rounds: int = 1, **settings: Any) -> list[float]:
        # u = (2, 2) with equal losses, 2 sqrt(2) / lr long; v = (1, 1), sqrt(2) / lr
        method = eh.FCFL(delta=delta, **settings)
        same = [[4.0, 4.0]] * 2
        _, state, _ = step(method, [[2.0, 2.0]] * 2, [1, 1], same, [0.4, 0.4], 0.25, rounds)
        return [state["loss_delta"].item(), state["gap_delta"].item()]

    long = 0.1 * 8 * math.sqrt(2)  # = 1.13; the other is half as long
    assert temperatures(0.5) == near([0.5, 0.5])
    assert temperatures(0.6) == near([0.6, 0.006])
    assert temperatures(1.01 * long) == near([0.0101 * long] * 2)
    assert temperatures(0.5, ratio=0.0) == near([0.005] * 2)
    assert temperatures(0.5, ratio=0.0, decay=1.0) == near([0.5] * 2)
    assert temperatures(0.5, rounds=5, ratio=0.0) == near([1e-4] * 2)
    assert temperatures(1e-9, ratio=0.0) == near([1e-9] * 2)  # below the floor at once
    # in stage 2, and without any gap, they stay
    assert temperatures(0.5, ratio=0.0, minimax_rounds=0) == near([0.5] * 2)
    _, state, _ = step(eh.FCFL(ratio=0.0), UPDATES, LOSSES, UPDATES, [None, None])
    assert state["loss_delta"].item() == near(0.005)
    assert state["gap_delta"].item() == 0.5


@pytest.mark.parametrize("seed", range(30))
def test_scipy_finds_the_step_of_stage_1(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lower, fairer = generator.normal(size=(2, 3)) * generator.uniform(0.2, 3, size=(2, 1))
    rows = np.stack([lower, fairer])
    program = scipy.optimize.linprog(
        -rows @ fairer, A_ub=-(rows @ lower)[None], b_ub=[0], A_eq=[[1, 1]], b_eq=[1]
    )
    found = between(torch.from_numpy(lower), torch.from_numpy(fairer)).numpy()
    assert found == pytest.approx(program.x @ rows, abs=1e-8)


# ---- stage 2


def best_vertex(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """The optimum of stage 2's linear program, found by trying every vertex."""
    count = len(rows)
    limits_of = np.vstack([np.eye(count), rows @ rows.T])  # all products with weights must be >= 0
    best, value = np.zeros(count), -np.inf
    for tight in itertools.combinations(range(2 * count), count - 1):
        system = np.vstack([np.ones(count), limits_of[list(tight)]])
        if abs(np.linalg.det(system)) < 1e-12:
            continue
        weights = np.linalg.solve(system, np.eye(count)[0])
        if (limits_of @ weights > -1e-9).all() and weights @ rows @ mean > value:
            best, value = weights, weights @ rows @ mean
    return best @ rows


@pytest.mark.parametrize("seed", range(12))
def test_stage_2_takes_the_best_vertex(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(4, 3 + seed % 3)) * generator.uniform(0.1, 5, size=(4, 1))
    rows[:3] += 0.5 * (seed % 2)
    mean = rows[:3].mean(0)
    found = for_everyone(torch.from_numpy(rows), torch.from_numpy(mean)).numpy()
    assert found == pytest.approx(best_vertex(rows, mean), abs=1e-7)
    assert (rows @ found > -1e-8).all()
    assert (rows @ rows.T < 0).any()


PARETO = eh.FCFL(minimax_rounds=0)


def test_stage_2_without_conflicts_follows_the_client_closest_to_the_mean() -> None:
    updates = [[1.0, 0.0, 0.0], [1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]  # products with the mean 2, 8, 4
    found, _, info = step(PARETO, updates, [1, 5, 9], [[9, 9, 9]] * 3, [0.01, 0.02, None])
    assert found == near(updates[1])
    assert info["stage"] == 2


def test_stage_2_removes_a_conflict_by_hand() -> None:
    # (4, 0) and (-1, 1), mean (1.5, .5): products 6 and -1. 4 a - (1 - a) >= 0 and, for the
    # second, -4 a + 2 (1 - a) >= 0: a <= 1/3, so 1/3 (4, 0) + 2/3 (-1, 1)
    found, _, _ = step(PARETO, [[4.0, 0.0], [-1.0, 1.0]], [1, 1], [[0, 0]] * 2, [0.5, 0.5])
    assert found == near([2 / 3, 2 / 3])


def test_stage_2_does_not_raise_a_gap_beyond_the_bound() -> None:
    # (2, 0) and (1, 0), v = lr (-4, 4) = (-2, 2). Weights a on (2, 0) and 1 - a on v:
    # v . step = -4 a + 8 (1 - a) >= 0 for a <= 2/3; (4/3 - 2/3, 2/3) has most along (1, 0)
    updates, gradients = [[2.0, 0.0], [1.0, 0.0]], [[-4.0, 4.0]] * 2
    found, _, _ = step(PARETO, updates, [1, 1], gradients, [0.3, 0.3])
    assert found == near([2 / 3, 2 / 3])
    found, _, _ = step(PARETO, updates, [1, 1], gradients, [0.05, 0.03])  # at the bound
    assert found == near([2, 0])


def test_stage_2_stands_still_where_no_step_helps_everybody() -> None:
    found, _, _ = step(PARETO, [[1.0, 2.0], [-2.0, -4.0]], [1, 1], [[0, 0]] * 2, [None, None])
    assert found == pytest.approx([0, 0], abs=1e-9)
    found, _, _ = step(PARETO, [[0.0, 0.0]] * 2, [1, 1], [[0, 0]] * 2, [None, None])
    assert found == [0, 0]
    # one client is at its optimum: it neither moves nor stops the other
    found, _, _ = step(PARETO, [[0.0, 0.0], [1.0, 2.0]], [1, 1], [[0, 0]] * 2, [None, None])
    assert found == near([1, 2])


def test_a_program_that_fails_gives_the_shortest_combination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = scipy.optimize.OptimizeResult(x=None)
    monkeypatch.setattr(scipy.optimize, "linprog", lambda *_, **__: failed)
    found, _, _ = step(PARETO, [[2.0, 0.0], [0.0, 2.0]], [1, 1], [[0, 0]] * 2, [None, None])
    assert found == near([1, 1])


def test_updates_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="updates must be finite"):
        for_everyone(torch.tensor([[1.0, math.nan]]).double(), torch.ones(2).double())


# ---- what clients send, by hand: six samples, soft predictions sigmoid(6 w x)

X, Y, GROUP = [1.0, 1, -1, 2, -1, -2], [1, 1, 0, 1, 0, 0], list("uuuvvv")


def gap_at(w: float, notion: str) -> float:
    if notion == "equal_opportunity":
        return abs(sigmoid(6 * w) - sigmoid(12 * w))
    u = 2 * sigmoid(6 * w) + sigmoid(-6 * w)
    v = sigmoid(12 * w) + sigmoid(-6 * w) + sigmoid(-12 * w)
    return abs(u - v) / 3


@pytest.mark.parametrize(
    ("notion", "w", "step"),
    [
        ("demographic_parity", -0.1, "gap"),
        ("demographic_parity", -0.4, "loss"),
        ("demographic_parity", 0.1, "none"),
        ("equal_opportunity", -0.1, "gap"),
        ("equal_opportunity", -0.4, "none"),
        ("equal_opportunity", 0.1, "none"),
    ],
)
def test_a_clients_gap_and_its_gradient(engine: str, notion: str, w: float, step: str) -> None:
    k = (gap_at(w + 1e-5, notion) - gap_at(w - 1e-5, notion)) / 2e-5
    g = sum(binary.brier_slope(w, x, y) for x, y in zip(X, Y, strict=True)) / 6
    # in one dimension no step lowers both if the slopes' signs differ
    assert step == ("none" if g * k < 0 else "gap" if abs(k) > abs(g) else "loss")
    fed = eh.Federation.from_arrays([{"x": np.array(X)[:, None], "y": np.array(Y), "group": GROUP}])
    method = eh.FCFL(notion, bound=0.0, sharpness=6.0, smallest=0)
    found = binary.train(method, engine, fed, binary.weight(w), rounds=1, loss="brier")
    assert found.history["group_gap"].iloc[0] == near(gap_at(w, notion))
    slope = {"none": 0.0, "gap": k, "loss": g}[step]
    assert found.params["weight"].item() == pytest.approx(w - 0.3 * slope, abs=1e-9)


def constant(*groups: tuple[str, float, int, int]) -> dict[str, Any]:
    """A client with, for each group, ``count`` samples of one x and label."""
    columns = [([x] * count, [y] * count, [name] * count) for name, x, y, count in groups]
    x, y, group = (list(itertools.chain(*column)) for column in zip(*columns, strict=True))
    return {"x": np.array(x)[:, None], "y": np.array(y), "group": group}


def first_round(method: eh.FCFL, *clients: dict[str, Any], engine: str = "loop") -> Any:
    fed = eh.Federation.from_arrays(list(clients))
    found = binary.train(method, engine, fed, binary.weight(1.0), rounds=1, loss="brier")
    return found.history.iloc[0]


def test_with_more_groups_the_largest_difference_counts(engine: str) -> None:
    one = constant(("u", 0.1, 1, 4), ("v", 0.0, 0, 4), ("w", 0.3, 1, 3))
    two = constant(("u", 0.0, 1, 5), ("w", -0.02, 1, 5))
    found = first_round(eh.FCFL(smallest=3), one, two, engine=engine)
    assert found["group_gap"] == near(sigmoid(3) - 0.5)
    # without the small group: u against v; then only the second client's, then none
    assert first_round(eh.FCFL(smallest=4), one, two)["group_gap"] == near(sigmoid(1) - 0.5)
    found = first_round(eh.FCFL(smallest=5), one, two)
    assert (found["group_gap"], found["without_gap"]) == (near(0.5 - sigmoid(-0.2)), 1)
    found = first_round(eh.FCFL(smallest=6), one, two)
    assert (found["group_gap"], found["without_gap"]) == (0, 2)
    # equal opportunity: v has no positive samples
    found = first_round(eh.FCFL("equal_opportunity", smallest=0), one, two, engine=engine)
    assert found["group_gap"] == near(sigmoid(3) - sigmoid(1))
    some = constant(("u", 0.1, 1, 4), ("v", 0.0, 0, 4))
    found = first_round(eh.FCFL("equal_opportunity", smallest=0), some, two)
    assert (found["group_gap"], found["without_gap"]) == (near(0.5 - sigmoid(-0.2)), 1)


# ---- where it is another method


@limits.every_local
def test_stage_1_without_a_bound_is_term(engine: str, local: eh.LocalSGD) -> None:
    method = eh.FCFL(delta=0.5, decay=1.0, minimax_rounds=FOREVER, **FREE)
    found = binary.train(method, engine, local=local, **UNIFORM).params
    expected = binary.train(eh.TERM(t=2.0), engine, local=local, **UNIFORM).params
    limits.assert_same(found, expected)


@limits.every_local
def test_a_small_temperature_follows_the_worst_client_as_afl_does(
    engine: str, local: eh.LocalSGD
) -> None:
    method = eh.FCFL(delta=1e-9, minimax_rounds=FOREVER, **FREE)
    found = binary.train(method, engine, local=local, rounds=8).params
    # so long a step takes all weight to the client with the highest loss
    afl = eh.AFL(lr_lambda=1e9, order="before")
    expected = binary.train(afl, engine, local=local, rounds=8).params
    limits.assert_same(found, expected)


@pytest.mark.parametrize("stage", [FOREVER, 0, 2])
@limits.every_local
def test_one_client_and_copies_of_one_without_a_bound_are_fedavg(
    engine: str, local: eh.LocalSGD, stage: int
) -> None:
    method = eh.FCFL(minimax_rounds=stage, **FREE)
    alone = binary.federation((30,))
    found = binary.train(method, engine, alone, local=local).params
    limits.assert_same(found, binary.train(eh.FedAvg(), engine, alone, local=local).params)
    copies = limits.copies(group=list("uuuuvvvvuvuvuv"))
    found = limits.train(method, engine, copies).params
    limits.assert_same(found, limits.train(eh.FedAvg(), engine, copies).params)


def test_the_bound_does_nothing_where_no_client_has_two_groups(engine: str) -> None:
    fed = binary.eight((0, 1, 2), (3,), (4, 5), (6, 7))
    start = binary.module(features=1)
    found = [
        binary.train(eh.FCFL(bound=bound, minimax_rounds=2, smallest=0), engine, fed, start)
        for bound in (0.0, 1.0)
    ]
    limits.assert_identical(found[0].params, found[1].params)
    assert set(found[0].history["without_gap"]) == {4}


def test_every_setting_makes_a_difference() -> None:
    settings: list[dict[str, Any]] = [
        {}, {"notion": "equal_opportunity"}, {"bound": 0.2}, {"minimax_rounds": 3},
        {"delta": 0.05}, {"decay": 0.1}, {"ratio": 5.0}, {"sharpness": 2.0}, {"smallest": 6},
        {"floor": 0.1},
    ]  # fmt: skip
    methods = [eh.FedAvg(), *(eh.FCFL(**{"smallest": 0, **one}) for one in settings)]
    found = [binary.train(method, rounds=8).params for method in methods]
    for i, one in enumerate(found):
        assert all(limits.distance(one, other) > 1e-5 for other in found[:i]), methods[i]


def test_runs_of_several_settings_are_those_of_each_alone() -> None:
    methods = [eh.FCFL(bound=b, minimax_rounds=2, smallest=0) for b in (0.0, 0.1, 1.0)]
    runs = [eh.Run(method, seed=5) for method in methods]
    local = eh.LocalSGD(lr=0.3, steps=1)
    stacked = eh.fit_many(binary.module(), binary.federation(), runs, rounds=4, local=local)
    for method, found in zip(methods, stacked, strict=True):
        limits.assert_same(found.params, binary.train(method, "vmap").params)


# ---- what it reaches


def measured(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses and soft gaps of the clients of ``binary.federation``, for one score x . theta."""
    x, y, group = (np.asarray(value) for value in binary.pooled())
    losses, gaps = [], []
    for a, b in itertools.pairwise(np.cumsum((0, *binary.SIZES))):
        s = x[a:b] @ theta[:3] + theta[3]
        losses.append(np.logaddexp(0, np.where(y[a:b] == 1, -s, s)).mean())
        soft = scipy.special.expit(10 * s)
        gaps.append(abs(soft[group[a:b] == 0].mean() - soft[group[a:b] == 1].mean()))
    return np.array(losses), np.array(gaps)


def as_score(params: dict[str, torch.Tensor]) -> np.ndarray:
    weight, bias = params["weight"], params["bias"]
    return torch.cat([weight[1] - weight[0], bias[1:] - bias[:1]]).numpy()


def test_it_comes_close_to_the_optimum_that_scipy_finds() -> None:
    bound = 0.2
    settings: dict[str, Any] = {"smallest": 0, "floor": 0.01, "minimax_rounds": FOREVER}
    start, local = binary.module(), eh.LocalSGD(lr=0.05, steps=1)
    found = binary.train(eh.FCFL(bound=bound, **settings), "vmap", rounds=600, local=local)
    losses, gaps = measured(as_score(found.params))
    assert gaps.max() < bound + 0.02
    # minimise the level z, with every loss below z and every gap below the bound
    best = min(
        (
            scipy.optimize.minimize(
                lambda v: v[-1],
                np.append(theta, measured(theta)[0].max()),
                constraints=[
                    {"type": "ineq", "fun": lambda v: v[-1] - measured(v[:-1])[0]},
                    {"type": "ineq", "fun": lambda v: bound - measured(v[:-1])[1]},
                ],
                method="SLSQP",
            )
            for theta in (as_score(start.state_dict()), as_score(found.params), np.zeros(4))
        ),
        key=lambda program: program.x[-1] if program.success else np.inf,
    )
    assert best.success
    assert losses.max() < 1.03 * best.x[-1]
    plain = binary.train(eh.FedAvg(), "vmap", rounds=600, local=local)
    assert measured(as_score(plain.params))[1].max() > bound + 0.1


def test_stage_2_lowers_every_loss_that_stage_1_reached() -> None:
    local = eh.LocalSGD(lr=0.02, steps=1)
    first, both = (
        binary.train(eh.FCFL(minimax_rounds=80, **FREE), "vmap", rounds=rounds, local=local)
        for rounds in (80, 160)
    )
    assert both.history["stage"].tolist() == [1] * 80 + [2] * 80
    fall = measured(as_score(first.params))[0] - measured(as_score(both.params))[0]
    assert (fall > -1e-9).all()
    assert fall.max() > 1e-3


# ---- bad input


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"notion": "equalised_odds"}, "notion"),
        ({"bound": -0.1}, "bound must be a finite number >= 0, got -0.1; 1 leaves gaps free"),
        ({"minimax_rounds": -1}, "minimax_rounds must be a whole number >= 0, got -1"),
        ({"minimax_rounds": None}, "minimax_rounds"),
        ({"delta": 0.0}, "delta"),
        ({"decay": 0.0}, "decay"),
        ({"decay": 1.1}, "decay"),
        ({"ratio": -1.0}, "ratio"),
        ({"floor": 0.0}, "floor"),
        ({"sharpness": 0.0}, "sharpness"),
        ({"smallest": -1}, "smallest"),
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        eh.FCFL(**setting)


def test_data_without_groups_and_regression_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^FCFL needs a group for every training sample"):
        limits.train(eh.FCFL(), fed=limits.federation())
    with pytest.raises(ValueError, match=r"^FCFL compares how often groups"):
        binary.train(eh.FCFL(), fed=binary.eight(), start=binary.weight(), loss="mse")
