"""A federation of nodes with masked sums in this process, and what its sums must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

import evenhand as eh
from evenhand import tree
from evenhand.engines import Engine, Exchange, Loop
from evenhand.engines.base import Look
from evenhand.engines.totals import question
from evenhand.engines.work import Work
from evenhand.flower.masked import layout
from evenhand.messages import Replies, Reply, Task
from evenhand.metrics.client_sums import COARSE
from evenhand.model import Model
from tests.support.federations import network, ragged
from tests.support.flower_nodes import FAST, Setting

SIZES = (20, 30, 27, 40, 12)
SECURE, FEDAVG = eh.flower.SecureSums(), eh.FedAvg()


class Masked(Setting):
    """Five nodes that mask what they send."""

    def __init__(self, directory: Path, sizes: tuple[int, ...] = SIZES, **changes: Any) -> None:
        federation = changes.pop("federation", None) or ragged(sizes)
        super().__init__(directory, federation, network(torch.float64), **changes)

    def run(self, method: eh.Algorithm = FEDAVG, rounds: int = 3, **settings: Any) -> eh.Result:
        return super().run(
            method, rounds, **{**FAST, "by_client": False, "secure": SECURE, **settings}
        )

    def plain_sums(
        self,
        method: eh.Algorithm = FEDAVG,
        rounds: int = 3,
        lost: Iterable[tuple[str, int, int]] = (),
        **settings: Any,
    ) -> eh.Result:
        """The same run in the simulator, with sums in fixed point; ``lost``: work, round and client
        that are not heard."""
        return eh.fit(
            self.module,
            self.federation,
            method,
            engine=FixedPoint(tuple(lost)),
            rounds=rounds,
            **{**FAST, "evaluate": "with training", **settings},
        )

    def count(self) -> Counter[tuple[str, int]]:
        """How many messages of each kind each node got."""
        return Counter(
            (message.metadata.message_type, message.metadata.dst_node_id)
            for message in self.grid.sent
        )


@dataclass(frozen=True)
class FixedPoint(Engine):
    """The simulator's loop, client by client, and sums in the integers of masked sums."""

    lost: tuple[tuple[str, int, int], ...] = ()

    def attach(self, model: Model, federation: eh.Federation, seed: int) -> Exchange:
        inner = Loop().attach(model, federation, seed)
        return _Summing(inner, set(self.lost))


@dataclass
class _Summing:
    inner: Any
    lost: set[tuple[str, int, int]]
    here: bool = True
    by_client: bool = False
    cells: int = COARSE
    meanwhile: Any = None
    exponents: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def memories(self) -> Any:
        return self.inner.memories

    @memories.setter
    def memories(self, memories: Any) -> None:
        self.inner.memories = memories

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        heard = [it for it in ids.tolist() if (work.name, round, it) not in self.lost]
        if not heard:
            return Replies(ids[:0], {}, {})
        replies = {it: self._reply(work, task, ids, it, round) for it in heard}
        return self._summed(question(work), [replies], len(ids), heard)[0]

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        heard = [it for it in ids.tolist() if (work.name, round, it) not in self.lost]
        if not heard:
            return Replies(ids[:0], {}, {}), Replies(ids[:0], {}, {})
        looks = {
            it: self._reply(look.work, look.task, look.ids, it, round)
            for it in look.ids.tolist()
            if it in heard
        }
        zero = tree.map(torch.zeros_like, next(iter(looks.values())))
        replies = {it: self._reply(work, task, ids, it, round) for it in heard}
        found = self._summed(
            question(work), [replies, {it: looks.get(it, zero) for it in heard}], len(ids), heard
        )
        return found[1]._replace(ids=torch.tensor(sorted(looks))), found[0]

    def _reply(self, work: Work, task: Task, ids: Tensor, client: int, round: int) -> Any:
        place = ids.tolist().index(client)
        own = tree.map(lambda leaf: leaf[place : place + 1], task.own)
        found = self.inner.exchange(work, Task(task.shared, own), torch.tensor([client]), round)
        assert not found.each
        return found.total

    def _summed(
        self, key: str, parts: list[dict[int, Any]], asked: int, heard: list[int]
    ) -> list[Replies]:
        known, total, numbers = self.exponents.get(key, {}), None, None
        for client in heard:
            form = layout.form(*(Reply(replies[client]) for replies in parts))
            numbers = layout.format_of(form, asked, known, {})
            vector, beyond = numbers.encode(form, layout.own_weight(form), must_be_finite=False)
            assert not beyond
            total = vector if total is None else total + vector
        assert total is not None
        assert numbers is not None
        decoded = numbers.decode(total, len(heard)).total
        self.exponents[key] = numbers.next_exponents(decoded)
        return [
            Replies(
                torch.tensor(heard),
                layout.tensors(decoded.get(name, {}), replies[heard[0]]),
                {},
            )
            for name, replies in zip((layout.WORK, layout.LOOK), parts, strict=False)
        ]


def about(message: Message) -> dict[str, Any]:
    """The plain values of a message."""
    return dict(message.content.get("about", {}))


def vector(message: Message) -> np.ndarray[Any, Any]:
    """The masked vector in a reply."""
    from evenhand.flower import records

    found, _ = records.read_reply(message.content)
    return np.asarray(found.total["masked"].numpy())
