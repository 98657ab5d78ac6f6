"""FedProx, for any method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.algorithms.fedavg import FedAvg
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.samples import Batch
from evenhand.errors import require_number
from evenhand.messages import Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class FedProx(Wrapper):
    """Keep local work near the received model, so that clients who do much of it do not drift
    apart.

        client i:  minimise over w  f_i(w) + mu/2 |w - received|^2    (Li et al., MLSys 2020)

    The term is added to the local objective of the inner method. The paper's clients may also do
    unequal amounts of work, which here is the local solver's affair.

    Args:
        mu: 0 is the inner method; published values are 0.001 to 1. Stable where lr * mu < 1.
        inner: the method that is changed; plain FedProx has FedAvg.
    """

    mu: float = 0.01
    inner: Algorithm = FedAvg()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("mu", self.mu, "[0, inf)", "0 is the inner method")

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        drift = tree.sqnorm(tree.sub(variables["model"], task.shared["model"]))
        return self.inner.objective(model, variables, batch, task) + self.mu / 2 * drift
