"""A client that works alone replies and remembers what it does in the whole federation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import evenhand as eh
from evenhand import tree
from evenhand.engines.client import SingleClient
from evenhand.engines.work import Evaluate, Train
from evenhand.messages import Task
from evenhand.model import Model
from tests.support.federations import ragged

CLIENT, SEED = 3, 7
LOCAL = eh.LocalSGD(lr=0.05, epochs=2, batch_size=8, momentum=0.5)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def alone(federation: eh.Federation) -> eh.Federation:
    def arrays(part: eh.Part | None) -> list[dict[str, object]]:
        assert part is not None
        x, y, group = part.client(CLIENT)
        assert group is not None
        return [{"x": x, "y": y, "group": [federation.group_names[g] for g in group.tolist()]}]

    return eh.Federation.from_arrays(arrays(federation.train), test=arrays(federation.test))


def checked_model(federation: eh.Federation, device: str) -> Model:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.4), nn.Linear(8, 3)).double()
    model = Model(module).to(torch.device(device))
    model.check(federation)
    assert model.stochastic
    return model


@pytest.mark.parametrize("device", DEVICES)
def test_batches_dropout_and_memory_are_those_of_its_number(device: str) -> None:
    federation = ragged()
    model = checked_model(federation, device)
    exchange = eh.Loop().attach(model, federation, SEED)
    client = SingleClient(model, alone(federation), SEED, CLIENT)
    stranger = SingleClient(model, alone(federation), SEED, CLIENT + 1)
    work, memory = Train(eh.Ditto(lam=0.5), LOCAL), {}
    one = torch.ones(1, dtype=torch.float64)
    task = Task({"model": model.init(), "lr": 0.05 * one[0]}, {"weight": one, "share": one})
    for round in range(2):
        together = exchange.exchange(work, task, torch.tensor([CLIENT]), round)
        before = memory
        reply, memory = client.answer(work, task, round, before)
        other, _ = stranger.answer(work, task, round, before)
        expected = tree.flatten(tree.to(together.total, "cpu"))
        found = tree.flatten(reply.total)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
        assert any(
            not torch.equal(value, expected[name])
            for name, value in tree.flatten(other.total).items()
        )
        for kept, known in zip(
            tree.leaves(memory), tree.leaves(exchange.memories[CLIENT]), strict=True
        ):
            assert torch.equal(kept, known)


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_is_that_of_the_whole_federation(device: str) -> None:
    federation = ragged()
    model = checked_model(federation, device)
    task = Task({"model": model.init()}, {})
    work = Evaluate(eh.FedAvg(), groups=3)
    ids = torch.tensor([CLIENT])
    together = eh.Loop().attach(model, federation, SEED).exchange(work, task, ids, 0)
    memory = {"kept": torch.ones(2)}
    reply, after = SingleClient(model, alone(federation), SEED, CLIENT).answer(
        work, task, 0, memory
    )
    assert after is memory
    for name, value in together.each.items():
        assert torch.equal(reply.each[name].cpu(), value[0].cpu()), name


def test_it_has_the_data_of_one_client() -> None:
    federation = ragged()
    with pytest.raises(ValueError, match="one client, got 10; start one node for each"):
        SingleClient(checked_model(federation, "cpu"), federation, SEED, 0)
