"""Shares of a sample's labels: tallies keep their fractions, intervals follow their variance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import evenhand as eh
from evenhand.metrics.across import accuracy_intervals, merit_intervals
from evenhand.metrics.influence import relative_spread
from evenhand.metrics.ledger import Gains, reach_of
from evenhand.metrics.outcomes import sample_outcomes
from evenhand.metrics.together import gains_over_splits
from evenhand.metrics.trials import trials


def drawn(truth: np.ndarray, samples: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """(n * m,) shares of ``size`` independent labels that are right."""
    return (rng.binomial(size, np.repeat(truth, samples)) / size).astype(np.float64)


def test_right_and_wrong_samples_have_the_whole_spread() -> None:
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(20), 50)
    values = (rng.random(1000) < 0.7).astype(np.float64)
    assert relative_spread(values, client, 20) == pytest.approx(1, abs=1e-3)
    assert relative_spread(np.ones(1000), client, 20) == 1  # nothing is known
    assert relative_spread(values[:20], np.arange(20), 20) == 1


@pytest.mark.parametrize("size", [4, 25])
def test_shares_of_independent_labels_have_a_spread_of_one_over_their_number(size: int) -> None:
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(50), 40)
    values = drawn(np.linspace(0.5, 0.9, 50), 40, size, rng)
    assert relative_spread(values, client, 50) == pytest.approx(1 / size, rel=0.1)


def test_intervals_of_shares_are_as_narrow_as_their_variance() -> None:
    rng = np.random.default_rng(2)
    client = np.repeat(np.arange(10), 30)
    values = drawn(np.linspace(0.6, 0.8, 10), 30, 100, rng)
    d = relative_spread(values, client, 10)
    found = merit_intervals(values, client, 10, spread_of_shares=d)
    mean, low, high = found["mean"]
    assert mean == pytest.approx(values.mean())
    within = np.sqrt(np.mean([values[client == k].var(ddof=1) for k in range(10)]) / 300)
    assert (high - low) / 2 == pytest.approx(1.96 * within, rel=0.15)
    whole = merit_intervals(values > 0.7, client, 10)["mean"]
    assert whole.high - whole.low > 5 * (high - low)


def test_intervals_of_right_and_wrong_samples_stay_what_they_are() -> None:
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(8), 20)
    values = (rng.random(160) < 0.7).astype(np.float64)
    right = np.bincount(client, values).astype(np.int64)
    expected = accuracy_intervals(right, np.full(8, 20))
    for name, interval in merit_intervals(values, client, 8, spread_of_shares=1.0).items():
        assert interval == pytest.approx(expected[name], nan_ok=True), name


def test_intervals_of_shares_contain_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(4)
    truth = np.linspace(0.6, 0.9, 6)
    client, hits = np.repeat(np.arange(6), 20), dict.fromkeys(("mean", "min"), 0)
    actual = {"mean": truth.mean(), "min": truth.min()}
    for _ in range(30):
        # labels of one sample are alike, as pixels are: the share itself varies, too
        shares = rng.beta(4 * np.repeat(truth, 20), 4 * (1 - np.repeat(truth, 20)))
        values = rng.binomial(16, shares) / 16
        d = relative_spread(values, client, 6)
        found = merit_intervals(values, client, 6, draws=25, spread_of_shares=d)
        for name in hits:
            hits[name] += found[name].low <= actual[name] <= found[name].high
    assert all(count >= 27 for count in hits.values()), hits


def test_values_outside_0_and_1_are_no_shares() -> None:
    with pytest.raises(ValueError, match="shares must be between 0 and 1"):
        merit_intervals(np.array([0.5, 1.5]), np.zeros(2, np.int64), 1, spread_of_shares=0.5)


def test_a_difference_of_shares_is_more_certain_than_one_of_whole_samples() -> None:
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(6), 40)
    one, other = (drawn(np.full(6, p), 40, 64, rng) for p in (0.7, 0.74))
    values = np.stack([one, other], 1)
    gain, p = trials(values, client, 6, fractions=True).combined("mean", [-1, 1])
    apart = (other - one).reshape(6, 40)
    error = np.sqrt(apart.var(1, ddof=1).mean() / 240)
    assert gain.value == pytest.approx(apart.mean())
    assert 1.96 * error * 0.8 <= (gain.high - gain.low) / 2 <= 1.96 * error * 1.5
    assert p < 1e-3


def test_the_pseudo_samples_of_gains_gain_as_much_as_a_sample_that_changes() -> None:
    assert reach_of(np.array([1.0, 0.0, -1.0, np.nan])) == 1
    assert reach_of(np.zeros(3)) == 1
    assert reach_of(np.array([0.0, 0.3, -0.4])) == pytest.approx(np.sqrt((0.09 + 0.16) / 2))
    rng = np.random.default_rng(6)
    gain, cell = rng.normal(0.02, 0.05, (30, 1)), np.zeros(30, np.int64)
    found = Gains.of(gain, cell, 1).judged(reach=reach_of(gain))
    half = 1.96 * gain.std(ddof=1) / np.sqrt(30)
    assert found.high[0] - found.low[0] == pytest.approx(2 * half, rel=0.1)
    none = Gains.of(np.zeros((5, 1)), np.zeros(5, np.int64), 1).judged()
    assert none.high[0] - none.low[0] > 0.5  # five samples without a change say little
    settings = [gain[:, 0]] * 2, [cell] * 2, np.ones(1)
    of_shares, of_whole = (
        gains_over_splits(*settings, reach=reach) for reach in (reach_of(gain), 1.0)
    )
    assert of_shares.high - of_shares.low < (of_whole.high - of_whole.low) / 3


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_tallies_and_values_keep_fractions(engine: str) -> None:
    x = torch.eye(4).repeat(2, 1)
    y = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]] * 2)
    fed = eh.Federation(
        eh.Part(x, y, torch.tensor([0, 2, 8]), torch.tensor([0, 1] * 4)), group_names=("a", "b")
    )
    module = nn.Linear(4, 3)
    with torch.no_grad():
        module.weight.fill_(1.0)  # every label is predicted
        module.bias.zero_()
    local = eh.LocalSGD(lr=1e-9, steps=1)
    result = eh.fit(module, fed, eh.FedAvg(), rounds=1, loss="bce", engine=engine, local=local)
    right = y.double().mean(1)
    assert result.values == pytest.approx(right)
    assert "correct" not in result.tally
    sums = [[right[0], right[1]], [right[[2, 4, 6]].sum(), right[[3, 5, 7]].sum()]]
    assert result.tally["share_correct"] == pytest.approx(np.array(sums))
    assert result.summary["mean"] == pytest.approx((right[:2].mean() + right[2:].mean()) / 2)
    assert result.history_rows[-1]["mean"] == pytest.approx(result.summary["mean"])
    model = eh.Model(module, "bce")
    model.check(fed)
    kept = sample_outcomes(model, fed.train, dict(module.state_dict()))
    assert kept["value"] == pytest.approx(right)
    assert set(kept) == {"value", "loss"}


def test_a_huber_loss_keeps_squared_errors_beside_it() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([[0.0, 1.0], [4.0, 0.0], [2.0, 2.0]])
    fed = eh.Federation(eh.Part(x, y, torch.tensor([0, 1, 3])))
    module = nn.Linear(2, 2)
    nn.init.zeros_(module.bias)
    local = eh.LocalSGD(lr=1e-9, steps=1)
    result = eh.fit(module, fed, eh.FedAvg(), rounds=1, loss="huber", local=local)
    assert result.values == pytest.approx([0.5, 8.0, 4.0], abs=1e-5)
    rows = [row for row in result.score_rows if row["by"] == "client"]
    assert [row["loss"] for row in rows] == pytest.approx([0.25, (3.5 / 2 + 1.5) / 2], abs=1e-5)
    assert [row["rmse"] for row in rows] == pytest.approx([0.5**0.5, 6**0.5], abs=1e-5)
    assert [row["mae"] for row in rows] == pytest.approx([0.5, 2.0], abs=1e-5)
