"""FedFB: numbers by hand, where it is another method, the optimum, odd groups."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from torch.nn.functional import cross_entropy

import evenhand as eh
from evenhand.model import Model
from tests.support import binary, limits
from tests.support.by_hand import near

GROUP_NOTIONS = ("demographic_parity", "equal_opportunity", "equalised_odds")
ALL = (0, 1, 4, 6), (2, 3, 5, 7)  # the eight samples, on two clients


def cell_weight(*args: Any, rounds: int = 1, fed: eh.Federation | None = None) -> Any:
    method = eh.FedFB(*args, statistic="hard")
    result = binary.train(
        method,
        fed=fed or binary.eight(*ALL),
        start=binary.weight(),
        loss="brier",
        rounds=rounds,
        local=eh.LocalSGD(lr=1e-9, steps=1),  # predictions stay as they are
    )
    return flat(result.state["cell_weight"])


def flat(table: Any) -> list[float]:
    """The entries of a table (A, 2), row by row."""
    return [float(value) for row in table for value in row]


# ---- by hand


def test_one_step_of_every_notion_in_numbers() -> None:
    # selected 1/4 and 3/4, shares of groups 1/2: b = -+ (1/0.5) 0.1 (1/2)
    assert cell_weight("demographic_parity", 0.1) == near([0.9, 1.1, 1.1, 0.9])
    # positives missed: 1/2 and 0; cells of mass 1/4 each: 1/4 +- 0.1 / 2
    assert cell_weight("equal_opportunity", 0.1) == near([1, 1.2, 1, 0.8])
    # false positives 0 and 1/2 as well
    assert cell_weight("equalised_odds", 0.1) == near([0.8, 1.2, 1.2, 0.8])


def test_steps_shrink_with_the_square_root_and_stop_at_the_bounds() -> None:
    two = 0.1 * (1 + 2**-0.5)
    assert cell_weight("demographic_parity", 0.1, rounds=2) == near(
        [1 - two, 1 + two, 1 + two, 1 - two]
    )
    assert cell_weight("demographic_parity", 30.0) == near([0, 2, 2, 0])
    assert cell_weight("equal_opportunity", 30.0) == near([1, 2, 1, 0])


@pytest.mark.parametrize("notion", GROUP_NOTIONS)
def test_a_normalised_step_has_length_alpha_whatever_the_gap(notion: str) -> None:
    found = np.array(
        binary.train(
            eh.FedFB(notion, 0.01, statistic="hard", normalised=True),
            fed=binary.eight(*ALL),
            start=binary.weight(),
            loss="brier",
            rounds=1,
        )
        .state["cell_weight"]
        .tolist()
    )
    mass = np.full((2, 2), 0.25)
    shift = (
        0.5 * (found[:, 0] - 1) if notion == "demographic_parity" else (mass * (found - 1)).ravel()
    )
    assert np.sqrt((shift**2).sum() / 2) == near(0.01)


def test_a_round_descends_the_weighted_losses(engine: str) -> None:
    u = [[0.9, 1.1], [1.1, 0.9]]
    slope = sum(
        u[group][y] * binary.brier_slope(1.0, x, y)
        for x, y, group in zip(binary.X, binary.Y, binary.GROUP, strict=True)
    )
    result = binary.train(
        eh.FedFB("demographic_parity", 0.1, statistic="hard"),
        engine,
        binary.eight(*ALL),
        binary.weight(),
        loss="brier",
        rounds=1,
        local=eh.LocalSGD(lr=0.5, steps=1),
    )
    assert result.params["weight"].item() == near(1 - 0.5 * slope / 8)


def test_demographic_parity_raises_the_weight_of_negatives_where_more_are_selected() -> None:
    """With losses too: group v is selected more often, so its b rises in the first round."""
    result = binary.train(
        eh.FedFB("demographic_parity", 0.1),
        fed=binary.eight(*ALL),
        start=binary.weight(),
        loss="brier",
        rounds=1,
    )
    (u_0, _), (v_0, _) = result.state["cell_weight"].tolist()
    assert v_0 > 1 > u_0


@pytest.mark.parametrize("statistic", ["soft", "hard"])
def test_the_reported_gap_is_the_difference_of_selection_rates(statistic: str) -> None:
    score = torch.tensor(binary.X, dtype=torch.float64)
    selected = score.sigmoid() if statistic == "soft" else (score > 0).double()
    gap = float(selected[4:].mean() - selected[:4].mean())
    rows = binary.train(
        eh.FedFB("demographic_parity", 0.1, statistic=statistic),
        fed=binary.eight(*ALL),
        start=binary.weight(),
        loss="brier",
        rounds=1,
    ).history_rows
    assert rows[0]["group_gap"] == near(gap)


def published_step(values: np.ndarray, alpha: float) -> np.ndarray:
    """The authors' rule, averaged over the choice of the group that comes first."""
    steps = []
    for first in range(len(values)):
        shift = alpha * (values - values[first])
        shift[first] = -shift.sum()
        steps.append(shift)
    return np.mean(steps, axis=0)


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_the_step_is_the_published_one_averaged_over_which_group_comes_first(groups: int) -> None:
    fed, start = binary.federation(groups=groups), binary.module()
    x, y, group = binary.pooled(groups=groups)
    losses = cross_entropy(start(x), y, reduction="none").detach().numpy()
    positive = y.numpy() == 1
    risk = np.array([losses[positive & (group == a)].mean() for a in range(groups)])
    share = np.array([np.mean(positive & (group == a)) for a in range(groups)])
    expected = 1 + published_step(risk, 0.02) / share
    found = binary.train(eh.FedFB("equal_opportunity", 0.02), fed=fed, rounds=1)
    assert found.state["cell_weight"][:, 1].tolist() == pytest.approx(expected.tolist(), rel=1e-10)
    if groups == 2:  # no choice: it is the authors' rule itself
        assert published_step(risk, 0.02) == pytest.approx(
            [-0.02 * (risk[1] - risk[0]), 0.02 * (risk[1] - risk[0])]
        )


