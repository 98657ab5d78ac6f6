"""GIFAIR-FL, Global and Per."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Certificate,
    Info,
    LocalWork,
    Memory,
    Question,
    Reporting,
    State,
    step,
    weighted,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_number
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task, stepped
from evenhand.model import Model
from evenhand.privacy.bounds import Block, Contribution, Limits
from evenhand.theory.rank_spread import RankSpread
from evenhand.tree import Tree


@dataclass(frozen=True)
class GIFAIR(Algorithm, Reporting):
    """Pull the losses of teams of clients together.

        minimise  sum_i w_i f_i(theta) + c sum_{a<b} |L_a - L_b|    (Yue, Nouiehed, Al Kontar, 2021)

    L_a is the plain mean of f_i over the clients of team a; without teams, every client is its own.
    This equals sum_i w_i (1 + b_i) f_i with b_i = c rho_a / (w_i |A_a|) and rho_a = (teams with
    lower loss) - (teams with higher loss), where ties count 0. A client multiplies its step size by
    1 + b_i and reports the loss of its local model, as in the paper. With Adam, whose steps do not
    grow with the gradient, b_i weighs steps of one length; a run with anything but plain SGD logs a
    warning.

    The paper does not say what to do about clients that have not reported yet. Here they are
    skipped in their team's mean, and a team without any report neither gains nor loses rank. Absent
    clients count with the last loss they reported.

    With teams, the server only needs sums (a client sends the change of its loss). Without teams,
    it sees each participant's loss.

    Args:
        strength: c as a fraction of the largest admissible c_max = min_i w_i |A_a(i)| / (teams -
            1); 0 gives FedAvg.
        personal: False returns the server model (Global), True each client's last local model
            (Per). Training is the same.
        exact_losses: rank by all clients' losses at the model of this round, as in the objective,
            instead of the paper's losses of local models. Needs one more exchange per round, and
            the server model.
    """

    strength: float = 0.5
    personal: bool = False
    exact_losses: bool = False

    def __post_init__(self) -> None:
        require_number("GIFAIR strength", self.strength, "[0, 1)", "0 gives FedAvg")
        for name in ("personal", "exact_losses"):
            value = getattr(self, name)
            require(isinstance(value, bool), "{} must be true or false, got {!r}", name, value)
        require(
            not (self.personal and self.exact_losses),
            "exact_losses are those of the server model; with personal=True the local models'"
            " losses are exact already",
        )

    def init(self, params: Tree, census: Census) -> State:
        individual = census.teams is None
        team = torch.arange(census.clients) if census.teams is None else census.teams
        members = torch.bincount(team).double()  # (d,)
        teams = int((members > 0).sum())
        require(
            teams >= 2,
            "GIFAIR compares teams of clients (or clients, without teams) and needs at least two,"
            " but the federation has {}",
            teams,
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
        # scale the step, not the loss: the same holds with momentum and weight decay
        return {"model": task.shared["lr"] * task.own["scale"]}

    def local_work(self) -> LocalWork:
        return LocalWork(
            assumes_scale="weighs a client by scaling its step size, which scales its gradient"
        )

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        step_taken = weighted(tree.sub(start["model"], end["model"]), task)
        if self.exact_losses:
            return Reply(step_taken), memory
        loss_at_end = model.loss(end["model"], data).double()
        kept = {"loss": loss_at_end, "heard": torch.ones_like(loss_at_end)}
        if self.personal:
            kept["model"] = end["model"]
        report = _report(loss_at_end, task, memory)
        return Reply({**step_taken, **report.total}, report.each), kept

    def entries(self, asked: Asked) -> Entries:
        return {**stepped(asked), **_reported(asked, changes=True)}

    def scales(self, own: Tree) -> dict[str, Tensor]:
        return {"scale": own["scale"]}

    def contribution(self, limits: Limits) -> Contribution | None:
        if self.exact_losses:
            return None  # it asks everyone
        step = Block({"delta": limits.weight * limits.clip}, 0.9)
        loss, heard = Block({"team_loss": limits.loss}, 0.05), Block({"team_heard": 1.0}, 0.05)
        return Contribution((step, loss, heard), {"weight": 1.0})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        if not self.exact_losses:
            state = _heard(state, replies)
        means, heard = state["loss"] / state["heard"].clamp(min=1), state["heard"] > 0
        extremes = (
            torch.where(heard, means, -torch.inf).max(),
            torch.where(heard, means, torch.inf).min(),
        )
        info = dict(zip(("largest_team_loss", "smallest_team_loss"), extremes, strict=True))
        return {**state, "model": step(state["model"], replies)}, info

    def memory(self, params: Tree) -> Memory:
        zero = torch.zeros((), dtype=torch.float64)
        if self.exact_losses:
            return {}
        return {"loss": zero, "heard": zero, **({"model": params} if self.personal else {})}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        model: Tree = memory["model"] if self.personal else shared["model"]
        return model

    def question(self, moment: str = "before") -> Question | None:
        return EveryonesLoss() if self.exact_losses and moment == "before" else None

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",) if census.teams is None else ()

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        if self.personal:
            return None  # the losses are not those of the final models
        teams = None if census.teams is None else tuple(census.teams.tolist())
        return Certificate.of(RankSpread(self.strength, teams), losses, census.weight)


class EveryonesLoss(Question):
    """Asks for the losses of all clients, or of all teams, at the model of this round."""

    def ask(self, state: State) -> Survey | None:
        shared, own = {"model": state["model"]}, {}
        if "index" in state:
            shared, own = {**shared, "index": state["index"]}, {"team": state["team"]}
        return Survey(shared, own, "everyone")

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        return _report(model.loss(task.shared["model"], data).double(), task, {})

    def answer_entries(self, asked: Asked) -> Entries:
        return _reported(asked, changes=False)

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        nobody = torch.zeros_like(state["loss"])
        return _heard({**state, "loss": nobody, "heard": nobody}, replies)


def _report(loss: Tensor, task: Task, memory: Memory) -> Reply:
    """Report a client's loss as it is, or as the change of its team's sums if teams are ranked."""
    if "index" not in task.shared:
        return Reply(each={"loss": loss})
    mine = (task.shared["index"] == task.own["team"]).double()  # (d,)
    before, heard = (memory["loss"], memory["heard"]) if memory else (0.0, 0.0)
    return Reply(total={"team_loss": mine * (loss - before), "team_heard": mine * (1 - heard)})


def _reported(asked: Asked, changes: bool) -> Entries:
    """Declare what ``_report`` returns; ``changes`` means since the client's last report."""
    if "index" not in asked.task.shared:
        return {"loss": Entry(kind="loss")}
    mine = (asked.task.shared["index"] == asked.task.own["team"]).double()
    if not changes:
        return {"team_loss": Entry(kind="loss", per=mine), "team_heard": Entry(known=mine)}
    # a change does not reveal the loss, and only ranks count; other teams' sums do not change
    far = torch.where(mine > 0, torch.inf, 0.0)
    return {"team_loss": Entry(low=-far, high=far), "team_heard": Entry(low=0.0, high=mine)}


def _heard(state: State, replies: Replies) -> State:
    """Return the state with the reported losses."""
    if "index" in state:
        loss = state["loss"] + replies.total["team_loss"]
        heard = state["heard"] + replies.total["team_heard"]
    else:
        loss = state["loss"].index_put((replies.ids,), replies.each["loss"].double())
        heard = state["heard"].index_fill(0, replies.ids, 1.0)
    return {**state, "loss": loss, "heard": heard}


def rank(loss: Tensor, heard: Tensor) -> Tensor:
    """Return (d,) the number of teams with lower mean loss minus those with higher.

    Teams without a report have rank 0 and are not counted.
    """
    means = loss / heard.clamp(min=1)
    # teams without a report are past the end
    ordered = torch.where(heard > 0, means, torch.inf).sort().values
    tie = 1e-12 * means.abs().max()  # means of equal losses differ by rounding
    lower = torch.searchsorted(ordered, means - tie, right=False)
    higher = (heard > 0).sum() - torch.searchsorted(ordered, means + tie, right=True)
    return torch.where(heard > 0, lower - higher, 0).double()
