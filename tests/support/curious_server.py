"""A server that wants rows: it asks one node for tasks of its own making, through Flower's real
message types, and solves for the rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

import evenhand as eh
from evenhand.engines.work import Evaluate, Train, Work
from evenhand.flower import client_app, records
from evenhand.flower.wire import describe_work
from evenhand.local import permutation
from evenhand.messages import Reply, Task
from evenhand.models import Linear
from tests.support.flower_grid import InProcessGrid

Rows = NDArray[np.float64]
FEATURES = 6
LR = 1.0


def patients(rows: int, seed: int = 0) -> dict[str, Any]:
    """A node's table: numbers, a yes or no, and groups of which one is a single person."""
    rng = np.random.default_rng(seed)
    sex = np.array(["f", "m"])[rng.integers(0, 2, rows)]
    return {"x": rng.normal(size=(rows, FEATURES)), "y": rng.integers(0, 2, rows), "group": sex}


def model() -> Linear:
    return Linear(FEATURES, 2, init="zero").double()


class Curious:
    """A server with one node.

    Args:
        policy: lines of the owner's policy file; None for a node without one.
    """

    def __init__(
        self, place: Path, data: Mapping[str, Any], policy: str | None = None, **settings: Any
    ) -> None:
        self.data, self.place = data, place
        config: dict[str, Any] = {"name": "north", "state-dir": str(place / "state"), **settings}
        if policy is not None:
            (place / "policy.toml").write_text(policy)
            config["policy"] = str(place / "policy.toml")
        app = client_app(model, lambda _: dict(data), share="sums")
        self.grid = InProcessGrid(app, [config])

    def census(self) -> RecordDict:
        content = RecordDict()
        message = Message(content, dst_node_id=1, message_type="query.census")
        (reply,) = self.grid.send_and_receive([message])
        return reply.content

    def ask(
        self, work: Work, round: int = 0, seed: int = 0, loss: str = "cross_entropy"
    ) -> tuple[Reply, str]:
        """The node's reply to a task of this server's making, and why there is none."""
        one = torch.ones(1, dtype=torch.float64)
        params = {name: leaf.detach() for name, leaf in model().named_parameters()}
        shared = {"model": params, "lr": torch.tensor(LR, dtype=torch.float64)}
        about = {
            "run": "0" * 16, "client": 0, "round": round, "work": work.name, "session": 1,
            "how": describe_work(work, eh.FedAvg()), "seed": seed, "counted": -1,
            "groups": sorted(set(self.data["group"])), "loss": loss,
        }  # fmt: skip
        content = records.task_content(Task(shared, {"weight": one, "share": one}), about)
        kind = {"train": "train", "evaluate": "evaluate"}[work.name]
        message = Message(content, dst_node_id=1, message_type=kind)
        (reply,) = self.grid.send_and_receive([message])
        if fault := records.fault_in(reply.content):
            return Reply(), fault
        return records.read_reply(reply.content)[0], ""

    def train(self, round: int = 0, seed: int = 0, **local: Any) -> tuple[Reply, str]:
        work = Train(eh.FedAvg(), eh.LocalSGD(**{"lr": LR, **local}))
        return self.ask(work, round, seed)

    def evaluate(self, part: str, groups: int = 2) -> tuple[Reply, str]:
        return self.ask(Evaluate(eh.FedAvg(), groups, part, by_client=False))

    def one_by_one(self, messages: int) -> tuple[list[Rows], set[str]]:
        """Rows from single-step messages with batches of one: the gradient of a linear layer is the
        row times that of its bias."""
        rows, refusals = [], set[str]()
        for round in range(messages):
            reply, fault = self.train(round, steps=1, batch_size=1)
            refusals |= {fault} if fault else set()
            if not fault:
                weight, bias = _step(reply)
                rows.append(weight[1] / bias[1])
        return rows, refusals

    def by_equations(self, messages: int, batch: int) -> Rows:
        """Rows from single steps with larger batches, from one model: each is an equation for the
        rows in its batch, and the server knows which these are."""
        count = len(self.data["x"])
        memberships, sums = np.zeros((messages, count)), np.zeros((messages, FEATURES + 1))
        for round in range(messages):
            reply, fault = self.train(round, steps=1, batch_size=batch)
            assert not fault, fault
            weight, bias = _step(reply)
            sums[round] = [*weight[1] * batch, bias[1] * batch]
            order = permutation(
                torch.tensor([0]), torch.tensor([count]), count, 1, round, torch.tensor([0])
            )
            memberships[round, order[0, 0, :batch].numpy()] = 1
        gradients = np.linalg.lstsq(memberships, sums, rcond=None)[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return gradients[:, :-1] / gradients[:, -1:]

    def by_differences(self, messages: int) -> list[Rows]:
        """Rows from a step on all samples less one on all but one of them; the server chooses the
        round, thus who is left out."""
        count, rows = len(self.data["x"]), []
        whole = np.append(*_flat(self.train(batch_size=None)[0])) * count
        for round in range(messages):
            reply, fault = self.train(round, steps=1, batch_size=count - 1)
            assert not fault, fault
            one = whole - np.append(*_flat(reply)) * (count - 1)
            with np.errstate(divide="ignore", invalid="ignore"):
                rows.append(one[:-1] / one[-1])
        return rows


def _flat(reply: Reply) -> tuple[Rows, Rows]:
    weight, bias = _step(reply)
    return weight[1], bias[1]


def _step(reply: Reply) -> tuple[Rows, Rows]:
    delta = reply.total["delta"]
    leaves = list(delta.values())
    weight, bias = sorted(leaves, key=lambda leaf: -leaf.ndim)
    return weight.numpy(), bias.numpy()


def matched(found: list[Rows] | Rows, rows: Rows, tolerance: float = 1e-6) -> int:
    """How many of a node's rows are among those found."""
    guesses = np.array(list(found)).reshape(-1, rows.shape[1])
    if not len(guesses):
        return 0
    near = np.abs(rows[:, None] - guesses[None]).max(-1)
    return int((np.nan_to_num(near, nan=np.inf).min(1) < tolerance).sum())