# ---- where it is another method


@limits.every_local
@pytest.mark.parametrize("notion", GROUP_NOTIONS)
def test_without_steps_or_with_one_group_it_is_fedavg(
    engine: str, notion: str, local: eh.LocalSGD
) -> None:
    fedavg = binary.train(eh.FedAvg(), engine, local=local).params
    found = binary.train(eh.FedFB(notion, alpha=0.0), engine, local=local).params
    limits.assert_same(found, fedavg)
    for normalised in (False, True):
        method = eh.FedFB(notion, alpha=0.5, normalised=normalised)
        found = binary.train(method, engine, binary.federation(groups=1), local=local).params
        expected = binary.train(eh.FedAvg(), engine, binary.federation(groups=1), local=local)
        limits.assert_same(found, expected.params)


@pytest.mark.parametrize("notion", GROUP_NOTIONS)
def test_with_steps_it_is_not_fedavg(notion: str) -> None:
    fedavg = binary.train(eh.FedAvg()).params
    assert limits.distance(binary.train(eh.FedFB(notion, alpha=0.5)).params, fedavg) > 1e-3


def test_client_parity_without_steps_is_fedavg(engine: str) -> None:
    for cohort in (eh.Full(), eh.Uniform(2)):
        found, expected = (
            binary.train(method, engine, cohort=cohort).params
            for method in (eh.FedFB("client_parity", alpha=0.0), eh.FedAvg())
        )
        limits.assert_same(found, expected)


@pytest.mark.parametrize("statistic", ["loss", "soft", "hard"])
@pytest.mark.parametrize("notion", GROUP_NOTIONS)
@pytest.mark.parametrize("sizes", [(72,), (1, 70, 1), (24, 24, 24), (3,) * 24], ids=str)
def test_weights_do_not_depend_on_the_split(
    sizes: tuple[int, ...], notion: str, statistic: str
) -> None:
    method = eh.FedFB(notion, alpha=0.2, statistic=statistic)
    order = np.random.default_rng(1).permutation(72)
    split = binary.train(method, fed=binary.federation(sizes, order=order), rounds=6)
    whole = binary.train(method, rounds=6)
    limits.assert_same(split.params, whole.params)
    assert flat(split.state["cell_weight"]) == pytest.approx(
        flat(whole.state["cell_weight"]), rel=1e-10
    )


@limits.every_local
def test_client_parity_of_two_clients_is_afl_with_twice_the_step(
    engine: str, local: eh.LocalSGD
) -> None:
    fed = binary.federation((40, 32))
    found = binary.train(
        eh.FedFB("client_parity", alpha=0.05, decay=0.0), engine, fed, local=local, rounds=6
    )
    afl = binary.train(eh.AFL(lr_lambda=0.1, order="before"), engine, fed, local=local, rounds=6)
    limits.assert_same(found.params, afl.params)
    assert found.state["lam"].tolist() == pytest.approx(afl.state["lam"].tolist(), rel=1e-12)
    assert found.state["lam"].min() > 0
    assert found.state["lam"].tolist() != pytest.approx([40 / 72, 32 / 72], abs=1e-3)


