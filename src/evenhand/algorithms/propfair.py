"""PropFair."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.algorithm import Algorithm, Certificate, LocalWork, Reporting, State
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_choice, require_number
from evenhand.messages import Task
from evenhand.model import Model
from evenhand.theory.aggregates import LogMean
from evenhand.tree import Tree


@dataclass(frozen=True)
class PropFair(Algorithm, Reporting):
    """Proportional fairness: maximise the product of the clients' utilities M - loss.

        minimise  - sum_i w_i log(M - f_i(theta))    (Zhang et al., 2022, Algorithm 1)

    On a batch with mean loss l, a client minimises -log(M - l) if M - l >= epsilon, else l / M. The
    logarithm is taken of the batch's loss, as in the paper, so the local objective lies above the
    stated one (Jensen) unless batches are full. The paper gives no value for epsilon; 0.2 is that
    of the authors' code. The server only needs sums, the same messages as FedAvg's.

    The slope 1 / (M - l) weighs clients through the size of their gradients. Adam's steps do not
    depend on it and clipping bounds it, so a run with either logs a warning.

    Args:
        M: the utility baseline, above the losses that matter; small values are fairer, large ones
            approach FedAvg with step lr / M.
        epsilon: where the linear branch replaces the logarithm; above M every batch uses it, which
            is FedAvg with step lr / M.
        continuation: beyond the threshold, "paper" continues with l / M, which drops in value, and
            in slope from 1/epsilon to 1/M, so that the worst batches count least. "linear" has the
            same slope without the jump in value; "huber" continues along the tangent, with slope
            1/epsilon.
    """

    M: float = 3.0
    epsilon: float = 0.2
    continuation: str = "paper"

    def __post_init__(self) -> None:
        require_number(
            "M", self.M, "(0, inf)", "choose it above the losses of a trained model, usually 2 to 5"
        )
        require_number("epsilon", self.epsilon, "(0, inf)", "0.2 is usual")
        require_choice("continuation", self.continuation, ("paper", "linear", "huber"))

    def local_work(self) -> LocalWork:
        return LocalWork(assumes_scale="weighs a client by scaling the gradient of its loss")

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        loss = model.loss(variables["model"], batch)
        utility = self.M - loss
        return torch.where(
            utility >= self.epsilon, -torch.log(utility.clamp(min=self.epsilon)), self._beyond(loss)
        )

    def _beyond(self, loss: Tensor) -> Tensor:
        if self.continuation == "paper":
            return loss / self.M
        slope = 1 / self.M if self.continuation == "linear" else 1 / self.epsilon
        level = self.epsilon.log() if isinstance(self.epsilon, Tensor) else math.log(self.epsilon)
        return slope * (loss - (self.M - self.epsilon)) - level

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        if bool((losses >= self.M).any()):
            return None  # no weights if a utility is not positive
        return Certificate.of(LogMean(self.M), losses, census.weight)
