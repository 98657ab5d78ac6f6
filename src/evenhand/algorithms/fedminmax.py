"""FedMinMax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Info,
    LocalWork,
    Memory,
    State,
    step,
    weighted,
)
from evenhand.algorithms.groups import (
    group_blocks,
    group_entries,
    group_risks,
    group_share,
    group_shares,
    group_totals,
    mended,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_number
from evenhand.growth import grown, resettled
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task, stepped
from evenhand.model import Model, mean
from evenhand.privacy.bounds import Block, Contribution, Limits
from evenhand.simplex import project_simplex
from evenhand.tree import Tree


@dataclass(frozen=True)
class FedMinMax(Algorithm):
    """Do as well as possible for the worst demographic group, whichever clients hold its samples.

        min over theta, max over mu in the simplex, of  sum_a mu_a r_a(theta)
        (Papadaki et al., 2021)

    r_a is the mean loss of group a over all clients. A client minimises (1/m_i) sum_z (mu_a(z) /
    rho_a(z)) loss(z), where rho_a is the share of group a in the data, and sends its losses summed
    by group. mu <- projection(mu + lr_mu r(theta)); both steps use the values of round r, and mu
    starts at rho. In the paper all clients take one full-batch step: LocalSGD(lr, steps=1), Full().
    The server only needs sums; the paper sends each client's group risks, but only uses their sums.
    The paper returns the mean of the models, Averaged(FedMinMax()). With a sampled cohort, an
    absent group counts with its last known risk (before it was first seen, with the mean of the
    others'); otherwise its weight would fall for being rare.

    Group weights act through the size of gradients. Adam's steps do not depend on it and clipping
    bounds it, so a run with either logs a warning.

    Args:
        lr_mu: ascent step; 0 keeps the groups' shares, which is FedAvg.
        floor: the smallest weight of any group, to rule out weakly Pareto-optimal points.
    """

    lr_mu: float = 0.1
    floor: float = 0.0

    def __post_init__(self) -> None:
        require_number("lr_mu", self.lr_mu, "[0, inf)", "0 gives FedAvg")
        require_number("floor", self.floor, "[0, 1)", "at most one over the number of groups")

    def init(self, params: Tree, census: Census) -> State:
        share = group_shares("FedMinMax", census)
        present = int((share > 0).sum())
        require(
            self.floor * present <= 1,
            "floor {} for {} groups exceeds the mass 1; use at most {:g}",
            self.floor,
            present,
            1 / present,
        )
        nothing = torch.zeros_like(share)
        return {
            "model": params,
            "mu": share,
            "rho": share,
            "risk": nothing,
            "seen": nothing,
        }

    def task(self, state: State, ids: Tensor) -> Task:
        ratio = torch.where(state["rho"] > 0, state["mu"] / state["rho"].clamp(min=1e-300), 0.0)
        return Task(shared={"model": state["model"], "group_weight": ratio})

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return mean(
            model.losses(variables["model"], batch) * task.shared["group_weight"][batch.group],
            batch,
        )

    def local_work(self) -> LocalWork:
        return LocalWork(assumes_scale="weighs groups by scaling the gradient of their losses")

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        by_group = group_totals(model, start["model"], data, task, len(task.shared["group_weight"]))
        return Reply(
            total={**weighted(tree.sub(start["model"], end["model"]), task), **by_group}
        ), memory

    def entries(self, asked: Asked) -> Entries:
        # a client minimises its losses times the weights of its groups
        per = (group_share(asked) * asked.task.shared["group_weight"]).sum()
        delta = Entry(kind="update", per=per, least=0.01 * asked.task.own["weight"])
        return {**stepped(asked), "delta": delta, **group_entries(asked)}

    def contribution(self, limits: Limits) -> Contribution:
        step = Block({"delta": limits.weight * limits.clip}, 0.9)
        return Contribution((step, *group_blocks(limits)), {"weight": 1.0}, mend=mended(limits))

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        model = step(state["model"], replies)
        risks = group_risks(state, replies)
        risk = risks["risk"]
        present = state["rho"] > 0  # a group that is only in the test data has no training risk
        mu = project_simplex(state["mu"] + self.lr_mu * risk, self.floor, present)
        worst = torch.where(present, risk, -torch.inf).max()
        info = {f"group_weight_{a}": value for a, value in enumerate(mu)} | {
            "worst_group_risk": worst
        }
        return {**state, "model": model, "mu": mu, **risks}, info

    def join(self, state: State, before: State, after: State) -> State:
        joined = grown(state, before, after)
        mu = resettled(joined["mu"], before["rho"], after["rho"])
        return {
            **joined,
            "mu": project_simplex(mu, self.floor, after["rho"] > 0) if self.floor else mu,
        }
