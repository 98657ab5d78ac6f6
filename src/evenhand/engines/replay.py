"""On a CPU, a function of stacked trees that is called often is replayed as traced operations.

A function that cannot be traced runs as it is, and the log says why.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from evenhand import tree
from evenhand.engines.tracing import MOST_SHAPES, TreeFunction, shapes, traced, twin
from evenhand.errors import first_line
from evenhand.tree import Tree

log = logging.getLogger(__name__)
CALLS_BEFORE_TRACING = (
    120  # tracing takes a quarter of a second and saves two milliseconds per call
)
MOST_AT_ONCE = 16  # steps in one call


class Replayed:
    """A function of two trees, traced after a few calls with the same shapes."""

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
        """Call the function, which changes ``inputs`` in place, once for each of ``batches``.

        Once it is traced, one call does many steps.
        """
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
            scripted: Callable[..., Sequence[Tensor]] = torch.jit.trace(  # type: ignore[no-untyped-call]
                outputs, tuple(twin(leaf) for leaf in values), check_trace=False
            )
    except Exception as error:
        log.info("replaying operations from Python: %s", first_line(error))
        return graph.forward
    return scripted


def _repeated(
    step: Callable[..., Sequence[Tensor]], fixed: int, changing: int, values: list[Tensor]
) -> Callable[..., Tensor]:
    """Several calls of a traced ``step`` in one; the last ``changing`` arguments differ by call."""

    def many(*leaves: Tensor) -> Tensor:
        for first in range(fixed, len(leaves), changing):
            step(*leaves[:fixed], *leaves[first : first + changing])
        return leaves[0]

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        together: Callable[..., Tensor] = torch.jit.trace(
            many, tuple(map(twin, values)), check_trace=False
        )  # type: ignore[no-untyped-call]
    return together
