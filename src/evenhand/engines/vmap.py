"""The stacking engine: all clients of a chunk side by side with ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from evenhand import tree
from evenhand.data.population import Population
from evenhand.engines.base import Engine, Exchange, with_samples
from evenhand.engines.batching import Batching, ChunkFunction, ChunkReply, ClientFunction
from evenhand.engines.graphs import Captured, GraphMemory
from evenhand.engines.memory import free_memory
from evenhand.engines.replay import Replayed
from evenhand.engines.simulator import Simulator
from evenhand.engines.widths import padded_widths
from evenhand.errors import require_whole
from evenhand.layers.grouped import BLOCK
from evenhand.model import Model
from evenhand.torch_private import grad
from evenhand.tree import Tree

MEMORY_SHARE = 0.25  # share of the free memory for one chunk
# bytes of clients' values; with smaller chunks, threads wait for each other in Python
WORTH_A_THREAD = 256 << 20


@dataclass(frozen=True)
class Vmap(Engine):
    """Clients side by side.

    Args:
        chunk: the largest number of clients trained at once; None chooses it from free memory.
            Results do not depend on it, except for the random numbers of dropout.
        trace: replay traced operations, or CUDA graphs on a GPU. Turn it off for a module that
            draws Python random numbers in ``forward``.
        compile: on a GPU, fuse the operations of a local step with torch's compiler: True at once,
            None when it has been called a thousand times, False never.
    """

    chunk: int | None = None
    trace: bool = True
    compile: bool | None = None

    def __post_init__(self) -> None:
        require_whole("chunk", self.chunk, 1, optional=True)

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        in_blocks = model.device.type == "cpu" and model.has((nn.modules.conv._ConvNd,))
        return Simulator(model, with_samples(population), seed, SideBySide(self, model, in_blocks))


class SideBySide(Batching):
    """Chunks of clients that are padded to the same width."""

    hint = '; if the module cannot be stacked over clients, use engine="loop"'

    def __init__(self, settings: Vmap, model: Model, in_blocks: bool = False) -> None:
        device = model.device
        super().__init__(workers=torch.get_num_threads() if device.type == "cpu" else 1)
        self.settings, self.model, self.device = settings, model, device
        # on a GPU, one product of all clients with a frozen layer is much faster than one of each
        self._factors = model.factors() if device.type == "cpu" else {}
        # convolutions on a CPU are fastest with few clients at once, whose data fit into its
        # cache
        self._in_blocks = in_blocks
        self._graphs = GraphMemory() if device.type == "cuda" and settings.trace else None
        self._widths: dict[str, Tensor] = {}  # by part of the data
        self._room: int | None = None
        self._much_work = False

    def widths(self, part: str, sizes: Tensor, all_sizes: Tensor) -> Tensor:
        if part not in self._widths:
            self._widths[part] = padded_widths(all_sizes)
        widths = self._widths[part]
        return widths[torch.searchsorted(widths, sizes)]  # the smallest width that holds the client

    def plan(self, kinds: Tensor, bytes_of: Callable[[int], int]) -> list[Tensor]:
        chunks: list[Tensor] = []
        values = 0  # bytes of the whole cohort
        distinct = sorted(set(kinds.tolist()))
        for kind in distinct:
            rows = (kinds == kind).nonzero().flatten() if distinct[1:] else torch.arange(len(kinds))
            each = bytes_of(kind)
            values += each * len(rows)
            if self._in_blocks and self.settings.chunk is None:
                chunks += rows.tensor_split(_blocks(len(rows), self.workers))
            else:
                chunks += torch.split(rows, self.settings.chunk or self._most(len(rows), each))
        self._much_work = self._in_blocks or values > WORTH_A_THREAD
        return chunks

    def _most(self, clients: int, each: int) -> int:
        """Clients in a chunk, as many as fit into memory.

        On a CPU with much work there is at least one chunk for every worker.
        """
        # chosen once, since chunks of another size would be traced and captured again
        if self._room is None:
            self._room = int(MEMORY_SHARE * free_memory(self.device)) // self.workers
            if self.device.type == "cpu":
                self._room = min(self._room, WORTH_A_THREAD)
        pieces = -(-clients // max(1, self._room // each))
        if pieces > 1:
            pieces = -(-pieces // self.workers) * self.workers
        return -(-clients // pieces)

    def map(self, function: ClientFunction) -> ChunkFunction:
        def with_factors(shared: Tree, inputs: Tree, factors: Tree) -> Tree:
            with self.model.using(factors):
                return function(shared, inputs)

        side_by_side = vmap(with_factors, randomness="different")

        def stacked(shared: Tree, inputs: Tree) -> Tree:
            # every client gets its own view of shared values and of frozen layers: one matrix
            # product over all of them would round differently for different numbers of clients
            clients = len(tree.leaves(inputs)[0])
            return side_by_side(
                tree.map(lambda leaf: leaf.expand(clients, *leaf.shape[1:]), shared),
                inputs,
                tree.map(lambda leaf: leaf.expand(clients, *leaf.shape), self._factors),
            )

        return stacked

    def gradient(self, objective: Callable[[Tree, Tree], Tensor]) -> ChunkFunction:
        def gradient(shared: Tree, inputs: Tree) -> Tree:
            result: Tree = grad(
                lambda variables: objective(shared, {**inputs, "variables": variables})
            )(inputs["variables"])
            return result

        return self.map(gradient)

    def replayed(self, function: ChunkFunction, often: bool = False) -> ChunkFunction:
        if not self.settings.trace:
            return function
        if self._graphs is None:
            return Replayed(function)
        return Captured(function, self._graphs, self.settings.compile if often else False)

    def outermost(self, function: ChunkFunction) -> ChunkFunction:
        on_cpu = self.settings.trace and self._graphs is None
        return Replayed(function, outermost=True) if on_cpu else function

    def copy(self, values: Tree, name: str) -> Tree:
        return (
            super().copy(values, name) if self._graphs is None else self._graphs.copy(values, name)
        )

    def repeat(self, step: ChunkFunction, shared: Tree, inputs: Tree, batches: Tree) -> None:
        if isinstance(step, Replayed):
            step.repeat(shared, inputs, batches)
        else:
            super().repeat(step, shared, inputs, batches)

    def is_brief(self, step: ChunkFunction) -> bool:
        return isinstance(step, Replayed) and any(run is not None for run in step.together.values())

    def fixed(self, values: Tree, name: str) -> Tree:
        return values if self._graphs is None else self._graphs.copy(values, name)

    def run(self, jobs: Iterable[Callable[[], ChunkReply]], parallel: bool) -> Iterator[ChunkReply]:
        yield from super().run(jobs, parallel and self._much_work)


def _blocks(clients: int, workers: int) -> int:
    """The number of blocks of two to four clients; the same for each worker if possible."""
    least = -(-clients // BLOCK)
    return max(least, min(-(-least // workers) * workers, clients // 2))
