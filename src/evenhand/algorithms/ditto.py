"""Ditto."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Memory, weighted
from evenhand.data.samples import Batch
from evenhand.errors import require_number
from evenhand.messages import Asked, Entries, Reply, Task, stepped
from evenhand.model import Model
from evenhand.privacy.bounds import Contribution, Limits, of_a_step
from evenhand.tree import Tree


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Give every client its own model, kept close to the federated one.

        client i:  minimise over v  f_i(v) + lam/2 |v - theta*|^2,  theta* FedAvg's solution
        (Li et al., ICML 2021)

    The client minimises f(w) + f(v) + lam/2 |v - received|^2 over {w, v}. The gradients separate: w
    is FedAvg's local model, and v stays with the client. Absent clients keep their v. The server
    only needs sums, the same messages as FedAvg's.

    Args:
        lam: 0 is local-only training, large values give the federated model. Stable if lr * lam <
            1.
    """

    lam: float = 1.0

    personal = True

    def __post_init__(self) -> None:
        require_number("lam", self.lam, "[0, inf)", "0 is local-only training")

    def start(self, task: Task, memory: Memory) -> Tree:
        return {"model": task.shared["model"], "personal": memory["personal"]}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        distance = tree.sqnorm(tree.sub(variables["personal"], task.shared["model"]))
        return (
            model.loss(variables["model"], batch)
            + model.loss(variables["personal"], batch)
            + self.lam / 2 * distance
        )

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return Reply(total=weighted(tree.sub(start["model"], end["model"]), task)), {
            "personal": end["personal"]
        }

    def entries(self, asked: Asked) -> Entries:
        return stepped(asked)

    def contribution(self, limits: Limits) -> Contribution:
        return of_a_step(limits)

    def memory(self, params: Tree) -> Memory:
        return {"personal": params}

    def deployed(self, shared: Tree, memory: Memory) -> Tree:
        personal: Tree = memory["personal"]
        return personal