def test_equal_opportunity_with_a_group_per_client_and_no_negatives_is_client_parity(
    engine: str,
) -> None:
    rng = np.random.default_rng(0)
    fed = eh.Federation.from_arrays(
        [
            {"x": rng.normal(size=(n, 3)) + i, "y": np.ones(n, dtype=np.int64), "group": [name] * n}
            for i, (name, n) in enumerate(zip("abc", (9, 5, 14), strict=True))
        ]
    )
    groups, clients = (
        binary.train(eh.FedFB(notion, alpha=0.1), engine, fed, rounds=6)
        for notion in ("equal_opportunity", "client_parity")
    )
    limits.assert_same(groups.params, clients.params)
    mass = groups.state["share"] * groups.state["cell_weight"]
    assert mass[:, 1].tolist() == pytest.approx(clients.state["lam"].tolist(), rel=1e-10)


@pytest.mark.parametrize("statistic", ["loss", "soft"])
def test_weights_of_two_equal_groups_mirror_each_other(statistic: str) -> None:
    for rounds in (1, 3, 5):
        method = eh.FedFB("demographic_parity", alpha=0.3, statistic=statistic)
        weights = binary.train(method, rounds=rounds).state["cell_weight"]
        assert weights[0].tolist() == near(weights[1].flip(0).tolist())
        assert weights[0, 0] != 1


# ---- the optimum


@pytest.mark.parametrize("statistic", ["loss", "soft"])
def test_demographic_parity_converges_to_the_b_that_makes_the_groups_equal(statistic: str) -> None:
    """Two equal groups leave one unknown, b; the weighted logistic regression is solved by
    L-BFGS, and the b at which its groups are equal by Brent's method. The group is a feature:
    without it no b makes these groups equal."""
    x, y, group = (np.asarray(values) for values in binary.pooled())
    x[:, 2] = group
    design = np.column_stack([x, np.ones(len(y))])

    def model(b: float) -> np.ndarray:
        sign = np.where(group == 1, 1, -1) * np.where(y == 1, -1, 1)
        weight = 1 + b * sign

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            score = design @ theta
            p = 1 / (1 + np.exp(-score))
            losses = np.logaddexp(0, score) - y * score
            return weight @ losses / len(y), design.T @ (weight * (p - y)) / len(y)

        found = minimize(loss, np.zeros(4), jac=True, method="L-BFGS-B", options={"ftol": 1e-15})
        return np.asarray(found.x)

    def gap(b: float) -> float:
        score = design @ model(b)
        losses = np.logaddexp(0, score) - y * score
        rate = {
            "loss": np.where(y == 1, 1 - losses, losses),
            "soft": 1 / (1 + np.exp(-score)),
        }[statistic]
        return float(rate[group == 1].mean() - rate[group == 0].mean())

    b = brentq(gap, 0.0, 0.9)
    assert gap(0.0) > 0.1
    result = binary.train(
        eh.FedFB("demographic_parity", alpha=0.05, statistic=statistic, decay=0.0),
        "vmap",
        eh.Federation.from_arrays([{"x": x, "y": y, "group": group}]),
        rounds=1500,
        local=eh.LocalSGD(lr=1.0, steps=1),
    )
    assert result.state["cell_weight"][1, 0].item() == pytest.approx(1 + b, abs=2e-3)
    assert abs(result.history_rows[-1]["group_gap"]) < 2e-3


# ---- odd groups, labels and input


def learned(method: eh.FedFB, state: Any, total: Any, share: Any) -> Any:
    sums = {"cell_sum": total, "cell_share": share}
    sums = {name: torch.tensor(values, dtype=torch.float64) for name, values in sums.items()}
    return method.learn(state, eh.Replies(torch.tensor([0]), sums, {}))


def test_a_group_absent_from_the_cohort_keeps_its_last_error() -> None:
    method = eh.FedFB("equal_opportunity", alpha=0.1, decay=0.0)
    state = method.init({"w": torch.zeros(1)}, binary.eight(*ALL).census())
    # group 1 was never seen: nothing to compare with
    state = learned(method, state, [[0.0, 0.5], [0, 0]], [[0.5, 0.5], [0, 0]])
    assert state["cell_weight"].tolist() == [[1, 1], [1, 1]]
    # errors 1 (as last seen) and 3, shares 1/4 each on average: mass moves by 0.1 * 2
    state = learned(method, state, [[0, 0], [0.0, 1.5]], [[0, 0], [0.5, 0.5]])
    assert flat(state["cell_weight"]) == near([1, 0.2, 1, 1.8])


