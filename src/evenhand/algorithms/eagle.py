"""EAGLE: equal distances to what clients reach alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, Question, State, step
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_choice, require_number
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Survey, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class EAGLE(Algorithm, Question):
    """Pull together how far the model is, for every client, from what the client reaches alone.

        minimise  sum_i p_i f_i(theta) + lam Var(r),   r_i = f_i(theta) - L_i
        (Erraji, Perrot, Bellet, 2026)

    L_i is the lowest loss that client i has reached alone. It trains a model of its own beside the
    shared one, on the same batches, and keeps it. A client that gains from the federation has
    r_i < 0. The gradient of the objective weights clients by

        p_i (1 + 2 lam (r_i - mean r)),

    which sums to one. Weights below zero are cut, and all are used as shares of their sum. The
    server only needs sums: a question gives it mean r at the model of this round, and clients
    weight their own updates. The objective is not convex, even if all f_i are.

    Args:
        lam: strength of the penalty; 0 gives FedAvg.
        variance: "weighted" takes the mean and the variance of r with the clients' weights,
            "uniform" counts all participants the same.
        reference: "alone" takes L_i from the client's own model; "seen" also from the models
            received, so that r_i is never negative.
    """

    lam: float = 1.0
    variance: str = "weighted"
    reference: str = "alone"

    def __post_init__(self) -> None:
        require_number("lam", self.lam, "[0, inf)", "0 gives FedAvg")
        require_choice("variance", self.variance, ("weighted", "uniform"))
        require_choice("reference", self.reference, ("alone", "seen"))

    # ---- the server

    def init(self, params: Tree, census: Census) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        return {"model": params, "mean_gap": zero, "mean_weight": zero}

    def ask(self, state: State) -> Survey | None:
        return Survey({"model": state["model"]})

    def learn(self, state: State, replies: Replies) -> State:
        if not len(replies.ids):
            return state
        counted = replies.total["counted"].clamp(min=1e-300)
        mean_gap = replies.total["gap"] / counted
        return {**state, "mean_gap": mean_gap, "mean_weight": replies.total["weight"] / counted}

    def task(self, state: State, ids: Tensor) -> Task:
        return Task({name: state[name] for name in ("model", "mean_gap", "mean_weight")})

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        total = replies.total
        info: Info = {
            "mean_gap": state["mean_gap"],
            "gap_std": (total["square"] / total["counted"].clamp(min=1e-300)).sqrt(),
            "clients_cut": total["cut"],
        }
        return {**state, "model": step(state["model"], replies)}, info

    # ---- one client

    def start(self, task: Task, memory: Memory) -> Tree:
        return {"model": task.shared["model"], "alone": memory["alone"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        # the gradients separate: each model trains as if the other were not there
        return model.loss(variables["model"], batch) + model.loss(variables["alone"], batch)

    def memory(self, params: Tree) -> Memory:
        zero = torch.zeros((), dtype=torch.float64)
        return {"alone": params, "best": zero, "trained": zero}

    def answer(self, model: Model, data: Batch, task: Task, memory: Memory) -> Reply:
        gap, _ = self._gap(model, task.shared["model"], data, memory)
        counted = self._counted(task)
        return Reply({"gap": counted * gap, "counted": counted, "weight": task.own["weight"]})

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        gap, best = self._gap(model, start["model"], data, memory)
        weight, counted = task.own["weight"].double(), self._counted(task)
        away = gap - task.shared["mean_gap"]
        wanted = weight + 2 * self.lam * counted * task.shared["mean_weight"] * away
        used = wanted.clamp(min=0)
        sent = {
            "delta": tree.scale(tree.sub(start["model"], end["model"]), used),
            "weight": used,
            "square": counted * away**2,
            "counted": counted,
            "cut": (wanted < 0).double(),
        }
        now = model.loss(end["alone"], data).double()
        kept = {"alone": end["alone"], "best": torch.fmin(best, now)}
        return Reply(sent), {**kept, "trained": torch.ones_like(best)}

    def _gap(
        self, model: Model, shared: Tree, data: Batch, memory: Memory
    ) -> tuple[Tensor, Tensor]:
        """Return r_i at a shared model, and L_i."""
        loss, alone = (model.loss(params, data).double() for params in (shared, memory["alone"]))
        best = torch.where(memory["trained"] > 0, torch.fmin(memory["best"], alone), alone)
        if self.reference == "seen":
            best = torch.fmin(best, loss)
        return loss - best, best

    def _counted(self, task: Task) -> Tensor:
        """Return a client's weight in the variance: a_i, or 1 if it takes part at all."""
        weight: Tensor = task.own["weight"]
        return weight if self.variance == "weighted" else (weight > 0).to(weight.dtype)

    # ---- what a server that cannot trust its clients may expect

    def answer_entries(self, asked: Asked) -> Entries:
        return {
            "gap": Entry(low=0.0) if self.reference == "seen" else Entry(),
            "counted": Entry(known=self._counted(asked.task)),
            "weight": Entry(known=asked.task.own["weight"]),
        }

    def entries(self, asked: Asked) -> Entries:
        return {
            "delta": Entry(kind="update", per="weight"),
            "weight": Entry(low=0.0),
            "square": Entry(low=0.0),
            "counted": Entry(known=self._counted(asked.task)),
            "cut": Entry(low=0.0, high=1.0),
        }
