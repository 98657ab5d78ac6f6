"""What is drawn in a round and what is noted of it."""

from __future__ import annotations

import pytest
import torch

import evenhand as eh
from evenhand.training.evaluation import over_clients
from evenhand.training.rounds import asked_apart, moment
from tests.support.federations import network, ragged


def test_the_moment_of_a_snapshot_is_another_in_every_round_and_for_every_seed() -> None:
    moments = {moment(seed, round) for seed in range(5) for round in range(5)}
    assert len(moments) == 25
    assert all(0 <= value < 1 for value in moments)
    assert moment(3, 2) == moment(3, 2)


def test_clients_that_are_asked_apart_are_not_those_that_train() -> None:
    census = ragged().census()
    pairs = [
        (asked_apart(3, census, 0, round), eh.Uniform(3).draw(census, 0, round))
        for round in range(10)
    ]
    assert all(len(asked.ids) == 3 for asked, _ in pairs)
    assert any(set(asked.ids.tolist()) != set(trains.ids.tolist()) for asked, trains in pairs)
    assert asked_apart("everyone", census, 0, 0).ids.tolist() == list(range(10))


def test_the_history_has_the_step_size_of_each_round() -> None:
    local = eh.LocalSGD(lr=0.4, steps=1, decay=0.5)
    result = eh.fit(network(), ragged(), eh.FedAvg(), rounds=3, local=local)
    assert [row["lr"] for row in result.history_rows] == pytest.approx([0.4, 0.2, 0.1])


def test_the_history_has_the_accuracy_of_the_worst_group() -> None:
    each = {  # two clients, three groups, the last without samples
        "count": torch.tensor([[10.0, 5.0, 0.0], [10.0, 15.0, 0.0]]),
        "correct": torch.tensor([[9.0, 1.0, 0.0], [8.0, 11.0, 0.0]]),
        "loss": torch.ones(2, 3),
    }
    found = over_clients(each, classifies=True)
    assert found["worst_group"] == pytest.approx(12 / 20)  # of 17 / 20 and 12 / 20
    assert found["worst"] == pytest.approx(10 / 15)
    one = {key: values[:, :1] for key, values in each.items()}
    assert "worst_group" not in over_clients(one, classifies=True)
    assert set(over_clients(each, classifies=False)) == {"loss"}
