"""Clipped updates, for any method."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evenhand import tree
from evenhand.algorithm import Algorithm, Memory
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.samples import Batch
from evenhand.errors import require, require_number
from evenhand.messages import Asked, Entries, Reply, Task
from evenhand.model import Model
from evenhand.privacy.bounds import Contribution, Limits
from evenhand.tree import Tree


@dataclass(frozen=True)
class Clipped(Wrapper):
    """Limit how far an honest client can move the model.

        Delta_i <- Delta_i min(1, norm / |Delta_i|),  on the client, before the inner method replies

    The client's local model is pulled back towards the received one, so whatever the inner method
    computes from it (q-FFL's g and h, GIFAIR's loss) is that of the clipped model. A malicious
    client need not clip; against such clients, a server has its own bound
    (``server_app(bound=...)``).

    Args:
        norm: the largest Euclidean length of a client's update over all parameters.
        inner: the method whose updates are clipped.
    """

    norm: float = 1.0
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("norm", self.norm, "(0, inf)")

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        require(
            "model" in end,
            "{} has no local model to clip; use another inner method",
            type(self.inner).__name__,
        )
        end = {**end, "model": self._pulled_back(start["model"], end["model"])}
        if "snapshot" in end:
            snapshot = end["snapshot"]
            end["snapshot"] = {
                **snapshot,
                "model": self._pulled_back(start["model"], snapshot["model"]),
            }
        return self.inner.reply(model, start, end, data, task, memory)

    def contribution(self, limits: Limits) -> Contribution | None:
        return self.inner.contribution(limits)

    def entries(self, asked: Asked) -> Entries:
        return self.inner.entries(asked)

    def _pulled_back(self, start: Tree, end: Tree) -> Tree:
        delta = tree.sub(end, start)
        # in float32, the square of a diverging update overflows
        length = tree.sqnorm(tree.to(delta, torch.float64)).sqrt()
        nearer = tree.add(start, tree.scale(delta, self.norm / length.clamp(min=self.norm)))
        return tree.where(length > self.norm, nearer, end)
