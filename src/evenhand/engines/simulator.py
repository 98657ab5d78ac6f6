"""Clients simulated in this process: the part that the loop and vmap engines share.

Both work on chunks of clients whose values are stacked; they differ in how large a chunk is and in
how a function written for one client is applied to a chunk (:class:`Batching`). Several runs can be
trained together: each row then also belongs to a run, and shared values are shared by the rows of
a run.

A client's result never depends on its neighbours: its padded shapes are fixed by its own size, a
chunk's arithmetic runs on one thread (chunks may run side by side), and sums are folded client by
client in a fixed order, in float64. So chunk sizes, the order in which a cohort is listed and the
number of threads change no bit of the result (on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Memory
from evenhand.data.federation import Federation
from evenhand.engines.batching import Batching, ChunkReply
from evenhand.engines.chunks import Chunks
from evenhand.engines.fold import Fold
from evenhand.engines.freed import keep_freed_memory
from evenhand.engines.memory import Memories
from evenhand.engines.prepared import Prepared
from evenhand.engines.threads import one_thread
from evenhand.engines.underway import Underway, numbers_at_home
from evenhand.engines.visits import Members
from evenhand.engines.work import Work
from evenhand.messages import Replies, Task
from evenhand.model import Model
from evenhand.tree import Tree


class Simulator:
    """Exchanges with clients whose data and memories are in this process."""

    here, by_client = True, True

    def __init__(self, model: Model, federation: Federation, seed: int, batching: Batching) -> None:
        self.model, self.federation, self.seed, self.batching = model, federation, seed, batching
        if model.device.type == "cpu":
            keep_freed_memory()
        self._chunks = Chunks(model, federation, batching, seed)
        self._memories: Memories | None = None  # of all runs, see _keys
        # returns the work of a later round
        self.meanwhile: Callable[[int], tuple[Work, Tensor, int] | None] | None = None

    # ---- one run

    @property
    def memories(self) -> dict[int, Tree]:
        """The clients' memories by number; a client without an entry has its initial memory."""
        return self.memories_of(0)

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self.remember_runs([memories])

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Let clients ``ids`` work on ``task``; see :class:`evenhand.engines.base.Exchange`."""
        lifted = Task(*(tree.map(lambda leaf: leaf[None], values) for values in task))
        replies, good = self.exchange_runs(
            work, lifted, ids[None], round, torch.tensor([self.seed]), wait=False
        )
        total, each = (tree.row(values, 0) for values in (replies.total, replies.each))
        kept = good[0]
        if kept.is_cuda:
            return Underway(ids, total, kept)
        total, each = numbers_at_home(total), numbers_at_home(each)
        if bool(kept.all()):
            return Replies(ids, total, each)
        if not bool(kept.any()):
            return Replies(ids[:0], {}, {})
        return Replies(ids[kept], total, tree.map(lambda leaf: leaf[kept.to(leaf.device)], each))

    # ---- several runs together

    def memories_of(self, run: int) -> dict[int, Tree]:
        """The clients' memories in one of the runs."""
        clients = self.federation.clients
        return {} if self._memories is None else self._memories.one_by_one(run * clients, clients)

    def remember_runs(self, memories: list[dict[int, Tree]]) -> None:
        """Set the clients' memories in each of the runs."""
        clients = self.federation.clients
        self._memories = Memories(clients * len(memories), self.model.device)
        self._memories.load(
            {
                run * clients + client: kept
                for run, known in enumerate(memories)
                for client, kept in known.items()
            }
        )

    def exchange_runs(
        self,
        work: Work,
        task: Task,
        ids: Tensor,
        round: int,
        seeds: Tensor,
        numbers: Tensor | None = None,
        wait: bool = True,
    ) -> tuple[Replies, Tensor]:
        """The exchanges of R runs at once; the first dimension of every tensor is the run.

        Args:
            task: shared (R, ...), own (R, K, ...).
            ids: (R, K), ascending for each run.
            seeds: (R,) the runs' seeds.
            numbers: (R,) which of all runs they are, for their memories; None for the first R.
            wait: wait for the GPU to know which replies are finite. Otherwise, if there are only
                sums, that may still be on the GPU.

        Returns:
            Replies with ids (R, K), total (R, ...) and each (R, K, ...), on the model's device, and
            which replies are finite (R, K); the others are neither in the totals nor remembered.
        """
        runs, count = ids.shape
        shared, own = (tree.floating(t, self.model.dtype, self.model.device) for t in task)
        with self.model.arithmetic():
            if work.pooled:
                found = self._chunks.pooled(work, shared, ids)
                return found, torch.ones(runs, count, dtype=torch.bool)
            run = torch.arange(runs).repeat_interleave(count)
            if self.meanwhile is not None and runs == 1 and not self._chunks.on_gpu:
                self._chunks.ahead.choose_many((work, ids[0], round), self.meanwhile)
            everyone = self._chunks.members(
                work, ids.reshape(-1), run, run if numbers is None else numbers[run], seeds[run]
            )
            own = tree.map(lambda leaf: leaf.reshape(runs * count, *leaf.shape[2:]), own)
            total, each, good = self._work(
                self._chunks.prepare(work), shared, own, everyone, round, runs, wait
            )
        each = tree.map(lambda leaf: leaf.reshape(runs, count, *leaf.shape[1:]), each)
        return Replies(ids, total, each), good.reshape(runs, count)

    def _work(
        self,
        prepared: Prepared,
        shared: Tree,
        own: Tree,
        everyone: Members,
        round: int,
        runs: int,
        wait: bool,
    ) -> tuple[Tree, Tree, Tensor]:
        """Totals of each run, rows of single clients, and who counts."""
        work, count = prepared.work, len(everyone.ids)
        fold, good = Fold(runs, count), torch.zeros(count, dtype=torch.bool)
        kinds = self._chunks.kinds(work, everyone)

        def reply(rows: Tensor) -> ChunkReply:
            members, given = everyone.pick(rows), shared
            if runs > 1:
                given = tree.map(lambda leaf: leaf[members.run.to(leaf.device)], shared)
            mine = own
            if len(rows) != count:
                mine = tree.map(lambda leaf: leaf[rows.to(leaf.device)], own)
            memory = self._recall(prepared, members, runs)
            # on a CPU, sums go on from one chunk to the next, client by client
            summed = runs == 1 and (self._chunks.on_gpu or len(rows) == count)
            found = self._chunks.reply(prepared, given, mine, memory, members, round, summed)
            self._look_ahead()
            return found

        chunks = self.batching.plan(kinds, prepared.bytes_of_a_client)
        found = self.batching.run(
            [partial(reply, rows) for rows in chunks],
            parallel=len(chunks) > 1 and not self.model.stochastic,
        )
        with one_thread():
            for rows, result in zip(chunks, found, strict=True):
                if result.nothing_but_sums and len(chunks) == 1 and not wait:
                    return (
                        tree.map(lambda leaf: leaf[None].clone(), result.sums or {}),
                        {},
                        result.good.clone(),
                    )
                good[rows] = result.good.cpu()
                fold.add(
                    result.total, result.each, rows, everyone.run[rows], good[rows], result.sums
                )
                if work.local is not None and result.memory:
                    self._remember(everyone.pick(rows), result, good[rows], runs)
        return *fold.sums(), good

    def _look_ahead(self) -> None:
        """Get ready for the next exchange, while the GPU works on this one."""
        upcoming, self.meanwhile = self.meanwhile, None
        if upcoming is not None and self._chunks.on_gpu and (next := upcoming(1)) is not None:
            self._chunks.ahead.choose([next])

    def _recall(self, prepared: Prepared, members: Members, runs: int) -> Memory:
        if self._memories is None:
            if not prepared.first_memory:
                return {}
            self._memories = Memories(self.federation.clients * runs, self.model.device)
        return self._memories.recall(self._keys(members), prepared.first_memory)

    def _remember(self, members: Members, result: ChunkReply, good: Tensor, runs: int) -> None:
        if self._memories is None:
            self._memories = Memories(self.federation.clients * runs, self.model.device)
        self._memories.remember(self._keys(members), result.memory, good)

    def _keys(self, members: Members) -> list[int]:
        """A number for each client of each run."""
        keys: list[int] = (members.memory * self.federation.clients + members.ids).tolist()
        return keys
