"""What a federated method is: a frozen dataclass with pure functions for the server and for one client.

Client functions are written for one client; engines batch them. So: no ``.item()``, no ``if`` on a tensor, no in-place change
of an argument, no randomness of their own.
"""

from __future__ import annotations

from abc import ABC
from typing import Any

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data import Batch, Census
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

State = Tree  # what the server needs for the next round; always holds "model"
Memory = Tree  # what a client remembers between rounds
Info = dict[str, Any]  # numbers a report wants

OUTPUTS = ("last", "average")


class Algorithm(ABC):  # noqa: B024 (every method has a default; FedAvg is all of them)
    """A federated method. The defaults are those of federated averaging; a method overrides what it changes."""

    personal: bool = False  # whether each client ends with a model of its own

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        """The first state, from the initial model and what is known about the clients. Raises if the method does not apply."""
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

    # ---- one client

    def start(self, task: Task, memory: Memory) -> Tree:
        """The variables that the client optimises, at their starting point: a tree with a few names at the top."""
        return {"model": task.shared["model"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        """() what the client minimises over them."""
        return model.loss(variables["model"], batch)

    def rates(self, task: Task) -> dict[str, Tensor]:
        """Step sizes of variables whose step size is not the round's ``task.shared["lr"]``."""
        return {}

    def reply(self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory) -> tuple[Reply, Memory]:
        """What the client sends, and what it remembers. ``data`` is all its training data."""
        return Reply(total=weighted(tree.sub(start["model"], end["model"]), task)), memory

    def memory(self, params: Tree) -> Memory:
        """What a client remembers before its first round; ``params`` is the initial model."""
        return {}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        """The model a client would use: ``shared["model"]`` is the one handed out."""
        model: Tree = shared["model"]
        return model


def weighted(delta: Tree, task: Task) -> Tree:
    """A client's share in the cohort's mean step: a_i * delta, and its part of the normaliser."""
    return {"delta": tree.scale(delta, task.own["weight"]), "weight": task.own["share"]}


def mean_step(replies: Replies, key: str = "delta") -> Any:
    """The summed steps divided by the summed weights; zero where all weights are zero (nobody counts, the model stays)."""
    weight = replies.total["weight"]
    factor = torch.where(weight > 0, 1 / weight.clamp(min=torch.finfo(weight.dtype).tiny), torch.zeros_like(weight))
    total = replies.total[key]
    return tree.scale(total, factor) if isinstance(total, dict) else total * factor


def step(params: Tree, replies: Replies) -> Tree:
    """params - mean step, computed in float64 and rounded once."""
    return tree.map(lambda p, d: (p.double() - d).to(p.dtype), params, mean_step(replies))


def check_output(output: str) -> None:
    """Raise unless ``output`` is a known output rule."""
    if output not in OUTPUTS:
        raise ValueError(f'output must be "last" or "average", got {output!r}')


def first_average(output: str, params: Tree) -> State:
    """State for the mean of the models after each round; empty where the last model is the output."""
    if output == "last":
        return {}
    return {"average": tree.map(torch.zeros_like, tree.to(params, torch.float64)), "rounds": torch.zeros((), dtype=torch.float64)}


def next_average(state: State, model: Tree) -> State:
    """The running mean with one more model in it; empty where none is kept."""
    if "average" not in state:
        return {}
    rounds = state["rounds"] + 1
    return {"average": tree.map(lambda mean, new: mean + (new.double() - mean) / rounds, state["average"], model), "rounds": rounds}


def averaged_result(state: State) -> Tree:
    """The running mean of the models where one is kept (and a round has passed), else the last model."""
    model: Tree = state["model"]
    if "average" not in state or not state["rounds"]:
        return model
    return tree.map(lambda mean, last: mean.to(last.dtype), state["average"], model)
