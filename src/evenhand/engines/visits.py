"""The clients of a chunk, and the samples of each of their local steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand import tree
from evenhand.data.samples import Part
from evenhand.engines.widths import stacked_clients
from evenhand.local import LocalSolver, StepNoise
from evenhand.local.order import Batches
from evenhand.tree import Tree

MOST_TOGETHER = 16  # steps whose operations are run at once


class Members(NamedTuple):
    """The clients at work: a cohort or a chunk of it."""

    ids: Tensor  # (k,) in the federation that is here
    numbers: Tensor  # (k,) in the whole federation: batches and random numbers depend on them
    run: Tensor  # (k,) which row of the runs trained together each belongs to
    memory: Tensor  # (k,) the number of that run, under which it remembers
    seed: Tensor  # (k,) of that run
    sizes: Tensor  # (k,) samples
    widths: Tensor  # (k,) samples after padding

    def pick(self, rows: Tensor) -> Members:
        """The clients in ``rows``, which are ascending."""
        return self if len(rows) == len(self.ids) else self.ordered(rows)

    def ordered(self, rows: Tensor) -> Members:
        """The clients in ``rows``, in that order."""
        return Members(*(values[rows] for values in self))


class Steps(NamedTuple):
    """Local steps that the same clients, the first ones of a chunk, take one after another."""

    # of S steps: "index" (S, s, B), the samples, "weight" (S, s, B), 1 for a sample and 0 for
    # padding, "numbers" (S, s, columns) if the solver's steps differ, and "expected" (S, s), the
    # expected size of a batch, if single samples are hidden
    batches: Tree
    stacked: int  # s
    # clients still at work; finished ones stay in the stack, so that stacks have few sizes
    taking_part: int


class Visits:
    """The samples that clients visit.

    Clients with more steps come first, so that finished ones drop off the end of the stack.

    Args:
        part: the data.
        device, dtype: of the indices and weights.
        batches: those of the solver, if they are known.
    """

    def __init__(
        self,
        local: LocalSolver,
        members: Members,
        part: Part,
        round: int,
        device: torch.device,
        dtype: torch.dtype,
        batches: Batches | None = None,
    ) -> None:
        if batches is None:
            width = int(members.widths.max())
            batches = local.batches(members.numbers, members.sizes, width, round, members.seed)
        self.steps, positions, valid = batches.steps, batches.positions, batches.valid
        offsets = part.offsets[members.ids]
        self.order: Tensor | None = None  # from the chunk's order
        self.back: Tensor | None = None  # to it
        if bool((np.diff(self.steps.numpy()) > 0).any()):
            self.order = self.steps.argsort(descending=True, stable=True)
            self.back = self.order.argsort()
            self.steps, positions, valid, offsets = (
                values[self.order] for values in (self.steps, positions, valid, offsets)
            )
        self.noise: StepNoise | None = None
        if local.dp is not None:
            rows = torch.arange(len(offsets)) if self.order is None else self.order
            self.noise = StepNoise(local.dp, members.numbers[rows], members.seed[rows], round)
            sizes = members.sizes[rows].to(dtype)
            most = float(local.batch_size or sizes.max())
            self._expected = tree.there(sizes.clamp(max=most), device)
        index = (positions + offsets[:, None, None]).transpose(0, 1).contiguous()  # steps first
        weight = valid.transpose(0, 1).contiguous()
        self._batches = {
            "index": tree.there(index, device),
            "weight": tree.there(weight.to(dtype), device),
        }
        self._lengths: list[int] | None = None  # of the longest batch of each step, if hidden
        if local.dp is not None:
            grain = local.dp.batch_width(local.batch_size)
            longest = valid.sum(2).amax(0).tolist()
            self._lengths = [max(1, -(-length // grain)) * grain for length in longest]
        numbers = local.numbers(self.steps)
        self._numbers = None if numbers is None else tree.there(numbers.to(dtype), device)

    def alike(self) -> Tree | None:
        """The batches of all steps, if all clients take the same few of them."""
        ends = self.steps.numpy()
        if self.noise is not None or ends[0] != ends[-1] or not 0 < ends[0] <= MOST_TOGETHER:
            return None
        return self._between(0, int(ends[0]), len(ends))

    def in_turn(self, one_by_one: bool = False) -> Iterator[Steps]:
        """All steps; with ``one_by_one``, or if each has its own noise, each by itself."""
        one_by_one = one_by_one or self.noise is not None
        ends = self.steps.numpy()
        done = 0
        while done < ends[0]:
            taking_part = int((ends > done).sum())
            until = done + 1 if one_by_one else int(ends[taking_part - 1])
            stacked = min(len(ends), stacked_clients(taking_part))
            yield Steps(self._between(done, until, stacked), stacked, taking_part)
            done = until

    def _between(self, start: int, stop: int, stacked: int) -> Tree:
        """The batches of some steps of the first clients."""
        if len(self._batches["index"]) == 1:  # whole batches are the same at every step
            batches = tree.map(
                lambda leaf: leaf[:, :stacked].expand(stop - start, -1, -1), self._batches
            )
        else:
            batches = tree.map(lambda leaf: leaf[start:stop, :stacked], self._batches)
        if self._lengths is not None:
            width = self._lengths[min(start, len(self._lengths) - 1)]
            batches = tree.map(lambda leaf: leaf[:, :, :width].contiguous(), batches)
            batches["expected"] = self._expected[None, :stacked]
        if self._numbers is not None:
            batches["numbers"] = self._numbers[start:stop, :stacked]
        return batches
