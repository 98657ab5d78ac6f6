"""Methods that change another method."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from evenhand.algorithm import (
    Algorithm,
    Certificate,
    Info,
    LocalWork,
    Memory,
    Question,
    Reporting,
    State,
    Weighting,
    visible,
)
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_kind
from evenhand.messages import Asked, Entries, Replies, Reply, Survey, Task
from evenhand.model import Model
from evenhand.privacy.bounds import Contribution, Limits
from evenhand.privacy.protection import Protection
from evenhand.tree import Tree


class Forwarding(Algorithm, Question, Weighting, Reporting):
    """A method that forwards every call to another one."""

    @property
    @abstractmethod
    def _method(self) -> Algorithm:
        """The other method."""

    def init(self, params: Tree, census: Census) -> State:
        return self._method.init(params, census)

    def task(self, state: State, ids: Tensor) -> Task:
        return self._method.task(state, ids)

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        return self._method.server(state, replies)

    def result(self, state: State) -> Tree:
        return self._method.result(state)

    def start(self, task: Task, memory: Memory) -> Tree:
        return self._method.start(task, memory)

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return self._method.objective(model, variables, batch, task)

    def rates(self, task: Task) -> dict[str, Tensor]:
        return self._method.rates(task)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return self._method.reply(model, start, end, data, task, memory)

    def memory(self, params: Tree) -> Memory:
        return self._method.memory(params)

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        return self._method.deployed(shared, memory)

    def join(self, state: State, before: State, after: State) -> State:
        return self._method.join(state, before, after)

    def entries(self, asked: Asked) -> Entries:
        return self._method.entries(asked)

    def scales(self, own: Tree) -> dict[str, Tensor]:
        return self._method.scales(own)

    def contribution(self, limits: Limits) -> Contribution | None:
        return self._method.contribution(limits)

    # ---- optional interfaces of the other method

    def check(self, model: Model) -> None:
        return self._method.check(model)

    def question(self, moment: str = "before") -> Question | None:
        if moment != "before":
            return self._method.question(moment)
        return self if self._method.question() is not None or self._overrides(Question) else None

    def weighting(self) -> Weighting | None:
        return self if self._method.weighting() is not None or self._overrides(Weighting) else None

    def local_work(self) -> LocalWork:
        return self._method.local_work()

    def reporting(self) -> Reporting | None:
        return self if self._method.reporting() is not None or self._overrides(Reporting) else None

    def protection(self) -> Protection | None:
        return self._method.protection()

    def ask(self, state: State) -> Survey | None:
        question = self._method.question()
        return None if question is None else question.ask(state)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        question = self._method.question()
        if question is None:
            return super().answer(model, data, task, memory)
        return question.answer(model, data, task, memory)

    def learn(self, state: State, replies: Replies) -> State:
        question = self._method.question()
        return state if question is None else question.learn(state, replies)

    def final(self, state: State, replies: Replies) -> Info:
        question = self._method.question()
        return {} if question is None else question.final(state, replies)

    def answer_entries(self, asked: Asked) -> Entries:
        question = self._method.question()
        return {} if question is None else question.answer_entries(asked)

    def chances(self, state: State) -> Tensor | None:
        weighting = self._method.weighting()
        return None if weighting is None else weighting.chances(state)

    def reweigh(self, state: State, draw: Draw) -> Draw:
        weighting = self._method.weighting()
        return draw if weighting is None else weighting.reweigh(state, draw)

    def visible(self, census: Census) -> tuple[str, ...]:
        return visible(self._method, census)

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        reporting = self._method.reporting()
        return None if reporting is None else reporting.certificate(state, losses, census)

    def _overrides(self, interface: type) -> bool:
        """Whether the class overrides a function of an interface."""
        return any(
            getattr(type(self), name) is not getattr(Forwarding, name)
            for name in vars(interface)
            if not name.startswith("_")
        )


class Wrapper(Forwarding):
    """Base class of methods that change another one, ``inner``: override what differs.

    Subclasses are frozen dataclasses with a field ``inner``.
    """

    inner: Algorithm

    def __post_init__(self) -> None:
        require_kind("inner", getattr(self, "inner", None), Algorithm, "FedAvg()")
        object.__setattr__(self, "personal", self.inner.personal)

    @property
    def _method(self) -> Algorithm:
        return self.inner
