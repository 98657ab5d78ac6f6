"""AFL: agnostic federated learning."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, State, averaged_result, check_output, first_average, next_average, step
from evenhand.data import Batch, Census
from evenhand.errors import require_number
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.simplex import project_simplex
from evenhand.tree import Tree


@dataclass(frozen=True)
class AFL(Algorithm):
    """Do as well as possible for the worst mixture of clients.

    min over theta, max over lam in the simplex, of  sum_i lam_i f_i(theta)      (Mohri et al., ICML 2019)

    Both steps use round-r values: theta <- theta - sum lam_i Delta_i, lam <- projection(lam + lr_lambda f(theta)), lam
    starting at the clients' weights. The paper takes one full-gradient step, LocalSGD(lr, steps=1); with more local steps
    this is the usual local variant. The server sees every participant's loss. Under sampling, participants weigh
    lam_i a_i / w_i, normalised, and absent clients' lam moves by the projection alone.

    Args:
        lr_lambda: ascent step; 0 keeps the clients' weights: FedAvg, with coefficients that sum to one.
        output: "last" model, or the "average" of the models after each round, which the convex theory speaks about.
    """

    lr_lambda: float = 0.1
    output: str = "last"

    def __post_init__(self) -> None:
        require_number("lr_lambda", self.lr_lambda, "[0, inf)", "0 gives FedAvg")
        check_output(self.output)

    def init(self, params: Tree, census: Census) -> State:
        return {"model": params, "lam": census.weight, "base": census.weight, **first_average(self.output, params)}

    def task(self, state: State, ids: Tensor) -> Task:
        return Task(shared={"model": state["model"]}, own={"lam": (state["lam"] / state["base"])[ids]})

    def reply(self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory) -> tuple[Reply, Memory]:
        weight = task.own["lam"] * task.own["weight"]
        delta = tree.scale(tree.sub(start["model"], end["model"]), weight)
        return Reply(total={"delta": delta, "weight": weight}, each={"loss_at_start": model.loss(start["model"], data)}), memory

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        model = step(state["model"], replies)
        ascent = torch.zeros_like(state["lam"]).index_put((replies.ids,), replies.each["loss_at_start"].double())
        lam = project_simplex(state["lam"] + self.lr_lambda * ascent)
        info = {"largest_lam": lam.max(), "clients_with_lam": (lam > 0).sum()}
        return {**state, "model": model, "lam": lam, **next_average(state, model)}, info

    def result(self, state: State) -> Tree:
        return averaged_result(state)
