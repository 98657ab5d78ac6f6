"""TERM's tilts: over clients by sums, over clients by their losses, over teams, and over
samples."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Info,
    Memory,
    Question,
    State,
    Weighting,
    mean_step,
    normalised,
    step,
    weighted,
)
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task, stepped
from evenhand.model import Model
from evenhand.privacy.bounds import Block, Contribution, Limits, at_least
from evenhand.tree import Tree


def tilted_loss(model: Model, params: Tree, batch: Batch, tilt: float | None) -> Tensor:
    """Return (1/s) log mean e^(s loss) over samples, s the ``tilt``; without a tilt, their mean."""
    if tilt is None:
        return model.loss(params, batch)
    losses = model.losses(params, batch)
    out = torch.finfo(losses.dtype).min / 2
    # padding adds nothing
    scaled = torch.where(batch.weight > 0, tilt * losses, torch.full_like(losses, out))
    value: Tensor = (scaled.logsumexp(0) - batch.weight.sum().clamp(min=1).log()) / tilt
    return value


@dataclass(frozen=True)
class Tilt(Algorithm):
    """Clients that minimise their loss, possibly tilted; subclasses decide how clients are
    weighted.

    Args:
        t: tilt over clients or teams; a tensor if runs are stacked.
        sample_t: tilt over the samples of a client; None is their mean.
        tilts: whether t is not 0.
    """

    t: float
    sample_t: float | None
    tilts: bool

    def loss(self, model: Model, params: Tree, batch: Batch) -> Tensor:
        return tilted_loss(model, params, batch, self.sample_t)

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return self.loss(model, variables["model"], batch)


class ClientTilt(Tilt, Question):
    """Participants have weights a_i e^(t F_i), normalised, F_i the loss at the received model, by
    sums.

    They send a_i e^(t (F_i - c)) times their step, and the factor. The shift c is the last round's
    objective, or the mean loss before the first round; it keeps the exponential in range and
    cancels.
    """

    def init(self, params: Tree, census: Census) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        return {"model": params, "shift": zero, "started": zero}

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"]}, needed=state["started"] == 0)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        loss, share = self.loss(model, task.shared["model"], data), task.own["share"]
        return Reply(total={"loss": share * loss, "weight": share})

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        started = torch.ones_like(state["shift"])
        return {**state, "shift": mean_step(replies, "loss"), "started": started}

    def task(self, state: State, ids: Tensor) -> Task:
        return Task({"model": state["model"], "shift": state["shift"]})

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        loss_at_start = self.loss(model, start["model"], data)
        exponent = self.t * (loss_at_start - task.shared["shift"])
        # so that products with the step also stay in range
        most = 0.9 * math.log(torch.finfo(loss_at_start.dtype).max)
        weight = task.own["weight"] * exponent.clamp(-most, most).exp()
        sent = {
            "delta": tree.scale(tree.sub(start["model"], end["model"]), weight),
            "weight": weight,
            "untilted": task.own["weight"],
            "above": (exponent > most).to(weight.dtype),
            "within": (exponent.abs() <= most).to(weight.dtype),
        }
        return Reply(sent), memory

    def contribution(self, limits: Limits) -> Contribution:
        # a tilt of at most e^2 counts in full; beyond it step and weight shrink together
        tilt = math.exp(min(abs(self.t) * limits.loss, 2.0)) if self.tilts else 1.0
        a = limits.weight * tilt
        fixed = {"untilted": 1.0, "above": 0.0, "within": 2.0}
        # the mean tilt is near one, because the shift follows the objective
        mend = at_least("weight", 0.2)
        block = Block({"delta": a * limits.clip, "weight": a})
        return Contribution((block,), fixed, mend=mend, unasked=True)

    def answer_entries(self, asked: Asked) -> Entries:
        share = asked.task.own["share"]
        return {"loss": Entry(kind="loss", per=share), "weight": Entry(known=share)}

    def entries(self, asked: Asked) -> Entries:
        a, shift = asked.task.own["weight"].double(), asked.task.shared["shift"].double()
        tilted = Entry(
            kind="loss",
            to_loss=lambda weight: shift + torch.log(weight / a) / self.t,
            from_loss=lambda loss: a * torch.exp(self.t * (loss - shift)),
        )
        return {
            "delta": Entry(kind="update", per="weight"),
            "weight": tilted if self.tilts else Entry(known=a),
            "untilted": Entry(known=a),
            "above": Entry(low=0.0, high=1.0),
            "within": Entry(low=0.0, high=1.0),
        }

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        state = {**state, "model": step(state["model"], replies)}
        if not self.tilts:
            return state, {}
        above, within = replies.total["above"], replies.total["within"]
        if holds((above > 1) | ((above + within == 0) & (len(replies.ids) > 1))):
            warnings.warn(
                f"t = {self.t:g} takes the tilt of several clients out of range, so they count the"
                " same; use exact=True",
                stacklevel=3,
            )
        tilt = torch.log(replies.total["weight"] / replies.total["untilted"])
        shift = state["shift"] + tilt / self.t
        return {**state, "shift": shift}, {"tilted_loss": shift}


class RiskTilt(Tilt, Question, Weighting):
    """Participants have weights a_i e^(t R_i), normalised, R_i a risk known before they train.

    Clients whose risk is unknown are skipped.
    """

    def init(self, params: Tree, census: Census) -> State:
        nobody = torch.zeros_like(census.weight)
        return {"model": params, "risk": nobody, "known": nobody}

    def reweigh(self, state: State, draw: Draw) -> Draw:
        known = state["known"][draw.ids] > 0
        draw = Draw(*(values[known] for values in draw))
        if not len(draw.ids):
            return draw
        exponent = self.t * state["risk"][draw.ids]
        weight = normalised(draw.weight * torch.exp(exponent - exponent.max()))
        return Draw(draw.ids, weight, weight)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return Reply(weighted(tree.sub(start["model"], end["model"]), task)), memory

    def entries(self, asked: Asked) -> Entries:
        return stepped(asked)


class ExactTilt(RiskTilt):
    """R_i is the client's loss, which the server asks for."""

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"]})

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        return Reply(each={"loss": self.loss(model, task.shared["model"], data)})

    def answer_entries(self, asked: Asked) -> Entries:
        return {"loss": Entry(kind="loss")}

    def learn(self, state: State, replies: Replies) -> State:
        nobody = torch.zeros_like(state["risk"])  # (n,)
        if not len(replies.ids):
            return {**state, "risk": nobody, "known": nobody}
        risk = nobody.index_put((replies.ids,), replies.each["loss"].double())
        return {**state, "risk": risk, "known": nobody.index_fill(0, replies.ids, 1.0)}


