"""One client at work on its own machine: the same computation as in the simulator's loop, to the
bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Memory
from evenhand.data.federation import Federation
from evenhand.data.samples import Part
from evenhand.engines.loop import OneByOne
from evenhand.engines.memory import Memories
from evenhand.engines.simulator import Simulator
from evenhand.engines.threads import one_thread
from evenhand.engines.visits import Members
from evenhand.engines.work import Train, Work
from evenhand.errors import RunError
from evenhand.local import LocalSGD, Schedule
from evenhand.messages import Reply, Task
from evenhand.model import Model

HERE = torch.zeros(1, dtype=torch.int64)  # a node's only client, for the simulator in it


class Node(Simulator):
    """A simulator of one client, whose batches and dropout are those of client ``number`` of the
    whole federation.

    Args:
        federation: the data of one client.
    """

    here = True

    def __init__(self, model: Model, federation: Federation, seed: int, number: int) -> None:
        if federation.clients != 1:
            raise ValueError(
                f"a node has the data of one client, got {federation.clients}; give each its own"
                " node"
            )
        super().__init__(model, federation, seed, OneByOne(workers=1))
        self.number = number

    def answer(self, work: Work, task: Task, round: int, memory: Memory) -> tuple[Reply, Memory]:
        """What the client replies to ``task``, whose own part has one row, and what it remembers
        from then on."""
        if isinstance(work, Train):
            work = replace(work, local=_numbered(work.local, self.number))
        self._samples.setdefault(
            work.part,
            getattr(self.federation, work.part).samples(self.model.dtype, self.model.device),
        )
        shared = tree.map(lambda leaf: leaf[None], task.shared)
        shared, own = (
            tree.floating(values, self.model.dtype, self.model.device)
            for values in (shared, task.own)
        )
        with self.model.arithmetic(), one_thread():
            if work.pooled:
                replies = self._judge(work, shared, HERE[None])
                return (
                    Reply(
                        tree.row(replies.total, 0), tree.map(lambda leaf: leaf[0, 0], replies.each)
                    ),
                    memory,
                )
            self._memories = Memories(1, self.model.device)
            self._memories.load({0: memory} if memory else {})
            members = self._members(work, HERE, HERE, HERE, torch.tensor([self.seed]))
            found = self._chunk(self._prepare(work), shared, own, members, HERE, round, 1)
        reply = Reply(
            *(tree.to(tree.row(values, 0), "cpu") for values in (found.total, found.each))
        )
        return reply, memory if work.local is None else tree.to(tree.row(found.memory, 0), "cpu")

    @contextmanager
    def _randomness(self, round: int, members: Members) -> Iterator[None]:
        with super()._randomness(round, members._replace(ids=members.ids + self.number)):
            yield


@dataclass(frozen=True)
class _Numbered(LocalSGD):
    """The local solver of client ``number``: the order of its samples depends on it."""

    number: int = 0

    def schedule(
        self, ids: Tensor, sizes: Tensor, width: int, round: int, seed: int | Tensor
    ) -> Schedule:
        return super().schedule(ids + self.number, sizes, width, round, seed)


def _numbered(local: LocalSGD, number: int) -> LocalSGD:
    return _Numbered(
        **{entry.name: getattr(local, entry.name) for entry in fields(LocalSGD)}, number=number
    )


def with_groups(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The same data with the groups of the whole federation, some of which may have no sample
    here."""
    if not names or federation.group_names == names:
        return federation
    unknown = set(federation.group_names) - set(names)
    if unknown or not federation.group_names:
        raise RunError(
            "the data of this node have other groups than it told at the start; start the run anew"
        )
    codes = torch.tensor([names.index(name) for name in federation.group_names])

    def part(old: Part | None) -> Part | None:
        return (
            old
            if old is None or old.group is None
            else Part(old.x, old.y, old.offsets, codes[old.group])
        )

    train = part(federation.train)
    assert train is not None
    return replace(
        federation,
        train=train,
        val=part(federation.val),
        test=part(federation.test),
        group_names=names,
    )
