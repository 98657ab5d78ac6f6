"""The kinds of work that clients can be asked to do: train, answer a question, and evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from evenhand.algorithm import Algorithm, Memory
from evenhand.algorithms.by_sample import objective_kind
from evenhand.data.samples import Batch
from evenhand.local import LocalSolver
from evenhand.messages import Reply, Task
from evenhand.metrics.client_sums import CELLS, client_sums
from evenhand.metrics.measuring import Measured
from evenhand.metrics.tallies import MOST_CELLS, judge, tally
from evenhand.model import Model
from evenhand.tree import Tree


class Named(Protocol):
    """What a client is asked for, as far as a message says it."""

    @property
    def part(self) -> str:
        """Which part of the data it reads."""

    name: ClassVar[str]
    must_be_finite: ClassVar[bool]  # whether a reply that is not finite is skipped

    def scales(self, own: Tree) -> dict[str, Tensor]:
        """Factors of the reply, by the name in the task's ``own`` that they follow from."""


class Work(Named, Protocol):
    """What a client does between receiving a task and replying, written for one client."""

    @property
    def local(self) -> LocalSolver | None:
        """How it descends; None for work without local steps."""

    @property
    def pooled(self) -> bool:
        """Whether the reply is a sum over samples of ``by_sample``, the same function for all
        clients; engines may then process the samples of many clients together."""

    def by_sample(self, model: Model, task: Task, batch: Batch) -> Reply:
        """What each sample adds to ``total``, in the cell of its group, and to ``each``, in that of
        its client and group: an :class:`evenhand.metrics.tallies.Addend` in place of every tensor
        of the reply."""

    @property
    def groups(self) -> int:
        """Number of cells a pooled reply has for a client (at least one is made)."""

    @property
    def snapshot(self) -> bool:
        """Whether reply needs the variables at the moment ``task.shared["moment"]`` of the local
        work, in end["snapshot"]."""

    @property
    def whole_data(self) -> bool:
        """Whether the objective needs all of the client's data, in batch.whole."""

    @property
    def has_more_terms(self) -> bool:
        """Whether the objective may have terms besides the mean over samples."""

    @property
    def traceable(self) -> bool:
        """Whether the reply is made of torch's operations alone, so that they can be replayed."""

    def first_memory(self, params: Tree) -> Memory:
        """A client's memory before its first round."""

    def start(self, task: Task, memory: Memory) -> Tree:
        """The variables it optimises, where they start."""

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        """() the objective it minimises."""

    def rates(self, task: Task) -> dict[str, Tensor]:
        """Step sizes by variable, where they differ from the round's."""

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        """The reply it sends, and its new memory."""


@dataclass(frozen=True)
class Train:
    """A round of a method's local work on the training data."""

    algorithm: Algorithm
    local: LocalSolver
    part: str = "train"
    traceable: ClassVar[bool] = True
    pooled: ClassVar[bool] = False
    groups: ClassVar[int] = 0
    name: ClassVar[str] = "train"
    must_be_finite: ClassVar[bool] = True

    @property
    def snapshot(self) -> bool:
        return self.algorithm.local_work().snapshot

    @property
    def whole_data(self) -> bool:
        return self.algorithm.local_work().whole_data

    @property
    def has_more_terms(self) -> bool:
        return objective_kind(self.algorithm) != "mean"

    def first_memory(self, params: Tree) -> Memory:
        return self.algorithm.memory(params)

    def start(self, task: Task, memory: Memory) -> Tree:
        return self.algorithm.start(task, memory)

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return self.algorithm.objective(model, variables, batch, task)

    def rates(self, task: Task) -> dict[str, Tensor]:
        return self.algorithm.rates(task)

    def scales(self, own: Tree) -> dict[str, Tensor]:
        return self.algorithm.scales(own)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        return self.algorithm.reply(model, start, end, data, task, memory)

    def by_sample(self, model: Model, task: Task, batch: Batch) -> Reply:
        return Reply()


class _Looking:
    """Work without local steps."""

    local: ClassVar[None] = None
    snapshot: ClassVar[bool] = False
    whole_data: ClassVar[bool] = False
    has_more_terms: ClassVar[bool] = False

    def start(self, task: Task, memory: Memory) -> Tree:
        return {}

    def objective(self, model: Model, variables: Tree, batch: Batch, task: Task) -> Tensor:
        return torch.zeros(())

    def rates(self, task: Task) -> dict[str, Tensor]:
        return {}

    def scales(self, own: Tree) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True)
class Ask(_Looking):
    """A method's question at one moment of a round."""

    algorithm: Algorithm
    part: str = "train"
    moment: str = "before"
    traceable: ClassVar[bool] = True
    pooled: ClassVar[bool] = False
    groups: ClassVar[int] = 0
    name: ClassVar[str] = "survey"
    must_be_finite: ClassVar[bool] = True

    def first_memory(self, params: Tree) -> Memory:
        return self.algorithm.memory(params)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        question = self.algorithm.question(self.moment)
        assert question is not None, f"this method has no question {self.moment}"
        return question.answer(model, data, task, memory), memory

    def by_sample(self, model: Model, task: Task, batch: Batch) -> Reply:
        return Reply()


@dataclass(frozen=True)
class Evaluate(_Looking):
    """Counts and sums by group of the model a client would use, on one part of its data.

    Args:
        full: take a full tally (see :mod:`evenhand.metrics.tallies`), not only counts, correct
            predictions and losses.
        clients: how many reply; a table that is too large to keep for each client is summed over
            clients.
        by_client: whether the server sees each client's tally; otherwise it sees only sums over
            clients, see :mod:`evenhand.metrics.client_sums`.
        by_label: add to a plain tally what the gaps between groups need; it has an effect only for
            two classes and at least two groups.
        metrics: what else to evaluate.
        cells: of the histogram of accuracies, where the server sees only sums.
    """

    algorithm: Algorithm
    groups: int
    part: str = "test"
    full: bool = False
    clients: int = 1
    by_client: bool = True
    by_label: bool = False
    metrics: tuple[Measured, ...] = ()
    cells: int = CELLS
    name: ClassVar[str] = "evaluate"
    must_be_finite: ClassVar[bool] = False

    def first_memory(self, params: Tree) -> Memory:
        return self.algorithm.memory(params)

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        params = self.algorithm.deployed(task.shared, memory)
        found = tally(model, params, data, self.groups, self.full, self._labelled, self.metrics)
        if not self.by_client:
            return Reply(found | client_sums(found, self.cells)), memory
        return self._divided(found, {name: sums[0].numel() for name, sums in found.items()}), memory

    @property
    def traceable(self) -> bool:
        return not self.metrics  # a user's function may do anything

    @property
    def pooled(self) -> bool:
        # a client's accuracy is no sum over samples
        return self.by_client and not self.algorithm.personal

    def by_sample(self, model: Model, task: Task, batch: Batch) -> Reply:
        params = self.algorithm.deployed(task.shared, {})
        found = judge(model, params, batch, self.full, self._labelled, self.metrics)
        return self._divided(found, {name: addend.size for name, addend in found.items()})

    @property
    def _labelled(self) -> bool:
        return self.by_label and self.groups > 1

    def _divided(self, found: Tree, sizes: dict[str, int]) -> Reply:
        """The entries that the server sees as sums only, and those it sees client by client."""
        large = {
            name
            for name, size in sizes.items()
            if size > 1 and self.clients * max(self.groups, 1) * size > MOST_CELLS
        }
        total, each = (
            {name: found[name] for name in found if (name in large) == summed}
            for summed in (True, False)
        )
        return Reply(total, each)
