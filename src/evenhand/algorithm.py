"""The interface of a federated method: a frozen dataclass of pure functions for server and client.

Engines batch the client functions over many clients. They must not call ``.item()``, branch on a
tensor with ``if``, change an argument in place or draw random numbers.

When several runs train together (``evenhand.training.stacks``), a numeric hyper-parameter may be a
scalar tensor that differs between runs. Server functions that keep to the rules above are batched
over runs, others are called run by run; values derived in ``__post_init__`` must be equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from evenhand import tree
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.growth import grown
from evenhand.local import LocalSolver
from evenhand.messages import (
    Asked,
    Entries,
    Entry,
    Replies,
    Reply,
    Survey,
    Task,
    stepped,
    undeclared,
)
from evenhand.model import Model
from evenhand.privacy.bounds import Contribution, Limits, of_a_step
from evenhand.privacy.protection import Protection
from evenhand.theory.certificate import Certificate as Certificate
from evenhand.tree import Tree

# of a question: before training; when the answers are known; after the server's step; at the end
MOMENTS = ("before", "second", "review", "end")
State = Tree  # what the server needs for the next round; always has "model"
Memory = Tree  # what a client remembers between rounds
Info = dict[str, Any]  # metrics for reports


class Algorithm(ABC):  # noqa: B024 (every method has a default; FedAvg is all of them)
    """Base class of federated methods: override the hooks in which your method differs from FedAvg.

    Set ``personal = True`` if each client ends with its own model. A method that needs more also
    inherits ``Question``, ``Weighting`` or ``Reporting``, or returns a ``LocalWork``.
    """

    personal: bool = False

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        """Return the first state, from the initial model and what the server knows of the clients.

        Raise a ValueError if the method cannot run on this federation.
        """
        return {"model": params}

    def task(self, state: State, ids: Tensor) -> Task:
        """Return what the server sends to clients ``ids``."""
        return Task(shared={"model": state["model"]})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        """Return the next state, and metrics for reports."""
        return {**state, "model": step(state["model"], replies)}, {}

    def result(self, state: State) -> Tree:
        """Return the trained model."""
        model: Tree = state["model"]
        return model

    def join(self, state: State, before: State, after: State) -> State:
        """Extend the state for new clients; ``before``, ``after``: first states without and with
        them."""
        return grown(state, before, after)

    # ---- one client

    def start(self, task: Task, memory: Memory) -> Tree:
        """Return the variables that the client optimises, at their starting point."""
        return {"model": task.shared["model"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        """Return the scalar that the client minimises over ``variables``."""
        return model.loss(variables["model"], batch)

    def rates(self, task: Task) -> dict[str, Tensor]:
        """Return step sizes for variables that do not use the round's ``task.shared["lr"]``."""
        return {}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        """Return the client's reply and its next memory; ``data`` is all of its training data."""
        return Reply(total=weighted(tree.sub(start["model"], end["model"]), task)), memory

    def memory(self, params: Tree) -> Memory:
        """Return a client's memory before its first round; ``params`` is the initial model."""
        return {}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        """Return the model that a client uses; ``shared["model"]`` is the trained model."""
        model: Tree = shared["model"]
        return model

    def entries(self, asked: Asked) -> Entries:
        """Declare which values a client's reply may have; override it together with ``reply``."""
        return stepped(asked)

    def scales(self, own: Tree) -> dict[str, Tensor]:
        """Declare by which factors a client's own numbers scale its reply, by their names in
        ``own``; others are taken for both factors and divisors."""
        return {}

    def contribution(self, limits: Limits) -> Contribution | None:
        """Say how large a client's part of each sum can be, for differential privacy, or None;
        override it together with ``reply``."""
        return of_a_step(limits)

    def check(self, model: Model) -> None:  # noqa: B027 (most methods train any model)
        """Raise a ValueError if the method cannot train this model; called before training."""

    def question(self, moment: str = "before") -> Question | None:
        """Return the question asked at a moment of each round, or at the end: see ``MOMENTS``."""
        return self if isinstance(self, Question) and moment == "before" else None

    def weighting(self) -> Weighting | None:
        """Return the object that changes sampling and coefficients, if any."""
        return self if isinstance(self, Weighting) else None

    def local_work(self) -> LocalWork:
        """Return how clients train locally."""
        return LocalWork()

    def reporting(self) -> Reporting | None:
        """Return what reports can say about the method, if anything."""
        return self if isinstance(self, Reporting) else None

    def protection(self) -> Protection | None:
        """Return what makes the run differentially private, if anything does."""
        return None

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        if "output" in settings and "output" not in getattr(cls, "__dataclass_fields__", ()):
            name = cls.__name__
            raise TypeError(
                f"{name} has no output; for the mean of its models, use Averaged({name}(...))"
            )
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a hook whose interface the class does not inherit, since nothing would call it."""
        super().__init_subclass__(**options)
        if "reply" in vars(cls) and "entries" not in vars(cls):
            cls.entries = lambda self, asked: undeclared(asked)  # type: ignore[method-assign]
        if "reply" in vars(cls) and "contribution" not in vars(cls):
            cls.contribution = lambda self, limits: None  # type: ignore[method-assign]
        for name, (interface, now) in INTERFACE_OF.items():
            own = vars(cls).get(name)
            unheard = own is True or callable(own) or isinstance(own, property)
            if unheard and (interface is None or not issubclass(cls, interface)):
                raise TypeError(f"{cls.__name__}.{name} has no effect: {now}")


class Question(ABC):
    """Inherit this to ask clients something before each round's training; a method with further
    questions returns such objects from ``question("second")`` or another of the ``MOMENTS``."""

    @abstractmethod
    def ask(self, state: State) -> Survey | None:
        """Return the question, or None if the method never asks; ``needed`` skips single rounds."""

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        """Return one client's answer: by default its loss on the model sent."""
        return Reply(each={"loss": model.loss(task.shared["model"], data)})

    def learn(self, state: State, replies: Replies) -> State:
        """Return the state after the answers."""
        return state

    def final(self, state: State, replies: Replies) -> Info:
        """Return metrics for the last row of the history, from answers to the question "end"."""
        return {}

    def answer_entries(self, asked: Asked) -> Entries:
        """Declare which values an answer may have; see ``Algorithm.entries``."""
        return {"loss": Entry(kind="loss")}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "answer" in vars(cls) and "answer_entries" not in vars(cls):
            cls.answer_entries = lambda self, asked: {}  # type: ignore[method-assign]


