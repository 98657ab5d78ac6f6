"""AFL: agnostic federated learning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Certificate,
    Info,
    Memory,
    Question,
    Reporting,
    State,
    Weighting,
    normalised,
    step,
    weighted,
)
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_choice, require_number
from evenhand.growth import grown, resettled
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task, stepped
from evenhand.model import Model
from evenhand.simplex import project_simplex
from evenhand.theory.aggregates import Maximum
from evenhand.tree import Tree


@dataclass(frozen=True)
class AFL(Algorithm, Question, Weighting, Reporting):
    """Do as well as possible for the worst mixture of clients.

        min over theta, max over lam in the simplex, of  sum_i lam_i f_i(theta)
        (Mohri et al., ICML 2019)

    Both steps use the values of round r: theta <- theta - sum lam_i Delta_i and lam <-
    projection(lam + lr_lambda f(theta)); lam starts at the clients' weights. The paper takes one
    full-gradient step, LocalSGD(lr, steps=1); with more local steps this is the usual local
    variant. The server sees every participant's loss. The convex theory is about the mean of the
    models, Averaged(AFL()). With a sampled cohort, participants have weights lam_i a_i / w_i,
    normalised, and an absent client's lam only changes by the projection.

    Args:
        lr_lambda: ascent step; 0 keeps the clients' weights, which is FedAvg with coefficients that
            sum to one.
        order: whether lam is raised "after" the round that it weights (the paper), or "before" it
            (PropFair's code; needs one more exchange).
    """

    lr_lambda: float = 0.1
    order: str = "after"

    def __post_init__(self) -> None:
        require_number("lr_lambda", self.lr_lambda, "[0, inf)", "0 gives FedAvg")
        require_choice("order", self.order, ("after", "before"))

    def init(self, params: Tree, census: Census) -> State:
        return {"model": params, "lam": census.weight, "base": census.weight}

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"]}) if self.order == "before" else None

    def learn(self, state: State, replies: Replies) -> State:
        return (
            {**state, "lam": self._raised(state, replies.ids, replies.each["loss"])}
            if len(replies.ids)
            else state
        )

    def reweigh(self, state: State, draw: Draw) -> Draw:
        weight = normalised(draw.weight * (state["lam"] / state["base"])[draw.ids])
        return Draw(draw.ids, weight, weight)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        total = weighted(tree.sub(start["model"], end["model"]), task)
        each = {"loss_at_start": model.loss(start["model"], data)} if self.order == "after" else {}
        return Reply(total, each), memory

    def entries(self, asked: Asked) -> Entries:
        return {**stepped(asked), "loss_at_start": Entry(kind="loss")}

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        model = step(state["model"], replies)
        lam = (
            self._raised(state, replies.ids, replies.each["loss_at_start"])
            if self.order == "after"
            else state["lam"]
        )
        info = {"largest_lam": lam.max(), "clients_with_lam": (lam > 0).sum()}
        return {**state, "model": model, "lam": lam}, info

    def _raised(self, state: State, ids: Tensor, loss: Tensor) -> Tensor:
        ascent = torch.zeros_like(state["lam"]).index_put((ids,), loss.double())
        return project_simplex(state["lam"] + self.lr_lambda * ascent)

    def join(self, state: State, before: State, after: State) -> State:
        joined = grown(state, before, after)
        return {**joined, "lam": resettled(joined["lam"], before["base"], after["base"])}

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",)

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        lam: Tensor = state["lam"]
        return Certificate(losses.max(), lam, Maximum().gap(losses, census.weight, lam))
