"""Several local steps as one list of operations.

A step of a small model is some thirty small operations, and many of them depend on the batch alone:
they look labels up and turn them into targets. These are computed for all steps at once. Views of
what stays in place are taken once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg

from evenhand import torch_private
from evenhand.engines.recording import recorded
from evenhand.engines.tracing import only_read, simplify

ATEN = torch.ops.aten
LARGEST = 1 << 16  # numbers of all steps; larger values, such as samples, are made when needed
_VIEWS = {
    ATEN.view.default,
    ATEN.expand.default,
    ATEN.unsqueeze.default,
    ATEN.squeeze.dim,
    ATEN.squeeze.dims,
    ATEN.transpose.int,
    ATEN.permute.default,
}
# operations that round each number by itself, and alike at every place in memory
_BY_NUMBER = {
    ATEN.embedding.default,
    ATEN.gt.Scalar,
    ATEN.eq.Scalar,
    ATEN.ne.Scalar,
    ATEN.clamp.default,
    ATEN.add.Tensor,
    ATEN.sub.Tensor,
    ATEN.mul.Tensor,
    ATEN.div.Tensor,
    ATEN.where.self,
    ATEN.neg.default,
    torch_private.to_copy,
}


class Step(NamedTuple):
    """The operations of a local step, in three parts."""

    once: GraphModule  # of what is fixed
    ahead: GraphModule  # of the batches of all steps, stacked
    rest: GraphModule  # of what is fixed, the batch, and the results of the other two

    def repeat(self, fixed: Sequence[Tensor], batches: Sequence[Tensor]) -> None:
        """Take a step on each row of ``batches``, which changes ``fixed`` in place."""
        views, targets = self.once(*fixed), self.ahead(*batches)
        for rows in zip(*(values.unbind(0) for values in (*batches, *targets)), strict=True):
            self.rest(*fixed, *rows[: len(batches)], *views, *rows[len(batches) :])


def unrolled(graph: GraphModule, batches: Sequence[Tensor], weights: int) -> Step:
    """The parts of a recorded step.

    Args:
        graph: its last inputs are a batch.
        batches: of all steps, stacked.
        weights: the one among them that has only zeros and ones.
    """
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    fixed, batch = inputs[: -len(batches)], inputs[-len(batches) :]
    once = _only_from(fixed, lambda node: node.target in _VIEWS, nodes)

    def goes_ahead(node: Node) -> bool:
        exact = (
            node.target in _VIEWS
            or (node.target in _BY_NUMBER and "alpha" not in node.kwargs)
            # other sums may round in another order when they are stacked
            or (node.target is ATEN.sum.dim_IntList and node.args[0] is batch[weights])
            or (node.target is ATEN.scatter_add.default and _adds_once(node))
        )
        small = len(batches[0]) * math.prod(node.meta["kind"].shape) <= LARGEST
        return exact and small and all(map(only_read, [node, *node.all_input_nodes]))

    ahead = _only_from(batch, goes_ahead, nodes)
    # a view into larger memory may be laid out differently when stacked
    while strange := [node for node in _needed(ahead, nodes) if not _is_contiguous(node)]:
        excluded = {*strange}
        ahead = _only_from(batch, lambda node: node in ahead - excluded, nodes)  # noqa: B023
    views, targets = _needed(once, nodes), _needed(ahead, nodes)
    alone = _part(graph, batch, ahead, targets)

    def stacked(*values: Tensor) -> Sequence[Tensor]:
        found: Sequence[Tensor] = torch.func.vmap(lambda *rows: alone(*rows))(*values)
        return [leaf.contiguous() for leaf in found]

    together = recorded(stacked, batches)
    simplify(together, batches[0].device)
    others = {node for node in nodes if node.op == "call_function"} - once - ahead
    return Step(
        _part(graph, fixed, once, views),
        together,
        _part(graph, [*inputs, *views, *targets], others, nodes[-1].args[0]),
    )


def _only_from(
    sources: Iterable[Node], allowed: Callable[[Node], bool], nodes: list[Node]
) -> set[Node]:
    """The allowed operations that depend on ``sources``, constants and each other alone."""
    known = {*sources, *(node for node in nodes if _is_constant(node))}
    found: set[Node] = set()
    for node in nodes:
        if (
            node.op == "call_function"
            and node not in known
            and known.issuperset(node.all_input_nodes)
            and node.all_input_nodes
            and allowed(node)
        ):
            known.add(node)
            found.add(node)
    return found


def _is_constant(node: Node) -> bool:
    """Whether a node is a constant or a view of one."""
    return node.op == "get_attr" or (
        node.target in _VIEWS and all(map(_is_constant, node.all_input_nodes))
    )


def _needed(found: set[Node], nodes: list[Node]) -> list[Node]:
    """Those of the operations whose results others use."""
    return [node for node in nodes if node in found and any(u not in found for u in node.users)]


def _adds_once(node: Node) -> bool:
    """Whether each number of a scatter gets at most one addend."""
    dimension: int = node.args[1]  # type: ignore[assignment]
    return bool(node.args[2].meta["kind"].shape[dimension] == 1)  # type: ignore[union-attr]


def _is_contiguous(node: Node) -> bool:
    kind = node.meta["kind"]
    return torch.empty_strided(kind.shape, kind.stride, device="meta").is_contiguous()


def _part(graph: GraphModule, inputs: list[Node], found: set[Node], results: Any) -> GraphModule:
    """The operations ``found``, from inputs to results."""
    part = Graph()
    copies = {node: part.placeholder(node.name) for node in inputs}
    for node in graph.graph.nodes:
        if node not in copies and (node in found or _is_constant(node)):
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(map_arg(results, copies.__getitem__))
    part.eliminate_dead_code()
    return GraphModule(graph, part)
