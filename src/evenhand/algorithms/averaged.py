"""The mean of the models of a run, for any method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Certificate, Info, State
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census
from evenhand.messages import Replies
from evenhand.tree import Tree


@dataclass(frozen=True)
class Averaged(Wrapper):
    """Return the mean of the models after each round instead of the last model.

        result:  (1/R) sum_r theta_r,   theta_r the model after round r of R

    For convex models, the theory of AFL, FedMinMax and FAFL is about this mean: the last models of
    a minimax method circle around it. Training continues from the last model, and messages do not
    change. If the inner method has dual weights lam, a certificate uses their mean too.

    Args:
        inner: the method whose models are averaged.
    """

    inner: Algorithm = FedAvg()

    def init(self, params: Tree, census: Census) -> State:
        state = self.inner.init(params, census)
        average = tree.map(torch.zeros_like, tree.to(params, torch.float64))
        own = {"average": average, "average_rounds": torch.zeros((), dtype=torch.float64)}
        if "lam" in state:
            own["average_lam"] = torch.zeros_like(state["lam"])
        return {**state, **own}

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        after, info = self.inner.server(state, replies)
        rounds = state["average_rounds"] + 1
        # The last round's model is added only now, because an outer method may have changed it
        # after its round. The initial model does not count.
        average = tree.scale(self._mean(state), (rounds > 1).double())
        own = {"average": average, "average_rounds": rounds}
        if "average_lam" in state:
            lam = state["average_lam"]
            own["average_lam"] = lam + (after["lam"] - lam) / rounds
        return {**after, **own}, info

    def result(self, state: State) -> Tree:
        return tree.map(lambda mean, last: mean.to(last.dtype), self._mean(state), state["model"])

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        mean = {"lam": state["average_lam"]} if "average_lam" in state else {}
        return super().certificate({**state, **mean}, losses, census)

    def _mean(self, state: State) -> Tree:
        """Return the mean of the models of all rounds, or the initial model before the first
        round."""
        rounds = state["average_rounds"].clamp(min=1)
        return tree.map(
            lambda mean, last: mean + (last.double() - mean) / rounds,
            state["average"],
            state["model"],
        )
