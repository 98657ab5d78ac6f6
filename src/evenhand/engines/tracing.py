"""A function of stacked trees as a flat list of tensor operations.

Batching a function over clients with ``torch.func`` costs one to three milliseconds per call. Since
shapes repeat from step to step and from round to round, the operations are traced once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from evenhand import torch_private, tree
from evenhand.engines.recording import recorded
from evenhand.tree import Tree

TreeFunction = Callable[[Tree, Tree], Tree]  # (shared, stacked inputs) -> stacked outputs
MOST_SHAPES = 64
LARGEST_CONSTANT = 1 << 16  # numbers; larger constants are made when needed, to save memory


def shapes(leaves: Iterable[Tensor]) -> tuple[Any, ...]:
    """The shapes, types and strides that a trace or capture is valid for."""
    return tuple((leaf.shape, leaf.dtype, leaf.stride()) for leaf in leaves)


def traced(function: TreeFunction, shared: Tree, inputs: Tree) -> tuple[GraphModule, Tree]:
    """The operations of ``function`` on flat lists of tensors, and the form of its result."""
    form: list[Tree] = []

    def flat(*leaves: Tensor) -> list[Tensor]:
        rest = iter(leaves)
        result = function(
            tree.map(lambda _: next(rest), shared), tree.map(lambda _: next(rest), inputs)
        )
        form.append(tree.map(lambda _: torch.empty(0), result))
        return tree.leaves(result)

    # tracing runs the function once more, which must neither use up random numbers nor change its
    # inputs in place
    values = [twin(leaf) for leaf in (*tree.leaves(shared), *tree.leaves(inputs))]
    device = values[0].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        graph = recorded(flat, values)
    simplify(graph, device)
    return graph, form[0]


def twin(leaf: Tensor) -> Tensor:
    """A copy with the same strides."""
    copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
    copy.as_strided(_stored(leaf), leaf.stride()).copy_(
        leaf.as_strided(_stored(leaf), leaf.stride())
    )
    return copy


def _stored(leaf: Tensor) -> tuple[int, ...]:
    """The shape in memory, with one entry along expanded dimensions."""
    return tuple(
        1 if stride == 0 else size for size, stride in zip(leaf.shape, leaf.stride(), strict=True)
    )


def simplify(module: GraphModule, device: torch.device) -> None:
    """Remove operations without effect and unused results; no bit of a result changes.

    Batching and differentiation leave many of both. A derivative starts from ones in the shape of
    the value: once these are a constant, operations that only compute the value are unused.
    """
    aten, graph = torch.ops.aten, module.graph
    first_of: dict[Any, Node] = {}  # by kind: views of views are often what there was before
    for node in graph.nodes:
        if "kind" in node.meta and not torch_private.changes_its_input(node.target):
            node.replace_all_uses_with(first_of.setdefault(node.meta["kind"], node))
    constants = {
        aten.ones_like.default: 1.0,
        aten.zeros_like.default: 0.0,
        aten.new_zeros.default: 0.0,
    }
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        found: Any = node.meta.get("kind")
        first: Any = node.args[0] if node.args else None
        if node.target in constants or node.target is aten.scalar_tensor.default:
            if found is not None and only_read(node) and math.prod(found.shape) <= LARGEST_CONSTANT:
                value = constants.get(node.target, first)
                name = f"_constant_of_{node.name}"
                module.register_buffer(
                    name, torch.full(found.shape, value, dtype=found.dtype, device=device)
                )
                with graph.inserting_before(node):
                    node.replace_all_uses_with(graph.get_attr(name))
        elif node.target is aten.mul.Scalar and node.args[1] == 1:
            node.replace_all_uses_with(first)
    graph.eliminate_dead_code()
    module.recompile()


def only_read(node: Node) -> bool:
    """Whether the result of an operation, or a view of it, is never changed or returned."""
    for user in node.users:
        operation = user.target
        if not isinstance(operation, torch_private.OpOverload):
            return False
        if torch_private.changes_its_input(operation):
            return False
        is_view = any(
            result.alias_info is not None for result in torch_private.schema(operation).returns
        )
        if is_view and not only_read(user):
            return False
    return True
