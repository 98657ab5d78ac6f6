"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from evenhand import tree
from evenhand.errors import brief, require, require_number
from evenhand.local.sample_dp import SampleDP
from evenhand.local.solver import STATISTICS, LocalSolver, by_client, move
from evenhand.schedules import Schedule
from evenhand.tree import Tree


@dataclass(frozen=True, repr=False)
class LocalAdam(LocalSolver):
    """Adam on a client's data, as in ``torch.optim.Adam``.

    Moments and their step count start at zero in every round. Only models take Adam's steps: other
    variables, such as FAFL's eta, take plain gradient steps.

    >>> LocalAdam(lr=0.001, epochs=1, batch_size=32).betas
    (0.9, 0.999)

    Args:
        lr: step size in the first round.
        epochs: passes over the client's data per round; one if neither ``epochs`` nor ``steps`` is
            given.
        steps: number of steps per round, instead of ``epochs``.
        batch_size: samples per step; None uses all local data in every step.
        betas: how much the running means of gradients and of their squares keep in each step.
        eps: added to the root of the mean of squares.
        weight_decay: adds weight_decay * parameter to the gradient of the model.
        amsgrad: divide by the largest mean of squares of the round so far.
        decay: the step size of round r is lr * decay**r, counting from 0.
        clip: scale each step's gradient of the model so that its norm is at most this.
        schedule: multiplies the step size of each round: one of :mod:`evenhand.schedules`, or a
            function of the round.
        step_schedule: multiplies the step size of each of a client's steps within a round.
        dp: hide single samples, as ``SampleDP`` says; None does not.
    """

    lr: float
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    decay: float = 1.0
    clip: float | None = None
    schedule: Schedule | Callable[[int], float] | None = None
    step_schedule: Schedule | Callable[[int], float] | None = None
    dp: SampleDP | None = None

    decoupled: ClassVar[bool] = False  # whether weight decay bypasses the moments

    def __post_init__(self) -> None:
        super().__post_init__()
        betas: object = self.betas
        require(
            isinstance(betas, Sequence) and not isinstance(betas, str) and len(betas) == 2,
            "betas must be two numbers such as (0.9, 0.999), got {}",
            brief(betas),
        )
        object.__setattr__(self, "betas", tuple(self.betas))
        for beta in self.betas:
            require_number("each of betas", beta, "[0, 1)", "0.9 and 0.999 are usual")
        require_number("eps", self.eps, "(0, inf)", "1e-8 is usual")
        require(
            isinstance(self.amsgrad, bool), "amsgrad must be true or false, got {!r}", self.amsgrad
        )

    def state(self, variables: Tree) -> Tree:
        """Return zeros: the running means of gradients and of their squares, for each model."""
        models = {
            name: variable
            for name, variable in variables.items()
            if isinstance(variable, dict) and name != STATISTICS
        }
        kept = ("mean", "square", "largest") if self.amsgrad else ("mean", "square")
        return {name: tree.zeros_like(models) for name in kept}

    def numbers(self, steps: Tensor) -> Tensor | None:
        """Return the factor of the step size and the corrections of both means, at each step.

        Corrections depend on the step count; as an input of the step, it is never part of a trace.
        """
        factors = self._factors(steps)
        first, second = self.betas
        corrections = [
            (1 / (1 - first**step), 1 / math.sqrt(1 - second**step))
            for step in range(1, len(factors) + 1)
        ]
        counted = torch.tensor(corrections, dtype=torch.float64)[:, None]  # (S, 1, 2)
        return torch.cat([factors[..., None], counted.expand(-1, len(steps), -1)], 2)

    def _step(
        self,
        name: str,
        values: Sequence[Tensor],
        grads: Sequence[Tensor],
        rate: Tensor,
        state: Tree,
        active: Tensor | None,
        numbers: Tensor | None,
        is_model: bool,
    ) -> None:
        if not is_model:
            for value, grad in zip(values, grads, strict=True):
                move(value, grad, rate, active)
            return
        assert numbers is not None, "Adam's steps need their count"
        first, second = self.betas
        kept = {key: tree.leaves(branch[name]) for key, branch in state.items()}
        for place, (value, grad) in enumerate(zip(values, grads, strict=True)):
            mean, square = kept["mean"][place], kept["square"][place]
            if self.weight_decay and not self.decoupled:
                grad = grad + value * self.weight_decay
            mean.mul_(first).add_(grad * (1 - first))
            square.mul_(second).add_((grad * grad).mul_(1 - second))
            if self.amsgrad:
                largest = kept["largest"][place]
                square = largest.copy_(torch.maximum(largest, square))
            root = square.sqrt().mul_(by_client(numbers[:, 2], value)).add_(self.eps)
            step = (mean * by_client(numbers[:, 1], value)).div_(root)
            if self.weight_decay and self.decoupled:
                step = step + value * self.weight_decay
            move(value, step, rate, active)

    @property
    def copies(self) -> int:
        """How many values a step needs for each parameter, besides the parameter's gradient."""
        return super().copies + (4 if self.amsgrad else 3)

    @property
    def rescaling(self) -> tuple[str, ...]:
        """What keeps steps from growing in proportion to the gradient, in words."""
        return (f"the adaptive steps of {type(self).__name__}", *super().rescaling)


@dataclass(frozen=True, repr=False)
class LocalAdamW(LocalAdam):
    """Adam with decoupled weight decay on a client's data, as in ``torch.optim.AdamW``.

    Moments and their step count start at zero in every round. Only models take Adam's steps: other
    variables, such as FAFL's eta, take plain gradient steps.

    Args:
        lr: step size in the first round.
        epochs: passes over the client's data per round; one if neither ``epochs`` nor ``steps`` is
            given.
        steps: number of steps per round, instead of ``epochs``.
        batch_size: samples per step; None uses all local data in every step.
        betas: how much the running means of gradients and of their squares keep in each step.
        eps: added to the root of the mean of squares.
        weight_decay: subtracts step size * weight_decay * parameter in each step, past the means.
        amsgrad: divide by the largest mean of squares of the round so far.
        decay: the step size of round r is lr * decay**r, counting from 0.
        clip: scale each step's gradient of the model so that its norm is at most this.
        schedule: multiplies the step size of each round: one of :mod:`evenhand.schedules`, or a
            function of the round.
        step_schedule: multiplies the step size of each of a client's steps within a round.
        dp: hide single samples, as ``SampleDP`` says; None does not.
    """

    weight_decay: float = 0.01

    decoupled: ClassVar[bool] = True
