"""Steps of dense layers without a gradient in memory.

The gradient of a dense layer is a product of a batch's slopes and inputs, as large as the weights.
In a compiled step it is only needed to change the weights, so :func:`fuse_updates` replaces product
and step by one operation that reads and writes each weight once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from evenhand import torch_private
from evenhand.layers import kernels

MOST_DEPTH = 256  # samples in a product; with more, arithmetic takes longer than memory
aten = torch.ops.aten


@torch.library.custom_op("evenhand::subtract_product", mutates_args={"values"})
def _subtract_product(values: Tensor, a: Tensor, b: Tensor, rates: Tensor) -> None:
    """``values -= rates * a @ b``: values (K, R, C), a (K, R, D), b (K, D, C), rates (K, 1, 1)."""
    from evenhand.layers import update_kernels

    clients, rows, columns = values.shape
    # measured on an H200 with 50 layers of 128 x 12544
    high, wide = (64, 64) if a.element_size() == 2 else (32, 256)
    if rows <= 16:
        high, wide = 16, 256
    with kernels.on(values.device):
        update_kernels.subtract_product[(-(-columns // wide), -(-rows // high), clients)](
            values,
            a,
            b,
            rates,
            rows,
            columns,
            a.shape[2],
            *a.stride(),
            *b.stride(),
            PRECISION=kernels.precision(a, torch.backends.cuda.matmul.allow_tf32),
            BLOCK_R=high,
            BLOCK_C=wide,
            BLOCK_D=16 if a.shape[2] <= 16 else 32,
            num_warps=4,
        )


@_subtract_product.register_fake
def _(values: Tensor, a: Tensor, b: Tensor, rates: Tensor) -> None:
    return None


def fuse_updates(module: GraphModule) -> int:
    """Fuse what can be fused in a traced step, and return how many updates these are."""
    fused = 0
    graph = module.graph
    changed = {
        argument
        for node in graph.nodes
        if torch_private.changes_its_input(node.target)
        for argument in node.all_input_nodes[:1]
    }
    for node in list(graph.nodes):
        if node.target is not aten.addcmul_.default or node.kwargs != {"value": -1}:
            continue
        values, gradient, rates = node.args
        found = _product(gradient)
        if found is None or not _fits(values, rates):
            continue
        (a, b), turned = found
        if a.meta["kind"].shape[2] > MOST_DEPTH or {_origin(a), _origin(b)} & changed:
            continue
        with graph.inserting_before(node):
            if turned:
                a, b = (graph.call_function(aten.transpose.int, (part, 1, 2)) for part in (b, a))
            operation = torch.ops.evenhand.subtract_product.default
            graph.call_function(operation, (values, a, b, rates))
        graph.erase_node(node)
        fused += 1
    if fused:
        graph.eliminate_dead_code()
        module.recompile()
    return fused


def _fits(values: Any, rates: Any) -> bool:
    """Whether a program can change these values in place, with one rate for each client."""
    form, of_rates = values.meta.get("kind"), rates.meta.get("kind")
    return (
        values.op == "placeholder"
        and form is not None
        and len(form.shape) == 3
        and form.dtype == torch.float32
        and form.stride == (form.shape[1] * form.shape[2], form.shape[2], 1)
        and of_rates is not None
        and of_rates.shape == (form.shape[0], 1, 1)
        and of_rates.stride[0] == 1
    )


def _product(node: Any) -> tuple[tuple[Node, Node], bool] | None:
    """The factors of a product that only this gradient uses, and whether it is turned around."""
    turned = False
    while isinstance(node, Node) and len(node.users) == 1:
        if node.target is aten.bmm.default:
            a, b = node.args
            ready = isinstance(a, Node) and isinstance(b, Node) and "kind" in a.meta
            return ((a, b), turned) if ready else None  # type: ignore[return-value]
        if (node.target is aten.transpose.int and set(node.args[1:]) == {1, 2}) or (
            node.target is aten.permute.default and node.args[1] == [0, 2, 1]
        ):
            turned = not turned
        elif node.target is not torch_private.to_copy or set(node.kwargs) - {
            "dtype",
            "layout",
            "device",
        }:
            return None
        node = node.args[0]
    return None


def _origin(node: Node) -> Node:
    """The node whose memory this one is a view of."""
    while (
        node.op == "call_function"
        and isinstance(node.target, torch_private.OpOverload)
        and any(result.alias_info for result in torch_private.schema(node.target).returns)
        and isinstance(node.args[0], Node)
    ):
        node = node.args[0]
    return node
