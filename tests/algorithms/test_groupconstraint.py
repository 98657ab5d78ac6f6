"""GroupConstraint: numbers by hand, where it is another method, optima, odd groups and input."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import evenhand as eh
from evenhand.algorithms.prices import Dual, Scope
from evenhand.model import Model
from tests.support import binary, by_hand, limits
from tests.support.by_hand import near

RATES = ("demographic_parity", "equal_opportunity", "equalised_odds")
ONE_FAST = ("demographic_parity", *(pytest.param(it, marks=pytest.mark.slow) for it in RATES[1:]))
ALL = (0, 1, 4, 6), (2, 3, 5, 7)  # the eight samples, on two clients


def flat(table: Any) -> list[float]:
    return [float(value) for row in table for value in row]


# ---- by hand


@pytest.mark.parametrize(
    ("notion", "price"),
    [
        # selected 1/4 and 3/4, excess 0.45, t = 2 * 0.45, u = t + 0.45; half of u each
        ("demographic_parity", [-0.675, -0.675, 0.675, 0.675]),
        # positives found 1/2 and 1
        ("equal_opportunity", [0, -0.675, 0, 0.675]),
        # negatives selected 0 and 1/2
        ("equalised_odds", [-0.675, -0.675, 0.675, 0.675]),
    ],
)
def test_the_first_prices_in_numbers(engine: str, notion: str, price: list[float]) -> None:
    method = eh.GroupConstraint(notion, 0.05, lr_dual=2.0, damping=1.0, smallest=0)
    result = binary.train(
        method, engine, binary.eight(*ALL), binary.weight(), loss="brier", rounds=1
    )
    assert flat(result.state["constraint"]["price"]) == near(price)
    row = result.history_rows[0]
    assert (row["group_gap"], row["group_bound"], row["price"]) == near((0.5, 0.05, 0.9))


def test_a_round_descends_the_loss_and_the_priced_probabilities(engine: str) -> None:
    price = [[-0.675, -0.675], [0.675, 0.675]]
    samples = list(zip(binary.X, binary.Y, binary.GROUP, strict=True))
    first = 1 - 0.5 * sum(binary.brier_slope(1.0, x, y) for x, y, _ in samples) / 8

    def paid(w: float, x: float) -> float:
        p = 1 / (1 + math.exp(-w * x))
        return p * (1 - p) * x

    slope = sum(
        binary.brier_slope(first, x, y) + price[a][y] * paid(first, x) for x, y, a in samples
    )
    result = binary.train(
        eh.GroupConstraint("demographic_parity", damping=1.0, smallest=0),
        engine,
        binary.eight(*ALL),
        binary.weight(),
        loss="brier",
        rounds=2,
        local=eh.LocalSGD(lr=0.5, steps=1),
    )
    assert result.params["weight"].item() == near(first - 0.5 * slope / 8)


def test_group_loss_of_two_clients_in_numbers(engine: str) -> None:
    """A's loss is 5/3 and B's 16; with bound 2 only B pays: u = (0.1 + 0.05) 14 = 2.1. The weights
    of the losses are divided by their mean."""
    clients = [{**by_hand.A, "group": ["a"] * 3}, {**by_hand.B, "group": ["b"]}]
    fed = eh.Federation.from_arrays([{k: np.array(v) for k, v in c.items()} for c in clients])
    found = []
    for rounds in (1, 2):
        result = binary.train(
            eh.GroupConstraint("group_loss", 2.0, lr_dual=0.1, damping=0.05, smallest=0),
            engine,
            fed,
            binary.weight(),
            loss="mse",
            rounds=rounds,
            local=eh.LocalSGD(lr=0.05, steps=1),
        )
        found.append(result.params["weight"].item())
    w = 1 - 0.05 * (0.75 * -2 + 0.25 * -16)
    assert found[0] == near(w)
    slope = 0.75 * by_hand.g_a(w) + 0.25 * (1 + 2.1) * by_hand.g_b(w)
    assert found[1] == near(w - 0.05 * slope / (1 + 0.25 * 2.1))


def risen(dual: Dual, own: Any, total: Any, share: Any, scope: Scope) -> Any:
    """A round of 100 samples."""
    new, part = (torch.tensor(values, dtype=torch.float64) for values in (total, share))
    return dual.risen(own, new, part, 100 * (own["ever"] + part).sum(1), scope)


def test_steps_shrink_with_every_fall_below_the_bound() -> None:
    scope, halves = Scope.of_groups(2), [[0.25, 0.25]] * 2
    dual = Dual("demographic_parity", 0.1, 1.0, 0.5, 10.0, 0, 0.0)
    own, tilts, prices = dual.first(2, 2), [], []
    # rates of group 0 are 0.5, 0.1, 0.5, 0.1, 0.5 and those of group 1 are 0.2
    for rate in (0.5, 0.1, 0.5, 0.1, 0.5):
        own = risen(dual, own, [[rate / 4, rate / 4], [0.05, 0.05]], halves, scope)
        tilts.append(float(own["tilt"][0, 0, 1]))
        prices.append(float(own["price"][0, 0]))
    # excesses 0.2, -0.2, 0.2, -0.2, 0.2; k = 0, 1, 1, 2, 2
    once, twice = 0.2 / 2**0.5, 0.2 / 3**0.5
    assert tilts == near([0.2, 0.2 - once, 0.2, 0.2 - twice, 0.2])
    more = [0.1, -once / 2, once / 2, -twice / 2, twice / 2]
    assert prices == near([max(t + d, 0) / 2 for t, d in zip(tilts, more, strict=True)])


def test_prices_of_group_losses_share_their_cap() -> None:
    dual = Dual("group_loss", 0.0, 1.0, 0.0, 2.0, 0, 0.0)
    share = [[0.1, 0.1], [0.3, 0.2], [0.2, 0.1]]
    # mean losses 8, 3 and 1: their mean, weighted by 0.2, 0.5 and 0.3, is to be 2. Without the
    # third, 0.2 (8 - level) + 0.5 (3 - level) = 2 with level 1.1 / 0.7, which is more than 1
    total = [[0.8, 0.8], [0.9, 0.6], [0.2, 0.1]]
    own = risen(dual, dual.first(3, 3), total, share, Scope.of_groups(3))
    level = 1.1 / 0.7
    assert own["price"][:, 0].tolist() == near([8 - level, 3 - level, 0])
    assert float(own["scale"]) == near(1 / 3)


def test_a_group_of_exactly_the_smallest_size_stays_in_whatever_the_split() -> None:
    rng = np.random.default_rng(0)
    n = 301
    x, y = rng.normal(size=(n, 3)), rng.integers(0, 2, n)
    group = np.where(np.arange(n) < 10, "few", "many")
    found = []
    for clients in (1, 7, 50):
        parts = np.array_split(rng.permutation(n), clients)
        fed = eh.Federation.from_arrays(
            [{"x": x[rows], "y": y[rows], "group": group[rows]} for rows in parts]
        )
        method = eh.GroupConstraint("demographic_parity", 0.0, smallest=10)
        result = binary.train(method, fed=fed, rounds=40, local=eh.LocalSGD(lr=0.5, steps=1))
        assert not result.history["small_cells"].any()
        found.append(result.params["weight"].numpy())
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-9)


def test_with_uniform_weights_small_groups_are_still_counted_in_samples() -> None:
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(size, 3)),
            "y": rng.integers(0, 2, size),
            "group": [name] * size,
        }
        for size, name in ((4, "few"), (60, "a"), (60, "b"))
    ]
    fed = eh.Federation.from_arrays(clients)
    method = eh.GroupConstraint("demographic_parity", 0.0)
    result = binary.train(method, fed=fed, rounds=3, weights="uniform")
    assert result.history["small_cells"].tolist() == [1, 1, 1]
    assert result.state["constraint"]["price"][fed.group_names.index("few")].tolist() == [0, 0]


def test_an_absent_group_keeps_its_rate_and_smoothing_mixes_rounds() -> None:
    scope = Scope.of_groups(2)
    dual = Dual("demographic_parity", 0.1, 1.0, 0.0, 10.0, 0, 0.5)
    # group 1 is absent: nothing to compare with
    own = risen(dual, dual.first(2, 2), [[0.1, 0.3], [0, 0]], [[0.5, 0.5], [0, 0]], scope)
    assert not own["tilt"].any()
    # group 0 absent, its rate still 0.4; group 1 has 0.8: excess 0.3
    own = risen(dual, own, [[0, 0], [0.3, 0.5]], [[0, 0], [0.5, 0.5]], scope)
    assert flat(own["tilt"][0]) == near([0, 0, 0.3, 0])
    assert float(own["gap"]) == near(0.4)
    # both there; halves of the old sums: (0.2 + 0.5) / (0.5 + 1), (0.4 + 0.5) / 1.5
    own = risen(dual, own, [[0.2, 0.3], [0.2, 0.3]], [[0.5, 0.5]] * 2, scope)
    assert float(own["gap"]) == near((0.9 - 0.7) / 1.5)


def test_shares_make_prices_and_caps_stop_them() -> None:
    scope = Scope.of_groups(2)
    dual = Dual("equal_opportunity", 0.0, 1.0, 0.0, 10.0, 0, 0.0)
    # positives: rates 1/2 and 1 of shares 0.3 and 0.1; t = 1/2, multiplier 0.5 * 0.3 * 0.1 / 0.4
    args = [[0.0, 0.15], [0.2, 0.1]], [[0.3, 0.3], [0.3, 0.1]], scope
    own = risen(dual, dual.first(2, 2), *args)
    assert flat(own["price"]) == near([0, -0.0375 / 0.3, 0, 0.0375 / 0.1])
    for _ in range(30):
        own = risen(dual, own, *args)
    assert float(own["tilt"].max()) == 10


def test_groups_with_few_samples_are_left_out_and_counted() -> None:
    dual = Dual("demographic_parity", 0.0, 1.0, 0.0, 10.0, 10, 0.0)
    # of 100 samples: 48, 48 and 4
    share = [[0.24, 0.24], [0.24, 0.24], [0.02, 0.02]]
    total = [[0.24, 0], [0.12, 0], [0, 0]]
    own = risen(dual, dual.first(3, 3), total, share, Scope.of_groups(3))
    assert float(own["gap"]) == near(0.25)  # not 0.5, to the third
    assert own["price"][2].tolist() == [0, 0]
    assert float(own["small"]) == 1


def test_columns_are_compared_each_by_itself() -> None:
    names = ("f & x", "f & y", "m & x", "m & y")
    scope = Scope.of_columns(names)
    dual = Dual("demographic_parity", 0.0, 1.0, 0.0, 10.0, 0, 0.0)
    # rates 1, 0, 0, 1: both columns are fair, their intersections are not
    share, total = [[0.125, 0.125]] * 4, [[0.125, 0.125], [0, 0], [0, 0], [0.125, 0.125]]
    own = risen(dual, dual.first(4, len(scope.pairs)), total, share, scope)
    assert float(own["gap"]) == near(0)
    own = risen(dual, dual.first(4, 4), total, share, Scope.of_groups(4))
    assert float(own["gap"]) == near(1)
    # rates 1, 1/2, 1/2, 0 differ by column: f pays and so does x, f & x pays twice
    total = [[0.125, 0.125], [0.125, 0], [0.125, 0], [0, 0]]
    own = risen(dual, dual.first(4, len(scope.pairs)), total, share, scope)
    assert float(own["gap"]) == near(0.5)
    assert own["price"][:, 0].tolist() == near([0.5, 0, 0, -0.5])
    with pytest.raises(ValueError, match='compare="columns" needs groups of several columns'):
        Scope.of_columns(("f", "m"))


# ---- where it is another method


INNER = {
    "fedavg": eh.FedAvg(),
    "fafl": eh.FAFL(alpha=0.5, mu=0.1),
    "propfair": eh.PropFair(),
    "fedminmax": eh.FedMinMax(lr_mu=0.1),
    "fedfv": eh.FedFV(),
    "fedprox": eh.FedProx(mu=0.1),
    "fedadam": eh.FedAdam(lr=0.1),
    "clipped": eh.Clipped(norm=0.1),
    "averaged": eh.Averaged(),
}


@limits.every_local
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
def test_without_an_active_bound_it_is_the_inner_method_to_the_bit(
    engine: str, inner: eh.Algorithm, local: eh.LocalSGD
) -> None:
    expected = binary.train(inner, engine, local=local).params
    for scope in ("global", "local"):
        loose = eh.GroupConstraint(bound=1.0, scope=scope, smallest=0, inner=inner)
        found = binary.train(loose, engine, local=local).params
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    tight = eh.GroupConstraint(bound=0.0, smallest=0, inner=inner)
    assert limits.distance(binary.train(tight, engine, local=local).params, expected) > 1e-4


@pytest.mark.parametrize("notion", [*RATES, "loss_parity"])
def test_with_one_group_it_is_fedavg(engine: str, notion: str) -> None:
    fed = binary.federation(groups=1)
    expected = binary.train(eh.FedAvg(), engine, fed).params
    found = binary.train(eh.GroupConstraint(notion, 0.0, smallest=0), engine, fed).params
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("statistic", ["soft", "hard"])
@pytest.mark.parametrize("notion", [*RATES, "group_loss", "loss_parity"])
@pytest.mark.parametrize("clients", [2, 10, 50])
def test_models_do_not_depend_on_the_split(clients: int, notion: str, statistic: str) -> None:
    sizes = (100 // clients,) * clients
    order = np.random.default_rng(1).permutation(100)
    method = eh.GroupConstraint(notion, 0.0, statistic=statistic)
    split = binary.train(method, fed=binary.federation(sizes, order=order), rounds=8)
    whole = binary.train(method, fed=binary.federation((100,)), rounds=8)
    assert limits.distance(split.params, whole.params) < 1e-9
    assert flat(split.state["constraint"]["price"]) == pytest.approx(
        flat(whole.state["constraint"]["price"]), abs=1e-9
    )
    assert whole.state["constraint"]["price"].any()


@pytest.mark.parametrize("notion", RATES)
def test_with_one_client_local_and_global_bounds_are_the_same(engine: str, notion: str) -> None:
    fed = binary.federation((72,))
    found, expected = (
        binary.train(eh.GroupConstraint(notion, 0.02, scope=scope), engine, fed, rounds=6).params
        for scope in ("local", "global")
    )
    limits.assert_same(found, expected)


def test_a_local_bound_closes_gaps_that_cancel_over_clients() -> None:
    """Two clients whose groups are swapped: alike overall, apart within each client."""
    rng = np.random.default_rng(0)
    group = np.arange(200) % 2
    side = np.repeat([0, 1], 200)
    # the model sees which client a sample is from, so that it can serve each
    x = rng.normal(size=(400, 2)) + 1.5 * (np.r_[group, group] == side)[:, None]
    y = (x[:, 0] + rng.normal(size=400) > 0.7).astype(np.int64)
    design = np.c_[x, side, np.r_[group, group] == side]
    fed = eh.Federation.from_arrays(
        [
            {"x": design[rows], "y": y[rows], "group": group}
            for rows in (np.arange(200), np.arange(200, 400))
        ]
    )

    def gaps(method: eh.Algorithm) -> tuple[float, float]:
        start = binary.module(features=4)
        result = binary.train(
            method, fed=fed, start=start, rounds=300, local=eh.LocalSGD(lr=0.5, steps=1)
        )
        start.load_state_dict(result.params)
        selected = start(torch.from_numpy(design)).argmax(1).double().numpy()
        both = np.r_[group, group]

        def gap(rows: np.ndarray) -> float:
            return abs(selected[rows & (both == 1)].mean() - selected[rows & (both == 0)].mean())

        return gap(side < 2), max(gap(side == 0), gap(side == 1))

    over_all, within = gaps(eh.FedAvg())
    assert over_all < 0.1 < 0.4 < within
    _, within = gaps(eh.GroupConstraint("demographic_parity", 0.1, scope="local"))
    assert within < 0.16


def test_a_local_bound_sends_nothing_about_groups() -> None:
    sent = {
        scope: eh.GroupConstraint(scope=scope).task(
            eh.GroupConstraint(scope=scope).init(
                {"w": torch.zeros(1)}, binary.federation().census()
            ),
            torch.tensor([0]),
        )
        for scope in ("global", "local")
    }
    assert "price" in sent["global"].shared
    assert "price" not in sent["local"].shared
    local = binary.train(eh.GroupConstraint(bound=0.0, scope="local", smallest=0))
    assert "group_gap" not in local.history_rows[0]
    assert not {"price", "sum"} & set(local.state["constraint"])


# ---- the optimum


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 400
    group = rng.integers(0, 2, n)
    x = np.c_[rng.normal(size=(n, 3)) + group[:, None] * [0.8, 0.0, -0.3], group]
    y = (x @ [1.0, 0.5, -0.5, 0.7] + rng.logistic(size=n) > 0.3).astype(np.int64)
    return x, y, group


def scores(method: eh.Algorithm, rounds: int = 1500) -> np.ndarray:
    """The log-odds after training on all samples in one place."""
    x, y, group = problem()
    fed = eh.Federation.from_arrays([{"x": x, "y": y, "group": group}])
    start = binary.module(features=4)
    result = binary.train(
        method, "vmap", fed, start, rounds=rounds, local=eh.LocalSGD(lr=0.5, steps=1)
    )
    start.load_state_dict(result.params)
    out = start(torch.from_numpy(x)).detach().numpy()
    return np.asarray(out[:, 1] - out[:, 0])


def risk(score: np.ndarray, rows: np.ndarray | None = None) -> float:
    _, y, _ = problem()
    losses = np.logaddexp(0, -(2 * y - 1) * score)
    return float((losses if rows is None else losses[rows]).mean())


def differences(values: np.ndarray, notion: str) -> np.ndarray:
    _, y, group = problem()
    conditions = {
        "demographic_parity": [y >= 0],
        "equal_opportunity": [y == 1],
        "equalised_odds": [y == 0, y == 1],
    }[notion]
    return np.array(
        [values[(group == 1) & c].mean() - values[(group == 0) & c].mean() for c in conditions]
    )


def sigmoid(score: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-score)))


@pytest.mark.parametrize("notion", ONE_FAST)
def test_soft_rates_reach_the_constrained_optimum(notion: str) -> None:
    x, _, _ = problem()
    design = np.c_[x, np.ones(len(x))]
    bound = 0.05

    def rates(w: np.ndarray) -> np.ndarray:
        return differences(sigmoid(design @ w), notion)

    best = minimize(
        lambda w: risk(design @ w),
        np.zeros(5),
        constraints=[
            {"type": "ineq", "fun": lambda w: bound - rates(w)},
            {"type": "ineq", "fun": lambda w: bound + rates(w)},
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    score = scores(eh.GroupConstraint(notion, bound, statistic="soft"))
    assert abs(differences(sigmoid(score), notion)).max() < bound + 1e-4
    assert risk(score) == pytest.approx(best.fun, rel=1e-4)
    assert risk(scores(eh.FedAvg())) < best.fun - 0.01  # the bound costs something


@pytest.mark.slow
def test_group_loss_reaches_the_constrained_optimum_and_at_the_limit_fedminmax() -> None:
    x, _, group = problem()
    design = np.c_[x, np.ones(len(x))]

    def risks(w: np.ndarray) -> np.ndarray:
        return np.array([risk(design @ w, group == a) for a in (0, 1)])

    free = minimize(lambda w: risk(design @ w), np.zeros(5), options={"gtol": 1e-10})
    minimax = minimize(
        lambda v: v[0],
        np.r_[1.0, free.x],
        constraints={"type": "ineq", "fun": lambda v: v[0] - risks(v[1:])},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    ).fun
    bound = 0.5 * (minimax + risks(free.x).max())
    assert minimax < bound - 1e-4
    best = minimize(
        lambda w: risk(design @ w),
        free.x,
        constraints={"type": "ineq", "fun": lambda w: bound - risks(w)},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
    ).fun
    score = scores(eh.GroupConstraint("group_loss", bound), 3000)
    assert max(risk(score, group == a) for a in (0, 1)) < bound + 1e-4
    assert risk(score) == pytest.approx(best, rel=1e-3)
    limit = scores(eh.GroupConstraint("group_loss", minimax, cap=1000.0), 4000)
    fair = scores(eh.Averaged(eh.FedMinMax(lr_mu=0.05)), 4000)
    assert max(risk(limit, group == a) for a in (0, 1)) == pytest.approx(
        max(risk(fair, group == a) for a in (0, 1)), abs=2e-3
    )


@pytest.mark.filterwarnings("ignore:Setting an? (value|item)")  # fairlearn's
@pytest.mark.parametrize("notion", ONE_FAST)
def test_hard_rates_keep_their_bound_and_are_as_accurate_as_fairlearn(notion: str) -> None:
    """A randomised classifier may be a little better than any single one."""
    reductions = pytest.importorskip("fairlearn.reductions")
    from sklearn.linear_model import LogisticRegression

    x, y, group = problem()
    moment = {
        "demographic_parity": reductions.DemographicParity,
        "equal_opportunity": reductions.TruePositiveRateParity,
        "equalised_odds": reductions.EqualizedOdds,
    }[notion]
    bound = 0.05
    peers = reductions.ExponentiatedGradient(
        LogisticRegression(), moment(difference_bound=bound / 2), eps=0.01
    ).fit(x, y, sensitive_features=group)
    chosen = peers._pmf_predict(x)[:, 1]
    accuracy = float(np.where(y == 1, chosen, 1 - chosen).mean())
    grid = reductions.GridSearch(
        LogisticRegression(), moment(difference_bound=bound / 2), grid_size=31
    ).fit(x, y, sensitive_features=group)
    single = [np.asarray(model.predict(x)) for model in grid.predictors_]
    within = [
        float(np.mean(labels == y))
        for labels in single
        if abs(differences(labels.astype(float), notion)).max() <= bound
    ]
    hard = scores(eh.GroupConstraint(notion, bound)) > 0
    assert abs(differences(hard.astype(float), notion)).max() <= bound + 0.012
    assert accuracy - 0.03 < np.mean(hard == y) < accuracy + 0.02
    assert not within or np.mean(hard == y) > max(within) - 0.02


def test_a_bound_of_zero_makes_rates_equal() -> None:
    score = scores(eh.GroupConstraint("demographic_parity", 0.0, statistic="soft"))
    assert abs(differences(sigmoid(score), "demographic_parity")).max() < 1e-4


# ---- what people may give it


def test_a_bound_that_is_not_reached_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        binary.train(
            eh.GroupConstraint("demographic_parity", 0.01, cap=0.01, smallest=0), rounds=20
        )
    assert re.search(r"the gap between groups ended at 0.\d+, above its bound of 0.01", caplog.text)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        binary.train(eh.GroupConstraint("demographic_parity", 0.9, smallest=0), rounds=20)
    assert "bound" not in caplog.text


def weakly_told(clients: int = 20, size: int = 60) -> eh.Federation:
    """A label that hardly depends on the features: a small price moves many predictions."""
    rng = np.random.default_rng(3)
    group = rng.integers(0, 2, (clients, size))
    x = rng.normal(size=(clients, size, 3))
    x[:, :, 2] = group
    y = (0.3 * x[:, :, 0] + 0.35 * group + rng.logistic(size=group.shape) > 0.2).astype(np.int64)
    return eh.Federation.from_arrays(
        [{"x": x[k], "y": y[k], "group": group[k]} for k in range(clients)]
    )


def gap_of(result: eh.Result, fed: eh.Federation) -> float:
    chosen, group = result.predict(fed.train.x), fed.train.group.numpy()
    return abs(chosen[group == 0].mean() - chosen[group == 1].mean())


def largest_loss(result: eh.Result, fed: eh.Federation) -> float:
    output = fed.train.x @ result.params["weight"].T + result.params["bias"]
    losses = torch.nn.functional.cross_entropy(output, fed.train.y, reduction="none")
    return max(float(losses[fed.train.group == a].mean()) for a in fed.train.group.unique())


@pytest.mark.parametrize("local", [eh.LocalSGD(lr=0.2, batch_size=32), eh.LocalSGD(lr=1, steps=1)])
def test_prices_settle_where_a_small_price_moves_many_predictions(local: eh.LocalSGD) -> None:
    fed = weakly_told()
    plain = binary.train(eh.FedAvg(), fed=fed, rounds=60, local=local)
    assert gap_of(plain, fed) > 0.4
    method = eh.GroupConstraint("demographic_parity", 0.05)
    result = binary.train(method, fed=fed, rounds=100, local=local)
    assert gap_of(result, fed) <= 0.06


@pytest.mark.parametrize("wrap", [lambda method: method, eh.Averaged], ids=["last", "averaged"])
def test_the_history_ends_with_the_gap_of_the_trained_model(engine: str, wrap: Any) -> None:
    fed = weakly_told()
    method = wrap(eh.GroupConstraint("demographic_parity", 0.05))
    result = binary.train(method, engine, fed, rounds=7, cohort=eh.Uniform(3))
    assert result.history["final_gap"].iloc[-1] == near(gap_of(result, fed))
    assert result.history["final_gap"].iloc[:-1].isna().all()


def test_with_a_local_bound_the_history_ends_with_the_clients_above_it(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    fed = weakly_told(clients=6, size=20)
    settings: dict[str, Any] = {"rounds": 5, "local": eh.LocalSGD(lr=0.05, steps=1)}

    def gaps(result: eh.Result) -> np.ndarray:
        chosen = result.predict(fed.train.x).reshape(6, -1)
        group = fed.train.group.numpy().reshape(6, -1)
        pairs = zip(chosen, group, strict=True)
        return np.sort([abs(p[g == 0].mean() - p[g == 1].mean()) for p, g in pairs])

    expected = gaps(binary.train(eh.FedAvg(), engine, fed, **settings))
    widest = int(np.diff(expected).argmax())  # a bound in the middle of the widest hole
    bound, above = expected[widest : widest + 2].mean(), 5 - widest
    assert expected[widest + 1] > 1.05 * bound + 0.001
    method = eh.GroupConstraint(
        "demographic_parity", bound, scope="local", lr_dual=0.0, damping=0.0, smallest=0
    )
    with caplog.at_level(logging.WARNING):
        result = binary.train(method, engine, fed, **settings)
    last = result.history.iloc[-1]
    assert (last["final_above"], last["compared"]) == (above, 6)
    assert last["final_gap"] == near(expected.mean())
    assert f"at {above} of 6 clients with two groups to compare" in caplog.text


def test_a_bound_that_compares_nobody_is_said(caplog: pytest.LogCaptureFixture) -> None:
    fed = eh.Federation.from_arrays(
        [{"x": np.eye(3), "y": np.array([0, 0, 0]), "group": ["a", "b", "a"]}] * 2
    )
    with caplog.at_level(logging.WARNING):
        binary.train(eh.GroupConstraint("equal_opportunity", 0.1, smallest=0), fed=fed, rounds=2)
    assert "the bound of 0.1 compared nobody" in caplog.text
    with pytest.raises(ValueError, match="fewer than two groups have 10 training samples"):
        binary.train(eh.GroupConstraint("equal_opportunity", 0.1), fed=fed, rounds=2)


def test_an_unreachable_bound_on_losses_tends_to_fedminmax() -> None:
    fed = binary.federation()
    local = eh.LocalSGD(lr=0.5, steps=1)
    worst = []
    for method in (
        eh.FedAvg(),
        eh.FedMinMax(lr_mu=0.05),
        eh.GroupConstraint("group_loss", 0.05, smallest=0),
    ):
        result = binary.train(method, fed=fed, rounds=600, local=local)
        worst.append(largest_loss(result, fed))
    assert worst[2] < worst[0] - 0.5 * (worst[0] - worst[1])


@pytest.mark.parametrize("notion", [*RATES, "group_loss", "loss_parity"])
def test_groups_absent_from_clients_and_cohorts_and_without_positives(
    engine: str, notion: str
) -> None:
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(6, 3)),
            "y": np.zeros(6, dtype=np.int64) if name == "c" else rng.integers(0, 2, 6),
            "group": [name] * 6,
        }
        for name in "aabbc"
    ]
    result = binary.train(
        eh.GroupConstraint(notion, 0.0, smallest=0),
        engine,
        eh.Federation.from_arrays(clients),
        cohort=eh.Uniform(2),
        rounds=12,
    )
    assert all(tensor.isfinite().all() for tensor in result.params.values())
    price = result.state["constraint"]["price"]
    assert price.isfinite().all()
    assert price.any()
    if notion == "equal_opportunity":
        assert price[2].tolist() == [0, 0]  # no positive, no rate to compare


def test_it_refuses_data_without_groups_and_rates_of_a_regression() -> None:
    clients = [{"x": np.zeros((3, 3)), "y": np.array([0, 1, 1])}]
    with pytest.raises(ValueError, match="GroupConstraint needs a group for every training sample"):
        binary.train(eh.GroupConstraint(), fed=eh.Federation.from_arrays(clients))
    model = Model(binary.weight(), "mse")
    model.check(
        eh.Federation.from_arrays([{"x": np.zeros((3, 1)), "y": np.zeros(3), "group": [0, 1, 1]}])
    )
    for notion in RATES:
        with pytest.raises(ValueError, match=rf'"{notion}".* use notion="group_loss", FedMinMax'):
            eh.GroupConstraint(notion).check(model)
    for notion in ("group_loss", "loss_parity"):
        eh.GroupConstraint(notion).check(model)


@pytest.mark.parametrize(
    "inner",
    [eh.AFL(), eh.QFFL(q=1.0), eh.TERM(), eh.Ditto(), eh.FineTuned(), eh.FedProx(inner=eh.AFL())],
    ids=str,
)
def test_it_refuses_methods_whose_objective_it_would_change(inner: eh.Algorithm) -> None:
    with pytest.raises(
        ValueError, match=r"GroupConstraint cannot bound .* use one of FedAvg, FAFL"
    ):
        eh.GroupConstraint(inner=inner)


def test_a_client_bounds_sixteen_groups_at_most() -> None:
    with pytest.raises(ValueError, match='at most 16 groups by itself; there are 17: use scope="g'):
        binary.train(eh.GroupConstraint(scope="local"), fed=binary.federation(groups=17))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"notion": "parity"}, "notion must be"),
        ({"bound": -0.1}, "bound must be a finite number >= 0"),
        ({"scope": "all"}, 'scope must be "global" or "local"'),
        ({"compare": "rows"}, 'compare must be "groups" or "columns"'),
        ({"statistic": "loss"}, 'statistic must be "hard" or "soft"'),
        ({"lr_dual": -1}, "lr_dual must be"),
        ({"damping": -1}, "damping must be"),
        ({"cap": 0}, "cap must be"),
        ({"smoothing": 1}, "smoothing must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.GroupConstraint(**settings)


def test_stacked_runs_end_with_the_gaps_of_each_alone() -> None:
    fed = weakly_told(clients=5)
    methods = [eh.GroupConstraint("demographic_parity", bound) for bound in (0.05, 0.3)]
    settings: dict[str, Any] = {"rounds": 4, "local": eh.LocalSGD(lr=0.3, steps=1)}
    stacked = eh.fit_many(
        binary.module(), fed, [eh.Run(method, seed=5) for method in methods], **settings
    )
    for method, found in zip(methods, stacked, strict=True):
        alone = binary.train(method, "vmap", fed, **settings)
        assert found.history["final_gap"].iloc[-1] == near(alone.history["final_gap"].iloc[-1])
        assert found.history["final_gap"].iloc[-1] == near(gap_of(found, fed))
