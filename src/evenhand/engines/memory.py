"""The memories of clients between rounds, stacked: a row for each client that has one."""

from __future__ import annotations

import copy
import os
from itertools import repeat

import torch
from torch import Tensor

from evenhand import tree
from evenhand.tree import Tree

# share of the device's free memory that the memories of all clients may take; if they need more,
# they stay in main memory
SHARE = 0.25
FIRST_ROWS = 64


class Memories:
    """Memories by client number; with several runs, the clients of each run follow the last run's.

    Args:
        clients: how many there may be at most.
        device: where clients work; memories are kept there if all of them fit.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self.clients, self.device = clients, device
        self._table: Tree = {}
        self._rows: dict[int, int] = {}
        self._earlier: Memories | None = None  # before the last round of a method, in another form

    def recall(self, clients: list[int], first: Tree) -> Tree:
        """Stacked memories of ``clients``; ``first`` for those that have not worked yet."""
        rows = list(map(self._rows.get, clients, repeat(-1)))
        if max(rows) < 0 and self._earlier is not None:
            return self._earlier.recall(clients, first)
        if max(rows) < 0:
            return tree.map(
                lambda leaf: leaf.to(self.device).expand(len(clients), *leaf.shape), first
            )
        index = torch.tensor(rows)
        found = tree.map(
            lambda leaf: leaf[index.clamp(min=0).to(leaf.device)].to(self.device), self._table
        )
        if min(rows) >= 0:
            return found
        known = (index >= 0).to(self.device)
        return tree.map(
            lambda old, new: torch.where(known.reshape(-1, *[1] * new.ndim), old, new.to(old)),
            found,
            first,
        )

    def remember(self, clients: list[int], stacked: Tree, good: Tensor) -> None:
        """Keep the rows of ``stacked`` that are ``good`` (k,)."""
        kept: list[int] = good.nonzero().flatten().tolist()
        if not stacked or not kept:
            return
        # the last round of a method may leave another kind of memory
        if not self._table or self._table.keys() != stacked.keys():
            self._earlier = copy.copy(self) if self._table else None
            self._table, self._rows = self._empty(stacked), {}
        keepers = clients if len(kept) == len(clients) else [clients[row] for row in kept]
        unknown = [client for client in keepers if client not in self._rows]
        self._rows.update(
            zip(unknown, range(len(self._rows), len(self._rows) + len(unknown)), strict=True)
        )
        there = len(tree.leaves(self._table)[0])
        if len(self._rows) > there:
            room = max(FIRST_ROWS, there, len(self._rows) - there)
            self._table = tree.map(
                lambda leaf: torch.cat([leaf, leaf.new_empty(room, *leaf.shape[1:])]), self._table
            )
        rows, chosen = torch.tensor([self._rows[client] for client in keepers]), torch.tensor(kept)
        for table, new in zip(tree.leaves(self._table), tree.leaves(stacked), strict=True):
            table[rows.to(table.device)] = new[chosen.to(new.device)].to(table.device)

    def one_by_one(self, first: int = 0, count: int | None = None) -> dict[int, Tree]:
        """A copy of each client's memory, on the CPU.

        Only of ``count`` clients from ``first`` on, renumbered from 0.
        """
        chosen = {
            client - first: row
            for client, row in sorted(self._rows.items())
            if count is None or first <= client < first + count
        }
        there = list(chosen.values())
        home = tree.map(
            lambda leaf: leaf[torch.tensor(there, dtype=torch.int64, device=leaf.device)].cpu(),
            self._table,
        )
        return {
            client: tree.map(lambda leaf, place=place: leaf[place].clone(), home)
            for place, client in enumerate(chosen)
        }

    def load(self, memories: dict[int, Tree]) -> None:
        """Replace all memories by these, in the form of :meth:`one_by_one`."""
        self._table, self._rows, self._earlier = {}, {}, None
        clients = sorted(memories)
        if clients:
            self.remember(
                clients,
                tree.stack([memories[client] for client in clients]),
                torch.ones(len(clients), dtype=torch.bool),
            )

    def _empty(self, stacked: Tree) -> Tree:
        needed = self.clients * sum(
            leaf[0].numel() * leaf.element_size() for leaf in tree.leaves(stacked)
        )
        device = self.device if needed <= SHARE * free_memory(self.device) else torch.device("cpu")
        return tree.map(
            lambda leaf: torch.empty(0, *leaf.shape[1:], dtype=leaf.dtype, device=device), stacked
        )


def free_memory(device: torch.device) -> int:
    """Free bytes on ``device``, including those that torch holds without using them."""
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 2 << 30  # the system does not say: assume 2 GB
