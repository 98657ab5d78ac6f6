"""What a federated method is: a frozen dataclass with pure functions for the server and for one
client.

Client functions are written for one client; engines batch them. So: no ``.item()``, no ``if`` on a
tensor, no in-place change of an argument, no randomness of their own.

What few methods need are interfaces that a method inherits beside :class:`Algorithm`:
:class:`Question`, :class:`Weighting` and, for reports alone, :class:`Reporting`. How clients work
is a value, :class:`LocalWork`.

Several runs can be trained together (:mod:`evenhand.training.stacks`). Settings that are numbers
may then be tensors (), with a value for each run; server functions that keep to the same rules are
batched over runs, others called run by run. What a method derives from its settings in
``__post_init__`` (a flag) is the same for all runs that are stacked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from evenhand import tree
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.growth import grown
from evenhand.local import LocalSGD
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task, stepped, undeclared
from evenhand.model import Model
from evenhand.tree import Tree

if TYPE_CHECKING:
    from evenhand.theory.aggregates import Aggregate

State = Tree  # what the server needs for the next round; always holds "model"
Memory = Tree  # what a client remembers between rounds
Info = dict[str, Any]  # numbers a report wants


class Algorithm(ABC):  # noqa: B024 (every method has a default; FedAvg is all of them)
    """A federated method. The defaults are FedAvg's; a method overrides what it changes."""

    personal: bool = False  # whether each client ends with a model of its own

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        """The first state, from the initial model and what is known about the clients. Raises if
        the method does not apply."""
        return {"model": params}

    def task(self, state: State, ids: Tensor) -> Task:
        """What to send to clients ``ids``."""
        return Task(shared={"model": state["model"]})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        """The next state, and numbers for reports."""
        return {**state, "model": step(state["model"], replies)}, {}

    def result(self, state: State) -> Tree:
        """The model that is handed out."""
        model: Tree = state["model"]
        return model

    def join(self, state: State, before: State, after: State) -> State:
        """The state when clients have joined; ``before`` and ``after`` are the first states without
        and with them."""
        return grown(state, before, after)

    # ---- one client

    def start(self, task: Task, memory: Memory) -> Tree:
        """The variables that the client optimises, at their starting point: a tree with a few names
        at the top."""
        return {"model": task.shared["model"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        """() what the client minimises over them."""
        return model.loss(variables["model"], batch)

    def rates(self, task: Task) -> dict[str, Tensor]:
        """Step sizes of variables whose step size is not the round's ``task.shared["lr"]``."""
        return {}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        """What the client sends, and what it remembers. ``data`` is all its training data."""
        return Reply(total=weighted(tree.sub(start["model"], end["model"]), task)), memory

    def memory(self, params: Tree) -> Memory:
        """What a client remembers before its first round; ``params`` is the initial model."""
        return {}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        """The model a client would use: ``shared["model"]`` is the one handed out."""
        model: Tree = shared["model"]
        return model

    def entries(self, asked: Asked) -> Entries:
        """What the entries of a client's reply can be; a class that changes ``reply`` says it
        anew."""
        return stepped(asked)

    # ---- what few methods have

    def question(self) -> Question | None:
        """The question before each round's training."""
        return self if isinstance(self, Question) else None

    def weighting(self) -> Weighting | None:
        """The say in who trains, and with which coefficient."""
        return self if isinstance(self, Weighting) else None

    def local_work(self) -> LocalWork:
        """How clients work."""
        return LocalWork()

    def reporting(self) -> Reporting | None:
        """What reports can tell of the method."""
        return self if isinstance(self, Reporting) else None

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        if "output" in settings and "output" not in getattr(cls, "__dataclass_fields__", ()):
            name = cls.__name__
            raise TypeError(
                f"{name} has no output; for the mean of its models, use Averaged({name}(...))"
            )
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a function of an interface that the class does not have: nothing would call it."""
        super().__init_subclass__(**options)
        if "reply" in vars(cls) and "entries" not in vars(cls):
            cls.entries = lambda self, asked: undeclared(asked)  # type: ignore[method-assign]
        for name, (interface, now) in INTERFACE_OF.items():
            own = vars(cls).get(name)
            unheard = own is True or callable(own) or isinstance(own, property)
            if unheard and (interface is None or not issubclass(cls, interface)):
                raise TypeError(f"{cls.__name__}.{name} has no effect: {now}")


# ---- the optional interfaces


class Survey(NamedTuple):
    """What a question sends, and to whom."""

    shared: Tree  # the same for everyone
    own: Tree = {}  # row i belongs to client i, of all clients  # noqa: RUF012 (never changed)
    # "cohort": those about to train; "everyone"; a number: so many, drawn uniformly
    who: str | int = "cohort"
    # () whether it is asked this round; a tensor where that depends on the state
    needed: Tensor | bool = True


class Question(ABC):
    """A question to clients before each round's training."""

    @abstractmethod
    def ask(self, state: State) -> Survey | None:
        """What to ask; None where the method never asks. What is asked in some rounds alone says
        so in ``needed``."""

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        """One client's answer: by default its loss at the model sent."""
        return Reply(each={"loss": model.loss(task.shared["model"], data)})

    def learn(self, state: State, replies: Replies) -> State:
        """The state after the answers."""
        return state

    def answer_entries(self, asked: Asked) -> Entries:
        """What the entries of an answer can be, by name; see :meth:`Algorithm.entries`."""
        return {"loss": Entry(kind="loss")}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "answer" in vars(cls) and "answer_entries" not in vars(cls):
            cls.answer_entries = lambda self, asked: {}  # type: ignore[method-assign]


class Weighting(ABC):  # noqa: B024 (a method may need either function)
    """A say in who trains, and with which coefficient."""

    def chances(self, state: State) -> Tensor | None:
        """(n,) weights of sum one that take the place of the clients' base weights when this
        round's cohort is drawn."""
        return None

    def reweigh(self, state: State, draw: Draw) -> Draw:
        """The cohort that trains, and its coefficients, from the one drawn."""
        return draw


def _unchanged(local: LocalSGD, round: int) -> LocalSGD:
    return local


@dataclass(frozen=True)
class LocalWork:
    """How clients work, where it is not the run's local solver alone."""

    # whether reply also finds the variables at a random moment of local work, in end["snapshot"]
    snapshot: bool = False
    # whether objective also finds all of the client's data, in batch.whole
    whole_data: bool = False
    # the local solver of a round, from the run's
    solver: Callable[[LocalSGD, int], LocalSGD] = _unchanged
    # a method whose local work every client does once after the last round, to keep what it then
    # remembers
    last: Algorithm | None = None


class Certificate(NamedTuple):
    """Which weight each client effectively had at the end, and how far these weights are from the
    best ones."""

    value: Tensor  # () the objective at the clients' losses
    weights: Tensor  # (n,) what a change of each client's loss counts for; not always of sum one
    # () >= 0: the part of the objective that these weights do not explain, the duality gap
    gap: Tensor

    @classmethod
    def of(cls, aggregate: Aggregate, losses: Tensor, base: Tensor) -> Certificate:
        """Of a method whose weights are the gradient of its objective by construction."""
        weights = aggregate.weights(losses, base)
        return cls(aggregate.value(losses, base), weights, aggregate.gap(losses, base, weights))


class Reporting(ABC):  # noqa: B024 (a method may have either)
    """What reports can tell of a method; training does not depend on it."""

    def visible(self, census: Census) -> tuple[str, ...]:
        """What the server sees of a single client, in words; nothing where it needs sums alone."""
        return ()

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        """The weights that clients have at their ``losses`` (n,) of the model handed out; None
        where the method has none."""
        return None


def visible(algorithm: Algorithm, census: Census) -> tuple[str, ...]:
    """What the server of a method sees of a single client, in words; nothing where it needs sums
    alone."""
    reporting = algorithm.reporting()
    return () if reporting is None else reporting.visible(census)


# functions that are called where a class has the interface alone, and how to get it
INTERFACE_OF: dict[str, tuple[type | None, str]] = {
    **{
        name: (interface, f"inherit {interface.__name__} too")
        for interface in (Question, Weighting, Reporting)
        for name, value in vars(interface).items()
        if callable(value) and not name.startswith("_")
    },
    "survey": (None, "inherit Question and call it ask"),
    "seen": (None, "inherit Reporting and call it visible"),
    "local_solver": (None, "give it as solver of the LocalWork that local_work returns"),
    "finish": (None, "give what it returns as last of the LocalWork that local_work returns"),
    "snapshot": (None, "set it in the LocalWork that local_work returns"),
    "whole_data": (None, "set it in the LocalWork that local_work returns"),
}


def weighted(delta: Tree, task: Task) -> Tree:
    """A client's share in the cohort's mean step: a_i * delta, and its part of the normaliser."""
    return {"delta": tree.scale(delta, task.own["weight"]), "weight": task.own["share"]}


def mean_step(replies: Replies, key: str = "delta") -> Any:
    """The summed steps divided by the summed weights; zero where all weights are zero (nobody
    counts, the model stays)."""
    sums = replies.sums if isinstance(replies.sums[key], dict) else replies.total
    weight, total = sums["weight"], sums[key]
    factor = torch.where(
        weight > 0, 1 / weight.clamp(min=torch.finfo(weight.dtype).tiny), torch.zeros_like(weight)
    )
    return tree.scale(total, factor) if isinstance(total, dict) else total * factor


def step(params: Tree, replies: Replies) -> Tree:
    """params - mean step, computed in float64 and rounded once."""
    return tree.map(lambda p, d: torch.sub(p, d).to(p.dtype), params, mean_step(replies))


def normalised(weight: Tensor) -> Tensor:
    """``weight`` scaled to sum one; all zeros where it is zero."""
    total = weight.sum()
    return torch.where(
        total > 0, weight / torch.where(total > 0, total, 1), torch.zeros_like(weight)
    )


def as_rows(stacked: Tree) -> Tensor:
    """(K, P) in float64, one client's whole tree in each row."""
    return torch.cat([leaf.reshape(len(leaf), -1).double() for leaf in tree.leaves(stacked)], dim=1)


def descend(params: Tree, direction: Tensor) -> Tree:
    """params - direction, a vector (P,) in the order of :func:`as_rows`, computed in float64 and
    rounded once."""
    pieces = iter(torch.split(direction, [leaf.numel() for leaf in tree.leaves(params)]))
    return tree.map(lambda p: (p.double() - next(pieces).reshape(p.shape)).to(p.dtype), params)


def holds(condition: Tensor) -> bool:
    """Whether a condition () holds, for a warning; False while several runs are stacked, where it
    has no single answer."""
    try:
        return bool(condition)
    except RuntimeError:  # of torch.func
        return False