def test_a_group_without_positives_or_absent_from_training_changes_nothing(engine: str) -> None:
    x, y, group = binary.pooled()
    extra = {"x": np.zeros((2, 3)), "y": np.zeros(2, dtype=np.int64), "group": [2, 2]}
    clients = [{"x": x.numpy(), "y": y.numpy(), "group": group}, extra]
    result = binary.train(
        eh.FedFB("equal_opportunity", alpha=0.3), engine, eh.Federation.from_arrays(clients)
    )
    weights = result.state["cell_weight"]
    assert weights[2].tolist() == [1, 1]
    assert weights[0, 1] != 1
    mass = (result.state["share"] * weights)[:, 1].sum()
    assert float(mass) == pytest.approx(float((y == 1).double().mean()) * 72 / 74)


@pytest.mark.parametrize("notion", GROUP_NOTIONS)
def test_without_any_positive_label_it_still_trains(engine: str, notion: str) -> None:
    clients = [
        {"x": np.ones((3, 3)) * i, "y": np.zeros(3, dtype=np.int64), "group": [0, 1, i]}
        for i in range(2)
    ]
    result = binary.train(eh.FedFB(notion), engine, eh.Federation.from_arrays(clients))
    assert all(tensor.isfinite().all() for tensor in result.params.values())
    assert result.state["cell_weight"].isfinite().all()


@pytest.mark.parametrize("notion", GROUP_NOTIONS)
def test_sampled_cohorts_keep_weights_in_bounds(engine: str, notion: str) -> None:
    fed = binary.federation((3,) * 24)
    result = binary.train(eh.FedFB(notion, alpha=0.3), engine, fed, cohort=eh.Uniform(2), rounds=20)
    weights = result.state["cell_weight"]
    assert 0 <= weights.min() < 1 < weights.max()
    for tensor in result.params.values():
        assert tensor.isfinite().all()


def test_it_refuses_data_without_groups_and_regression() -> None:
    clients = [{"x": np.zeros((3, 3)), "y": np.array([0, 1, 1])}]
    with pytest.raises(ValueError, match="FedFB needs a group for every training sample"):
        binary.train(eh.FedFB(), fed=eh.Federation.from_arrays(clients))
    clients = [{"x": np.zeros((3, 1)), "y": np.zeros(3), "group": [0, 1, 1]}]
    fed, model = eh.Federation.from_arrays(clients), Model(binary.weight(), "mse")
    model.check(fed)
    with pytest.raises(ValueError, match=r"FedFB .* needs one class per sample; for other"):
        eh.FedFB().check(model)
    eh.FedFB("client_parity").check(model)  # compares losses only


def test_demographic_parity_from_losses_refuses_more_than_two_classes() -> None:
    fed = limits.federation(group=[np.arange(size) % 2 for size in limits.SIZES])
    rounds: list[int] = []
    with pytest.raises(
        ValueError,
        match=r"^FedFB's demographic parity from losses needs two classes, the model has 3; use"
        r' statistic="soft"$',
    ):
        limits.train(
            eh.FedFB("demographic_parity"), fed=fed, progress=lambda done, _: rounds.append(done)
        )
    assert not rounds
    for method in (eh.FedFB("demographic_parity", statistic="soft"), eh.FedFB()):
        assert limits.train(method, fed=fed).params


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"notion": "parity"}, "notion must be \"demographic_parity\", .* got 'parity'"),
        ({"alpha": -1}, "alpha must be a finite number >= 0, got -1; 0 gives FedAvg"),
        ({"statistic": "mean"}, 'statistic must be "loss", "soft" or "hard"'),
        ({"decay": -0.5}, "decay must be a finite number >= 0"),
        ({"normalised": 1}, "normalised must be true or false, got 1"),
        ({"notion": "client_parity", "statistic": "soft"}, "client parity compares losses"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.FedFB(**settings)


def test_three_groups_can_be_numbered_in_any_order() -> None:
    x, y, group = binary.pooled(groups=3)
    found = []
    for order in itertools.permutations(range(3)):
        renamed = np.array(order)[group]
        fed = eh.Federation.from_arrays([{"x": x.numpy(), "y": y.numpy(), "group": renamed}])
        found.append(binary.train(eh.FedFB("equalised_odds", alpha=0.2), fed=fed).params)
    for params in found[1:]:
        limits.assert_same(params, found[0])
