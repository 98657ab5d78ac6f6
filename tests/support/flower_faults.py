"""Clients that are not heard, and servers that end in the middle of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from torch import Tensor

import evenhand as eh
from evenhand.engines import Engine, Exchange, Loop
from evenhand.engines.work import Work
from evenhand.messages import Replies, Task
from evenhand.model import Model
from tests.support.flower_grid import InProcessGrid


@dataclass(frozen=True)
class Unheard(Engine):
    """The simulator's loop, where some clients are never asked to do some work."""

    lost: tuple[tuple[str, int, int], ...]  # work, round, client

    def attach(self, model: Model, federation: eh.Federation, seed: int) -> Exchange:
        inner: Any = Loop().attach(model, federation, seed)
        ask = inner.exchange

        def exchange(work: Work, task: Task, ids: Tensor, round: int) -> Replies:
            rows = [
                row
                for row, client in enumerate(ids.tolist())
                if (work.name, round, client) not in self.lost
            ]
            if not rows:
                return Replies(ids[:0], {}, {})
            return ask(
                work,
                Task(task.shared, eh.tree.map(lambda leaf: leaf[rows], task.own)),
                ids[rows],
                round,
            )

        inner.exchange = exchange
        return inner


def during(grid: InProcessGrid, round: int, work: str = "train") -> bool:
    """Whether the last message that was sent is about this work."""
    about = grid.sent[-1].content.get("about", {})
    return (about.get("work"), about.get("round")) == (work, round)


class Killed(BaseException):
    """Ends the server, and nobody catches it."""


class Dying(InProcessGrid):
    """Ends the server once, at a moment of the work of a round."""

    # "push", before nodes have it; "pull", when half of them have answered
    moment: tuple[str, str, int] | None = None

    def _at(self, moment: str) -> bool:
        if (
            self.moment is None
            or self.moment[0] != moment
            or not during(self, self.moment[2], self.moment[1])
        ):
            return False
        self.moment = None
        return True

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = super().push_messages(messages)
        if self._at("push"):
            raise Killed
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        names = list(message_ids)
        if self._at("pull"):
            super().pull_messages(names[::2])
            raise Killed
        return super().pull_messages(names)
