"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from evenhand import tree
from evenhand.errors import require, require_number
from evenhand.local.sample_dp import SampleDP
from evenhand.local.solver import LocalSolver, move
from evenhand.schedules import Schedule
from evenhand.tree import Tree


@dataclass(frozen=True, repr=False)
class LocalSGD(LocalSolver):
    """Stochastic gradient descent on a client's data.

    >>> LocalSGD(lr=0.1, epochs=2, batch_size=32, decay=0.5).rate(round=3)
    0.0125

    Args:
        lr: step size in the first round.
        epochs: passes over the client's data per round; one if neither ``epochs`` nor ``steps`` is
            given.
        steps: number of steps per round, instead of ``epochs``.
        batch_size: samples per step; None uses all local data in every step.
        momentum: heavy-ball momentum, reset to zero in every round.
        weight_decay: adds weight_decay * parameter to the gradient of the model (but not of scalars
            such as rFedFair's eta).
        decay: the step size of round r is lr * decay**r, counting from 0.
        nesterov: look ahead with the momentum, as in ``torch.optim.SGD``.
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
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0
    nesterov: bool = False
    clip: float | None = None
    schedule: Schedule | Callable[[int], float] | None = None
    step_schedule: Schedule | Callable[[int], float] | None = None
    dp: SampleDP | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("momentum", self.momentum, "[0, 1)", "0 is plain SGD")
        require(
            isinstance(self.nesterov, bool),
            "nesterov must be true or false, got {!r}",
            self.nesterov,
        )
        require(
            not self.nesterov or self.momentum > 0,
            "nesterov needs momentum above 0, such as momentum=0.9",
        )

    def state(self, variables: Tree) -> Tree:
        """Return zeros: the velocity, or without momentum a buffer for the step."""
        # on a GPU a step without momentum needs no buffer
        if not self.momentum and all(leaf.is_cuda for leaf in tree.leaves(variables)):
            return {}
        return tree.zeros_like(variables)

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
        speeds: Sequence[Tensor | None] = (
            tree.leaves({"": state[name]}) if state else [None] * len(values)
        )
        for value, speed, grad in zip(values, speeds, grads, strict=True):
            if self.weight_decay and is_model:
                grad = grad + value * self.weight_decay
            if not self.momentum or speed is None:
                move(value, grad, rate, active, speed)
                continue
            speed.mul_(self.momentum).add_(grad)
            move(value, grad + speed * self.momentum if self.nesterov else speed, rate, active)

    def reach(self, steps: int) -> float:
        """Return local steps, each counted with the effect of momentum."""
        # sum over k = 1 ... steps of 1 + m + ... + m^(k-1), with nesterov to m^k
        m = self.momentum
        first = m * m if self.nesterov else m
        return (steps - first * (1 - m**steps) / (1 - m)) / (1 - m)

    @property
    def beyond_sgd(self) -> tuple[str, ...]:
        """What makes a step more than the step size times the gradient, in words."""
        return (("momentum",) if self.momentum else ()) + super().beyond_sgd
