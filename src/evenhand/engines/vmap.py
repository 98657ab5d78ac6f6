"""The stacking engine: all clients of a chunk side by side with ``torch.func``.

A function that has been called a few times with the same shapes is traced once into a flat list of tensor operations and
replayed, which takes the batching machinery's overhead (about a millisecond a step) out of every further call. The operations
are the same, so the results are too.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx import Graph

from evenhand import tree
from evenhand.data import Federation
from evenhand.engines.base import Engine, Exchange
from evenhand.engines.simulator import Batching, Chunk, ChunkFunction, ChunkReply, ClientFunction, Simulator
from evenhand.errors import require_whole
from evenhand.model import Model
from evenhand.tree import Tree

log = logging.getLogger(__name__)

SHORTEST = 32  # clients with fewer samples are padded to as many: very small chunks cost more than their padding
WIDTH_RATIO = 0.5  # each padded width is about this much of the next: padding at most doubles a client's data
MEMORY_SHARE = 0.25  # of the memory that is free, for one chunk
WORTH_A_THREAD = 256 << 20  # bytes of clients' values; with less in a chunk, threads wait for each other in Python
CALLS_BEFORE_TRACING = 120  # tracing takes a quarter of a second and saves two milliseconds a call
MOST_TRACES = 64


@dataclass(frozen=True)
class Vmap(Engine):
    """Clients side by side.

    Args:
        chunk: most clients worked on at once; None chooses from free memory. The result does not depend on it (with
            dropout, the random numbers do).
        trace: replay traced operations. Turn it off for a module that draws Python random numbers in ``forward``.
    """

    chunk: int | None = None
    trace: bool = True

    def __post_init__(self) -> None:
        require_whole("chunk", self.chunk, 1, optional=True)

    def attach(self, model: Model, federation: Federation, seed: int) -> Exchange:
        return Simulator(model, federation, seed, SideBySide(self.chunk, self.trace, model.device))


class SideBySide(Batching):
    """Chunks of clients of similar size, padded to one of a few widths that are fixed for the run."""

    hint = '; if the module cannot be stacked over clients, use engine="loop"'

    def __init__(self, chunk: int | None, trace: bool, device: torch.device) -> None:
        super().__init__(workers=torch.get_num_threads() if device.type == "cpu" else 1)
        self.chunk, self.trace, self.device = chunk, trace, device
        self._widths: dict[str, Tensor] = {}  # by part of the data
        self._much_work = False

    def plan(self, part: str, sizes: Tensor, all_sizes: Tensor, bytes_of: Callable[[int], int]) -> list[Chunk]:
        if part not in self._widths:
            self._widths[part] = padded_widths(all_sizes)
        widths = self._widths[part]
        chosen = torch.searchsorted(widths, sizes)  # the smallest width that holds the client
        chunks = []
        values = 0  # bytes of the whole cohort
        for code in sorted(set(chosen.tolist())):
            width = int(widths[code])
            rows = (chosen == code).nonzero().flatten()
            each = bytes_of(width)
            values += each * len(rows)
            chunks += [Chunk(piece, width) for piece in torch.split(rows, self.chunk or self._most(len(rows), each))]
        self._much_work = values > WORTH_A_THREAD
        return chunks

    def _most(self, clients: int, each: int) -> int:
        """Clients in a chunk: what memory holds; on a CPU, where there is much work, one chunk or more for every worker."""
        room = int(MEMORY_SHARE * free_memory(self.device)) // self.workers
        if self.device.type == "cpu":
            room = min(room, WORTH_A_THREAD)
        pieces = -(-clients // max(1, room // each))
        if pieces > 1:
            pieces = -(-pieces // self.workers) * self.workers
        return -(-clients // pieces)

    def map(self, function: ClientFunction) -> ChunkFunction:
        return self._batched(function)

    def gradient(self, objective: Callable[[Tree, Tree], Tensor]) -> ChunkFunction:
        def slope(shared: Tree, inputs: Tree) -> Tree:
            result: Tree = grad(lambda variables: objective(shared, {**inputs, "variables": variables}))(inputs["variables"])
            return result

        return self._batched(slope)

    def _batched(self, function: ClientFunction) -> ChunkFunction:
        side_by_side = vmap(function, randomness="different")

        def stacked(shared: Tree, inputs: Tree) -> Tree:
            # every client gets its own view of what is shared: one matrix product over all of them would round by company
            clients = len(tree.leaves(inputs)[0])
            return side_by_side(tree.map(lambda leaf: leaf.expand(clients, *leaf.shape), shared), inputs)

        return Replayed(stacked) if self.trace else stacked

    def run(self, jobs: Iterable[Callable[[], ChunkReply]], parallel: bool) -> Iterator[ChunkReply]:
        # oneDNN chooses its convolution by the number of groups, here clients: a client's bits would depend on the chunk
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TF32 acceleration")
            with torch.backends.mkldnn.flags(enabled=False):
                yield from super().run(jobs, parallel and self._much_work)


class Replayed:
    """A function of two trees that is traced into tensor operations when its shapes have come up a few times."""

    def __init__(self, function: ChunkFunction) -> None:
        self.function = function
        self.calls: dict[Any, int] = {}
        self.traces: dict[Any, tuple[Callable[..., list[Tensor]], Tree]] = {}
        self.enabled = True
        self.tracing = threading.Lock()

    def __call__(self, shared: Tree, inputs: Tree) -> Tree:
        if not self.enabled:
            return self.function(shared, inputs)
        values = tree.leaves(shared) + tree.leaves(inputs)
        key = tuple((leaf.shape, leaf.dtype, leaf.stride()) for leaf in values)
        if key not in self.traces:
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.calls[key] <= CALLS_BEFORE_TRACING or len(self.traces) >= MOST_TRACES:
                return self.function(shared, inputs)
            with self.tracing:
                if key not in self.traces and not self._trace(key, shared, inputs, values):
                    return self.function(shared, inputs)
        operations, form = self.traces[key]
        results = iter(operations(*values))
        return tree.map(lambda _: next(results), form)

    def _trace(self, key: Any, shared: Tree, inputs: Tree, values: list[Tensor]) -> bool:
        from torch.fx.experimental.proxy_tensor import make_fx  # imports a second's worth of modules: only when needed

        form: list[Tree] = []

        def flat(*leaves: Tensor) -> list[Tensor]:
            rest = iter(leaves)
            result = self.function(tree.map(lambda _: next(rest), shared), tree.map(lambda _: next(rest), inputs))
            form.append(tree.map(lambda _: torch.empty(0), result))
            return tree.leaves(result)

        device = values[0].device
        try:
            # tracing runs the function once more: that must not use up random numbers
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                graph = make_fx(flat)(*values)
            drop_identities(graph.graph)
            graph.recompile()
        except Exception as error:
            self.enabled = False
            log.info("not tracing %s: %s", self.function, error)
            return False
        self.traces[key] = (graph.forward, form[0])
        return True


def drop_identities(graph: Graph) -> None:
    """Remove reshapes that change nothing and results that nobody reads; batching leaves many of both."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in (torch.ops.aten.view.default, torch.ops.aten.expand.default):
            before, after = node.args[0].meta.get("tensor_meta"), node.meta.get("tensor_meta")
            if before and after and before.shape == after.shape and before.stride == after.stride:
                node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()


def padded_widths(sizes: Tensor) -> Tensor:
    """Ascending widths, each the size of some client (or SHORTEST), that every client's data are padded to.

    They depend on the federation alone, never on a cohort or chunk, so a client's arithmetic is the same in any company.
    """
    distinct = torch.tensor(sorted(set(sizes.tolist())))
    widths = [max(int(distinct[-1]), 1)]
    while widths[-1] > SHORTEST:
        smaller = distinct[distinct <= widths[-1] * WIDTH_RATIO]
        if not len(smaller) or int(smaller[-1]) == 0:
            break
        widths.append(max(int(smaller[-1]), SHORTEST))
    return torch.tensor(sorted(set(widths)))


def free_memory(device: torch.device) -> int:
    """Bytes that are free on ``device``."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 2 << 30  # a system that does not say: assume 2 GB