class TeamTilt(RiskTilt):
    """R_i is the mean loss of the client's team over the cohort, by sums (TERM-Group)."""

    def init(self, params: Tree, census: Census) -> State:
        if census.teams is None:
            raise ValueError(
                'TERM at the level of teams needs a team for every client; pass "team" to'
                " Federation.from_arrays"
            )
        index = torch.arange(int(census.teams.max()) + 1)
        first = super().init(params, census)
        return {"model": params, "team": census.teams, "index": index, **first}

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"], "index": state["index"]}, {"team": state["team"]})

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        loss = self.loss(model, task.shared["model"], data)
        # (d,)
        mine = (task.shared["index"] == task.own["team"]).to(loss.dtype) * task.own["weight"]
        return Reply(total={"team_loss": mine * loss, "team_weight": mine})

    def answer_entries(self, asked: Asked) -> Entries:
        own = asked.task.own
        mine = (asked.task.shared["index"] == own["team"]).double() * own["weight"]
        return {"team_loss": Entry(kind="loss", per=mine), "team_weight": Entry(known=mine)}

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            nobody = torch.zeros_like(state["risk"])  # (n,)
            return {**state, "risk": nobody, "known": nobody}
        weight, team = replies.total["team_weight"], state["team"]
        risk = replies.total["team_loss"] / torch.where(weight > 0, weight, 1.0)
        return {**state, "risk": risk[team], "known": (weight > 0).double()[team]}


def holds(condition: Tensor) -> bool:
    """Whether a scalar condition holds, for a warning; False while several runs are stacked."""
    try:
        return bool(condition)
    except RuntimeError:  # raised by torch.func
        return False
