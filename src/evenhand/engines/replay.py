"""Replaying a function of stacked trees without the cost of calling it: traced operations on a CPU,
CUDA graphs on a GPU.

Batching a function over clients with ``torch.func`` costs one to three milliseconds a call, and a
GPU waits for every kernel that Python starts. Shapes repeat from step to step and from round to
round, so what a call comes down to is found out once:

* on a CPU the function is traced into a flat list of tensor operations;
* on a GPU its kernels are captured as a CUDA graph that reads and writes fixed memory. A function
  that is called very often is compiled before: fused by torch's compiler, which takes seconds.

What cannot be traced, captured or compiled runs as it is; the log says why.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from evenhand import tree
from evenhand.errors import first_line
from evenhand.tree import Tree

log = logging.getLogger(__name__)

CALLS_BEFORE_TRACING = 120  # tracing takes a quarter of a second and saves two milliseconds a call
CALLS_BEFORE_CAPTURE = 2  # a capture takes about as long as three calls
# compiling takes ten seconds and more, and saves a fraction of a millisecond a call
CALLS_BEFORE_COMPILING = 1000
MOST_AT_ONCE = 16  # steps that are run in one call
MOST_SHAPES = 64
LARGEST_CONSTANT = 1 << 16  # numbers; larger ones are made when they are needed, to save memory
MOST_OPERATIONS = 1000  # of a function that is compiled; torch's compiler takes minutes for more

TreeFunction = Callable[[Tree, Tree], Tree]  # (shared, stacked inputs) -> stacked outputs


def shapes(leaves: Iterable[Tensor]) -> tuple[Any, ...]:
    """What a trace or capture depends on."""
    return tuple((leaf.shape, leaf.dtype, leaf.stride()) for leaf in leaves)


class Replayed:
    """A function of two trees that is traced into tensor operations when its shapes have come up a
    few times."""

    def __init__(self, function: TreeFunction, calls_before: int | None = None) -> None:
        self.function, self.calls_before = function, calls_before
        self.calls: dict[Any, int] = {}
        self.traces: dict[Any, tuple[Callable[..., Sequence[Tensor]], Tree]] = {}
        self.series: dict[Any, Callable[..., Tensor]] = {}
        self.enabled = True
        self.tracing = threading.Lock()

    def __call__(self, shared: Tree, inputs: Tree) -> Tree:
        if not self.enabled:
            return self.function(shared, inputs)
        values = tree.leaves(shared) + tree.leaves(inputs)
        key = shapes(values)
        if key not in self.traces:
            self.calls[key] = self.calls.get(key, 0) + 1
            if (
                self.calls[key]
                <= (CALLS_BEFORE_TRACING if self.calls_before is None else self.calls_before)
                or len(self.traces) >= MOST_SHAPES
            ):
                return self.function(shared, inputs)
            with self.tracing:
                if key not in self.traces and not self._trace(key, shared, inputs, values):
                    return self.function(shared, inputs)
        operations, form = self.traces[key]
        results = iter(operations(*values))
        return tree.map(lambda _: next(results), form)

    def repeat(self, shared: Tree, inputs: Tree, batches: Sequence[Tree]) -> None:
        """Call the function, which changes ``inputs`` in place, once for each of ``batches``; many
        at a time once it is traced."""
        fixed = tree.leaves(shared) + tree.leaves(inputs)
        changing = [tree.leaves(batch) for batch in batches]
        trace = (
            self.traces.get(shapes(fixed + changing[0]))
            if self.enabled and len(batches) > 1
            else None
        )
        if trace is None or not isinstance(trace[0], torch.jit.ScriptFunction):
            for batch in batches:
                self(shared, {**inputs, "batch": batch})
            return
        for first in range(0, len(changing), MOST_AT_ONCE):
            some = changing[first : first + MOST_AT_ONCE]
            key = (id(trace[0]), len(some))
            values = fixed + [leaf for leaves in some for leaf in leaves]
            if key not in self.series:
                with self.tracing:
                    self.series[key] = _repeated(trace[0], len(fixed), len(some[0]), values)
            self.series[key](*values)

    def _trace(self, key: Any, shared: Tree, inputs: Tree, values: list[Tensor]) -> bool:
        try:
            graph, form = traced(self.function, shared, inputs)
        except Exception as error:
            self.enabled = False
            log.info("not replaying %s: %s", self.function, first_line(error))
            return False
        self.traces[key] = (_interpreted(graph, values), form)
        return True


def traced(function: TreeFunction, shared: Tree, inputs: Tree) -> tuple[GraphModule, Tree]:
    """The tensor operations that ``function`` comes down to, from and to flat lists of tensors, and
    the form of its result."""
    # imports a second's worth of modules: only when needed
    from torch.fx.experimental.proxy_tensor import make_fx

    form: list[Tree] = []

    def flat(*leaves: Tensor) -> list[Tensor]:
        rest = iter(leaves)
        result = function(
            tree.map(lambda _: next(rest), shared), tree.map(lambda _: next(rest), inputs)
        )
        form.append(tree.map(lambda _: torch.empty(0), result))
        return tree.leaves(result)

    # tracing runs the function once more: that must neither use up random numbers nor change what
    # the function works on in place
    values = [_twin(leaf) for leaf in (*tree.leaves(shared), *tree.leaves(inputs))]
    device = values[0].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        graph = make_fx(flat)(*values)
    simplify(graph, device)
    return graph, form[0]


def _interpreted(graph: GraphModule, values: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The operations of ``graph`` run by torch's own interpreter, twice as fast as from Python and
    without holding up other threads."""

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        return (*graph.forward(*leaves), leaves[0])  # it wants at least one result

    try:
        # as above: this runs them once more
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # it may be announced as old, and that sizes become constants is what we want
            warnings.simplefilter("ignore")
            scripted: Callable[..., Sequence[Tensor]] = torch.jit.trace(  # type: ignore[no-untyped-call]
                outputs, tuple(_twin(leaf) for leaf in values), check_trace=False
            )
    except Exception as error:
        log.info("replaying operations from Python: %s", first_line(error))
        return graph.forward
    return scripted


