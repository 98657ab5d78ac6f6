"""FedProx, for any method."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, LocalWork
from evenhand.algorithms.by_sample import objective_kind
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.samples import Batch
from evenhand.errors import require_number
from evenhand.messages import Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class FedProx(Wrapper):
    """Keep local models close to the received one, so that long local training does not drift
    apart.

        client i:  minimise over w  f_i(w) + mu/2 |w - received|^2    (Li et al., MLSys 2020)

    The term is added to the local objective of the inner method. In the paper, clients may also do
    unequal amounts of work; here that is up to the local solver.

    Args:
        mu: 0 is the inner method; published values are 0.001 to 1. Stable if lr * mu < 1.
        inner: the method to change; plain FedProx uses FedAvg.
    """

    mu: float = 0.01
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("mu", self.mu, "[0, inf)", "0 is the inner method")

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        drift = tree.sqnorm(tree.sub(variables["model"], task.shared["model"]))
        return self.inner.objective(model, variables, batch, task) + self.mu / 2 * drift

    def local_work(self) -> LocalWork:
        kept = objective_kind(self.inner) != "other"
        return replace(self.inner.local_work(), additive=kept)