class Weighting(ABC):  # noqa: B024 (a method may need either function)
    """Inherit this to change which clients train, and with which coefficients."""

    def chances(self, state: State) -> Tensor | None:
        """Return sampling weights (n,) that sum to one, in place of the clients' base weights."""
        return None

    def reweigh(self, state: State, draw: Draw) -> Draw:
        """Return the cohort that trains and its coefficients, given the cohort drawn."""
        return draw


def _unchanged(local: LocalSolver, round: int) -> LocalSolver:
    return local


@dataclass(frozen=True)
class LocalWork:
    """How clients train locally, if it differs from the run's local solver.

    Attributes:
        snapshot: pass ``reply`` the variables at a random local step, as ``end["snapshot"]``.
        whole_data: pass ``objective`` all of the client's data, as ``batch.whole``.
        solver: returns the local solver of a round, given the run's solver and the round.
        last: a method whose local training every client does after the last round, for its memory.
        assumes_sgd: why steps must be lr times the gradient ("it ..."); other runs log a warning.
        assumes_scale: the same for steps in proportion to the gradient.
        additive: for ``SampleDP``: a new objective is a mean over samples plus terms without them.
        noise: given the form of a total, the standard deviation of the noise that the sum must
            have; clients add it in shares before they mask. Engines that cannot mask refuse it.
    """

    snapshot: bool = False
    whole_data: bool = False
    solver: Callable[[LocalSolver, int], LocalSolver] = _unchanged
    last: Algorithm | None = None
    assumes_sgd: str = ""
    assumes_scale: str = ""
    additive: bool = False
    noise: Callable[[Tree], Tree] | None = None


class Reporting(ABC):  # noqa: B024 (a method may have either)
    """Inherit this to tell reports about the method; training does not depend on it."""

    def visible(self, census: Census) -> tuple[str, ...]:
        """Say in words what the server sees client by client; empty if it only needs sums."""
        return ()

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        """Return the effective weights at the clients' ``losses`` (n,), or None."""
        return None


def visible(algorithm: Algorithm, census: Census) -> tuple[str, ...]:
    """Say in words what a method's server sees client by client; empty if it only needs sums."""
    reporting = algorithm.reporting()
    return () if reporting is None else reporting.visible(census)


# hooks that are called only if the class has the interface, and how to get it
INTERFACE_OF: dict[str, tuple[type | None, str]] = {
    **{
        name: (interface, f"inherit {interface.__name__} too")
        for interface in (Question, Weighting, Reporting)
        for name, value in vars(interface).items()
        if callable(value) and not name.startswith("_")
    },
    "survey": (None, "inherit Question and call it ask"),
    "seen": (None, "inherit Reporting and call it visible"),
    "local_solver": (None, "pass it as solver of the LocalWork that local_work returns"),
    "finish": (None, "pass what it returns as last of the LocalWork that local_work returns"),
    "snapshot": (None, "set it in the LocalWork that local_work returns"),
    "whole_data": (None, "set it in the LocalWork that local_work returns"),
}


def weighted(delta: Tree, task: Task) -> Tree:
    """Return a client's share of the cohort's mean step: a_i * delta, and its part of the
    normaliser."""
    return {"delta": tree.scale(delta, task.own["weight"]), "weight": task.own["share"]}


def mean_step(replies: Replies, key: str = "delta") -> Any:
    """Divide the summed steps by the summed weights; zero if all weights are zero."""
    sums = replies.sums if isinstance(replies.sums[key], dict) else replies.total
    weight, total = sums["weight"], sums[key]
    factor = torch.where(
        weight > 0, 1 / weight.clamp(min=torch.finfo(weight.dtype).tiny), torch.zeros_like(weight)
    )
    return tree.scale(total, factor) if isinstance(total, dict) else total * factor


def step(params: Tree, replies: Replies) -> Tree:
    """Return params - mean step, computed in float64 and rounded once."""
    return tree.map(lambda p, d: torch.sub(p, d).to(p.dtype), params, mean_step(replies))


def normalised(weight: Tensor) -> Tensor:
    """Scale ``weight`` to sum to one; zeros stay zeros."""
    total = weight.sum()
    return torch.where(
        total > 0, weight / torch.where(total > 0, total, 1), torch.zeros_like(weight)
    )


def as_rows(stacked: Tree) -> Tensor:
    """Flatten a stacked tree to (K, P) in float64, one client per row."""
    return torch.cat([leaf.reshape(len(leaf), -1).double() for leaf in tree.leaves(stacked)], dim=1)


def descend(params: Tree, direction: Tensor) -> Tree:
    """Return params - direction, a vector (P,) in the order of ``as_rows``, rounded once."""
    pieces = iter(torch.split(direction, [leaf.numel() for leaf in tree.leaves(params)]))
    return tree.map(lambda p: (p.double() - next(pieces).reshape(p.shape)).to(p.dtype), params)
