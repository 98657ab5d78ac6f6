"""CUDA graphs: a function of stacked trees without the cost of starting its kernels from Python.

A function's kernels are captured as a CUDA graph that reads and writes fixed memory. A function
that is called very often is first fused by torch's compiler, which takes seconds. A function that
cannot be captured or compiled runs as it is, and the log says why.
"""

from __future__ import annotations

import gc
import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from evenhand import torch_private, tree
from evenhand.engines.tracing import MOST_SHAPES, TreeFunction, shapes, traced
from evenhand.errors import first_line
from evenhand.layers import choices, kernels
from evenhand.layers.fused_update import fuse_updates
from evenhand.tree import Tree

log = logging.getLogger(__name__)
CALLS_BEFORE_CAPTURE = 2  # a capture takes about as long as three calls
# compiling takes ten seconds or more and saves a fraction of a millisecond per call
CALLS_BEFORE_COMPILING = 1000
MOST_OPERATIONS = 1500  # in a function to compile; for more, torch's compiler takes minutes


class GraphMemory:
    """Fixed memory of the CUDA graphs of one engine: inputs, outputs, and the pool they share.

    Graphs run one after another, so a result in this memory is valid until the graph that made it
    runs again.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self._held: dict[int, Tensor] = {}  # by address
        self._rooms: dict[Any, list[Tensor]] = {}

    def holds(self, leaf: Tensor) -> bool:
        """Whether ``leaf`` begins at a fixed address."""
        return leaf.data_ptr() in self._held

    def hold(self, leaf: Tensor) -> Tensor:
        self._held[leaf.data_ptr()] = leaf
        return leaf

    def copy(self, values: Tree, name: str) -> Tree:
        """``values`` in memory that all trees with this name and these rows share."""
        leaves = tree.leaves(values)
        key = (name, tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves))
        room = self._rooms.get(key)
        if room is None or any(
            len(place) < len(leaf) for place, leaf in zip(room, leaves, strict=True)
        ):
            room = [
                self.hold(torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device))
                for leaf in leaves
            ]
            self._rooms[key] = room
        places = [place[: len(leaf)] for place, leaf in zip(room, leaves, strict=True)]
        for place, leaf in zip(places, leaves, strict=True):
            place.copy_(leaf)
        rest = iter(places)
        return tree.map(lambda _: next(rest), values)


class _Capture:
    """A CUDA graph, with the memory of its inputs and results."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        function: TreeFunction,
        inputs: list[Tensor],
        outputs: Tree,
    ) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs
        # the graph reads its constants, so they must live as long
        self.function = function
        self.addresses = [leaf.data_ptr() for leaf in inputs]
        self.replays = 0
        self.compiled = False

    def __call__(self, values: list[Tensor]) -> Tree:
        self.replays += 1
        for place, address, value in zip(self.inputs, self.addresses, values, strict=True):
            if value.data_ptr() != address:
                place.copy_(value)
        self.graph.replay()
        return self.outputs


