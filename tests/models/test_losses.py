"""Losses against torch's own and against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import evenhand as eh
from evenhand import losses
from evenhand.models import Linear


def test_cross_entropy_is_torchs() -> None:
    output, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 3, 2, 1, 1, 0])
    torch.testing.assert_close(
        losses.cross_entropy(output, y), F.cross_entropy(output, y, reduction="none")
    )


def test_brier_sums_squared_errors_over_classes() -> None:
    output = torch.log(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64))
    expected = (0.5 - 0) ** 2 + (0.3 - 1) ** 2 + (0.2 - 0) ** 2
    assert losses.brier(output, torch.tensor([1])).item() == pytest.approx(expected)


def test_brier_with_one_output_counts_both_classes() -> None:
    # p = 3/4
    two = losses.brier(torch.tensor([[0.0, math.log(3)]], dtype=torch.float64), torch.tensor([1]))
    one = losses.brier(torch.tensor([[math.log(3)]], dtype=torch.float64), torch.tensor([1]))
    assert one.item() == pytest.approx(2 * (0.75 - 1) ** 2)
    torch.testing.assert_close(one, two)


def test_hinge_with_one_output_takes_both_label_conventions() -> None:
    score = torch.tensor([[0.3], [-2.0], [1.5]])
    expected = torch.tensor([1 + 0.3, 1 + 2.0, 0.0])
    torch.testing.assert_close(losses.hinge(score, torch.tensor([-1, 1, 1])), expected)
    torch.testing.assert_close(losses.hinge(score, torch.tensor([0, 1, 1])), expected)


def test_hinge_with_classes_is_crammer_and_singers() -> None:
    output = torch.tensor([[1.0, 0.5, -1.0], [0.0, 3.0, 1.0]])
    torch.testing.assert_close(
        losses.hinge(output, torch.tensor([1, 1])), torch.tensor([1 + 1.0 - 0.5, 0.0])
    )


def test_mse_takes_a_column_of_outputs_for_a_vector_of_targets() -> None:
    torch.testing.assert_close(
        losses.mse(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0])), torch.tensor([1.0, 4.0])
    )
    torch.testing.assert_close(
        losses.mse(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]])),
        torch.tensor([(1 + 4) / 2]),
    )


# ---- the summed form: two clients with one feature, scores w x + b, labels -1 and 1


def svm(start: float = 0.0) -> Linear:
    module = Linear(1, 1, init="zero").double()
    with torch.no_grad():
        module[1].weight.fill_(start)
    return module


def two_clients() -> eh.Federation:
    x = torch.tensor([[1.0], [2.0], [-1.0], [3.0]], dtype=torch.float64)
    return eh.Federation(eh.Part(x, torch.tensor([1, 1, -1, -1]), torch.tensor([0, 3, 4])))


ENGINES = pytest.mark.parametrize("engine", ["loop", "vmap"])


def trained(
    engine: str, algorithm: eh.Algorithm, loss: str = "hinge_sum", start: float = 0.0, **local: Any
) -> eh.Result:
    solver = eh.LocalSGD(**{"lr": 0.1, "steps": 1, **local})
    return eh.fit(
        svm(start),
        two_clients(),
        algorithm,
        loss=loss,
        rounds=1,
        local=solver,
        engine=engine,
        weights="uniform",
    )


@ENGINES
def test_a_client_descends_the_sum_of_hinge_with_the_papers_penalty(engine: str) -> None:
    params = trained(engine, eh.FedAvg(), start=0.25, weight_decay=1.0).params
    # at w = 1/4 every sample is within the margin: slopes -y x of client 0: -1, -2, -1; of client
    # 1: 3. The penalty adds w
    first, second = 0.25 - 0.1 * (-4 + 0.25), 0.25 - 0.1 * (3 + 0.25)
    assert params["1.weight"].item() == pytest.approx((first + second) / 2, rel=1e-12)
    # slopes -y of the bias: -1 - 1 + 1 and 1
    assert params["1.bias"].item() == pytest.approx((0.1 - 0.1) / 2, abs=1e-12)


@ENGINES
def test_the_mean_form_divides_each_step_by_the_clients_size(engine: str) -> None:
    params = trained(engine, eh.FedAvg(), loss="hinge").params
    assert params["1.weight"].item() == pytest.approx((0.1 * 4 / 3 - 0.1 * 3) / 2, rel=1e-12)


@ENGINES
def test_a_batch_sums_over_its_own_samples_and_not_over_padding(engine: str) -> None:
    params = trained(engine, eh.FedAvg(), steps=None, epochs=1, batch_size=2, lr=0.01).params
    # within the margin a pass in batches of 2 and 1 adds the same slopes as one step on all three
    assert params["1.weight"].item() == pytest.approx((0.04 - 0.03) / 2, rel=1e-12)


@ENGINES
def test_qffl_raises_the_sum_to_the_power_q(engine: str) -> None:
    result = trained(engine, eh.QFFL(q=1))
    # F = 3 and 1 at w = 0; slopes (w, b): (-4, -1) and (3, 1); step = sum F g / sum (|g|^2 + F /
    # lr)
    step = (3 * -4 + 1 * 3) / (17 + 10 + 3 / 0.1 + 1 / 0.1)
    assert result.params["1.weight"].item() == pytest.approx(-step, rel=1e-6)


@ENGINES
def test_evaluation_reports_means_of_the_summed_loss(engine: str) -> None:
    rows = trained(engine, eh.FedAvg(), lr=1e-9).score_rows
    assert [row["loss"] for row in rows if row["by"] == "client"] == pytest.approx(
        [1.0, 1.0], abs=1e-6
    )


def test_per_sample_losses_of_the_summed_form_are_the_hinge() -> None:
    output, y = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    assert torch.equal(losses.hinge_sum(output, y), losses.hinge(output, y))
    assert eh.Model(svm(), "hinge_sum").summed
    assert not eh.Model(svm(), "hinge").summed


def test_the_summed_form_wants_the_same_labels_as_the_hinge() -> None:
    fed = two_clients()
    odd = eh.Federation(eh.Part(fed.train.x, torch.tensor([1, 1, 2, 0]), fed.train.offsets))
    with pytest.raises(
        ValueError, match=r"hinge_sum with one output needs labels 0/1 or -1/1, found 0\.\.2"
    ):
        eh.Model(svm(), "hinge_sum").check(odd)


@pytest.mark.parametrize(("loss", "expected"), [("hinge", [1.0, 0.75]), ("hinge_sum", [3.0, 1.5])])
def test_the_losses_that_weights_are_reported_for_are_those_that_methods_compare(
    loss: str, expected: list[float]
) -> None:
    module = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(module.bias)
    torch.nn.init.constant_(module.weight, 0.5)
    clients = [
        {"x": torch.zeros(3, 1), "y": torch.tensor([0, 1, 1])},
        {"x": torch.tensor([[1.0], [0.0]]), "y": torch.tensor([1, 1])},
    ]
    # the model stays where it is: margins 0, 0, 0 and 0.5, 0
    local = eh.LocalSGD(lr=1e-12, steps=1)
    result = eh.fit(
        module, eh.Federation.from_arrays(clients), eh.QFFL(q=1), loss=loss, rounds=1, local=local
    )
    assert [row["loss"] for row in result.weight_rows] == pytest.approx(expected, abs=1e-6)
