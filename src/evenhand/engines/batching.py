"""How an engine groups clients into chunks and computes a chunk; engines differ only here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Memory
from evenhand.tree import Tree

ClientFunction = Callable[[Tree, Tree], Tree]  # (shared, one client's inputs) -> outputs
# (shared, stacked inputs) -> stacked outputs; what is shared has one row, or one for each client
ChunkFunction = Callable[[Tree, Tree], Tree]


class ChunkReply(NamedTuple):
    """Stacked replies and memories of a chunk, and which of its clients count."""

    good: Tensor  # (k,), perhaps on the device
    total: Tree  # empty if ``summed`` has them
    each: Tree
    memory: Memory
    sums: Tree | None = None  # of what is summed, over those that count

    @property
    def nothing_but_sums(self) -> bool:
        return self.sums is not None and not self.each and not self.memory


class Batching(ABC):
    """Cuts a cohort into chunks and applies a client's function to a whole chunk."""

    hint = ""  # what a user can do when a client's work fails

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def widths(self, part: str, sizes: Tensor, all_sizes: Tensor) -> Tensor:
        """The lengths that the data of clients with ``sizes`` are padded to.

        ``all_sizes`` (n,) are those of the whole federation.
        """

    @abstractmethod
    def plan(self, kinds: Tensor, bytes_of: Callable[[int], int]) -> list[Tensor]:
        """Rows of a cohort that form a chunk, in the order in which chunks are folded.

        Only rows of the same kind (``kinds`` (M,), their width) share a chunk; ``bytes_of``
        estimates a client's memory from its kind.
        """

    @abstractmethod
    def map(self, function: ClientFunction) -> ChunkFunction:
        """``function`` for a whole chunk."""

    @abstractmethod
    def gradient(self, objective: Callable[[Tree, Tree], Tensor]) -> ChunkFunction:
        """The gradient of ``objective(shared, inputs)`` in ``inputs["variables"]``, for a chunk."""

    def replayed(self, function: ChunkFunction, often: bool = False) -> ChunkFunction:
        """``function``, in a form that is faster when called again.

        ``often``: this function gets most of the calls.
        """
        return function

    def outermost(self, function: ChunkFunction) -> ChunkFunction:
        """A function that calls replayed ones, in a form that is faster when called again."""
        return function

    def copy(self, values: Tree, name: str) -> Tree:
        """``values`` in memory that may be changed in place; the same ``name`` reuses it."""
        return tree.map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), values)

    def repeat(self, step: ChunkFunction, shared: Tree, inputs: Tree, batches: Tree) -> None:
        """Take a step, which changes ``inputs`` in place, on each row of ``batches``."""
        for batch in tree.rows(batches):
            step(shared, {**inputs, "batch": batch})

    def is_brief(self, step: ChunkFunction) -> bool:
        """Whether several calls of ``step`` are so short that they are run at once."""
        return False

    def fixed(self, values: Tree, name: str) -> Tree:
        """``values``, placed where a replayed function reads them without a copy."""
        return values

    def run(self, jobs: Iterable[Callable[[], ChunkReply]], parallel: bool) -> Iterator[ChunkReply]:
        """Results of the jobs, in order. ``parallel``: they may run side by side."""
        if not parallel or self.workers == 1:
            yield from (job() for job in jobs)
            return
        if self._pool is None:  # threads are kept, since each new one copies the module
            self._pool = ThreadPoolExecutor(
                self.workers, initializer=torch.set_num_threads, initargs=(1,)
            )
        running: deque[Future[ChunkReply]] = deque()
        for job in jobs:
            running.append(self._pool.submit(job))
            # finished chunks wait for their turn; limit how many do
            if len(running) > self.workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