class Captured:
    """A function of two trees, captured as a CUDA graph for each set of shapes.

    If it is called very often, it is compiled.

    Args:
        function: may change its inputs in place if they are in ``memory``.
        compile: at once (True), after CALLS_BEFORE_COMPILING calls of the same shapes (None), or
            never (False).
    """

    def __init__(self, function: TreeFunction, memory: GraphMemory, compile: bool | None) -> None:
        self.function, self.memory, self.compile = function, memory, compile
        self.calls: dict[Any, int] = {}
        self.captures: dict[Any, _Capture] = {}
        self.enabled = True

    def __call__(self, shared: Tree, inputs: Tree) -> Tree:
        if not self.enabled:
            return self.function(shared, inputs)
        values = tree.leaves(shared) + tree.leaves(inputs)
        # inputs in fixed memory are read and changed there; the others are copied to where the
        # graph expects them
        key = (shapes(values), tuple(leaf.data_ptr() for leaf in values if self.memory.holds(leaf)))
        capture = self.captures.get(key)
        if capture is None:
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.calls[key] <= CALLS_BEFORE_CAPTURE or len(self.captures) >= MOST_SHAPES:
                return self.function(shared, inputs)
            capture = self._capture(key, shared, inputs, self.compile is True)
            if capture is None:
                return self.function(shared, inputs)
        elif (
            self.compile is None
            and not capture.compiled
            and capture.replays >= CALLS_BEFORE_COMPILING
        ):
            capture = self._capture(key, shared, inputs, True) or capture
        return capture(values)

    def _capture(self, key: Any, shared: Tree, inputs: Tree, compile: bool) -> _Capture | None:
        values = tree.leaves(shared) + tree.leaves(inputs)
        before = [leaf.clone() for leaf in values]
        places = [
            (
                leaf
                if self.memory.holds(leaf)
                else self.memory.hold(leaf.clone(memory_format=torch.contiguous_format))
            )
            for leaf in values
        ]
        rest = iter(places)
        there = (tree.map(lambda _: next(rest), shared), tree.map(lambda _: next(rest), inputs))
        function = self._compiled(*there) if compile else self.function
        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), torch.random.fork_rng(devices=[values[0].device]):
                function(*there)  # libraries initialise outside the capture
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with _undisturbed(), torch.cuda.graph(graph, pool=self.memory.pool):
                outputs = function(*there)
        except Exception as error:
            self.enabled = False
            log.info("not captured as a CUDA graph, running as it is: %s", first_line(error))
            outputs = None
        _restore(places, before)
        if outputs is None:
            return None
        for leaf in tree.leaves(outputs):
            self.memory.hold(leaf)
        capture = _Capture(graph, function, places, outputs)
        capture.compiled = compile
        self.captures[key] = capture
        return capture

    def _compiled(self, shared: Tree, inputs: Tree) -> TreeFunction:
        """The function, fused; or as it is, if that does not work."""
        begin = time.perf_counter()
        log.info("compiling")
        try:
            graph, form = traced(self.function, shared, inputs)
            first = tree.leaves(inputs)[0]
            if kernels.usable(first):
                fuse_updates(graph, first.device)
            operations = sum(map(_computes, graph.graph.nodes))
            if operations > MOST_OPERATIONS:
                raise ValueError(
                    f"{operations} operations, more than the {MOST_OPERATIONS} that compile in"
                    " reasonable time"
                )
            log.info("%d operations", operations)
            _keep_compiled_code()
            fused = torch.compile(graph, dynamic=False, fullgraph=True)

            def call(shared: Tree, inputs: Tree) -> Tree:
                results = iter(fused(*tree.leaves(shared), *tree.leaves(inputs)))
                return tree.map(lambda _: next(results), form)

            with warnings.catch_warnings():
                # precision is the user's choice
                warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
                values = tree.leaves(shared) + tree.leaves(inputs)
                before = [leaf.clone() for leaf in values]
                call(shared, inputs)
                _restore(values, before)
        except Exception as error:
            self.compile = False
            log.info("not compiled, replaying its own operations: %s", first_line(error))
            return self.function
        log.info("compiled in %.1f s", time.perf_counter() - begin)
        return call


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Free no memory during a capture, which would break it, and accept an empty graph.

    A graph is empty if its results are views of its inputs.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            yield
    finally:
        if collecting:
            gc.enable()


def _restore(places: list[Tensor], values: list[Tensor]) -> None:
    """Undo a function's changes to its inputs; expanded tensors are never written to."""
    for place, value in zip(places, values, strict=True):
        if 0 not in place.stride():
            place.copy_(value)


def _keep_compiled_code() -> None:
    """Let torch cache compiled code in evenhand's cache directory, which outlasts a restart."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(choices.home() / "compiled"))


def _computes(node: Node) -> bool:
    """Whether a step of a traced function does more than look at a tensor in another way."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch_private.OpOverload)
        and not any(result.alias_info for result in torch_private.schema(node.target).returns)
    )
