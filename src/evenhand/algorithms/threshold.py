"""Parts of FAFL's options: a first threshold, and a smooth positive part."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.algorithm import Memory, Question, State, mean_step
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.local import LocalSolver
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task
from evenhand.model import Model
from evenhand.theory.hcvar import HCVaR


def warn_of_idle_caps(alpha: Tensor, census: Census) -> None:
    """Warn if a cap w_i / alpha_i exceeds 1."""
    if bool((alpha < census.weight).any()):
        first = int((alpha < census.weight).nonzero()[0])
        warnings.warn(
            f"alpha of client {census.name(first)} ({alpha[first]:g}) is below its weight"
            f" ({census.weight[first]:g}): its cap exceeds 1, so lowering alpha further does"
            " not change the exact objective",
            stacklevel=3,
        )


def positive_part(x: Tensor, mu: float | None) -> Tensor:
    """Return mu log(1 + e^(x/mu)); without mu, (x)_+ with slope 1 at 0."""
    if mu is None:
        return torch.where(x >= 0, x, torch.zeros_like(x))
    # exact in both tails, unlike softplus, which switches to a line at x/mu = 20
    return -mu * F.logsigmoid(-x / mu)


def slope(x: Tensor, mu: float | None) -> Tensor:
    """Return the derivative of the positive part."""
    return (x >= 0).to(x.dtype) if mu is None else torch.sigmoid(x / mu)


def risk_of(state: State, mu: float, ids: Tensor | None = None) -> HCVaR:
    """Return the objective of some clients, by default of all."""
    alpha, floor = (
        tuple((levels if ids is None else levels[ids]).tolist())
        for levels in (state["alpha"], state["floor"])
    )
    return HCVaR(alpha, mu, floor)


def one_step_first(local: LocalSolver, round: int) -> LocalSolver:
    """Use one local step in the first round."""
    return dataclasses.replace(local, epochs=None, steps=1) if round == 0 else local


@dataclass(frozen=True)
class FirstThreshold(Question):
    """A question before the first round: where eta starts.

    Args:
        at: the "mean" of the cohort's losses, or their "quantile", the best eta for them.
    """

    at: str

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"]}, needed=state["started"] == 0)

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        loss, share = model.loss(task.shared["model"], data), task.own["share"]
        if self.at == "quantile":
            return Reply(each={"loss": loss, "share": share})
        return Reply(total={"loss": share * loss, "weight": share})

    def answer_entries(self, asked: Asked) -> Entries:
        share = asked.task.own["share"]
        if self.at == "quantile":
            return {"loss": Entry(kind="loss"), "share": Entry(known=share)}
        return {"loss": Entry(kind="loss", per=share), "weight": Entry(known=share)}

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        if self.at == "mean":
            eta = mean_step(replies, "loss")
        else:
            loss, share = replies.each["loss"].double(), replies.each["share"].double()
            best = risk_of(state, 0.0, replies.ids).threshold(loss, share / share.sum())
            eta = best.clamp(min=float(loss.min()))
        return {**state, "eta": eta, "started": torch.ones_like(eta)}
