"""What methods that change another method share."""

from __future__ import annotations

from torch import Tensor

from evenhand.algorithm import Algorithm, Certificate, Info, Memory, State, Survey
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_kind
from evenhand.local import LocalSGD
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


class Wrapper(Algorithm):
    """A method that is another one, ``inner``, but for what it overrides. Its subclasses are
    dataclasses with that field."""

    inner: Algorithm

    def __post_init__(self) -> None:
        require_kind("inner", getattr(self, "inner", None), Algorithm, "FedAvg()")
        for name in ("personal", "snapshot", "whole_data"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def init(self, params: Tree, census: Census) -> State:
        return self.inner.init(params, census)

    def task(self, state: State, ids: Tensor) -> Task:
        return self.inner.task(state, ids)

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        return self.inner.server(state, replies)

    def result(self, state: State) -> Tree:
        return self.inner.result(state)

    def start(self, task: Task, memory: Memory) -> Tree:
        return self.inner.start(task, memory)

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return self.inner.objective(model, variables, batch, task)

    def rates(self, task: Task) -> dict[str, Tensor]:
        return self.inner.rates(task)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return self.inner.reply(model, start, end, data, task, memory)

    def memory(self, params: Tree) -> Memory:
        return self.inner.memory(params)

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        return self.inner.deployed(shared, memory)

    def survey(self, state: State) -> Survey | None:
        return self.inner.survey(state)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        return self.inner.answer(model, data, task, memory)

    def learn(self, state: State, replies: Replies) -> State:
        return self.inner.learn(state, replies)

    def chances(self, state: State) -> Tensor | None:
        return self.inner.chances(state)

    def reweigh(self, state: State, draw: Draw) -> Draw:
        return self.inner.reweigh(state, draw)

    def local_solver(self, local: LocalSGD, round: int) -> LocalSGD:
        return self.inner.local_solver(local, round)

    def finish(self) -> Algorithm | None:
        return self.inner.finish()

    def join(self, state: State, before: State, after: State) -> State:
        return self.inner.join(state, before, after)

    def seen(self, census: Census) -> tuple[str, ...]:
        return self.inner.seen(census)

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        return self.inner.certificate(state, losses, census)
