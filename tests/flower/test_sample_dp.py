"""Nodes that hide single samples: the server asks for it, and the node draws in secret."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.engines.client import SingleClient
from evenhand.engines.work import Ask, Evaluate, Train
from evenhand.flower import client_app, server_app
from evenhand.flower.policy import Policy, Refused
from evenhand.flower.secret_order import with_own_secret
from evenhand.flower.wire import describe_work, read_work
from evenhand.messages import Task
from evenhand.model import Model
from tests.support.federations import network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import one_client

SIZES = (12, 9, 20)
HIDDEN = eh.LocalSGD(lr=0.1, batch_size=6, dp=eh.SampleDP(clip=0.5, noise=4.0, seed=3))


def federated(folder: Path, local: eh.LocalSolver, policy: str = "") -> eh.Result:
    """A run on nodes, each with its own policy and secret."""
    federation = ragged(SIZES)
    app = client_app(network(), lambda config: one_client(federation, int(config["partition-id"])))
    folder.mkdir()
    (folder / "policy.toml").write_text(f"min-cell = 1\n{policy}\n")
    configs: list[dict[str, Any]] = [
        {
            "partition-id": place,
            "state-dir": str(folder / f"state{place}"),
            "policy": str(folder / "policy.toml"),
        }
        for place in range(3)
    ]
    grid, found = InProcessGrid(app, configs), list[eh.Result]()
    settings: dict[str, Any] = {"rounds": 2, "local": local, "seed": 3, "eval_every": 2}
    server_app(
        eh.FedAvg(), network(), clients=3, out=folder / "run", finished=found.append, bound=None,
        **settings,
    )(grid, grid.contexts[1])  # fmt: skip
    return found[0]


@pytest.mark.parametrize("order", ["node", "server"])
def test_nodes_draw_noise_that_no_seed_of_the_server_gives(tmp_path: Path, order: str) -> None:
    policy = f'min-noise = 1.0\norder = "{order}"'
    first, second = (federated(tmp_path / name, HIDDEN, policy) for name in ("one", "two"))
    simulated = eh.fit(network(), ragged(SIZES), eh.FedAvg(), rounds=2, local=HIDDEN, seed=3)
    for other in (second, simulated):
        assert not torch.equal(first.params["0.weight"], other.params["0.weight"])
    assert first.sample_privacy is not None
    assert first.sample_privacy.steps == (4, 4, 8)
    saved = json.loads((tmp_path / "one" / "run" / "fedavg" / "sample-privacy.json").read_text())
    assert saved["noise"] == 4.0


def test_the_work_as_it_travels_has_no_key() -> None:
    dp = eh.SampleDP(clip=2.0, noise=1.5).keyed(b"of the server")
    work = Train(eh.FedAvg(), eh.LocalAdam(lr=0.1, dp=dp))
    text = describe_work(work, work.algorithm)
    assert json.loads(text)["local"]["dp"] == {"clip": 2.0, "noise": 1.5}
    again = read_work(text)
    assert again.local is not None
    assert again.local.dp == eh.SampleDP(clip=2.0, noise=1.5)


def reply_of(key: int, data: eh.Federation, memory: dict[str, Any] | None = None) -> torch.Tensor:
    """A node's reply to the same task."""
    model = Model(network())
    work = with_own_secret(Train(eh.FedAvg(), HIDDEN), key, data, memory or {})
    one = torch.ones(1, dtype=torch.float64)
    task = Task(
        {"model": model.init(), "lr": torch.tensor(0.1, dtype=torch.float64)},
        {"weight": one, "share": one},
    )
    reply, _ = SingleClient(model, data, 3, 0).answer(work, task, 0, {})
    found: torch.Tensor = reply.total["delta"]["0.weight"]
    return found


def test_a_repeated_task_gets_the_same_noise_and_changed_data_another() -> None:
    data = one_client(ragged(SIZES), 0)
    assert torch.equal(reply_of(7, data), reply_of(7, data))
    assert not torch.equal(reply_of(7, data), reply_of(8, data))
    # one label differs: with the same noise, the difference of two replies would show it
    changed = replace(data.train, y=data.train.y.clone())
    changed.y[0] = (changed.y[0] + 1) % 3
    after = eh.Federation(changed, None, data.test, group_names=data.group_names)
    other = reply_of(7, after)
    step = (reply_of(7, data) - other).norm()
    assert step > 0.05  # noise of 2 in two steps of 0.1 / 6; one label moves less than 0.02
    kept = {"v": torch.ones(2)}
    assert not torch.equal(reply_of(7, data), reply_of(7, data, kept))


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (Train(eh.FedAvg(), eh.LocalSGD(lr=0.1)), "train of training samples has no noise"),
        (
            Train(eh.FedAvg(), eh.LocalSGD(lr=0.1, dp=eh.SampleDP(noise=0.5))),
            "train of training samples has noise of 0.5",
        ),
        (Ask(eh.AFL(order="before")), "survey of training samples has no noise"),
        (Evaluate(eh.FedAvg(), 3, "train"), "evaluate of training samples has no noise"),
    ],
    ids=["plain", "too little", "question", "evaluation"],
)
def test_owners_can_insist_on_noise(work: Any, told: str) -> None:
    policy = Policy(min_noise=1.0)
    data = one_client(ragged(SIZES), 2)
    with pytest.raises(Refused, match=told):
        policy.permits(work, data, 10, "cross_entropy")
    enough = Train(eh.FedAvg(), eh.LocalSGD(lr=0.1, dp=eh.SampleDP(noise=1.0)))
    policy.permits(enough, data, 10, "cross_entropy")
    policy.permits(Evaluate(eh.FedAvg(), 3, "test"), data, 10, "cross_entropy")


@pytest.mark.parametrize("method", [eh.QFFL(), eh.FAFL(alpha=1.0, sigma="local")])
def test_a_node_does_not_reply_with_more_than_steps(method: eh.Algorithm) -> None:
    """Whatever the server has checked: a reply that reads samples does not leave."""
    model, data = Model(network()), one_client(ragged(SIZES), 0)
    work = with_own_secret(Train(method, HIDDEN), 7, data, {})
    one = torch.ones(1, dtype=torch.float64)
    state = method.init(model.init(), data.census("data"))
    sent = method.task(state, torch.tensor([0]))
    shared = {**sent.shared, "lr": torch.tensor(0.1, dtype=torch.float64)}
    with pytest.raises((ValueError, eh.ClientError), match="reads"):
        SingleClient(model, data, 3, 0).answer(
            work, Task(shared, {**sent.own, "weight": one, "share": one}), 0, {}
        )
