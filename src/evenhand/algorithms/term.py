"""TERM and TERM-Group."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

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
    Survey,
    Weighting,
    holds,
    mean_step,
    normalised,
    step,
    weighted,
)
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.theory.aggregates import TiltedMean
from evenhand.tree import Tree

LARGE = 20  # a difference of losses of 4 then takes e^(t loss) out of float32's range


@dataclass(frozen=True)
class TERM(Algorithm, Question, Weighting, Reporting):
    """Tilt the mean towards high losses, of clients, of teams of clients or of samples.

    minimise  (1/t) log sum_i w_i e^(t f_i(theta))                               (Li et al., ICLR
    2021)

    Participants weigh a_i e^(t F_i), normalised, F_i the loss at the received model on all local
    data; t = 0 is FedAvg. At the level of teams a client weighs a_i e^(t R), R its team's mean
    loss, which takes a question before training (TERM-Group). A tilt over samples replaces f_i by
    (1/s) log mean e^(s loss); with s = t the tilt is over all samples alike. Sums only: clients
    send a_i e^(t (F_i - c)) times their step with the common shift c of the last round's objective,
    so that the exponential stays in range, and the shift cancels. Clients with t (F_i - c) beyond
    that range (80 in float32, 640 in float64) would tie, and a warning says so. Where exact, as for
    large t, the cohort's losses are asked for before training and the weights taken of them. The
    published federated code divides by the number of clients twice and mixes rounds in its
    normaliser; this is the formula instead.

    Args:
        t: tilt; large values tend to the worst client, negative ones favour the best.
        level: "client", "team" (needs teams), or "sample": all samples alike, the same as sample_t
            = t.
        sample_t: tilt over the samples of a client; 0 is their mean.
        exact: ask for losses before training: right for any t, at the price of one more exchange
            and of each client's loss. None does so for tilts beyond 20, where differences of losses
            soon leave the range of e^(t loss).
    """

    t: float = 1.0
    level: str = "client"
    sample_t: float = 0.0
    exact: bool | None = None

    _asks: ClassVar[bool]  # whether the cohort is asked for its losses
    _tilts: ClassVar[bool]
    _tilts_samples: ClassVar[bool]

    def __post_init__(self) -> None:
        require_number("t", self.t, "(-inf, inf)", "0 gives FedAvg")
        require_choice("level", self.level, ("client", "team", "sample"))
        require_number("sample_t", self.sample_t, "(-inf, inf)", "0 is the mean over samples")
        same = self.level != "sample" or self.sample_t in (0, self.t)
        require(
            self.exact is None or isinstance(self.exact, bool),
            "exact must be true or false, got {!r}",
            self.exact,
        )
        require(
            same, 'level="sample" tilts samples by t; leave out sample_t, got {!r}', self.sample_t
        )
        asks = self.level != "team" and (abs(self.t) > LARGE if self.exact is None else self.exact)
        tilt = self.t if self.level == "sample" else self.sample_t
        # not asked of t later: see Algorithm
        for name, value in (
            ("_asks", asks),
            ("_tilts", self.t != 0),
            ("_tilts_samples", tilt != 0),
        ):
            object.__setattr__(self, name, value)

    def init(self, params: Tree, census: Census) -> State:
        zero, nobody = torch.zeros((), dtype=torch.float64), torch.zeros_like(census.weight)
        risk = {"risk": nobody, "known": nobody}
        if self.level == "team":
            if census.teams is None:
                raise ValueError(
                    'TERM at the level of teams needs a team for every client; give "team" to'
                    " Federation.from_arrays"
                )
            teams = int(census.teams.max()) + 1
            return {"model": params, "team": census.teams, "index": torch.arange(teams), **risk}
        if self._asks:
            return {"model": params, **risk}
        return {"model": params, "shift": zero, "started": zero}

    @property
    def _by_risk(self) -> bool:
        """Whether the server sets the weights, by the risk of each client or of its team."""
        return self._asks or self.level == "team"

    def ask(self, state: State) -> Survey | None:
        if self.level == "team":
            return Survey(
                {"model": state["model"], "index": state["index"]}, {"team": state["team"]}
            )
        # once, for a first shift
        return Survey({"model": state["model"]}, needed=self._asks or state["started"] == 0)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        loss, share = self._loss(model, task.shared["model"], data), task.own["share"]
        if self.level == "team":
            # (d,)
            mine = (task.shared["index"] == task.own["team"]).to(loss.dtype) * task.own["weight"]
            return Reply(total={"team_loss": mine * loss, "team_weight": mine})
        return (
            Reply(each={"loss": loss})
            if self._asks
            else Reply(total={"loss": share * loss, "weight": share})
        )

    def learn(self, state: State, replies: Replies) -> State:
        if not self._by_risk:
            return (
                {
                    **state,
                    "shift": mean_step(replies, "loss"),
                    "started": torch.ones_like(state["shift"]),
                }
                if len(replies.ids)
                else state
            )
        nobody = torch.zeros_like(state["risk"])  # (n,) who cannot be told has no weight
        if not len(replies.ids):
            return {**state, "risk": nobody, "known": nobody}
        if self.level == "team":
            weight = replies.total["team_weight"]
            risk = (replies.total["team_loss"] / torch.where(weight > 0, weight, 1.0))[
                state["team"]
            ]
            return {**state, "risk": risk, "known": (weight > 0).double()[state["team"]]}
        risk = nobody.index_put((replies.ids,), replies.each["loss"].double())
        return {**state, "risk": risk, "known": nobody.index_fill(0, replies.ids, 1.0)}

    def reweigh(self, state: State, draw: Draw) -> Draw:
        if not self._by_risk:
            return draw
        known = state["known"][draw.ids] > 0
        draw = Draw(*(values[known] for values in draw))
        if not len(draw.ids):
            return draw
        exponent = self.t * state["risk"][draw.ids]
        weight = normalised(draw.weight * torch.exp(exponent - exponent.max()))
        return Draw(draw.ids, weight, weight)

    def task(self, state: State, ids: Tensor) -> Task:
        return Task(
            {"model": state["model"], **({} if self._by_risk else {"shift": state["shift"]})}
        )

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return self._loss(model, variables["model"], batch)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        delta = tree.sub(start["model"], end["model"])
        if self._by_risk:
            return Reply(weighted(delta, task)), memory
        loss_at_start = self._loss(model, start["model"], data)
        # so that products with the step stay in range too
        most = 0.9 * math.log(torch.finfo(loss_at_start.dtype).max)
        exponent = self.t * (loss_at_start - task.shared["shift"])
        weight = task.own["weight"] * exponent.clamp(-most, most).exp()
        out = {
            "above": (exponent > most).to(weight.dtype),
            "within": (exponent.abs() <= most).to(weight.dtype),
        }
        return (
            Reply(
                {
                    "delta": tree.scale(delta, weight),
                    "weight": weight,
                    "untilted": task.own["weight"],
                    **out,
                }
            ),
            memory,
        )

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        state = {**state, "model": step(state["model"], replies)}
        if self._by_risk or not self._tilts:
            return state, {}
        above, within = replies.total["above"], replies.total["within"]
        if holds((above > 1) | ((above + within == 0) & (len(replies.ids) > 1))):
            warnings.warn(
                f"t = {self.t:g} takes the tilt of several clients out of range, and they count"
                " alike; use exact=True",
                stacklevel=2,
            )
        shift = (
            state["shift"] + torch.log(replies.total["weight"] / replies.total["untilted"]) / self.t
        )
        return {**state, "shift": shift}, {"tilted_loss": shift}

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss",) if self._asks else ()

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        if self.level != "client" or self.sample_t:
            return None  # the weights are of teams or samples
        return Certificate.of(TiltedMean(self.t), losses, census.weight)

    def _loss(self, model: Model, params: Tree, batch: Batch) -> Tensor:
        """The client's loss: the mean over its samples, or their tilted mean."""
        if not self._tilts_samples:
            return model.loss(params, batch)
        tilt = self.t if self.level == "sample" else self.sample_t
        losses = model.losses(params, batch)
        out = torch.finfo(losses.dtype).min / 2
        # padding adds nothing
        scaled = torch.where(batch.weight > 0, tilt * losses, torch.full_like(losses, out))
        value: Tensor = (scaled.logsumexp(0) - batch.weight.sum().clamp(min=1).log()) / tilt
        return value
