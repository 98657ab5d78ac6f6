"""Metrics that tasks bring by themselves, against scikit-learn on all samples together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn

import evenhand as eh
from evenhand.metrics.metric import Metric
from evenhand.metrics.task_metrics import task_metrics
from evenhand.targets import Target


def metrics_of(target: Target) -> dict[str, Metric]:
    model = eh.Model(nn.Linear(1, 1))
    model.target = target
    return task_metrics(model)


def value_of(metric: Metric, output: Tensor, y: Tensor) -> float:
    """The metric of all samples, from the definition in Metric."""
    found = metric.function(output, y)
    if isinstance(found, Tensor):
        return float(found.mean())
    above, below = (part.double().sum(0) for part in found)
    return float((above / below)[below != 0].mean())


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(1))


def test_multi_label_metrics_are_scikit_learns() -> None:
    output, y = drawn(40, 5), classes(2, 40, 5)
    found = metrics_of(Target("labels", 5, (5,)))
    predicted = (output > 0).numpy()
    assert value_of(found["f1_macro"], output, y) == pytest.approx(
        sk.f1_score(y.numpy(), predicted, average="macro")
    )
    y[:6] = (output[:6] > 0).long()
    assert value_of(found["exact_match"], output, y) == pytest.approx(
        sk.accuracy_score(y.numpy(), predicted)
    )


def test_an_ignored_label_counts_in_no_metric() -> None:
    output, y = torch.tensor([[1.0, 1.0, -1.0]]), torch.tensor([[1, -100, 1]])
    found = metrics_of(Target("labels", 3, (3,)))
    assert value_of(found["f1_macro"], output, y) == pytest.approx((1 + 0) / 2)  # 2 / 2 and 0 / 1
    y[0, 2] = 0
    assert value_of(found["exact_match"], output, y) == 1
    assert value_of(found["f1_macro"], output, y) == 1  # the third is neither there nor predicted


@pytest.mark.parametrize("axis", [1, -1])
def test_metrics_of_positions_are_scikit_learns(axis: int) -> None:
    output, y = drawn(10, 4, 6, 5), classes(4, 10, 6, 5)
    predicted, there = output.argmax(1).flatten(), torch.ones_like(y, dtype=torch.bool)
    y[2, 1:3], there[2, 1:3] = -100, False
    chosen = there.flatten().numpy()
    truth, guess = y.flatten().numpy()[chosen], predicted.numpy()[chosen]
    found = metrics_of(Target("positions", 4, (6, 5), axis))
    output = output.movedim(1, axis)
    assert value_of(found["iou"], output, y) == pytest.approx(
        sk.jaccard_score(truth, guess, average="macro")
    )
    assert value_of(found["dice_score"], output, y) == pytest.approx(
        sk.f1_score(truth, guess, average="macro")
    )


def test_metrics_of_binary_masks_are_about_the_inside() -> None:
    output, y = drawn(10, 1, 6, 5), classes(2, 10, 6, 5)
    truth, guess = y.flatten().numpy(), (output > 0).flatten().numpy()
    found = metrics_of(Target("positions", 2, (6, 5)))
    assert value_of(found["iou"], output, y) == pytest.approx(sk.jaccard_score(truth, guess))
    assert value_of(found["dice_score"], output, y) == pytest.approx(sk.f1_score(truth, guess))


def test_masks_of_half_precision_outputs_are_counted_exactly() -> None:
    output, y = torch.ones(1, 20, 20, dtype=torch.bfloat16), torch.ones(1, 20, 20).long()
    y[0, 0, 0] = 0
    found = metrics_of(Target("positions", 2, (20, 20)))
    assert value_of(found["iou"], output, y) == 399 / 400
    assert value_of(found["dice_score"], output, y) == 798 / 799


def test_a_class_that_is_nowhere_is_left_out_of_the_mean() -> None:
    output, y = torch.zeros(1, 3, 4), torch.tensor([[0, 0, 1, 1]])
    output[0, 0] = 1.0  # all positions are class 0, and class 2 is nowhere
    found = metrics_of(Target("positions", 3, (4,), 1))
    assert value_of(found["iou"], output, y) == pytest.approx((1 / 2 + 0) / 2)


def test_the_distance_between_levels_is_the_mean_absolute_error() -> None:
    output, y = drawn(30, 4), classes(5, 30)
    found = metrics_of(Target("ordinal", 5))["mae"]
    assert found.better == "lower"
    levels = (output > 0).sum(1).numpy()
    assert value_of(found, output, y) == pytest.approx(sk.mean_absolute_error(y.numpy(), levels))


@pytest.mark.parametrize("kind", ["class", "number"])
def test_other_tasks_bring_no_metrics(kind: str) -> None:
    assert metrics_of(Target(kind)) == {}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_run_has_the_metrics_of_its_clients_groups_and_rounds(engine: str) -> None:
    rng = np.random.default_rng(0)

    def some(n: int) -> dict[str, Any]:
        x = rng.normal(size=(n, 3)).astype("float32")
        y = (x + 0.5 * rng.normal(size=x.shape) > 0).astype("int64")
        return {"x": x, "y": y, "group": rng.choice(["a", "b"], n)}

    fed = eh.Federation.from_arrays([some(20), some(9)], test=[some(30), some(14)])
    module = nn.Linear(3, 3)
    result = eh.fit(module, fed, eh.FedAvg(), rounds=2, loss="bce", engine=engine)
    assert fed.test is not None
    assert fed.test.group is not None
    trained = nn.Linear(3, 3)
    trained.load_state_dict(result.params)
    predicted, y = (trained(fed.test.x) > 0).numpy(), fed.test.y.numpy()
    rows = {
        **{str(k): fed.test.owners.numpy() == k for k in (0, 1)},
        **{name: fed.test.group.numpy() == code for code, name in enumerate(fed.group_names)},
    }
    for row in result.score_rows:
        chosen = rows[row["name"].removeprefix("client ")]
        f1 = sk.f1_score(y[chosen], predicted[chosen], average="macro")
        assert row["f1_macro"] == pytest.approx(f1)
        assert row["accuracy"] == pytest.approx((y == predicted)[chosen].mean())
        assert row["exact_match"] == pytest.approx((y == predicted)[chosen].all(1).mean())
    clients = [row["f1_macro"] for row in result.score_rows if row["by"] == "client"]
    assert result.history_rows[-1]["f1_macro"] == pytest.approx(np.mean(clients))