def _repeated(
    step: Callable[..., Sequence[Tensor]], fixed: int, changing: int, values: list[Tensor]
) -> Callable[..., Tensor]:
    """Several calls of a traced ``step`` in one, the last ``changing`` of its arguments each time
    others."""

    def many(*leaves: Tensor) -> Tensor:
        for first in range(fixed, len(leaves), changing):
            step(*leaves[:fixed], *leaves[first : first + changing])
        return leaves[0]

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        together: Callable[..., Tensor] = torch.jit.trace(
            many, tuple(map(_twin, values)), check_trace=False
        )  # type: ignore[no-untyped-call]
    return together


def _twin(leaf: Tensor) -> Tensor:
    """A copy with the same strides."""
    twin = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    twin.as_strided(_stored(leaf), leaf.stride()).copy_(
        leaf.as_strided(_stored(leaf), leaf.stride())
    )
    return twin


def _stored(leaf: Tensor) -> tuple[int, ...]:
    """The shape with one entry along expanded dimensions: these entries are all there is in
    memory."""
    return tuple(
        1 if stride == 0 else size for size, stride in zip(leaf.shape, leaf.stride(), strict=True)
    )


def simplify(module: GraphModule, device: torch.device) -> None:
    """Remove what changes nothing and what nobody reads; batching and differentiation leave much of
    both. No bit of a result changes.

    A derivative begins with ones of the shape of the value: once these are a constant, what leads
    to the value alone is not read.
    """
    aten, graph = torch.ops.aten, module.graph
    constants = {
        aten.ones_like.default: 1.0,
        aten.zeros_like.default: 0.0,
        aten.new_zeros.default: 0.0,
    }
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        found: Any = node.meta.get("tensor_meta")
        first: Any = node.args[0] if node.args else None
        if node.target in constants or node.target is aten.scalar_tensor.default:
            if (
                found is not None
                and _only_read(node)
                and math.prod(found.shape) <= LARGEST_CONSTANT
            ):
                value = constants.get(node.target, first)
                name = f"_constant_of_{node.name}"
                module.register_buffer(
                    name, torch.full(found.shape, value, dtype=found.dtype, device=device)
                )
                with graph.inserting_before(node):
                    node.replace_all_uses_with(graph.get_attr(name))
        elif node.target is aten.mul.Scalar and node.args[1] == 1:
            node.replace_all_uses_with(first)
        elif node.target in (aten.view.default, aten.expand.default, aten._unsafe_view.default):
            before = first.meta.get("tensor_meta")
            if before and found and before.shape == found.shape and before.stride == found.stride:
                node.replace_all_uses_with(first)
        elif (
            node.target is aten.transpose.int
            and first.target is aten.transpose.int
            and first.args[1:] == node.args[1:]
        ):
            node.replace_all_uses_with(first.args[0])
    graph.eliminate_dead_code()
    module.recompile()


