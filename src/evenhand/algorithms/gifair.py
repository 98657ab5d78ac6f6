"""GIFAIR-FL, Global and Per."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, State, step, weighted
from evenhand.data import Batch, Census
from evenhand.errors import require, require_number
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class GIFAIR(Algorithm):
    """Pull the losses of teams of clients together.

    minimise  sum_i w_i f_i(theta) + c sum_{a<b} |L_a - L_b|                     (Yue, Nouiehed, Al Kontar, 2021)

    L_a is the plain mean of f_i over the clients of team a. Where the federation has no teams every client is its own. This
    equals sum_i w_i (1 + b_i) f_i with b_i = c rho_a / (w_i |A_a|), rho_a = (teams with lower loss) - (teams with higher),
    ties counting 0: a client multiplies its step size by 1 + b_i and reports its loss at its local model, as in the paper.

    The paper leaves open what holds for clients not yet heard from: they are left out of their team's mean, and a team
    nobody has heard from neither gains nor loses rank. Absent clients count with the last loss they reported.

    Teams: sums only (a client sends the change of its loss). Individuals: the server sees each participant's loss.

    Args:
        strength: c as a fraction of the largest admissible c_max = min_i w_i |A_a(i)| / (teams - 1); 0 gives FedAvg.
        personal: False hands out the server model (Global), True each client's last local model (Per). Same training.
    """

    strength: float = 0.5
    personal: bool = False

    def __post_init__(self) -> None:
        require_number("GIFAIR strength", self.strength, "[0, 1)", "0 gives FedAvg")
        require(isinstance(self.personal, bool), "personal must be true or false, got {!r}", self.personal)

    def init(self, params: Tree, census: Census) -> State:
        individual = census.teams is None
        team = torch.arange(census.clients) if census.teams is None else census.teams
        members = torch.bincount(team).double()  # (d,)
        teams = int((members > 0).sum())
        require(
            teams >= 2, "GIFAIR compares teams of clients (without teams, clients), the federation has {}; it needs at least two", teams
        )
        room = census.weight * members[team]
        c = self.strength * room.min() / (teams - 1)
        zeros = torch.zeros_like(members)
        state = {"model": params, "team": team, "factor": c / room, "loss": zeros, "heard": zeros}
        return state if individual else {**state, "index": torch.arange(len(members))}

    def task(self, state: State, ids: Tensor) -> Task:
        team = state["team"][ids]
        own = {"scale": 1 + state["factor"][ids] * rank(state["loss"], state["heard"])[team]}
        shared = {"model": state["model"]}
        if "index" not in state:
            return Task(shared, own)
        return Task({**shared, "index": state["index"]}, {**own, "team": team})

    def rates(self, task: Task) -> dict[str, Tensor]:
        return {"model": task.shared["lr"] * task.own["scale"]}  # the step, not the loss: the same with momentum, and weight decay

    def reply(self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory) -> tuple[Reply, Memory]:
        total = weighted(tree.sub(start["model"], end["model"]), task)
        loss_at_end = model.loss(end["model"], data).double()
        kept = {"loss": loss_at_end, "heard": torch.ones_like(loss_at_end)}
        if self.personal:
            kept["model"] = end["model"]
        if "index" not in task.shared:
            return Reply(total=total, each={"loss_at_end": loss_at_end}), kept
        mine = (task.shared["index"] == task.own["team"]).double()  # (d,)
        changes = {"team_loss": mine * (loss_at_end - memory["loss"]), "team_heard": mine * (1 - memory["heard"])}
        return Reply(total={**total, **changes}), kept

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        if "index" in state:
            loss = state["loss"] + replies.total["team_loss"]
            heard = state["heard"] + replies.total["team_heard"]
        else:
            loss = state["loss"].index_put((replies.ids,), replies.each["loss_at_end"].double())
            heard = state["heard"].index_fill(0, replies.ids, 1.0)
        means = (loss / heard.clamp(min=1))[heard > 0]
        info = {"largest_team_loss": means.max(), "smallest_team_loss": means.min()}
        return {**state, "model": step(state["model"], replies), "loss": loss, "heard": heard}, info

    def memory(self, params: Tree) -> Memory:
        zero = torch.zeros((), dtype=torch.float64)
        return {"loss": zero, "heard": zero, **({"model": params} if self.personal else {})}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        model: Tree = memory["model"] if self.personal else shared["model"]
        return model


def rank(loss: Tensor, heard: Tensor) -> Tensor:
    """(d,) number of heard teams with lower mean loss minus those with higher; 0 for a team not heard from."""
    means = loss / heard.clamp(min=1)
    ordered = means[heard > 0].sort().values
    lower = torch.searchsorted(ordered, means, right=False)
    higher = len(ordered) - torch.searchsorted(ordered, means, right=True)
    return torch.where(heard > 0, lower - higher, 0).double()
