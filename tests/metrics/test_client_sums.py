"""How clients fare, from sums over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand import tree
from evenhand.metrics.client_sums import CELLS, client_sums, from_client_sums
from evenhand.metrics.scores import summary


def tally(count: list[float], correct: list[float], loss: list[float]) -> tree.Tree:
    return {
        name: torch.tensor(values, dtype=torch.float64)
        for name, values in (("count", count), ("correct", correct), ("loss", loss))
    }


def test_sums_by_hand() -> None:
    # accuracies 3/4 and 1/2 over both groups, losses 0.5 and 2
    one = client_sums(tally([1, 3], [1, 2], [0.5, 1.5]))
    other = client_sums(tally([2, 0], [1, 0], [4, 0]))
    total = tree.add(one, other)
    assert (float(total["clients"]), float(total["client_loss"])) == (2.0, 2.5)
    assert (float(total["client_accuracy"]), float(total["client_accuracy_squared"])) == (
        1.25,
        0.8125,
    )
    assert total["client_accuracies"].nonzero().flatten().tolist() == [500, 750]
    assert from_client_sums(total) == pytest.approx(
        {"loss": 1.25, "mean": 0.625, "std": 0.125, "worst": 0.5, "worst10": 0.5, "best10": 0.75}
    )


def test_sums_tell_what_the_accuracies_themselves_tell() -> None:
    rng = np.random.default_rng(0)
    count = rng.integers(1, 300, 57)
    correct = rng.binomial(count, rng.beta(5, 2, 57))
    loss = rng.exponential(size=57) * count
    total = client_sums(tally([count[0]], [correct[0]], [loss[0]]))
    for i in range(1, 57):
        total = tree.add(total, client_sums(tally([count[i]], [correct[i]], [loss[i]])))
    found, expected = from_client_sums(total), summary(correct / count)
    for name, value in expected.items():
        exact = name in ("mean", "std")
        assert found[name] == pytest.approx(value, abs=1e-12 if exact else 0.5 / CELLS + 1e-12), (
            name
        )
    assert found["loss"] == pytest.approx((loss / count).mean())


def test_a_regression_has_a_loss_alone() -> None:
    sums = client_sums({"count": torch.tensor([2.0]), "loss": torch.tensor([3.0])})
    assert from_client_sums(sums) == {"loss": 1.5}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_engines_can_take_them(engine: str) -> None:
    from evenhand.engines import choose
    from evenhand.engines.work import Evaluate
    from evenhand.messages import Task
    from evenhand.model import Model
    from tests.support.federations import network, ragged

    federation, model = ragged(), Model(network(torch.float64))
    model.check(federation)
    exchange = choose(engine, model, federation).attach(model, federation, 0)
    task, everyone = Task({"model": model.init()}), torch.arange(federation.clients)
    seen = exchange.exchange(Evaluate(eh.FedAvg(), 3, "train"), task, everyone, 0)
    unseen = exchange.exchange(
        Evaluate(eh.FedAvg(), 3, "train", by_client=False), task, everyone, 0
    )
    assert unseen.each == {}
    for name in ("count", "correct", "loss"):
        torch.testing.assert_close(unseen.total[name], seen.each[name].sum(0))
    accuracy = seen.each["correct"].sum(1) / seen.each["count"].sum(1)
    assert from_client_sums(unseen.total)["std"] == pytest.approx(float(accuracy.std(correction=0)))
