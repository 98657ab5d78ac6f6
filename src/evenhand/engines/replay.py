"""On a CPU, a function of stacked trees that is called often is replayed as traced operations.

A function that cannot be traced runs as it is, and the log says why.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from evenhand import tree
from evenhand.engines.tracing import MOST_SHAPES, TreeFunction, shapes, traced, twin
from evenhand.errors import first_line
from evenhand.torch_private import freed_when_unused
from evenhand.tree import Tree

Operations = Callable[..., Sequence[Tensor]]
Trace = tuple[Operations, Tree]  # and the form of the result
log = logging.getLogger(__name__)
# optimising operations takes torch's interpreter longer than it saves
unoptimised = partial(torch.jit.optimized_execution, False)  # type: ignore[attr-defined]
CALLS_BEFORE_TRACING = 5  # tracing takes as long as a few calls


class Replayed:
    """A function of two trees, traced after a few calls with the same shapes."""

    def __init__(self, function: TreeFunction) -> None:
        self.function = function
        self.calls: dict[Any, int] = {}
        self.traces: dict[Any, Trace] = {}
        self.enabled = True
        self.tracing = threading.Lock()

    def __call__(self, shared: Tree, inputs: Tree) -> Tree:
        values = tree.leaves(shared) + tree.leaves(inputs)
        trace = self._traced(shared, inputs, values)
        if trace is None:
            return self.function(shared, inputs)
        operations, form = trace
        with unoptimised():
            results = iter(operations(*values))
        return tree.map(lambda _: next(results), form)

    def repeat(self, shared: Tree, inputs: Tree, batches: Sequence[Tree]) -> None:
        """Call the function, which changes ``inputs`` in place, once for each of ``batches``,
        which have the same shapes."""
        fixed = tree.leaves(shared) + tree.leaves(inputs)
        for number, batch in enumerate(batches):
            values = fixed + tree.leaves(batch)
            trace = self._traced(shared, {**inputs, "batch": batch}, values)
            if trace is None:
                self.function(shared, {**inputs, "batch": batch})
                continue
            with unoptimised():
                trace[0](*values)
                for other in batches[number + 1 :]:
                    trace[0](*fixed, *tree.leaves(other))
            return

    def _traced(self, shared: Tree, inputs: Tree, values: list[Tensor]) -> Trace | None:
        """The operations for values of these shapes, if they have come up often enough."""
        if not self.enabled:
            return None
        key = shapes(values)
        found = self.traces.get(key)
        if found is None:
            self.calls[key] = self.calls.get(key, 0) + 1
            if self.calls[key] > CALLS_BEFORE_TRACING and len(self.traces) < MOST_SHAPES:
                with self.tracing:
                    if key not in self.traces and self.enabled:
                        self._trace(key, shared, inputs, values)
                found = self.traces.get(key)
        return found

    def _trace(self, key: Any, shared: Tree, inputs: Tree, values: list[Tensor]) -> None:
        try:
            graph, form = traced(self.function, shared, inputs)
        except Exception as error:
            self.enabled = False
            log.info("not replaying %s: %s", self.function, first_line(error))
            return
        self.traces[key] = (_interpreted(graph, values), form)


def _interpreted(graph: GraphModule, values: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The operations of ``graph`` run by torch's own interpreter.

    That is twice as fast as from Python and does not block other threads.
    """

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        return (*graph.forward(*leaves), leaves[0])  # the interpreter wants at least one result

    try:
        # as in tracing.py: this runs the operations once more
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # torch may warn that this is deprecated, or that sizes become constants, which we want
            warnings.simplefilter("ignore")
            scripted: Callable[..., Sequence[Tensor]] = freed_when_unused(
                torch.jit.trace(  # type: ignore[no-untyped-call]
                    outputs, tuple(twin(leaf) for leaf in values), check_trace=False
                )
            )
    except Exception as error:
        log.info("replaying operations from Python: %s", first_line(error))
        return graph.forward
    return scripted