def _only_read(node: Node) -> bool:
    """Whether nobody changes what an operation gives, or a view of it, or hands it out."""
    for user in node.users:
        if (
            user.op != "call_function"
            or not isinstance(user.target, OpOverload)
            or user.target._schema.is_mutable
        ):
            return False
        is_view = any(result.alias_info is not None for result in user.target._schema.returns)
        if is_view and not _only_read(user):
            return False
    return True


class GraphMemory:
    """Fixed memory of the CUDA graphs of one engine: what they read and write, and the pool that
    they share in between.

    Graphs run one after the other, so a result in this memory is good until the graph that made it
    runs again.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self._held: dict[int, Tensor] = {}  # by address
        self._rooms: dict[Any, list[Tensor]] = {}

    def holds(self, leaf: Tensor) -> bool:
        """Whether ``leaf`` begins at an address that stays."""
        return leaf.data_ptr() in self._held

    def hold(self, leaf: Tensor) -> Tensor:
        self._held[leaf.data_ptr()] = leaf
        return leaf

    def copy(self, values: Tree, name: str) -> Tree:
        """``values`` in memory that is the same for all trees of this name whose rows have these
        shapes: the first rows of it."""
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
    """A CUDA graph, where it reads its inputs and where it leaves its results."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        function: TreeFunction,
        inputs: list[Tensor],
        outputs: Tree,
    ) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs
        # its constants are read by the graph, and must not be freed before it
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
    """A function of two trees that is captured as a CUDA graph for each set of shapes, and compiled
    if it is called very often.

    Args:
        function: may change its inputs in place, where these are in ``memory``.
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
        # what lies in fixed memory is read and changed there, the rest is copied to where the graph
        # expects it
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
                function(*there)  # libraries get ready outside of the capture
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
        """The function, fused; or as it is, where that does not work."""
        begin = time.perf_counter()
        log.info("compiling")
        try:
            graph, form = traced(self.function, shared, inputs)
            operations = sum(node.op == "call_function" for node in graph.graph.nodes)
            if operations > MOST_OPERATIONS:
                raise ValueError(
                    f"{operations} operations, more than the {MOST_OPERATIONS} that compile in"
                    " reasonable time"
                )
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
    """Nothing is freed meanwhile, which a capture does not allow, and a graph may be empty: that of
    results that are views of inputs."""
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
    """Undo what a function did to its inputs in place; expanded ones cannot be written to, and
    never are."""
    for place, value in zip(places, values, strict=True):
        if 0 not in place.stride():
            place.copy_(value)


def _keep_compiled_code() -> None:
    """Let torch keep what it compiles beside evenhand's other remembered things, not where it is
    lost with the next start."""
    from pooch import os_cache

    home = os.environ.get("EVENHAND_CACHE") or str(os_cache("evenhand"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(home) / "compiled"))
