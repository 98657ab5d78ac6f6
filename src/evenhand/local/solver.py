"""What every local solver has in common: settings, step sizes, batches, and the step itself.

A step is taken for all stacked clients at once, in place. On a CPU, products and sums are separate
operations on purpose: a fused multiply-add rounds differently in vectorised and scalar code, so a
client's result would depend on its neighbours.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from evenhand import tree
from evenhand.errors import require, require_number, require_whole
from evenhand.local.clipping import clipped
from evenhand.local.order import Batches, batches_of
from evenhand.local.sample_dp import SampleDP, poisson_batches, require_dp
from evenhand.schedules import Custom, Schedule, as_schedule
from evenhand.tree import Tree

# The variable of this name holds running statistics. It takes plain steps: value - rate * gradient.
STATISTICS = "statistics"
# settings that are shown only if they are not at their defaults, so that solvers without them
# print, and identify checkpoints, as they did before these settings existed
LATER = ("nesterov", "clip", "schedule", "step_schedule", "dp")


class LocalSolver(ABC):
    """Base class of the local solvers, which are frozen dataclasses.

    The step size of a round is ``lr * decay**round * schedule(round)``. Clipping, weight decay and
    ``step_schedule`` act on models; other variables, such as FAFL's eta, take plain steps with
    their own step size. What a solver accumulates is reset in every round.
    """

    lr: float
    epochs: int | None
    steps: int | None
    batch_size: int | None
    weight_decay: float
    decay: float
    clip: float | None
    schedule: Schedule | Callable[[int], float] | None
    step_schedule: Schedule | Callable[[int], float] | None
    dp: SampleDP | None = None

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # every solver is a dataclass

    def __post_init__(self) -> None:
        require_number("lr", self.lr, "(0, inf)")
        both = self.epochs is not None and self.steps is not None
        require(
            not both,
            "pass epochs or steps, not both (got epochs={}, steps={})",
            self.epochs,
            self.steps,
        )
        for name in ("epochs", "steps", "batch_size"):
            require_whole(name, getattr(self, name), 1, optional=True)
        require_number("weight_decay", self.weight_decay, "[0, inf)")
        require_number("decay", self.decay, "(0, 1]", "1 keeps the step size")
        if self.clip is not None:
            require_number("clip", self.clip, "(0, inf)", "None does not clip")
        require_dp(self.dp)
        for name in ("schedule", "step_schedule"):
            object.__setattr__(self, name, as_schedule(name, getattr(self, name)))
        if (over := self._over_rounds) is not None:
            over.factor(0)  # refuses one without a length

    # ---- step sizes

    @property
    def _over_rounds(self) -> Schedule | None:
        return as_schedule("schedule", self.schedule)

    @property
    def _over_steps(self) -> Schedule | None:
        return as_schedule("step_schedule", self.step_schedule)

    def rate(self, round: int) -> float:
        """Return the step size of a round; the first round is 0."""
        rate = self.lr * self.decay**round
        if self.schedule is None:  # a stack asks every run in every round
            return rate
        over = self._over_rounds
        return rate if over is None else rate * over.factor(round)

    def require_rates(self, rounds: int, why: str = "") -> None:
        """Raise a ValueError if the schedule stops training before the end of a run.

        ``why`` says what the last of these rounds is for.
        """
        over = self._over_rounds
        if over is None:
            return
        still = next((r for r in range(rounds) if not over.factor(r) > 0), None)
        if still is not None:
            raise ValueError(
                f"schedule={over!r} is 0 in round {still + 1}{why}, where nothing would"
                " be trained; make it longer, or give it a floor above 0"
            )

    def numbers(self, steps: Tensor) -> Tensor | None:
        """Return what steps of clients that take ``steps`` (K,) differ in: (S, K, columns).

        The first column is the factor of the step size; None if all steps are alike.
        """
        if self.step_schedule is None:
            return None
        return self._factors(steps)[..., None]

    def _factors(self, steps: Tensor) -> Tensor:
        """Return (S, K) the factor of each client's step size at each of its steps."""
        most = int(steps.max())
        found = torch.ones(most, len(steps), dtype=torch.float64)
        over = self._over_steps
        if over is None:
            return found
        for total in set(steps.tolist()):
            factors = [over.factor(step, total) for step in range(total)]
            found[:total, steps == total] = torch.tensor(factors, dtype=torch.float64)[:, None]
        return found

    # ---- batches

    def batches(
        self, ids: Tensor, sizes: Tensor, width: int, round: int, seed: int | Tensor
    ) -> Batches:
        """Return the samples that clients visit: :func:`evenhand.local.order.batches_of`, or
        Poisson batches if samples are hidden."""
        length: Any = {"batch_size": self.batch_size, "epochs": self.epochs, "steps": self.steps}
        if self.dp is not None:
            seeds = torch.as_tensor(seed).expand(len(ids))
            return poisson_batches(self.dp, ids, sizes, round, seeds, **length)
        return batches_of(ids, sizes, width, round, seed, **length)

    # ---- steps

    @abstractmethod
    def state(self, variables: Tree) -> Tree:
        """Return what the solver accumulates over the steps of a round, at the start."""

    def update(
        self,
        variables: Tree,
        state: Tree,
        gradient: Tree,
        rates: dict[str, Tensor],
        active: Tensor | None,
        numbers: Tensor | None = None,
    ) -> None:
        """Take one step of K clients, in place on stacked trees.

        Clients that are not ``active`` (K,) do not move, and never become active again.
        ``numbers`` (K, columns) are those of this step.
        """
        for name, variable in variables.items():
            is_model = isinstance(variable, dict) and name != STATISTICS
            values, grads = (tree.leaves({"": branch[name]}) for branch in (variables, gradient))
            rate = rates[name]
            if is_model and self.clip is not None:
                grads = clipped(grads, self.clip)
            if is_model and self.step_schedule is not None and numbers is not None:
                rate = rate * numbers[:, 0]
            if name == STATISTICS:
                for value, grad in zip(values, grads, strict=True):
                    move(value, grad, rate, active)
            else:
                self._step(name, values, grads, rate, state, active, numbers, is_model)

    @abstractmethod
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
        """Take the step of one variable."""

    # ---- what others need to know

    @property
    def copies(self) -> int:
        """How many values a step needs for each parameter, besides the parameter's gradient."""
        return 1 if self.clip is None else 3  # squares are summed in float64

    def reach(self, steps: int) -> float:
        """Return local steps, each counted with its effect on later ones, for variables that are
        not models."""
        return float(steps)

    @property
    def rescaling(self) -> tuple[str, ...]:
        """What keeps steps from growing in proportion to the gradient, in words."""
        return () if self.clip is None else ("gradient clipping",)

    @property
    def beyond_sgd(self) -> tuple[str, ...]:
        """What makes a step more than the step size times the gradient, in words."""
        scheduled = self.step_schedule is not None
        return (*self.rescaling, *(("a schedule over local steps",) if scheduled else ()))

    def identity(self, rounds: int) -> object:
        """Return what must be the same to resume a run; a function is known by its values."""
        if isinstance(self.schedule, Custom) or isinstance(self.step_schedule, Custom):
            known = self.step_schedule
            first = [known.factor(step) for step in range(100)] if isinstance(known, Custom) else []
            return self, [self.rate(round) for round in range(rounds)], first
        return self

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name not in LATER or getattr(self, field.name) != field.default
        ]
        return f"{type(self).__qualname__}({', '.join(shown)})"


def by_client(values: Tensor, like: Tensor) -> Tensor:
    """Return (K,) values in a shape that multiplies stacked values ``like`` (K, ...)."""
    return values.reshape((-1,) + (1,) * (like.ndim - 1))


def move(
    value: Tensor,
    grad: Tensor,
    rate: Tensor,
    active: Tensor | None,
    room: Tensor | None = None,
) -> None:
    """Subtract rate * grad from ``value`` in place; ``room`` is memory for the product."""
    rate = by_client(rate, value)
    # one pass over memory, since memory bandwidth is the limit
    if value.is_cuda and active is None:
        value.addcmul_(grad, rate, value=-1)
        return
    # a new array this large costs as much as the product
    moved = grad * rate if room is None else torch.mul(grad, rate, out=room)
    if active is not None:
        moved = torch.where(by_client(active, value), moved, 0)
    value.sub_(moved)
