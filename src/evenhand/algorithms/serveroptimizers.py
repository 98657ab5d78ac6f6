"""FedAvgM and FedAdam: server optimisers, for any method."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, State
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census
from evenhand.errors import require_number
from evenhand.messages import Replies
from evenhand.tree import Tree


class ServerOptimizer(Wrapper):
    """Treats the step that the inner method would take as the gradient of an optimiser on the
    server."""

    def init(self, params: Tree, census: Census) -> State:
        if self.inner.question("review") is not None:
            raise ValueError(
                f"{type(self.inner).__name__} finds the length of its step itself, by asking the"
                f" clients; {type(self).__name__} would change that step"
            )
        state = self.inner.init(params, census)
        nothing = tree.map(torch.zeros_like, tree.to(params, torch.float64))
        return _with_own(state, self.first(nothing))

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        before, own = state["model"], state["optimizer"]
        after, info = self.inner.server(_without_own(state), replies)
        gradient = tree.map(lambda old, new: old.double() - new.double(), before, after["model"])
        move, own = self.move(gradient, own)
        model = tree.map(lambda old, change: (old.double() - change).to(old.dtype), before, move)
        return _with_own({**after, "model": model}, own), info

    @abstractmethod
    def first(self, nothing: Tree) -> Tree:
        """Return the optimiser's first state; ``nothing`` is a tree of zeros shaped as the
        model."""

    @abstractmethod
    def move(self, gradient: Tree, optimizer: Tree) -> tuple[Tree, Tree]:
        """Return what to subtract from the model, and the optimiser's next state."""


def _with_own(state: State, own: Tree) -> State:
    """Add this optimiser's state to the inner method's, keeping that of an inner optimiser
    inside."""
    return {
        **state,
        "optimizer": {**own, **({"inner": state["optimizer"]} if "optimizer" in state else {})},
    }


def _without_own(state: State) -> State:
    """Return the inner method's state."""
    inner = {key: value for key, value in state.items() if key != "optimizer"}
    return (
        {**inner, "optimizer": state["optimizer"]["inner"]}
        if "inner" in state["optimizer"]
        else inner
    )


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """Use a step size and momentum on the server.

        v <- momentum v + Delta,   theta <- theta - lr v    (Hsu, Qi, Brown, 2019)

    Delta is the step that the inner method would take.

    Args:
        lr: server step size; 1 with momentum 0 is the inner method.
        momentum: in [0, 1); 0 is a plain server step size.
        inner: the method to change.
    """

    lr: float = 1.0
    momentum: float = 0.9
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("lr", self.lr, "(0, inf)")
        require_number("momentum", self.momentum, "[0, 1)", "0 is a plain server step size")

    def first(self, nothing: Tree) -> Tree:
        return {"velocity": nothing}

    def move(self, gradient: Tree, optimizer: Tree) -> tuple[Tree, Tree]:
        velocity = tree.map(lambda v, g: self.momentum * v + g, optimizer["velocity"], gradient)
        return tree.scale(velocity, self.lr), {"velocity": velocity}


@dataclass(frozen=True)
class FedAdam(ServerOptimizer):
    """Use Adam on the server, for models whose parameters need steps of different sizes.

        m <- b1 m + (1 - b1) Delta,   v <- b2 v + (1 - b2) Delta^2,
        theta <- theta - lr m / (sqrt(v) + tau)    (Reddi et al., ICLR 2021, Algorithm 2)

    Delta is the step that the inner method would take. As in the paper, m starts at 0 and v at
    tau^2, without bias correction.

    Args:
        lr: server step size, about the largest change of a parameter per round.
        b1: decay rate of the running mean.
        b2: decay rate of the running mean of squares.
        tau: adaptivity; large values approach momentum with step lr / tau.
        inner: the method to change.
    """

    lr: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 0.001
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("lr", self.lr, "(0, inf)")
        require_number("b1", self.b1, "[0, 1)")
        require_number("b2", self.b2, "[0, 1)")
        require_number("tau", self.tau, "(0, 1e15]", "0.001 is usual")  # its square is kept

    def first(self, nothing: Tree) -> Tree:
        return {"mean": nothing, "square": tree.map(lambda leaf: leaf + self.tau**2, nothing)}

    def move(self, gradient: Tree, optimizer: Tree) -> tuple[Tree, Tree]:
        mean = tree.map(lambda m, g: self.b1 * m + (1 - self.b1) * g, optimizer["mean"], gradient)
        square = tree.map(
            lambda v, g: self.b2 * v + (1 - self.b2) * g**2, optimizer["square"], gradient
        )
        step = tree.map(lambda m, v: self.lr * m / (v.sqrt() + self.tau), mean, square)
        return step, {"mean": mean, "square": square}
