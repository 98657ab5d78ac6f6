"""AdaFed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, Reporting, State, as_rows, descend
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_number
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

# eigenvalues of the updates' Gram matrix below this share of the largest count as zero
INDEPENDENT = 1e-10


@dataclass(frozen=True)
class AdaFed(Algorithm, Reporting):
    """Lower every participant's loss at once, and high losses faster.

        theta <- theta - server_lr d,   u_i = Delta_i / |Delta_i|,
        d the shortest direction with  <u_i, d> = F_i^gamma |d|^2  for every participant i
        (Hamidi and Yang, TMLR 2024)

    To first order, every participant's loss falls in proportion to F_i^gamma. The paper finds d by
    orthogonalising the updates one by one and taking the point of least norm. The result does not
    depend on their order: d = e / |e|^2 with e = sum_i b_i u_i, b = G^+ F^gamma, and G the Gram
    matrix of the u_i. The pseudo-inverse also covers linearly dependent updates and vanishing
    divisors. The server sees every participant's update and loss.

    Args:
        gamma: how much faster high losses fall; with 0 all fall alike. The paper uses 1 to 5.
        server_lr: step along d. Updates are normalised, so it is an absolute length as in FedMGDA;
            |d| grows as losses fall.
        decay: the server's step in round r is server_lr * decay**r.
    """

    gamma: float = 1.0
    server_lr: float = 1.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, "[0, inf)", "0 lets all losses fall alike")
        require_number("server_lr", self.server_lr, "(0, inf)")
        require_number("decay", self.decay, "(0, 1]", "1 keeps the server's step")

    def init(self, params: Tree, census: Census) -> State:
        return {"model": params, "server_lr": torch.tensor(self.server_lr, dtype=torch.float64)}

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        loss_at_start = model.loss(start["model"], data)
        return Reply(
            each={"delta": tree.sub(start["model"], end["model"]), "loss_at_start": loss_at_start}
        ), memory

    def entries(self, asked: Asked) -> Entries:
        return {"delta": Entry(kind="update"), "loss_at_start": Entry(kind="loss")}

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        updates = as_rows(replies.each["delta"])
        length = updates.norm(dim=1, keepdim=True)
        directions = torch.where(length > 0, updates / length.clamp(min=1e-300), 0.0)
        aims = replies.each["loss_at_start"].double().clamp(min=0) ** self.gamma
        inverse = torch.linalg.pinv(
            (directions @ directions.T).to(aims.device), rtol=INDEPENDENT, hermitian=True
        )
        least = (inverse @ aims).to(updates.device) @ directions
        square = least @ least
        direction = torch.where(square > 0, least / square.clamp(min=1e-300), 0.0)
        model = descend(state["model"], state["server_lr"] * direction)
        return {"model": model, "server_lr": state["server_lr"] * self.decay}, {
            "direction_norm": direction.norm()
        }

    def visible(self, census: Census) -> tuple[str, ...]:
        return ("its update", "its loss")
