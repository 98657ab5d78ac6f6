"""Recording a method: the arguments and answers of its hooks, and its exchanges."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from evenhand.algorithm import MOMENTS, Algorithm, LocalWork, Question, Reporting, Weighting
from evenhand.data.population import Population
from evenhand.data.samples import Batch
from evenhand.engines import Engine, Exchange, Loop
from evenhand.engines.work import Work
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.testing.compare import difference
from evenhand.training.result import Result
from evenhand.tree import Tree


def _public(interface: type) -> tuple[str, ...]:
    """Return the names of an interface's functions."""
    return tuple(
        name
        for name, value in vars(interface).items()
        if callable(value) and not name.startswith("_")
    )


# optional interfaces, by the accessor that returns them
OPTIONAL = {"question": Question, "weighting": Weighting, "reporting": Reporting}
ACCESSORS = (*OPTIONAL, "local_work")
# hooks by name, and the accessor of the object that has them
HOOKS = {
    **{name: "" for name in _public(Algorithm) if name not in ACCESSORS},
    **{name: accessor for accessor, kind in OPTIONAL.items() for name in _public(kind)},
    "solver": "local_work",
}
# further questions of a round, as "second.ask"
FURTHER = tuple(f"{moment}.{name}" for moment in MOMENTS[1:] for name in _public(Question))
ASKED = ("", *(f"{moment}." for moment in MOMENTS[1:]))  # before the name of a question's hook
Hook = Callable[..., Any]
# (name of the hook, the hook, its arguments) -> what the run gets
Watch = Callable[[str, Hook, tuple[Any, ...]], Any]


def watched(algorithm: Algorithm, watch: Watch) -> Algorithm:
    """Return the same method, with every call of a hook passed to ``watch``."""

    def through(name: str) -> Hook:
        return lambda _, *arguments: watch(name, hook_of(algorithm, name), arguments)

    def local_work(_: Algorithm) -> LocalWork:
        def solver(*arguments: Any) -> Any:
            return watch("solver", hook_of(algorithm, "solver"), arguments)

        return dataclasses.replace(algorithm.local_work(), solver=solver)

    def question(twin: Algorithm, moment: str = "before") -> Question | None:
        if algorithm.question(moment) is None:
            return None
        return twin if moment == "before" else further[moment]()  # type: ignore[return-value]

    further = {
        moment: type(moment, (Question,), {n: through(f"{moment}.{n}") for n in _public(Question)})
        for moment in MOMENTS[1:]
    }
    has = {"", *(accessor for accessor in OPTIONAL if getattr(algorithm, accessor)() is not None)}
    hooks = {name: through(name) for name, accessor in HOOKS.items() if accessor in has}
    kinds = (Algorithm, *(kind for accessor, kind in OPTIONAL.items() if accessor in has))
    given = {"local_work": local_work, "question": question, "personal": algorithm.personal}
    twin: Algorithm = type("Watched", kinds, {**hooks, **given})()
    return twin


def hook_of(algorithm: Algorithm, name: str) -> Hook:
    """Return one of a method's hooks."""
    moment, _, further = name.rpartition(".")
    if moment:
        owner: Any = algorithm.question(moment)
    else:
        owner = getattr(algorithm, HOOKS[name])() if HOOKS[name] else algorithm
    hook: Hook = getattr(owner, further)
    return hook


def rebuilt(algorithm: Any) -> Algorithm:
    """Return a new method with the same hyper-parameters, and nothing else."""
    values = (
        (entry.name, getattr(algorithm, entry.name)) for entry in dataclasses.fields(algorithm)
    )
    twin: Algorithm = dataclasses.replace(
        algorithm,
        **{name: rebuilt(value) for name, value in values if isinstance(value, Algorithm)},
    )
    return twin


def duplicate(value: Any) -> Any:
    """Return a copy that shares no tensor with ``value``."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: duplicate(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        entries = [duplicate(entry) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
    return copy.deepcopy(value) if isinstance(value, Batch) else value


class Call(NamedTuple):
    """One call of a hook."""

    arguments: tuple[Any, ...]
    answer: Any


class Witness:
    """Calls every hook twice with equal arguments; records calls, and what should not have
    happened."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {name: [] for name in (*HOOKS, *FURTHER)}
        self.changed: dict[str, str] = {}  # hooks that changed an argument
        self.unsteady: dict[str, str] = {}  # hooks whose second answer differed

    def __call__(self, name: str, hook: Hook, arguments: tuple[Any, ...]) -> Any:
        kept = duplicate(arguments)
        answer = hook(*arguments)
        if text := difference(arguments, kept):
            self.changed.setdefault(name, f"{name} changes its argument {text}")
        if text := difference(answer, hook(*duplicate(kept))):
            self.unsteady.setdefault(name, f"{name}, called twice with the same arguments: {text}")
        self.calls[name].append(Call(kept, duplicate(answer)))
        return answer

    def answers(self, name: str) -> list[Any]:
        """Return a hook's answers, call by call."""
        return [call.answer for call in self.calls[name]]

    def states(self) -> list[Tree]:
        """Return the server's states, in order within each hook."""
        return [
            *self.answers("init"),
            *(state for name in ASKED for state in self.answers(f"{name}learn")),
            *(state for state, _ in self.answers("server")),
        ]


class Sent(NamedTuple):
    """One exchange."""

    work: Work
    task: Task
    ids: Tensor
    round: int
    memories: dict[int, Tree]  # before the exchange
    replies: Replies


@dataclass(frozen=True)
class Recorder(Engine):
    """The loop engine, which also records every training exchange and survey."""

    sent: list[Sent]

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        return _Recording(Loop(workers=1).attach(model, population, seed), self.sent)


class _Recording:
    here, by_client = True, True

    def __init__(self, inner: Exchange, sent: list[Sent]) -> None:
        self.inner, self.sent = inner, sent
        self.meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None = None

    @property
    def memories(self) -> dict[int, Tree]:
        return self.inner.memories

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self.inner.memories = memories

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        before = dict(self.memories)
        replies = self.inner.exchange(work, task, ids, round)
        if work.name != "evaluate":
            self.sent.append(Sent(work, task, ids, round, before, replies))
        return replies


class Observed(NamedTuple):
    """A run, the calls of its hooks, and its exchanges."""

    result: Result
    witness: Witness
    training: list[Sent]
    surveys: list[Sent]
