"""FairFed: numbers by hand, a second implementation, where it is another method, odd clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.algorithms.fairfed import GapQuestion
from evenhand.model import Model
from tests.support import binary, limits
from tests.support.by_hand import near

NOTIONS = ("equal_opportunity", "demographic_parity")
STILL = eh.LocalSGD(lr=1e-9, steps=1)  # predictions stay as they are


def omega(result: eh.Result) -> list[float]:
    return [float(value) for value in result.state["omega"]]


def still(method: eh.Algorithm, fed: eh.Federation, rounds: int = 1) -> eh.Result:
    return binary.train(
        method, fed=fed, start=binary.weight(), loss="brier", rounds=rounds, local=STILL
    )


def from_gaps(method: eh.FairFed, weights: list[float], rates: list[float]) -> list[float]:
    """The weights after one answer; client i has rates (rates[i], 0) of its two groups.

    Every client has the label 1 only and as many samples in each group, so F is the p-weighted
    mean of its rates."""
    base = torch.tensor(weights, dtype=torch.float64)
    share = torch.tensor([[0.0, 0.5], [0.0, 0.5]], dtype=torch.float64)
    own = torch.stack(
        [share * torch.tensor([[0.0, r], [0.0, 0.0]], dtype=torch.float64) for r in rates]
    )
    state = {
        "model": {"w": torch.zeros(1)},
        "base": base,
        "omega": base,
        "rate": torch.zeros(2, dtype=torch.float64),
        "seen": torch.zeros(2, dtype=torch.float64),
        "accuracy": torch.zeros((), dtype=torch.float64),
        "mean_gap": torch.zeros((), dtype=torch.float64),
    }
    total = {
        "cell_sum": (base[:, None, None] * own).sum(0),
        "cell_share": (base[:, None, None] * share).sum(0),
    }
    each = {"own_sum": own, "own_share": share.expand(len(weights), 2, 2)}
    learned = method.learn(state, eh.Replies(torch.arange(len(weights)), total, each))
    return [float(value) for value in learned["omega"]]


# ---- by hand


def test_weights_move_by_beta_times_the_distance_from_the_mean_gap() -> None:
    # F = .5 * .4 + .3 * .1 + .2 * .6 = .35; gaps .05, .25, .25, mean .55 / 3
    mean = 0.55 / 3
    expected = [0.5 - 0.2 * (0.05 - mean), 0.3 - 0.2 * (0.25 - mean), 0.2 - 0.2 * (0.25 - mean)]
    found = from_gaps(eh.FairFed(beta=0.2), [0.5, 0.3, 0.2], [0.4, 0.1, 0.6])
    assert found == near(expected)
    assert found == pytest.approx([0.52667, 0.28667, 0.18667], abs=1e-5)
    assert sum(found) == near(1)


def test_a_weight_is_cut_at_zero_and_kept_there() -> None:
    # with beta = 4 the changes are +.5333, -.2667, -.2667
    found = from_gaps(eh.FairFed(beta=4.0), [0.5, 0.3, 0.2], [0.4, 0.1, 0.6])
    assert found == near([0.5 + 1.6 / 3, 0.3 - 0.8 / 3, 0])


def test_the_exponential_rule_multiplies() -> None:
    found = from_gaps(eh.FairFed(beta=2.0, rule="exponential"), [0.5, 0.3, 0.2], [0.4, 0.1, 0.6])
    factor = np.exp(-2.0 * 0.2)
    assert found == near([0.5, 0.3 * factor, 0.2 * factor])
    large = from_gaps(eh.FairFed(beta=1e9, rule="exponential"), [0.5, 0.3, 0.2], [0.4, 0.1, 0.6])
    assert large == near([0.5, 0, 0])  # only the smallest gap counts


@pytest.mark.parametrize("accumulate", [True, False])
def test_weights_accumulate_unless_told_otherwise(accumulate: bool) -> None:
    fed = binary.federation()
    start = np.array([12, 30, 7, 23]) / 72
    one, two = (
        np.array(
            omega(
                binary.train(
                    eh.FairFed(0.05, accumulate=accumulate), fed=fed, rounds=r, local=STILL
                )
            )
        )
        for r in (1, 2)
    )
    assert np.abs(one - start).max() > 1e-3
    assert two - start == pytest.approx((2 if accumulate else 1) * (one - start), rel=1e-6)


# ---- a second implementation


def gaps(fed_sizes: tuple[int, ...], notion: str, groups: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Gap of every client and its p_i, with masks on the pooled samples."""
    x, y, group = binary.pooled(fed_sizes, groups)
    chosen = (binary.module()(x).argmax(1) == 1).numpy()
    label, owner = y.numpy(), np.repeat(np.arange(len(fed_sizes)), fed_sizes)

    def rate(a: int, mine: np.ndarray) -> float | None:
        mask = mine & (group == a) & ((label == 1) | (notion == "demographic_parity"))
        return float(chosen[mask].mean()) if mask.any() else None

    everyone, found = np.ones(len(label), dtype=bool), []
    for i in range(len(fed_sizes)):
        mine = owner == i
        apart = []
        for a in range(groups):
            for b in range(a):
                own = rate(a, mine), rate(b, mine)
                if None not in own:
                    whole = rate(a, everyone) - rate(b, everyone)  # type: ignore[operator]
                    apart.append(abs(own[0] - own[1] - whole))  # type: ignore[operator]
        right = chosen == (label == 1)
        found.append(np.mean(apart) if apart else abs(right[mine].mean() - right.mean()))
    return np.array(found), np.array(fed_sizes) / sum(fed_sizes)


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("sizes", [(12, 30, 7, 23), (1, 40, 2, 29)], ids=str)
def test_weights_are_those_of_masks_on_pooled_samples(
    sizes: tuple[int, ...], groups: int, notion: str
) -> None:
    """The clients of 1 and 2 samples lack groups, so accuracy stands in."""
    gap, base = gaps(sizes, notion, groups)
    expected = np.maximum(base - 0.2 * (gap - gap.mean()), 0)
    fed = binary.federation(sizes, groups)
    found = binary.train(eh.FairFed(0.2, notion), fed=fed, rounds=1)
    assert omega(found) == pytest.approx(expected.tolist(), rel=1e-6)
    assert found.history_rows[0]["mean_distance"] == pytest.approx(gap.mean(), rel=1e-6)


