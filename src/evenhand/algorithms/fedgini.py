"""FedGini: weights by the rank of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.algorithm import Algorithm, Certificate, Question, Reporting, State, Weighting
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.errors import require_number
from evenhand.messages import Replies, Survey
from evenhand.tree import Tree


@dataclass(frozen=True)
class FedGini(Algorithm, Question, Weighting, Reporting):
    """Give clients more weight the higher their loss ranks, whatever the distances between losses.

        lam_i ~ 1 + (1 - epsilon) r_i (r_i + 1) / D,   D = (K - 1) K (K + 1) / 3

    r_i counts the participants with a smaller loss, from 0 to K - 1; clients with the same loss
    share the mean of their weights. The weights sum to one. They are the gradient of

        (K mean f + (1 - epsilon) M(f)) / (K + 1 - epsilon),
        M the expected largest of three tickets, drawn at once from the K losses and a blank that
        never counts

    which is convex in the losses. All participants count the same, whatever their data. The server
    sees every participant's loss.

    We know the method from the code of FedLF's authors (Pan et al., AAAI 2024). That code gives
    weights to the wrong clients, so only its list of weights is used here.

    Args:
        epsilon: 1 gives all participants the same weight; smaller values are fairer.
    """

    epsilon: float = 0.5

    def __post_init__(self) -> None:
        require_number("epsilon", self.epsilon, "[0, 1]", "1 gives FedAvg with equal weights")

    def init(self, params: Tree, census: Census) -> State:
        nobody = torch.zeros_like(census.weight)
        return {"model": params, "loss": nobody, "known": nobody}

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"]})

    def learn(self, state: State, replies: Replies) -> State:
        nobody = torch.zeros_like(state["loss"])  # clients that do not answer do not train
        if not len(replies.ids):
            return {**state, "known": nobody}
        loss = nobody.index_put((replies.ids,), replies.each["loss"].double())
        return {**state, "loss": loss, "known": nobody.index_fill(0, replies.ids, 1.0)}

    def reweigh(self, state: State, draw: Draw) -> Draw:
        ids = draw.ids[state["known"][draw.ids] > 0]
        weight = rank_weights(state["loss"][ids], self.epsilon)
        return Draw(ids, weight, weight)

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",)

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        weights = rank_weights(losses, self.epsilon)
        return Certificate(weights @ losses, weights, torch.zeros_like(losses.sum()))


def rank_weights(loss: Tensor, epsilon: float | Tensor) -> Tensor:
    """Return (K,) weights that sum to one and rise with the rank of the loss."""
    ordered = loss.sort().values
    low = torch.searchsorted(ordered, loss, right=False).double()  # ranks low .. high - 1 are tied
    high = torch.searchsorted(ordered, loss, right=True).double()
    # r (r + 1) summed over all ranks below x is (x^3 - x) / 3; for all K of them this is D
    count = len(loss)
    below = (high**3 - low**3 - (high - low)) / (high - low)
    extra = (1 - epsilon) * below / max(count**3 - count, 1)
    return (1 + extra) / (count + (1 - epsilon) * (count > 1))
