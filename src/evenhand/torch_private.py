"""The private and experimental parts of torch that evenhand uses, each looked up here.

torch may move them in any release. If one is missing, the error names it and the versions of torch
that are known to have it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evenhand.errors import EvenhandError
from evenhand.version import __version__

TESTED = ">=2.8,<2.16"  # the lowest and the newest were tested, see docs/reference/versions.md


def look_up(name: str) -> Any:
    """The object called ``torch.{name}``."""
    try:
        return resolve_name(f"torch.{name}")
    except (ImportError, AttributeError):
        raise _missing(name) from None


def _missing(name: str) -> EvenhandError:
    return EvenhandError(
        f"evenhand {__version__} needs torch.{name}, which torch {torch.__version__} does not have;"
        f" install torch{TESTED}"
    )


if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._pytree import TreeSpec as TreeSpec
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_unflatten as tree_unflatten
else:
    OpOverload = look_up("_ops.OpOverload")
    TorchDispatchMode = look_up("utils._python_dispatch.TorchDispatchMode")
    TreeSpec = look_up("utils._pytree.TreeSpec")
    tree_flatten = look_up("utils._pytree.tree_flatten")
    tree_map = look_up("utils._pytree.tree_map")
    tree_unflatten = look_up("utils._pytree.tree_unflatten")

lstm = look_up("_VF.lstm")
unsafe_view = look_up("ops.aten._unsafe_view.default")
fused_lstm_cell = look_up("ops.aten._thnn_fused_lstm_cell")
fused_lstm_cell_backward = look_up("ops.aten._thnn_fused_lstm_cell_backward_impl")
to_copy = look_up("ops.aten._to_copy.default")
transforms_active = look_up("_C._are_functorch_transforms_active")  # inside vmap, grad, ...
is_transformed = look_up("_C._functorch.is_functorch_wrapped_tensor")


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that torch need not tell its compiler to leave alone: for that it would load it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_nested = look_up("_functorch.eager_transforms.grad_increment_nesting")
_wrap = look_up("_functorch.eager_transforms._wrap_all_tensors")
_mark = look_up("_functorch.eager_transforms._create_differentiable")
_unwrap = look_up("_functorch.eager_transforms._undo_create_differentiable")


def grad(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return what ``torch.func.grad`` does: the gradient by the first argument, a tree, with the
    same operations.

    It loads no compiler. That of torch is loaded by the first derivative with its own function,
    though it is not used; this takes a second and 60 MB.
    """

    def gradient(variables: Any, *rest: Any) -> Any:
        with _nested() as level, torch.enable_grad():
            inner = _mark(_wrap(variables, level), level)
            value = function(inner, *rest)
            if value.dim():
                raise RuntimeError(f"a gradient needs a single number, got {list(value.shape)}")
            leaves, form = tree_flatten(inner)
            found: Sequence[Tensor | None] = [None] * len(leaves)
            if value.requires_grad:
                found = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
            filled = [
                torch.zeros_like(leaf) if slope is None else slope
                for leaf, slope in zip(leaves, found, strict=True)
            ]
            return _unwrap(tree_unflatten(filled, form), level)

    return gradient


_function_of = look_up("_C._create_function_from_graph")


def freed_when_unused(traced: Any) -> Any:
    """Return the function that ``torch.jit.trace`` has returned, as one that is freed when unused.

    torch keeps every traced function, and its plan of execution, until the process ends: 40 MB in a
    run. So the function gets a copy of the operations, and those that torch keeps are removed.
    """
    kept = traced.graph
    function = _function_of("operations", kept.copy())
    while list(kept.outputs()):
        kept.eraseOutput(0)
    for node in reversed(list(kept.nodes())):
        node.destroy()
    return function


class _Compiling:
    """torch's flag for compilation, which all threads share."""

    def __init__(self) -> None:
        self.lock, self.depth, self.before = threading.Lock(), 0, False

    @contextmanager
    def pretended(self) -> Iterator[None]:
        look_up("compiler._is_compiling_flag")
        with self.lock:
            if not self.depth:
                self.before = torch.compiler._is_compiling_flag
            self.depth += 1
            torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            with self.lock:
                self.depth -= 1
                if not self.depth:
                    torch.compiler._is_compiling_flag = self.before


# ``torch.compiler.is_compiling()`` is true inside, so that libraries avoid branches on values
as_if_compiled = _Compiling().pretended


def schema(operation: OpOverload) -> Any:
    """The arguments and results of an operation, with what it writes to."""
    try:
        return operation._schema
    except AttributeError:
        raise _missing("_ops.OpOverload._schema") from None


def changes_its_input(operation: Any) -> bool:
    """Whether it is an operation on tensors that writes to one it is given."""
    return isinstance(operation, OpOverload) and bool(schema(operation).is_mutable)