def test_the_reported_gap_is_the_difference_of_rates_over_all_clients() -> None:
    fed = binary.eight((0, 1, 4, 6), (2, 3, 5, 7))
    for notion, gap in (("equal_opportunity", 0.5), ("demographic_parity", 0.5)):
        assert still(eh.FairFed(0.1, notion), fed).history_rows[0]["group_gap"] == near(gap)


@limits.every_local
@pytest.mark.parametrize("beta", [0.2, 3.0])  # 3 cuts weights at zero
@pytest.mark.parametrize("accumulate", [True, False])
def test_with_sums_only_the_run_is_the_same(
    engine: str, local: eh.LocalSGD, beta: float, accumulate: bool
) -> None:
    each, sums = (
        binary.train(
            eh.FairFed(beta, accumulate=accumulate, sums_only=only), engine, local=local, rounds=5
        )
        for only in (False, True)
    )
    limits.assert_same(sums.params, each.params)
    if beta == 3.0:
        assert min(omega(each)) == 0
    fedavg = binary.train(eh.FedAvg(), engine, local=local, rounds=5).params
    assert limits.distance(sums.params, fedavg) > 1e-4


def test_with_sums_only_sampled_cohorts_are_the_same_too(engine: str) -> None:
    each, sums = (
        binary.train(eh.FairFed(0.3, sums_only=only), engine, cohort=eh.Uniform(2), rounds=8)
        for only in (False, True)
    )
    limits.assert_same(sums.params, each.params)


