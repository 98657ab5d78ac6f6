"""Steps of dense layers that read and write each weight once.

The gradient of a dense layer is a product of a batch's slopes and inputs, as large as the weights.
In a compiled step it is only needed to change the weights, so :func:`fuse_updates` replaces product
and step by one operation. Where the batch is small, that operation also takes the gradient of the
layer's inputs, and another one reads the weights for the layer's output without a rounded copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import device as Device
from torch.fx import Graph, GraphModule, Node

from evenhand import torch_private
from evenhand.layers import dense

MOST_DEPTH = 256  # samples in a product; with more, arithmetic takes longer than memory
aten = torch.ops.aten


def fuse_updates(module: GraphModule, device: Device) -> int:
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
        if node.target is not aten.addcmul_.default or node.kwargs != {"value": -1} or node.users:
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
                a, b = _turned(graph, b), _turned(graph, a)
        update = _Update(node, values, a, b, rates)
        if not _fuse_products(graph, update, changed, device):
            with graph.inserting_before(node):
                graph.call_function(
                    torch.ops.evenhand.subtract_product.default, (values, a, b, rates)
                )
        graph.erase_node(node)
        fused += 1
    if fused:
        graph.eliminate_dead_code()
        module.recompile()
    return fused


class _Update(NamedTuple):
    """``values -= rates * a @ b`` in a graph."""

    node: Any  # nodes; their arguments can be anything
    values: Any
    a: Any
    b: Any
    rates: Any


def _fuse_products(graph: Graph, update: _Update, changed: set[Node], device: Device) -> bool:
    """Replace what reads the weights, if nothing but products with a small batch does; whether the
    step is taken with one of them."""
    products = _products(update.values, update.node)
    kind, of_batch = update.values.meta["kind"], update.b.meta["kind"]
    samples = of_batch.shape[1]
    if (
        products is None
        or samples > dense.MOST_SAMPLES
        or any(node.args[0].meta["kind"].shape[1] != samples for node, _ in products)
        or any(node.args[0].meta["kind"].dtype != of_batch.dtype for node, _ in products)
        or not dense.faster(kind.shape, samples, of_batch.dtype, device)
    ):
        return False
    order = {node: number for number, node in enumerate(graph.nodes)}
    slopes = update.a.args[0] if _turns(update.a) else None
    last = max(products, key=lambda product: order[product[0]], default=(None, True))
    back = None if last[1] else last[0]
    rates = _root(update.rates)
    together = (
        back is not None
        and slopes is back.args[0]
        and rates is not None
        and rates not in changed
        and max(order[slopes], order[update.b]) < order[back] < order[update.node]
    )
    for node, turned in products:
        if turned:
            with graph.inserting_before(node):
                _replace_scores(graph, node, update.values)
        elif node is back and together:
            with graph.inserting_before(node):
                given = graph.call_function(aten.view.default, (rates, [kind.shape[0], 1, 1]))
                step = graph.call_function(
                    torch.ops.evenhand.step_back.default,
                    (update.values, slopes, update.b, given),
                )
            _take_over(node, step)
    return together


def _replace_scores(graph: Graph, node: Any, values: Node) -> None:
    parts = graph.call_function(torch.ops.evenhand.scores.default, (values, node.args[0]))
    total = graph.call_function(aten.sum.dim_IntList, (parts, [0]))
    result = graph.call_function(aten.transpose.int, (total, 1, 2))
    dtype = node.meta["kind"].dtype
    if dtype != torch.float32:
        result = graph.call_function(torch_private.to_copy, (result,), {"dtype": dtype})
    _take_over(node, result)


def _take_over(node: Any, by: Node) -> None:
    by.meta["kind"] = node.meta["kind"]
    node.replace_all_uses_with(by)


def _turned(graph: Graph, node: Any) -> Any:
    """Its matrices turned around."""
    if _turns(node):
        return node.args[0]
    kind = node.meta["kind"]
    result = graph.call_function(aten.transpose.int, (node, 1, 2))
    result.meta["kind"] = kind._replace(
        shape=torch.Size((kind.shape[0], kind.shape[2], kind.shape[1])),
        stride=(kind.stride[0], kind.stride[2], kind.stride[1]),
    )
    return result


def _products(values: Node, update: Node) -> list[tuple[Any, bool]] | None:
    """The products with the weights as second factor, and whether they are turned around there;
    None if anything else reads the weights."""
    found = []
    ahead: list[tuple[Any, Node, bool]] = [
        (user, values, False) for user in values.users if user is not update
    ]
    while ahead:
        node, source, turned = ahead.pop()
        if node.target is aten.bmm.default and node.args[1] is source is not node.args[0]:
            found.append((node, turned))
        elif _turns(node) or _converts(node):
            ahead += [(user, node, turned != _turns(node)) for user in node.users]
        else:
            return None
    return found


def _root(rates: Any) -> Any:
    """The input that these are a view of."""
    while rates.target is aten.view.default:
        rates = rates.args[0]
    return rates if rates.op == "placeholder" else None


def _fits(values: Any, rates: Any) -> bool:
    """Whether a program can change these values in place, with one rate for each client."""
    form, of_rates = values.meta.get("kind"), rates.meta.get("kind")
    return (
        values.op == "placeholder"
        and form is not None
        and len(form.shape) == 3
        and form.shape[0] < dense.MOST_CLIENTS
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
        if _turns(node):
            turned = not turned
        elif not _converts(node):
            return None
        node = node.args[0]
    return None


def _turns(node: Any) -> bool:
    return (node.target is aten.transpose.int and set(node.args[1:]) == {1, 2}) or (
        node.target is aten.permute.default and node.args[1] == [0, 2, 1]
    )


def _converts(node: Node) -> bool:
    return node.target is torch_private.to_copy and not (
        set(node.kwargs) - {"dtype", "layout", "device"}
    )


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
