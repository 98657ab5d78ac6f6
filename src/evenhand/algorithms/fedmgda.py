"""FedMGDA+."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evenhand import tree
from evenhand.algorithm import (
    Algorithm,
    Info,
    Memory,
    Reporting,
    State,
    as_rows,
    descend,
    normalised,
)
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require, require_choice, require_number
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.simplex import min_norm_weights
from evenhand.tree import Tree


@dataclass(frozen=True)
class FedMGDA(Algorithm, Reporting):
    """Look for directions that lower every participant's loss (FedMGDA+).

        theta <- theta - server_lr sum_i lam_i u_i,   u_i = Delta_i / |Delta_i|,
        lam = argmin |sum_i lam_i u_i|^2 over the simplex with |lam_i - lam0_i| <= epsilon
        (Hu et al., 2022, Algorithm 1)

    With epsilon = 1, no participant's loss rises to first order; smaller values stay closer to the
    prior instead. The method has no objective: it stops where no direction helps all clients
    (Pareto stationarity). The server sees every participant's update. A client whose update is zero
    is at its optimum; with epsilon = 1, the model then does not move.

    Args:
        epsilon: how far the weights may leave the prior; 0 keeps it, 1 is the point of least norm
            in the convex hull.
        server_lr: the length of a step if all updates point the same way, since updates are
            normalised. It is an absolute length and the most sensitive hyper-parameter (1 in most
            published code, 0.01 to 0.1 in others).
        decay: the server's step in round r is server_lr * decay**r; normalised steps do not become
            shorter by themselves.
        prior: lam0, the cohort's "weights" a_i, or "uniform".
        normalise: False uses the updates as they are; epsilon = 0 is then FedAvg with step
            server_lr.
    """

    epsilon: float = 0.1
    server_lr: float = 1.0
    prior: str = "weights"
    normalise: bool = True
    decay: float = 1.0

    def __post_init__(self) -> None:
        require_number(
            "epsilon", self.epsilon, "[0, 1]", "0 keeps the prior weights, 1 leaves them free"
        )
        require_number("server_lr", self.server_lr, "(0, inf)")
        require_choice("prior", self.prior, ("weights", "uniform"))
        require(
            isinstance(self.normalise, bool),
            "normalise must be true or false, got {!r}",
            self.normalise,
        )
        require_number("decay", self.decay, "(0, 1]", "1 keeps the server's step")

    def init(self, params: Tree, census: Census) -> State:
        return {"model": params, "server_lr": torch.tensor(self.server_lr, dtype=torch.float64)}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return Reply(
            each={"delta": tree.sub(start["model"], end["model"]), "weight": task.own["weight"]}
        ), memory

    def entries(self, asked: Asked) -> Entries:
        return {"delta": Entry(kind="update"), "weight": Entry(known=asked.task.own["weight"])}

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        updates, weight = as_rows(replies.each["delta"]), replies.each["weight"].double()
        if self.normalise:
            length = updates.norm(dim=1, keepdim=True)
            updates = torch.where(length > 0, updates / length.clamp(min=1e-300), 0.0)
        prior = normalised(weight if self.prior == "weights" else torch.ones_like(weight))
        low, high = (prior - self.epsilon).clamp(min=0), (prior + self.epsilon).clamp(max=1)
        lam = (
            prior
            if self.epsilon == 0
            else min_norm_weights((updates @ updates.T).to(prior.device), low, high)
        )
        direction = lam.to(updates.device) @ updates
        info = {"direction_norm": direction.norm(), "largest_lam": lam.max()}
        model = descend(state["model"], state["server_lr"] * direction)
        return {"model": model, "server_lr": state["server_lr"] * self.decay}, info

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update",)