# ---- where it is another method


@limits.every_local
@pytest.mark.parametrize("settings", [{}, {"rule": "exponential"}, {"sums_only": True}], ids=str)
def test_without_beta_or_with_one_client_it_is_fedavg(
    engine: str, local: eh.LocalSGD, settings: dict[str, Any]
) -> None:
    fedavg = binary.train(eh.FedAvg(), engine, local=local).params
    limits.assert_same(
        binary.train(eh.FairFed(0.0, **settings), engine, local=local).params, fedavg
    )
    alone = binary.federation((72,))
    limits.assert_same(
        binary.train(eh.FairFed(5.0, **settings), engine, alone, local=local).params,
        binary.train(eh.FedAvg(), engine, alone, local=local).params,
    )


@pytest.mark.parametrize("notion", NOTIONS)
def test_copies_of_a_client_are_fedavg(engine: str, notion: str) -> None:
    x, y, group = binary.pooled()
    fed = eh.Federation.from_arrays(
        [{"x": x.numpy(), "y": y.numpy(), "group": group} for _ in range(3)]
    )
    found = binary.train(eh.FairFed(5.0, notion), engine, fed).params
    limits.assert_same(found, binary.train(eh.FedAvg(), engine, fed).params)


def test_two_clients_with_the_same_cell_counts_are_fedavg(engine: str) -> None:
    """F is then the mean of F_0 and F_1, equally far from both, however they differ."""
    x, y, group = binary.pooled((40, 40))
    order = np.concatenate(
        [
            rows[half::2]
            for half in (0, 1)
            for a in (0, 1)
            for c in (0, 1)
            for rows in [even(np.flatnonzero((group == a) & (y.numpy() == c)))]
        ]
    )
    clients = [
        {"x": x[rows].numpy(), "y": y[rows].numpy(), "group": group[rows]}
        for rows in np.split(order, 2)
    ]
    fed = eh.Federation.from_arrays(clients)
    found = binary.train(eh.FairFed(5.0), engine, fed)
    limits.assert_same(found.params, binary.train(eh.FedAvg(), engine, fed).params)
    assert found.history_rows[0]["mean_distance"] > 0.01


def even(rows: np.ndarray) -> np.ndarray:
    return rows[: len(rows) // 2 * 2]


# ---- messages, and wrong input


def test_the_second_question_is_asked_only_with_sums_only() -> None:
    assert eh.FairFed().question("second") is None
    assert isinstance(eh.FairFed(sums_only=True).question("second"), GapQuestion)
    assert eh.FairFed(sums_only=True).weighting() is None
    assert eh.FairFed(sums_only=True).question("review") is None


def test_it_refuses_data_without_groups_and_regression() -> None:
    clients = [{"x": np.zeros((3, 3)), "y": np.array([0, 1, 1])}]
    with pytest.raises(ValueError, match="FairFed needs a group for every training sample"):
        binary.train(eh.FairFed(), fed=eh.Federation.from_arrays(clients))
    clients = [{"x": np.zeros((3, 1)), "y": np.zeros(3), "group": [0, 1, 1]}]
    model = Model(binary.weight(), "mse")
    model.check(eh.Federation.from_arrays(clients))
    with pytest.raises(ValueError, match=r"FairFed .* needs one class per sample; for other"):
        eh.FairFed().check(model)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1}, "beta must be a finite number >= 0, got -1; 0 gives FedAvg"),
        ({"notion": "equalised_odds"}, "notion must be"),
        ({"rule": "linear"}, 'rule must be "additive" or "exponential"'),
        ({"accumulate": 1}, "accumulate must be true or false, got 1"),
        ({"sums_only": "no"}, "sums_only must be true or false, got 'no'"),
        ({"sums_only": True, "rule": "exponential"}, 'sums_only needs rule="additive"'),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eh.FairFed(**settings)
