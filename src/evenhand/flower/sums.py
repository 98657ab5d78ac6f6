"""Sums of replies that do not depend on the order in which they arrive."""

from __future__ import annotations

import torch

from evenhand import tree
from evenhand.engines.fold import Fold
from evenhand.messages import Replies, Reply


class OrderedSum:
    """Adds replies in the order of ``clients``, as the simulator does; a reply that comes early
    waits for those before it."""

    def __init__(self, clients: list[int]) -> None:
        self._clients, self._fold = clients, Fold(1, len(clients))
        self._waiting: dict[int, Reply | None] = {}
        self._next = 0
        self._counted: list[int] = []  # places in ``clients`` of those whose replies were added

    def add(self, client: int, reply: Reply | None) -> None:
        """A client's reply; None where it has none that counts."""
        self._waiting[client] = reply
        while self._next < len(self._clients) and self._clients[self._next] in self._waiting:
            self._add_next()

    def replies(self) -> Replies:
        """The sum; clients that were not added do not count."""
        while self._next < len(self._clients):
            self._add_next()
        places = torch.tensor(self._counted, dtype=torch.int64)
        ids = torch.tensor(self._clients, dtype=torch.int64)[places]
        if not self._counted:
            return Replies(ids, {}, {})
        total, each = self._fold.sums()
        return Replies(ids, tree.row(total, 0), tree.map(lambda leaf: leaf[places], each))

    def _add_next(self) -> None:
        reply = self._waiting.pop(self._clients[self._next], None)
        if reply is not None:
            total, each = (tree.map(lambda leaf: leaf[None], values) for values in reply)
            place, run = torch.tensor([self._next]), torch.zeros(1, dtype=torch.int64)
            self._fold.add(total, each, place, run, torch.ones(1, dtype=torch.bool))
            self._counted.append(self._next)
        self._next += 1
