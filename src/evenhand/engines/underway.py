"""Replies that a GPU is still computing, so that the host can already start the next round."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from evenhand import tree
from evenhand.messages import Replies
from evenhand.tree import Tree


class Underway(Replies):
    """Sums of the finite replies, and the clients that sent them once that is known.

    Args:
        asked: (K,) all clients that were asked.
        sums: over the good replies, on the device.
        good: (K,) whether each reply is finite, on the device.
    """

    def __new__(cls, asked: Tensor, sums: Tree, good: Tensor) -> Underway:
        self = super().__new__(cls, asked, sums, {})
        self._good = good
        self._told = torch.empty(good.shape, dtype=torch.bool, pin_memory=True).copy_(
            good, non_blocking=True
        )
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(good.device))
        return self

    _good: Tensor
    _told: Tensor
    _done: torch.cuda.Event

    @cached_property
    def ids(self) -> Tensor:
        self._done.synchronize()
        asked: Tensor = self[0]
        return asked if bool(self._told.all()) else asked[self._told]

    @cached_property
    def total(self) -> Tree:
        return numbers_at_home(self.sums)

    @property
    def sums(self) -> Tree:
        sums: Tree = self[1]
        return sums

    @property
    def underway(self) -> bool:
        return "ids" not in self.__dict__

    def unless_void(self, before: Tree, after: Tree) -> Tree:
        leaves = tree.leaves(before) + tree.leaves(after)
        if (
            self.underway
            and before.keys() == after.keys()
            and all(leaf.device == self._good.device for leaf in leaves)
        ):
            return tree.where(self._good.any(), after, before)
        return super().unless_void(before, after)


def numbers_at_home(values: Tree) -> Tree:
    """Move numbers to the CPU, where servers need them; trees like the model stay on the device."""
    return {
        name: value if isinstance(value, dict) else value.cpu() for name, value in values.items()
    }
