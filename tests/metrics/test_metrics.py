"""Tallies and summaries, against numbers worked out by hand and a second way to count."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand.metrics import summary
from evenhand.targets import Target
from tests.support.federations import METHODS, network, ragged


def test_summary_of_twenty_clients_takes_two_at_each_end() -> None:
    values = [0.9, 0.1, 0.3, *[0.5] * 16, 0.8]
    row = summary(values)
    assert row["worst10"] == pytest.approx((0.1 + 0.3) / 2)
    assert row["best10"] == pytest.approx((0.9 + 0.8) / 2)
    assert row["worst"] == 0.1
    assert row["mean"] == pytest.approx((0.9 + 0.1 + 0.3 + 8 + 0.8) / 20)
    assert row["std"] == pytest.approx(math.sqrt(sum((v - row["mean"]) ** 2 for v in values) / 20))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_few_clients_have_one_at_each_end(count: int) -> None:
    values = [i / 10 for i in range(count)]
    assert summary(values)["worst10"] == 0.0
    assert summary(values)["best10"] == values[-1]


def test_summary_leaves_out_clients_without_a_value() -> None:
    assert summary([0.5, math.nan])["mean"] == 0.5
    assert math.isnan(summary([])["mean"])


def correct(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Target("class", 2).right(output, y).bool()


def test_correct_takes_the_largest_output_or_the_sign_of_a_single_one() -> None:
    assert correct(torch.tensor([[0.1, 0.9], [2.0, 1.0]]), torch.tensor([1, 1])).tolist() == [
        True,
        False,
    ]
    assert correct(torch.tensor([[0.1], [-2.0], [3.0]]), torch.tensor([1, 0, -1])).tolist() == [
        True,
        True,
        False,
    ]


def test_of_equal_outputs_the_first_is_the_prediction() -> None:
    assert correct(torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([0, 1])).tolist() == [
        True,
        False,
    ]
    # a score of 0 is not positive
    assert correct(torch.tensor([0.0, 0.0]), torch.tensor([0, 1])).tolist() == [True, False]


def test_an_output_with_a_nan_is_never_right() -> None:
    nan = math.nan
    several = torch.tensor([[nan, 0.0], [0.0, nan], [nan, nan], [0.0, 1.0]])
    for label in (0, 1):
        assert correct(several, torch.full((4,), label)).tolist() == [
            False,
            False,
            False,
            label == 1,
        ]
        assert correct(torch.tensor([[nan], [1.0]]), torch.full((2,), label)).tolist() == [
            False,
            label == 1,
        ]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "gifair_per"])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_scores_are_those_of_each_clients_own_model_on_its_own_test_data(
    method: str, engine: str
) -> None:
    fed = ragged()
    result = eh.fit(network(), fed, METHODS[method], rounds=3, cohort=eh.Uniform(6), engine=engine)
    assert fed.test is not None
    assert fed.test.group is not None
    module, right, group_right, group_loss = network(), [], np.zeros(3), np.zeros(3)
    for client in range(fed.clients):
        module.load_state_dict(
            result.params if result.personal is None else result.personal[client]
        )
        x, y, group = fed.test.client(client)
        assert group is not None
        with torch.no_grad():
            output = module(x)
        hit = (output.argmax(1) == y).double().numpy()
        loss = torch.nn.functional.cross_entropy(output, y, reduction="none").numpy()
        right.append(hit.mean())
        row = result.score_rows[client]
        assert row["accuracy"] == pytest.approx(hit.mean())
        assert row["loss"] == pytest.approx(loss.mean())
        for code in range(3):
            group_right[code] += hit[group.numpy() == code].sum()
            group_loss[code] += loss[group.numpy() == code].sum()
    for code in range(3):
        row = result.score_rows[fed.clients + code]
        count = int((fed.test.group == code).sum())
        assert (row["by"], row["name"], row["count"]) == ("group", "abc"[code], count)
        assert row["accuracy"] == pytest.approx(group_right[code] / count)
        assert row["loss"] == pytest.approx(group_loss[code] / count)
    assert result.summary["mean"] == pytest.approx(np.mean(right))


def test_regression_has_losses_and_no_accuracy() -> None:
    fed = eh.Federation.from_arrays(
        [{"x": np.ones((4, 2)), "y": np.full(4, 0.5)}, {"x": np.zeros((2, 2)), "y": np.zeros(2)}]
    )
    result = eh.fit(torch.nn.Linear(2, 1), fed, eh.FedAvg(), loss="mse", rounds=2)
    assert "accuracy" not in result.score_columns
    assert all(row["loss"] >= 0 for row in result.score_rows)
    assert "mean" not in result.history_rows[-1]


def test_history_and_scores_are_tables() -> None:
    result = eh.fit(network(), ragged(), eh.FedAvg(), rounds=4, eval_every=2)
    assert len(result.history) == 4
    assert result.history["mean"].notna().tolist() == [False, True, False, True]
    assert len(result.scores) == 10 + 3 + 2  # clients, groups and teams
    assert result.history["mean"].iloc[-1] == pytest.approx(result.summary["mean"])


def test_a_single_output_of_a_users_own_loss_is_not_taken_for_a_class() -> None:
    def on_probabilities(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(
            output.squeeze(1), y.float(), reduction="none"
        )

    fed = eh.Federation.from_arrays(
        [{"x": np.array([[-1.0], [1.0]] * 4), "y": np.array([0, 1] * 4)}]
    )
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sigmoid())
    result = eh.fit(module, fed, eh.FedAvg(), loss=on_probabilities, rounds=1)
    assert "accuracy" not in result.score_columns


def test_whole_numbers_are_no_classes_for_a_users_own_loss() -> None:
    def absolute(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (output.squeeze(1) - y).abs()

    fed = eh.Federation.from_arrays(
        [{"x": np.ones((4, 2)), "y": np.array([20.0, 30.0, 40.0, 90.0])}]
    )
    result = eh.fit(torch.nn.Linear(2, 1), fed, eh.FedAvg(), loss=absolute, rounds=1)
    assert "accuracy" not in result.score_columns


def test_the_summary_of_a_regression_is_that_of_its_losses_and_the_worst_are_the_largest() -> None:
    fed = eh.Federation.from_arrays(
        [{"x": np.zeros((1, 1)), "y": np.array([y])} for y in (1.0, 2.0, 3.0)]
    )
    module = torch.nn.Linear(1, 1, bias=False)  # always 0, so that losses are 1, 4 and 9
    summary = eh.fit(module, fed, eh.FedAvg(), loss="mse", rounds=1).summary
    assert summary == pytest.approx(
        {"mean": 14 / 3, "worst10": 9, "best10": 1, "worst": 9, "std": np.std([1, 4, 9])}
    )


def test_a_run_says_each_clients_training_loss_and_the_weight_it_had() -> None:
    fed, module = ragged(), network()
    result = eh.fit(module, fed, eh.TERM(t=2.0), rounds=2)
    module.load_state_dict(result.params)
    losses = torch.stack(
        [
            torch.nn.functional.cross_entropy(module(x), y)
            for x, y, _ in map(fed.train.client, range(fed.clients))
        ]
    )
    base = fed.train.sizes / fed.train.sizes.sum()
    tilted = base * torch.exp(2 * losses.detach())
    assert result.weights["loss"].tolist() == pytest.approx(losses.tolist(), rel=1e-12)
    assert result.weights["base"].tolist() == pytest.approx(base.tolist(), rel=1e-6)
    assert result.weights["weight"].tolist() == pytest.approx(
        (tilted / tilted.sum()).tolist(), rel=1e-6
    )
    assert result.certificate is not None
    assert result.certificate.value.item() == pytest.approx(float(tilted.sum().log() / 2), rel=1e-6)
