"""One client on its own machine, with the same bits as in the loop engine."""

from __future__ import annotations

import torch

from evenhand import tree
from evenhand.algorithm import Memory
from evenhand.data.federation import Federation
from evenhand.engines.chunks import Chunks
from evenhand.engines.loop import OneByOne
from evenhand.engines.threads import one_thread
from evenhand.engines.work import Work
from evenhand.messages import Reply, Task
from evenhand.model import Model

HERE = torch.zeros(1, dtype=torch.int64)  # the only client


class SingleClient:
    """One client, with the batches and random numbers it has in the whole federation.

    Args:
        federation: the data of this client only.
        seed: the run's.
        number: the client's, in the whole federation.
    """

    def __init__(self, model: Model, federation: Federation, seed: int, number: int) -> None:
        if federation.clients != 1:
            raise ValueError(
                f"a node must hold the data of one client, got {federation.clients}; start"
                " one node for each"
            )
        self.model, self._seed = model, torch.tensor([seed])
        self._chunks = Chunks(model, federation, OneByOne(workers=1), seed, torch.tensor([number]))

    def answer(self, work: Work, task: Task, round: int, memory: Memory) -> tuple[Reply, Memory]:
        """The client's reply to ``task``, whose ``own`` has one row, and its new memory."""
        shared, own = (
            tree.floating(values, self.model.dtype, self.model.device)
            for values in (tree.map(lambda leaf: leaf[None], task.shared), task.own)
        )
        with self.model.arithmetic(), one_thread():
            if work.pooled:
                replies = self._chunks.pooled(work, shared, HERE[None])
                each = tree.map(lambda leaf: leaf[0, 0], replies.each)
                return Reply(tree.row(replies.total, 0), each), memory
            prepared = self._chunks.prepare(work)
            before = tree.to(tree.stack([memory or prepared.first_memory]), self.model.device)
            members = self._chunks.members(work, HERE, HERE, HERE, self._seed)
            found = self._chunks.reply(prepared, shared, own, before, members, round)
        total, each, after = (
            tree.to(tree.row(values, 0), "cpu")
            for values in (found.total, found.each, found.memory)
        )
        return Reply(total, each), memory if work.local is None else after
