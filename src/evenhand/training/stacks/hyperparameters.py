"""Numeric hyper-parameters of a method, which can be tensors if runs are stacked."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from evenhand.algorithm import Algorithm, LocalWork, Memory, Question, State, Survey
from evenhand.data.samples import Batch
from evenhand.messages import Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


def numbers_of(algorithm: Algorithm) -> dict[str, float]:
    """Return a method's numeric hyper-parameters by name; those of an inner method as "inner.q".

    >>> from evenhand import FedProx, QFFL
    >>> numbers_of(FedProx(mu=0.5, inner=QFFL(q=2)))
    {'mu': 0.5, 'inner.q': 2.0}
    """
    found: dict[str, float] = {}
    if not dataclasses.is_dataclass(algorithm):
        return found
    for entry in dataclasses.fields(algorithm):
        value = getattr(algorithm, entry.name)
        if isinstance(value, Algorithm):
            found |= {f"{entry.name}.{path}": number for path, number in numbers_of(value).items()}
        elif "float" in str(entry.type) and isinstance(value, Real) and not isinstance(value, bool):
            found[entry.name] = float(value)
    return found


def with_numbers(algorithm: Algorithm, numbers: Mapping[str, Any]) -> Algorithm:
    """Return the method with other values, possibly tensors, for some numbers; nothing is
    rechecked."""
    if not numbers:
        return algorithm
    twin, inside = copy.copy(algorithm), dict[str, dict[str, Any]]()
    for path, value in numbers.items():
        name, _, rest = path.partition(".")
        if rest:
            inside.setdefault(name, {})[rest] = value
        else:
            object.__setattr__(twin, name, value)
    for name, values in inside.items():
        object.__setattr__(twin, name, with_numbers(getattr(twin, name), values))
    return twin


def form_of(algorithm: Algorithm) -> str:
    """Return a text that is the same for methods that differ only in numbers."""
    own = {path for path in numbers_of(algorithm) if "." not in path}
    parts = [
        (
            name,
            form_of(value)
            if isinstance(value, Algorithm)
            else "a number"
            if name in own
            else repr(value),
        )
        for name, value in sorted(vars(algorithm).items())
    ]
    return repr((type(algorithm).__qualname__, id(type(algorithm)), parts))


class ClientView(Algorithm):
    """A method as clients of a stack see it: varying hyper-parameters come with the task.

    Args:
        form: the method.
        last: whether this is the method's local training after the last round.
    """

    def __init__(self, form: Algorithm, last: bool = False) -> None:
        self.form, self.last = form, last
        first = self._method({})
        self.personal, self._work = first.personal, first.local_work()

    def _method(self, shared: Tree) -> Algorithm:
        one = with_numbers(self.form, shared.get("varying", {}))
        last = one.local_work().last if self.last else None
        return one if last is None else last

    def start(self, task: Task, memory: Memory) -> Tree:
        return self._method(task.shared).start(task, memory)

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return self._method(task.shared).objective(model, variables, batch, task)

    def rates(self, task: Task) -> dict[str, Tensor]:
        return self._method(task.shared).rates(task)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return self._method(task.shared).reply(model, start, end, data, task, memory)

    def local_work(self) -> LocalWork:
        return self._work

    def question(self, moment: str = "before") -> Question | None:
        return None if self._method({}).question(moment) is None else ClientQuestion(self, moment)

    def memory(self, params: Tree) -> Memory:
        return self._method({}).memory(params)

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        return self._method(shared).deployed(shared, memory)


class ClientQuestion(Question):
    """A method's question as clients of a stack see it."""

    def __init__(self, view: ClientView, moment: str) -> None:
        self.view, self.moment = view, moment

    def ask(self, state: State) -> Survey | None:
        return None

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        question = self.view._method(task.shared).question(self.moment)
        assert question is not None
        return question.answer(model, data, task, memory)
