"""PropFair."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.algorithm import Algorithm
from evenhand.data import Batch
from evenhand.errors import require_number
from evenhand.messages import Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class PropFair(Algorithm):
    """Proportional fairness: maximise the product of the clients' utilities M - loss.

    minimise  - sum_i w_i log(M - f_i(theta))                            (Zhang et al., 2022, Algorithm 1)

    On a batch with mean loss l a client descends -log(M - l) where M - l >= epsilon, else l / M. The logarithm is taken of
    the batch's loss, as in the paper, so the local objective lies above the stated one (Jensen) unless batches are whole.
    epsilon is not in the paper; 0.2 is the value of the authors' code. Sums only: the same messages as FedAvg.

    Args:
        M: the utility baseline, above the losses that matter; small values are fairer, large ones tend to FedAvg at lr / M.
        epsilon: where the logarithm gives way to the linear branch; above M every batch takes it: FedAvg at lr / M.
    """

    M: float = 3.0
    epsilon: float = 0.2

    def __post_init__(self) -> None:
        require_number("M", self.M, "(0, inf)", "take it above the losses of a trained model, 2 to 5 is usual")
        require_number("epsilon", self.epsilon, "(0, inf)", "0.2 is usual")

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        loss = model.loss(variables["model"], batch)
        utility = self.M - loss
        return torch.where(utility >= self.epsilon, -torch.log(utility.clamp(min=self.epsilon)), loss / self.M)
