"""Sums replies independently of the order in which they arrive."""

from __future__ import annotations

from collections.abc import Callable

import torch

from evenhand import tree
from evenhand.engines.fold import Fold
from evenhand.flower.spool import Spool
from evenhand.messages import Replies, Reply


class OrderedSum:
    """Sums replies in the order of ``clients``, as the simulator does, when all have arrived."""

    def __init__(self, clients: list[int], spool: Spool | None = None) -> None:
        self._clients, self._spool = clients, spool or Spool()

    def add(self, client: int, reply: Reply | None) -> None:
        """Add a client's reply; None if none counts."""
        if reply is not None:
            self._spool.put(client, reply)

    def replies(self, as_counted: Callable[[int, Reply], Reply] | None = None) -> Replies:
        """The sum; clients that were not added do not count.

        ``as_counted`` returns the reply that counts instead of a client's.
        """
        fold, counted = Fold(1, len(self._clients)), []
        with self._spool as spool:
            for place, client in enumerate(self._clients):
                if client not in spool:
                    continue
                reply = spool.take(client)
                if as_counted is not None:
                    reply = as_counted(client, reply)
                total, each = (tree.map(lambda leaf: leaf[None], values) for values in reply)
                row, run = torch.tensor([place]), torch.zeros(1, dtype=torch.int64)
                fold.add(total, each, row, run, torch.ones(1, dtype=torch.bool))
                counted.append(place)
        places = torch.tensor(counted, dtype=torch.int64)
        ids = torch.tensor(self._clients, dtype=torch.int64)[places]
        if not counted:
            return Replies(ids, {}, {})
        total, each = fold.sums()
        return Replies(ids, tree.row(total, 0), tree.map(lambda leaf: leaf[places], each))
