"""On a CPU, a function of stacked trees that is called often is replayed as traced operations.

A function that cannot be traced runs as it is, and the log says why.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from evenhand import tree
from evenhand.engines.overwriting import overwrite
from evenhand.engines.recording import is_recording
from evenhand.engines.tracing import MOST_SHAPES, TreeFunction, shapes, traced, twin
from evenhand.engines.unrolling import unrolled
from evenhand.engines.visits import MOST_TOGETHER
from evenhand.errors import first_line
from evenhand.torch_private import freed_when_unused
from evenhand.tree import Tree

Operations = Callable[..., Sequence[Tensor]]
log = logging.getLogger(__name__)
# optimising operations takes torch's interpreter longer than it saves
unoptimised = partial(torch.jit.optimized_execution, False)  # type: ignore[attr-defined]
CALLS_BEFORE_TRACING = 5  # tracing takes as long as a few calls
# seconds; what happens between longer steps hardly counts
LONG_STEP = 2e-3
# for which several steps, or a chunk's whole work, become one list of operations: tracing one takes
# so long that only frequent shapes repay it
FEW_SHAPES = 4


class Trace(NamedTuple):
    """The operations of a function for values of some shapes."""

    run: Operations
    form: Tree  # of the result
    graph: GraphModule


class Replayed:
    """A function of two trees, traced after a few calls with the same shapes.

    Args:
        outermost: it calls functions that are replayed themselves, and they are to be traced first.
    """

    def __init__(self, function: TreeFunction, outermost: bool = False) -> None:
        self.function, self.outermost = function, outermost
        self.calls: dict[Any, int] = {}
        self.traces: dict[Any, Trace] = {}
        self.together: dict[Any, Operations | None] = {}  # of several steps
        self.enabled = True
        self.tracing = threading.Lock()

    def __call__(self, shared: Tree, inputs: Tree) -> Tree:
        values = tree.leaves(shared) + tree.leaves(inputs)
        trace = self._traced(shared, inputs, values)
        if trace is None:
            return self.function(shared, inputs)
        with unoptimised():
            results = iter(trace.run(*values))
        return tree.map(lambda _: next(results), trace.form)

    def repeat(self, shared: Tree, inputs: Tree, batches: Tree) -> None:
        """Call the function, which changes ``inputs`` in place, for each row of ``batches``."""
        fixed = tree.leaves(shared) + tree.leaves(inputs)
        for part in zip(
            *(torch.split(leaf, MOST_TOGETHER) for leaf in tree.leaves(batches)), strict=True
        ):
            key = shapes([*fixed, *part])
            run = self.together.get(key)
            if run is not None:
                with unoptimised():
                    run(*fixed, *part)
                continue
            rest = iter(part)
            some = tree.map(lambda _, rest=rest: next(rest), batches)
            begin = time.perf_counter()
            trace = self._one_by_one(shared, inputs, fixed, some)
            seconds = (time.perf_counter() - begin) / len(part[0])
            if trace is not None and seconds < LONG_STEP and self._is_due(key, self.together):
                with self.tracing:
                    if key not in self.together:
                        weights = list(batches).index("weight")
                        self.together[key] = _together(trace.graph, fixed, part, weights)

    def _one_by_one(
        self, shared: Tree, inputs: Tree, fixed: list[Tensor], batches: Tree
    ) -> Trace | None:
        """Take steps; return the operations of the last, if they are known."""
        trace = None
        for batch in tree.rows(batches):
            values = fixed + tree.leaves(batch)
            trace = trace or self._traced(shared, {**inputs, "batch": batch}, values)
            if trace is None:
                self.function(shared, {**inputs, "batch": batch})
            else:
                with unoptimised():
                    trace.run(*values)
        return trace

    def _traced(self, shared: Tree, inputs: Tree, values: list[Tensor]) -> Trace | None:
        """The operations for values of these shapes, if they have come up often enough."""
        if not self.enabled:
            return None
        key = shapes(values)
        found = self.traces.get(key)
        if found is None and self._is_due(key, self.traces):
            with self.tracing:
                if key not in self.traces and self.enabled:
                    self._trace(key, shared, inputs, values)
            found = self.traces.get(key)
        return found

    def _is_due(self, key: Any, known: dict[Any, Any]) -> bool:
        """Whether there were enough calls with values of these shapes, and not too many shapes."""
        if key in known or is_recording():
            return False
        self.calls[key] = self.calls.get(key, 0) + 1
        enough = CALLS_BEFORE_TRACING * (2 if self.outermost else 1)
        most = FEW_SHAPES if self.outermost or known is self.together else MOST_SHAPES
        return self.calls[key] > enough and len(known) < most

    def _trace(self, key: Any, shared: Tree, inputs: Tree, values: list[Tensor]) -> None:
        try:
            graph, form = traced(self.function, shared, inputs)
            if self.outermost:
                overwrite(graph)
        except Exception as error:
            self.enabled = False
            log.info("not replaying %s: %s", self.function, first_line(error))
            return
        self.traces[key] = Trace(_interpreted(graph, values) or graph.forward, form, graph)


def _together(
    graph: GraphModule, fixed: Sequence[Tensor], batches: Sequence[Tensor], weights: int
) -> Operations | None:
    """The operations of a step on each row of ``batches``; None if they are run one by one."""
    try:
        step = unrolled(graph, batches, weights)
    except Exception as error:
        log.info("replaying steps one by one: %s", first_line(error))
        return None

    def steps(*leaves: Tensor) -> Sequence[Tensor]:
        step.repeat(leaves[: len(fixed)], leaves[len(fixed) :])
        return ()

    return _interpreted(steps, [*fixed, *batches])


def _interpreted(function: Operations, values: Sequence[Tensor]) -> Operations | None:
    """The operations of a function run by torch's own interpreter; None if it cannot.

    That is twice as fast as from Python and does not block other threads.
    """

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        return (*function(*leaves), leaves[0])  # the interpreter wants at least one result

    try:
        # as in tracing.py: this runs the operations once more
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # torch may warn that this is deprecated, or that sizes become constants, which we want
            warnings.simplefilter("ignore")
            scripted: Operations = freed_when_unused(
                torch.jit.trace(  # type: ignore[no-untyped-call]
                    outputs, tuple(twin(leaf) for leaf in values), check_trace=False
                )
            )
    except Exception as error:
        log.info("replaying operations from Python: %s", first_line(error))
        return None
    return scripted
