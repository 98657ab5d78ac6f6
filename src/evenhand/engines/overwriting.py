"""Recorded operations write over what nobody reads any more, so that they touch less memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from evenhand import torch_private
from evenhand.engines.recording import Kind

ATEN = torch.ops.aten
_IN_PLACE = {ATEN.add.Tensor: ATEN.add_.Tensor, ATEN.mul.Tensor: ATEN.mul_.Tensor}


def overwrite(module: GraphModule) -> None:
    """Let sums and products take the place of an operand; no bit of a result changes."""
    _need_no_room(module)
    for node in module.graph.nodes:
        if node.target in _IN_PLACE and not node.kwargs:
            one, other = node.args
            if _is_free(one, node):
                node.target = _IN_PLACE[node.target]
            elif _is_free(other, node):
                node.target, node.args = _IN_PLACE[node.target], (other, one)
    module.graph.eliminate_dead_code()
    module.recompile()


def _is_free(value: Any, user: Node) -> bool:
    """Whether a result has memory of its own, in the form that ``user`` needs, and no other."""
    return (
        isinstance(value, Node)
        and list(value.users) == [user]
        and isinstance(value.target, torch_private.OpOverload)
        and value.target is not torch_private.unsafe_view
        and not any(found.alias_info for found in torch_private.schema(value.target).returns)
        and _form(value) == _form(user)
    )


def _form(value: Any) -> tuple[Any, ...] | None:
    kind: Kind | None = value.meta.get("kind") if isinstance(value, Node) else None
    return None if kind is None else (kind.shape, kind.stride, kind.dtype)


def _need_no_room(module: GraphModule) -> None:
    """Let products have memory of their own that are written to memory made for nothing else."""
    graph = module.graph
    past: set[Node] = set()
    rooms: set[Node] = set()  # memory as it was before a product is written there
    for node in list(graph.nodes):
        if node.target is ATEN.zeros_like.default:
            rooms.add(node)
        elif node.target is ATEN.detach.default and node.args[0] in rooms:
            if list(node.args[0].users) == [node]:
                rooms.add(node)
        elif node.target is ATEN.mul.out and _form(node.args[0]) == _form(node):
            room = node.kwargs["out"]
            # what was there before is read before, and nobody keeps a view of it
            if room in rooms and all(
                user is node or (user in past and _reads(user, room)) for user in room.users
            ):
                with graph.inserting_before(node):
                    product = graph.call_function(ATEN.mul.Tensor, node.args)
                product.meta = dict(node.meta)
                node.replace_all_uses_with(product)
                graph.erase_node(node)
                rooms.add(product)
                node = product
        past.add(node)


def _reads(user: Node, value: Node) -> bool:
    """Whether an operation reads a value without changing it or returning a view of it."""
    if not isinstance(user.target, torch_private.OpOverload):
        return False
    found = torch_private.schema(user.target)
    return (
        all(
            given is not value or argument.alias_info is None
            for argument, given in zip(found.arguments, user.args, strict=False)
        )
        and value not in user.kwargs.values()
    )
