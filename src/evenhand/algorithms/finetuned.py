"""Fine-tuning, for any method with one model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Certificate, LocalWork, Memory, State
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_whole
from evenhand.messages import Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class FineTuned(Wrapper):
    """Train one model together, then let every client fine-tune it: the baseline for
    personalisation.

        client i:  epochs of the run's local solver on f_i, from the inner method's final model

    The inner method runs unchanged. After the last round every client, whether ever sampled or not,
    trains the shared model on its own data and keeps the result, which never leaves it. The history
    shows the shared model, the scores show the fine-tuned ones.

    Args:
        epochs: passes over a client's data (full-batch steps if the local solver has no batch
            size).
        inner: the method that trains the shared model.
    """

    epochs: int = 1
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("epochs", self.epochs, 1)
        require(
            not self.inner.personal,
            "{} already gives each client its own model; fine-tune a method with one shared model",
            self.inner,
        )
        object.__setattr__(self, "personal", True)

    def local_work(self) -> LocalWork:
        return dataclasses.replace(self.inner.local_work(), last=Tuning(self.epochs, self.inner))

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        # there is none before the last round
        model: Tree = memory["tuned"] if "tuned" in memory else shared["model"]
        return model

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        return None  # the losses are not those of the final models


@dataclass(frozen=True)
class Tuning(Algorithm):
    """A client's local training after the last round."""

    epochs: int
    inner: Algorithm

    def memory(self, params: Tree) -> Memory:
        return self.inner.memory(params)

    def local_work(self) -> LocalWork:
        return LocalWork(
            solver=lambda local, round: dataclasses.replace(local, epochs=self.epochs, steps=None)
        )

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        finite = torch.stack([leaf.isfinite().all() for leaf in tree.leaves(end["model"])]).all()
        # a client that diverges keeps the shared model
        return Reply(), {"tuned": tree.where(finite, end["model"], start["model"])}
