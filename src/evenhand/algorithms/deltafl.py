"""Delta-FL (Simplicial-FL)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.algorithm import (
    Algorithm,
    Certificate,
    Question,
    Reporting,
    State,
    Weighting,
    normalised,
)
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.errors import require_number
from evenhand.messages import Replies, Survey
from evenhand.simplex import weighted_quantile
from evenhand.theory.hcvar import HCVaR
from evenhand.tree import Tree


@dataclass(frozen=True)
class DeltaFL(Algorithm, Question, Weighting, Reporting):
    """Train only on the clients in the upper tail of the losses (the superquantile).

        minimise  mean of the f_i(theta) in the upper tail of mass ``tail``
        (Laguel et al., 2021; Pillutla et al., 2023)

    The cohort reports its losses; clients at or above the weighted (1 - tail)-quantile train and
    are averaged by weight. The client at the quantile counts fully, as in the authors' code,
    although the superquantile would only count a part of it: with n equal clients, tail = k/n
    trains k + 1, so the result can lie above the optimum of the superquantile. FAFL with alpha =
    tail has the same objective, reaches it, and only needs sums; this method needs every
    participant's loss.

    Args:
        tail: mass of the tail in (0, 1]; 1 gives FedAvg with normalised coefficients.
    """

    tail: float = 0.5

    def __post_init__(self) -> None:
        require_number("tail", self.tail, "(0, 1]", "1 gives FedAvg")

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
        known = state["known"][draw.ids] > 0
        draw = Draw(*(values[known] for values in draw))
        if not len(draw.ids):
            return draw
        loss = state["loss"][draw.ids]
        kept = loss >= weighted_quantile(loss, draw.share, 1 - self.tail)
        weight = normalised(draw.weight[kept])
        return Draw(draw.ids[kept], weight, weight)

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",)

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        risk, base = HCVaR(self.tail), census.weight
        kept = losses >= weighted_quantile(losses, base, 1 - self.tail)
        weights = normalised(torch.where(kept, base, 0.0))
        return Certificate(
            risk.value(losses, base), weights, risk.value(losses, base) - (weights * losses).sum()
        )
