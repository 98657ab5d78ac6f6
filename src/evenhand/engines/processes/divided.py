"""An exchange whose clients are divided among the processes of a run."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evenhand import tree
from evenhand.data.population import Population
from evenhand.engines.base import Exchange
from evenhand.engines.processes.group import launched, several
from evenhand.engines.processes.meeting import ProcessError, digest, gather_objects, meet
from evenhand.engines.processes.messages import (
    Form,
    add_up,
    common_form,
    gather_rows,
    pick,
)
from evenhand.engines.work import Evaluate, Work
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.tree import Tree


def split(exchange: Exchange, model: Model, population: Population) -> Exchange:
    """``exchange`` divided among the processes; unchanged if there is only one.

    All processes must have the same model and the same data.
    """
    if not several():
        if launched():
            warnings.warn(
                f"torchrun has started {os.environ['WORLD_SIZE']} processes, but each trains by"
                " itself; put the training inside `with evenhand.engines.processes.join():`",
                stacklevel=4,  # where fit is called
            )
        return exchange
    content = hashlib.sha256(population.fingerprint().encode())
    for name, value in model.whole().items():
        content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        content.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    meet("the start")
    if len(set(gather_objects(content.hexdigest()))) > 1:
        raise ProcessError(
            "the processes do not start from the same model and data; call torch.manual_seed before"
            " making the module, and partition the data with the same seed everywhere"
        )
    return Split(exchange, model, population)


class Split:
    """An exchange whose clients are divided among processes."""

    here, by_client = True, True

    def __init__(self, inner: Exchange, model: Model, population: Population) -> None:
        self.inner, self.model, self.population = inner, model, population
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None = None
        # (n,) where a client with a memory works, also after a checkpoint is loaded
        self._home = deal(population.sizes("train"), self.world)
        # (n,) where it got a memory unexpectedly; -1 for other clients
        self._kept_at = torch.full((population.clients,), -1)
        # by identity: whether a kind of work needs memories; None: not known
        self._remembering: dict[int, tuple[Work, bool | None]] = {}

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Let clients ``ids`` work on ``task``, each on its process."""
        if not len(ids):
            return self.inner.exchange(work, task, ids, round)
        place = self._places(work, ids)
        mine = (place == self.rank).nonzero().flatten()
        unknown = self._remembers(work) is None
        replies, memories = Replies(ids[:0], {}, {}), 0
        failure: Exception | None = None
        try:
            if len(mine):
                self.inner.meanwhile = self._upcoming if self.meanwhile is not None else None
                replies = self.inner.exchange(
                    work, Task(task.shared, pick(task.own, mine)), ids[mine], round
                )
            memories = len(self.inner.memories) if unknown else 0
        except Exception as error:
            failure = error
        total: Tree = replies.total
        rows: Tree = {"ids": replies.ids, "each": replies.each}
        at = f"{_description(work)}, round {round + 1}, clients {digest(ids.numpy().tobytes()):x}"
        form = Form.of(rows, total) if len(replies.ids) else None
        met = meet(at, failure, form, len(replies.ids), memories)
        answered = int(met.rows.sum())
        if not answered:
            return replies
        if unknown:  # work that starts without a memory may leave one
            self._remembering[id(work)] = (work, bool(met.memories.any()))
            if met.memories.any():
                self._kept_at[ids] = place
        form = common_form(form, met)
        if not len(replies.ids):  # contributes zeros to the sums, and no rows
            total, rows = form.zeros(self.model.device), form.no_rows(self.model.device)
        total = add_up(total)
        if answered == len(ids):  # every process knows which clients answered
            rows = gather_rows({"each": rows["each"]}, met.rows)
            found = torch.cat([ids[place == process] for process in range(self.world)])
        else:
            rows = gather_rows(rows, met.rows)
            found = rows["ids"]
        order = found.argsort()
        return Replies(found[order], total, pick(rows["each"], order))

    def exchange_runs(
        self,
        work: Work,
        task: Task,
        ids: Tensor,
        round: int,
        seeds: Tensor,
        runs: Tensor | None = None,
    ) -> tuple[Replies, Tensor]:
        """The exchanges of several runs, each run on one process.

        So their sums have the same bits as with one process.

        Args:
            runs: (R,) the run of each row; by default the first R.
        """
        numbers = torch.arange(len(ids)) if runs is None else runs
        place = numbers % self.world
        mine = (place == self.rank).nonzero().flatten()
        rows: Tree = {}
        failure: Exception | None = None
        try:
            if len(mine):
                inner: Any = self.inner
                own = Task(pick(task.shared, mine), pick(task.own, mine))
                which = () if runs is None else (numbers[mine] // self.world,)
                replies, good = inner.exchange_runs(
                    work, own, ids[mine], round, seeds[mine], *which
                )
                rows = {"total": replies.total, "each": replies.each, "good": good}
        except Exception as error:
            failure = error
        at = (
            f"{_description(work)} of {len(ids)} runs, round {round + 1}, clients"
            f" {digest(ids.numpy().tobytes()):x}"
        )
        form = Form.of(rows) if rows else None
        met = meet(at, failure, form, len(mine))
        form = common_form(form, met)
        rows = gather_rows(rows or form.no_rows(self.model.device), met.rows)
        order = torch.cat(
            [(place == process).nonzero().flatten() for process in range(self.world)]
        ).argsort()
        rows = pick(rows, order)
        return Replies(ids, rows["total"], rows["each"]), rows["good"]

    @property
    def memories(self) -> dict[int, Tree]:
        """The memories of the clients of all processes, by id; all processes must call this."""
        return self._collected("memories", self.inner.memories)

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._kept_at.fill_(-1)
        self.inner.memories = {
            client: memory
            for client, memory in memories.items()
            if int(self._home[client]) == self.rank
        }

    def memories_of(self, run: int) -> dict[int, Tree]:
        """The clients' memories in one of several runs; all processes must call this."""
        inner: Any = self.inner
        place, mine = run % self.world, run // self.world
        return self._collected(
            f"memories of run {run}", inner.memories_of(mine) if place == self.rank else {}
        )

    def remember_runs(self, memories: list[dict[int, Tree]]) -> None:
        """Give each of several runs its memories."""
        inner: Any = self.inner
        if own := memories[self.rank :: self.world]:
            inner.remember_runs(own)

    def _upcoming(self, after: int) -> tuple[Work, Tensor, int] | None:
        """The next work of this process."""
        ask, self.meanwhile = self.meanwhile, None
        upcoming = None if ask is None else ask(after)
        if upcoming is None:
            return None
        work, ids, round = upcoming
        mine = ids[self._places(work, ids) == self.rank]
        return (work, mine, round) if len(mine) else None

    def _places(self, work: Work, ids: Tensor) -> Tensor:
        """(K,) the process that each client works on."""
        dealt = deal(self.population.sizes(work.part)[ids], self.world)
        if work.pooled:  # memories play no part
            return dealt
        return torch.where(
            self._kept_at[ids] >= 0,
            self._kept_at[ids],
            self._home[ids] if self._remembers(work) else dealt,
        )

    def _remembers(self, work: Work) -> bool | None:
        """Whether clients need their memories for this work.

        None for training that starts without one and has not been seen yet.
        """
        if id(work) not in self._remembering:
            starts_with_one = bool(work.first_memory(self.model.init()))
            self._remembering[id(work)] = (
                work,
                starts_with_one or (None if work.local is not None else False),
            )
        return self._remembering[id(work)][1]

    def _collected(self, at: str, memories: dict[int, Tree]) -> dict[int, Tree]:
        """The memories of all processes."""
        rows: Tree = {}
        failure: Exception | None = None
        try:
            if memories:
                rows = {
                    "ids": torch.tensor(list(memories)),
                    "memory": tree.stack([tree.to(memory, "cpu") for memory in memories.values()]),
                }
        except Exception as error:
            failure = error
        form = Form.of(rows) if rows else None
        met = meet(at, failure, form, len(memories))
        if not met.rows.any():
            return {}
        form = common_form(form, met)
        rows = gather_rows(rows or form.no_rows(self.model.device), met.rows)
        return {i: tree.row(rows["memory"], row) for row, i in enumerate(rows["ids"].tolist())}


def deal(sizes: Tensor, hands: int) -> Tensor:
    """(K,) the process of each client; all get about the same number of clients and samples.

    Clients are assigned from large to small, forth and back over the processes.

    >>> deal(torch.tensor([5, 9, 1, 7]), 2)
    tensor([1, 0, 0, 1])
    """
    turn = torch.arange(len(sizes)) % (2 * hands)
    dealt = torch.empty_like(turn)
    dealt[sizes.argsort(descending=True, stable=True)] = torch.minimum(turn, 2 * hands - 1 - turn)
    return dealt


def _description(work: Work) -> str:
    return f"{work.name}, in full" if isinstance(work, Evaluate) and work.full else work.name
