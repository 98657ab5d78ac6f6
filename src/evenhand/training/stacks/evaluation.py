"""Evaluation of the models of a stack: many runs in one exchange."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.data.federation import Federation
from evenhand.engines.work import Evaluate, Work
from evenhand.messages import Replies, Task
from evenhand.metrics.calibration import BINS
from evenhand.metrics.round_gaps import round_gaps
from evenhand.metrics.scores import Row
from evenhand.metrics.tallies import MOST_CELLS
from evenhand.model import Model
from evenhand.training.checkpoints import first_samples
from evenhand.training.history import Columns, Rows
from evenhand.training.over_clients import over_clients
from evenhand.training.stacks.states import States, some_rows
from evenhand.tree import Tree

Kind = tuple[bool, str, bool]  # whether the trained models; on which split; with full tallies
Ask = Callable[[Work, Task, Tensor, int, Rows], Replies]


class Evaluations:
    """Tallies of the present models of all runs, each computed once.

    Args:
        client: the method as clients see it.
        model: module and loss.
        federation: the clients' data.
        states: of all runs.
        ask: exchanges with the clients of some runs.
    """

    def __init__(
        self, client: Algorithm, model: Model, federation: Federation, states: States, ask: Ask
    ) -> None:
        self.client, self.model, self.federation = client, model, federation
        self.states, self.ask = states, ask
        self.part = federation.judged_part
        self._works: dict[Kind, Evaluate] = {}  # engines prepare each kind of work once
        self._models: Tree | None = None
        self._found: dict[Kind, tuple[int, Replies]] = {}  # and the first run of the block

    def forget(self) -> None:
        """Discard everything, because models have changed."""
        self._models = None
        self.forget_tallies()

    def forget_tallies(self) -> None:
        """Discard tallies, because clients' memories, and so the models they use, have changed."""
        self._found.clear()

    def numbers(self, round: int) -> list[Columns]:
        """Return loss, accuracy over clients and gaps between groups, for the history."""
        found: list[Columns] = []
        for first in range(0, self.states.runs, self.block(False)):
            replies = self.of((False, self.part, False), first, round)
            found.append(self.columns(replies, torch.arange(first, first + len(replies.ids))))
        return found

    def columns(self, replies: Replies, rows: Rows) -> Columns:
        """Return loss, accuracy and gaps between groups over the clients that have evaluated in
        some runs."""
        numbers = over_clients(replies.each)
        columns: Row = {name: values.tolist() for name, values in numbers.items()}
        for name, gaps in round_gaps(replies).items():
            # a gap that is unknown has no column
            columns[name] = [None if gap != gap else gap for gap in gaps.tolist()]
        return None if rows is None else rows.tolist(), columns

    def of(self, kind: Kind, row: int, round: int) -> Replies:
        """Return tallies (R', K, A, ...) of the block of runs that contains ``row``."""
        size = self.block(kind[2])
        first = row - row % size
        if kind not in self._found or self._found[kind][0] != first:
            rows = torch.arange(first, min(first + size, self.states.runs))
            some: Rows = None if len(rows) == self.states.runs else rows
            # clients with data to evaluate on
            ids = self.federation.sizes(kind[1]).nonzero().flatten()
            task = self.task(some)
            found = self.ask(self.work(kind), task, ids.expand(len(rows), -1), round, some)
            self._found[kind] = (first, found)
        return self._found[kind][1]

    def task(self, rows: Rows) -> Task:
        """Return the models of some runs, for their clients."""
        shared = {"model": self.models(rows)}
        if self.states.varying:
            shared["varying"] = some_rows(rows, self.states.varying)
        return Task(shared)

    def models(self, rows: Rows) -> Tree:
        """Return the trained models."""
        if self._models is None:
            models = self.states.call("result", None)
            stacked = models if isinstance(models, dict) else tree.stack(models)
            self._models = tree.to(stacked, self.states.device)
        return some_rows(rows, self._models)

    def work(self, kind: Kind) -> Evaluate:
        """Return the work of one kind."""
        if kind not in self._works:
            plain, part, full = kind
            method = Algorithm() if plain else self.client
            clients = self.federation.clients if full else 1
            self._works[kind] = Evaluate(
                method,
                self.federation.groups,
                part,
                full,
                clients,
                by_label=not plain and not full,
                metrics=() if plain else self.model.metrics,
            )
        return self._works[kind]

    def block(self, full: bool) -> int:
        """Return how many runs are evaluated together.

        On a CPU it is one, which is about as fast and has exactly the bits of a single run.
        """
        if self.states.device.type == "cpu":
            return 1
        return (
            max(1, min(self.states.runs, MOST_CELLS // self._cells)) if full else self.states.runs
        )

    @cached_property
    def _cells(self) -> int:
        """Numbers in the full tallies of one run."""
        first = first_samples(self.model, self.federation, 1)
        output = self.model.output(self.model.init(), first.x[:])
        classes = output.shape[-1] if self.model.classifies else 1
        table = (classes + 1) * (classes + 2) + 4 * BINS
        return table * self.federation.clients * max(1, self.federation.groups)


class OneRun:
    """One run of a stack, in the form of an engine, for its evaluation."""

    here, by_client = True, True

    def __init__(
        self, evaluations: Evaluations, row: int, memories: Callable[[int], dict[int, Tree]]
    ) -> None:
        self.evaluations, self.row, self._memories = evaluations, row, memories
        self.meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None = None

    @property
    def memories(self) -> dict[int, Tree]:
        return self._memories(self.row)

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        """What the clients of this run remember."""
        raise TypeError("the engine keeps the memories of a run in a stack")

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Return this run's part of an evaluation."""
        assert isinstance(work, Evaluate)
        plain = type(work.algorithm) is Algorithm
        found = self.evaluations.of((plain, work.part, work.full), self.row, round)
        place = self.row % self.evaluations.block(work.full)
        total, each = (
            # a copy, as the caller may change what it gets, and it can be asked for again
            tree.map(lambda leaf: leaf[place].to("cpu", copy=True), values)
            for values in (found.total, found.each)
        )
        return Replies(ids, total, each)
