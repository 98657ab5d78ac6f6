"""Agnostic federated averaging."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, LocalWork, Memory, State, normalised, step
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
from evenhand.errors import require_number, require_whole
from evenhand.growth import grown, resettled
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model, mean
from evenhand.privacy.bounds import Block, Contribution, Limits
from evenhand.tree import Tree


@dataclass(frozen=True)
class AgnosticFedAvg(Algorithm):
    """Do as well as possible for the worst demographic group, with local training and few messages.

        min over theta, max over lam in the simplex, of  sum_a lam_a r_a(theta)    (Ro et al., 2021)

    r_a is the mean loss of group (domain) a over all clients. A client minimises the mean of its
    losses weighted by s_a = lam_a / N_a, where N_a is the share of group a in recent cohorts, and
    counts in the average with the mean of s over its samples. lam_a ~ lam_a exp(lr_lambda
    r_a(theta)), starting at the groups' shares. The server only needs sums. Unlike FedMinMax, the
    ascent is multiplicative, and any amount of local training is possible.

    The authors' code divides a batch's weighted sum by that of all the client's data. Here a batch
    counts for as many samples as the client has, so that lr keeps its meaning whatever the batch
    size (there is no difference for full batches). A group that is absent from a cohort counts with
    its last known risk, not with 0.

    Args:
        lr_lambda: ascent step; 0 keeps the groups' shares, which is FedAvg if all clients take
            part.
        window: cohorts over which the groups' shares N_a are averaged.
    """

    lr_lambda: float = 0.1
    window: int = 1

    def __post_init__(self) -> None:
        require_number("lr_lambda", self.lr_lambda, "[0, inf)", "0 gives FedAvg")
        require_whole("window", self.window, 1)

    def init(self, params: Tree, census: Census) -> State:
        share = group_shares("AgnosticFedAvg", census)
        nothing = torch.zeros_like(share)
        return {
            "model": params,
            "lam": share,
            "rho": share,
            "recent": share.repeat(self.window, 1),
            "risk": nothing,
            "seen": nothing,
        }

    def task(self, state: State, ids: Tensor) -> Task:
        recent = state["recent"].mean(0)
        recent = torch.where(recent > 0, recent, state["rho"])  # a group absent from recent cohorts
        scale = torch.where(state["rho"] > 0, state["lam"] / recent.clamp(min=1e-300), 0.0)
        return Task(shared={"model": state["model"], "scale": scale})

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        scale, whole = task.shared["scale"], batch.whole
        scaled = mean(model.losses(variables["model"], batch) * scale[batch.group], batch)
        beta = mean(scale[whole.group], whole)
        return torch.where(
            beta > 0, scaled / beta.clamp(min=torch.finfo(scaled.dtype).tiny), 0 * scaled
        )

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        scale = task.shared["scale"]
        weight = task.own["weight"] * mean(scale[data.group], data)
        delta = tree.scale(tree.sub(start["model"], end["model"]), weight)
        by_group = group_totals(model, start["model"], data, task, len(scale))
        return Reply(total={"delta": delta, "weight": weight, **by_group}), memory

    def entries(self, asked: Asked) -> Entries:
        weight = (group_share(asked) * asked.task.shared["scale"]).sum()
        step = {"delta": Entry(kind="update", per=weight), "weight": Entry(known=weight)}
        return {**step, **group_entries(asked)}

    def contribution(self, limits: Limits) -> Contribution:
        # beta is 1 on average; step and weight shrink together, so the step stays a weighted mean
        step = {"delta": limits.weight * limits.clip, "weight": 2 * limits.weight}
        blocks = (Block(step, 0.9), *group_blocks(limits))
        return Contribution(blocks, {}, mend=mended(limits, least=0.5))

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        risks = group_risks(state, replies)
        risk, share = risks["risk"], replies.total["group_share"]
        lam = normalised(state["lam"] * torch.exp(self.lr_lambda * (risk - risk.max())))
        recent = torch.cat([state["recent"][1:], normalised(share)[None]])
        worst = torch.where(state["rho"] > 0, risk, -torch.inf).max()
        info = {f"group_weight_{a}": value for a, value in enumerate(lam)} | {
            "worst_group_risk": worst
        }
        return {
            **state,
            "model": step(state["model"], replies),
            "lam": lam,
            "recent": recent,
            **risks,
        }, info

    def local_work(self) -> LocalWork:
        return LocalWork(whole_data=True)

    def join(self, state: State, before: State, after: State) -> State:
        joined = grown(state, before, after)
        # for a new group, its expected share
        recent = torch.where(joined["recent"].sum(0) > 0, joined["recent"], after["recent"])
        return {
            **joined,
            "lam": resettled(joined["lam"], before["rho"], after["rho"]),
            "recent": recent,
        }
