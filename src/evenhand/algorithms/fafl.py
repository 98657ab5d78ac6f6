"""FAFL (RC-FL), solved by rFedFair."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
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
    Survey,
    mean_step,
    step,
    weighted,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number
from evenhand.local import LocalSGD
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.theory.hcvar import HCVaR
from evenhand.tree import Tree


@dataclass(frozen=True)
class FAFL(Algorithm, Question, Reporting):
    """Guard against every reweighting of clients up to w_i / alpha_i (HCVaR), by sums alone.

    minimise over (theta, eta)  eta + sum_i (w_i / alpha_i) phi_mu(f_i(theta) - eta)          (FAFL,
    rFedFair)

    phi_mu(x) = mu log(1 + e^(x/mu)) smooths (x)_+. A client descends phi_mu(f - eta)/alpha_i + eta
    over model and eta jointly; the server averages both. No client's loss leaves the client (once,
    at the start, with eta0="quantile").

    Beyond the papers, ``floor`` bounds every client's weight from below, a_i w_i <= lam_i <= w_i /
    alpha_i: the client's objective becomes a_i (f - eta) + (1/alpha_i - a_i) phi_mu(f - eta) + eta,
    the loop stays (proof: docs/theory.md).

    The papers leave open mu, the step size of eta and its start, and hand out the mean of the
    models: Averaged(FAFL()).

    Args:
        alpha: level in (0, 1], one number or one per client. 1 gives FedAvg, small values the worst
            client. The step on a client above the threshold grows by 1 / alpha: lower lr with
            alpha. Below w_i the exact objective no longer changes.
        mu: smoothing width. 0 is the exact positive part: a client above eta has weight 1 /
            alpha_i, below it none. Take mu well below the spread of client losses.
        lr_eta: step size of eta; None uses the round's lr.
        eta0: where eta starts: a number, the "mean" of the first cohort's losses (a sum), or their
            "quantile", the best eta for them (each loss, once). 0 lies below every loss, from where
            eta rises quickly. From above it falls slowly: where all losses drop below it in the
            first steps, clients wait until it has come down by lr_eta a step.
        floor: a_i in [0, 1], one number or one per client: the least a client counts for, as a
            multiple of its weight.
        sigma: what a client compares with eta: the loss of its "batch", or its whole "local" loss
            at every step. The first is cheaper and biased where batch noise is not small against
            mu.
        short_first_round: one local step in the first round, as the papers' pseudo-code has it when
            read to the letter.
    """

    alpha: float | Sequence[float] = 0.3
    mu: float = 0.05
    lr_eta: float | None = None
    eta0: float | str = 0.0
    floor: float | Sequence[float] = 0.0
    sigma: str = "batch"
    short_first_round: bool = False

    _smooth: ClassVar[bool]

    def __post_init__(self) -> None:
        for name, interval, hint in (
            ("alpha", "(0, 1]", "1 gives the plain average"),
            ("floor", "[0, 1]", "0 asks for nothing"),
        ):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, str):
                # hashable, and as from a spec
                object.__setattr__(
                    self, name, tuple(value.tolist() if hasattr(value, "tolist") else value)
                )
            for level in _one_or_more(getattr(self, name)):
                require_number(name, level, interval, hint)
        require_number("mu", self.mu, "[0, inf)", "0 does not smooth")
        if isinstance(self.eta0, str):
            require(
                self.eta0 in ("mean", "quantile"),
                'eta0 must be a number, "mean" or "quantile", got {!r}',
                self.eta0,
            )
        else:
            require_number("eta0", self.eta0, "(-inf, inf)")
        if self.lr_eta is not None:
            require_number("lr_eta", self.lr_eta, "[0, inf)", "None takes the round's lr")
        require_choice("sigma", self.sigma, ("batch", "local"))
        require(
            isinstance(self.short_first_round, bool),
            "short_first_round must be true or false, got {!r}",
            self.short_first_round,
        )
        object.__setattr__(self, "_smooth", self.mu > 0)  # not asked of mu later: see Algorithm

    def init(self, params: Tree, census: Census) -> State:
        alpha, floor = (
            _levels(name, getattr(self, name), census.clients) for name in ("alpha", "floor")
        )
        if bool((alpha < census.weight).any()):
            first = int((alpha < census.weight).nonzero()[0])
            warnings.warn(
                f"alpha of client {census.name(first)} ({alpha[first]:g}) is below its weight"
                f" ({census.weight[first]:g}): its cap exceeds 1, so lowering alpha further no"
                " longer changes the exact objective",
                stacklevel=2,
            )
        at_once = not isinstance(self.eta0, str)
        eta = torch.tensor(self.eta0 if at_once else 0.0, dtype=torch.float64)
        state = {
            "model": params,
            "eta": eta,
            "alpha": alpha,
            "floor": floor,
        }
        return state if at_once else {**state, "started": torch.zeros_like(eta)}

    def ask(self, state: State) -> Survey | None:
        return (
            Survey({"model": state["model"]}, needed=state["started"] == 0)
            if "started" in state
            else None
        )

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        loss, share = model.loss(task.shared["model"], data), task.own["share"]
        if self.eta0 == "quantile":
            return Reply(each={"loss": loss, "share": share})
        return Reply(total={"loss": share * loss, "weight": share})

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        if self.eta0 == "quantile":
            loss, share = replies.each["loss"].double(), replies.each["share"].double()
            eta = (
                self._risk(state, replies.ids, mu=0.0)
                .threshold(loss, share / share.sum())
                .clamp(min=float(loss.min()))
            )
        else:
            eta = mean_step(replies, "loss")
        return {**state, "eta": eta, "started": torch.ones_like(eta)}

    def task(self, state: State, ids: Tensor) -> Task:
        own = {"alpha": state["alpha"][ids], "floor": state["floor"][ids]}
        return Task(shared={"model": state["model"], "eta": state["eta"]}, own=own)

    def start(self, task: Task, memory: Memory) -> Tree:
        return {"model": task.shared["model"], "eta": task.shared["eta"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        excess = model.loss(variables["model"], batch) - variables["eta"]
        if self.sigma == "batch":
            raised = (
                smooth_positive_part(excess, self.mu) if self._smooth else positive_part(excess)
            )
        else:  # the slope from the whole local loss, the direction from the batch
            with torch.no_grad():
                far = model.loss(variables["model"], batch.whole) - variables["eta"]
            raised = self._slope(far.detach()) * excess
        floor = task.own["floor"]
        value: Tensor = floor * excess + (1 / task.own["alpha"] - floor) * raised + variables["eta"]
        return value

    def rates(self, task: Task) -> dict[str, Tensor]:
        return (
            {}
            if self.lr_eta is None
            else {"eta": torch.zeros_like(task.shared["lr"]) + self.lr_eta}
        )

    def local_work(self) -> LocalWork:
        return LocalWork(whole_data=self.sigma == "local", solver=self._solver)

    def _solver(self, local: LocalSGD, round: int) -> LocalSGD:
        return (
            dataclasses.replace(local, epochs=None, steps=1)
            if self.short_first_round and round == 0
            else local
        )

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        total = weighted(tree.sub(start["model"], end["model"]), task)
        return (
            Reply(total={**total, "eta": task.own["weight"] * (start["eta"] - end["eta"])}),
            memory,
        )

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        eta, model = state["eta"] - mean_step(replies, "eta"), step(state["model"], replies)
        return {**state, "model": model, "eta": eta}, {"eta": eta}

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its loss at the first model, once",) if self.eta0 == "quantile" else ()

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        risk = self._risk(state, torch.arange(census.clients), self.mu)
        slope = state["floor"] + (1 / state["alpha"] - state["floor"]) * self._slope(
            losses - state["eta"]
        )
        gap = risk.duality_gap(losses, census.weight, state["eta"])
        return Certificate(risk.value(losses, census.weight), census.weight * slope, gap)

    def _slope(self, x: Tensor) -> Tensor:
        """The derivative of the smoothed positive part."""
        return torch.sigmoid(x / self.mu) if self._smooth else (x >= 0).to(x.dtype)

    def _risk(self, state: State, ids: Tensor, mu: float) -> HCVaR:
        return HCVaR(tuple(state["alpha"][ids].tolist()), mu, tuple(state["floor"][ids].tolist()))


def smooth_positive_part(x: Tensor, mu: float) -> Tensor:
    """mu log(1 + e^(x/mu))"""
    # exact in both tails, where softplus switches to a line at x/mu = 20
    return -mu * F.logsigmoid(-x / mu)


def positive_part(x: Tensor) -> Tensor:
    """(x)_+, with slope 1 at 0."""
    return torch.where(x >= 0, x, torch.zeros_like(x))


def _one_or_more(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _levels(name: str, value: Any, clients: int) -> Tensor:
    """(n,) one number for each client."""
    levels = torch.tensor(_one_or_more(value), dtype=torch.float64)
    require(
        not isinstance(value, tuple) or len(levels) == clients,
        "{} has {} entries for {} clients",
        name,
        len(levels),
        clients,
    )
    return levels.expand(clients).clone()
