"""What is drawn in a round and what is noted of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import evenhand as eh
from evenhand import tree
from evenhand.data.samples import Batch
from evenhand.training.over_clients import over_clients
from evenhand.training.rounds import asked_apart, moment
from evenhand.tree import Tree
from tests.support import by_hand
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
    found = over_clients(each)
    assert found["worst_group"] == pytest.approx(12 / 20)  # of 17 / 20 and 12 / 20
    assert found["worst"] == pytest.approx(10 / 15)
    one = {key: values[:, :1] for key, values in each.items()}
    assert "worst_group" not in over_clients(one)
    each.pop("correct")
    assert set(over_clients(each)) == {"loss"}


# ---- three questions a round


@dataclass(frozen=True)
class Curious(eh.Algorithm, eh.Question):
    """FedAvg that asks for the mean loss three times: before training, of the model moved by
    that loss on validation data, and of the new model."""

    def init(self, params: Tree, census: eh.Census) -> Tree:
        nothing = torch.zeros((), dtype=torch.float64)
        return {"model": params, "first": nothing, "second": nothing, "review": nothing}

    def question(self, moment: str = "before") -> eh.Question | None:
        return self if moment == "before" else Again(moment)

    def ask(self, state: Tree) -> eh.Survey:
        return eh.Survey({"model": state["model"]})

    def answer(self, model: eh.Model, data: Batch, task: eh.Task, memory: Tree) -> eh.Reply:
        loss = model.loss(task.shared["model"], data)
        return eh.Reply({"loss": task.own["share"] * loss, "share": task.own["share"]})

    def learn(self, state: Tree, replies: eh.Replies) -> Tree:
        return {**state, "first": replies.total["loss"] / replies.total["share"]}

    def answer_entries(self, asked: eh.Asked) -> dict[str, eh.Entry]:
        return {"loss": eh.Entry(least=0.0), "share": eh.Entry(least=0.0)}


@dataclass(frozen=True)
class Again(eh.Question):
    """The same question at another moment."""

    moment: str

    def ask(self, state: Tree) -> eh.Survey:
        if self.moment == "review":
            return eh.Survey({"model": state["model"]})
        moved = tree.map(lambda value: value + state["first"], state["model"])
        return eh.Survey({"model": moved}, who="everyone", part="val")

    answer, answer_entries = Curious.answer, Curious.answer_entries

    def learn(self, state: Tree, replies: eh.Replies) -> Tree:
        return {**state, self.moment: replies.total["loss"] / replies.total["share"]}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_method_may_ask_three_questions_a_round(engine: str) -> None:
    # w = 1: F = 3/4 5/3 + 1/4 16 = 5.25; on validation data (x = 1, y = 0) at 6.25: 6.25^2;
    # one step of 0.05 along 3/4 (-2) + 1/4 (-16) = -5.5 gives 1.275
    clients = [by_hand.arrays(client) for client in (by_hand.A, by_hand.B)]
    held = [{"x": np.ones((1, 1)), "y": np.zeros(1)} for _ in clients]
    federation = eh.Federation.from_arrays(clients, val=held)
    settings = eh.Settings(loss="mse", rounds=1, local=eh.LocalSGD(lr=0.05, steps=1), engine=engine)
    results = [
        eh.fit(by_hand.weight(1.0), federation, Curious(), settings=settings),
        *eh.fit_many(
            by_hand.weight(1.0),
            federation,
            [eh.Run(Curious(), seed=seed) for seed in (0, 1)],
            settings=settings,
        ),
    ]
    new = 3 / 4 * by_hand.f_a(1.275) + 1 / 4 * by_hand.f_b(1.275)
    for result in results:
        found = {name: float(result.state[name]) for name in ("first", "second", "review")}
        assert found == by_hand.near({"first": 5.25, "second": 6.25**2, "review": new})


def test_a_question_about_validation_data_needs_such_data() -> None:
    with pytest.raises(ValueError, match="Curious asks clients about their val data, but client"):
        by_hand.run(Curious(), "loop", lr=0.1)
