"""FAFL (RC-FL), solved by rFedFair."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, State, mean_step, step, weighted
from evenhand.data import Batch, Census
from evenhand.errors import require, require_number
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class FAFL(Algorithm):
    """Guard against every reweighting of clients up to w_i / alpha_i (HCVaR), by sums alone.

    minimise over (theta, eta)  eta + sum_i (w_i / alpha_i) phi_mu(f_i(theta) - eta)          (FAFL, rFedFair)

    phi_mu(x) = mu log(1 + e^(x/mu)) smooths (x)_+. A client descends phi_mu(f - eta)/alpha_i + eta over model and eta
    jointly, on the loss of its batch; the server averages both. No client's loss leaves the client.

    The papers leave open mu, the step size of eta and its start. Every round has the full number of local steps.

    Args:
        alpha: level in (0, 1], one number or one per client. 1 gives FedAvg, small values the worst client. The step on a
            client above the threshold grows by 1 / alpha: lower lr with alpha. Below w_i the exact objective no longer changes.
        mu: smoothing width; 0 is the exact positive part. Take it well below the spread of client losses.
        lr_eta: step size of eta; None uses the round's lr.
        eta0: where eta starts. 0 lies below every loss, from where eta rises quickly; from above it falls slowly.
    """

    alpha: float | Sequence[float] = 0.3
    mu: float = 0.05
    lr_eta: float | None = None
    eta0: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.alpha, Iterable) and not isinstance(self.alpha, str):
            object.__setattr__(self, "alpha", tuple(self.alpha))  # hashable, and the same after a spec
        for level in self.alpha if isinstance(self.alpha, tuple) else (self.alpha,):
            require_number("alpha", level, "(0, 1]", "1 gives the plain average")
        require_number("mu", self.mu, "[0, inf)", "0 does not smooth")
        require_number("eta0", self.eta0, "(-inf, inf)")
        if self.lr_eta is not None:
            require_number("lr_eta", self.lr_eta, "[0, inf)", "None takes the round's lr")

    def init(self, params: Tree, census: Census) -> State:
        levels = self.alpha if isinstance(self.alpha, tuple) else (self.alpha,) * census.clients
        require(len(levels) == census.clients, "alpha has {} entries for {} clients", len(levels), census.clients)
        alpha = torch.tensor(levels, dtype=torch.float64)
        if bool((alpha < census.weight).any()):
            first = int((alpha < census.weight).nonzero()[0])
            warnings.warn(
                f"alpha of client {census.name(first)} ({alpha[first]:g}) is below its weight ({census.weight[first]:g}): "
                "its cap exceeds 1, so lowering alpha further no longer changes the exact objective",
                stacklevel=2,
            )
        return {"model": params, "eta": torch.tensor(self.eta0, dtype=torch.float64), "alpha": alpha}

    def task(self, state: State, ids: Tensor) -> Task:
        return Task(shared={"model": state["model"], "eta": state["eta"]}, own={"alpha": state["alpha"][ids]})

    def start(self, task: Task, memory: Memory) -> Tree:
        return {"model": task.shared["model"], "eta": task.shared["eta"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        excess = model.loss(variables["model"], batch) - variables["eta"]
        value: Tensor = smooth_positive_part(excess, self.mu) / task.own["alpha"] + variables["eta"]
        return value

    def rates(self, task: Task) -> dict[str, Tensor]:
        return {} if self.lr_eta is None else {"eta": torch.full_like(task.shared["lr"], self.lr_eta)}

    def reply(self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory) -> tuple[Reply, Memory]:
        total = weighted(tree.sub(start["model"], end["model"]), task)
        return Reply(total={**total, "eta": task.own["weight"] * (start["eta"] - end["eta"])}), memory

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        eta = state["eta"] - mean_step(replies, "eta")
        return {**state, "model": step(state["model"], replies), "eta": eta}, {"eta": eta}


def smooth_positive_part(x: Tensor, mu: float) -> Tensor:
    """mu log(1 + e^(x/mu)), and (x)_+ with slope 1 at 0 where mu is 0."""
    if mu == 0:
        return torch.where(x >= 0, x, torch.zeros_like(x))
    return -mu * F.logsigmoid(-x / mu)  # exact in both tails, where softplus switches to a line at x/mu = 20
