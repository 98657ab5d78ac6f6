"""The tensor operations of a function, as a graph.

torch's own tracer also works out symbolic shapes and takes ten times as long; shapes are fixed
here.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from evenhand.torch_private import DispatchMode

ATEN = torch.ops.aten


class Kind(NamedTuple):
    """What is known of a node's result. Nodes of equal kinds are the same values in memory."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    memory: int  # the address of what it is a view of, and where in there it begins
    offset: int


_here = threading.local()


def is_recording() -> bool:
    """Whether this thread is recording; what else it traces would be recorded, too."""
    return getattr(_here, "recording", False)


def recorded(function: Callable[..., Sequence[Tensor]], values: Sequence[Tensor]) -> GraphModule:
    """The operations of ``function`` on flat tensors, for tensors of these shapes.

    Runs the function once. Raises if its operations depend on the values.
    """
    recorder = _Recorder(values)
    _here.recording = True
    try:
        with recorder:
            results = function(*values)
    finally:
        _here.recording = False
    recorder.graph.output([recorder.given(leaf) for leaf in results])
    return GraphModule(recorder.constants, recorder.graph)


class _Recorder(DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations below batching and differentiation, which see plain tensors."""

    def __init__(self, values: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants = Graph(), torch.nn.Module()
        self._nodes: dict[int, Node] = {}  # by the identity of the tensor
        self._kept: list[Tensor] = []  # so that no other tensor gets the identity of one of these
        for number, value in enumerate(values):
            self._note(value, self.graph.placeholder(f"value_{number}"))

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_unpredictable(operation, args):
            raise ValueError(f"the result of {operation} depends on values")
        if operation is ATEN.lift_fresh.default:  # numbers, which the function may go on to change
            operation, args = ATEN.clone.default, (args[0].clone(),)
        node = self.graph.call_function(operation, *map(self.given, (args, kwargs)))
        result = operation(*args, **kwargs)
        if isinstance(result, Tensor):
            self._note(result, node)
        elif isinstance(result, tuple | list):
            for number, value in enumerate(result):
                if isinstance(value, Tensor):
                    part = self.graph.call_function(operator.getitem, (node, number))
                    self._note(value, part)
        return result

    def given(self, value: Any) -> Any:
        """An argument, with nodes in place of tensors."""
        if isinstance(value, Tensor):
            return self._nodes.get(id(value)) or self._constant(value)
        if isinstance(value, tuple | list):
            return type(value)(map(self.given, value))
        if isinstance(value, dict):
            return {name: self.given(entry) for name, entry in value.items()}
        return value

    def _note(self, value: Tensor, node: Node) -> None:
        place = value.untyped_storage().data_ptr(), int(value.storage_offset())
        node.meta["kind"] = Kind(value.shape, value.stride(), value.dtype, *place)
        self._nodes[id(value)] = node
        self._kept.append(value)

    def _constant(self, value: Tensor) -> Node:
        """A tensor that is neither an argument nor computed from them."""
        name = f"constant_{len(self._kept)}"
        self.constants.register_buffer(name, value.detach())
        node = self.graph.get_attr(name)
        self._note(value, node)
        return node


def _is_unpredictable(operation: Any, args: Any) -> bool:
    """Whether a number or a shape depends on values, so that the next call could differ."""
    if operation is ATEN.index.Tensor:  # only a mask selects a varying number
        return any(index is not None and index.dtype is torch.bool for index in args[1])
    return any(
        tag in operation.tags
        for tag in (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    )
