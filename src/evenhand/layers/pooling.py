"""Max-pooling, alone or with a ReLU after it, with rules of its own for stacked clients.

Pooling is exact, so the memory order affects only its speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evenhand.layers.arrangement import apart, is_interleaved, settled, side_by_side_last, stacked


class MaxPool(torch.autograd.Function):
    """torch's max-pooling: values, or their ReLU, and where in the image they were."""

    @staticmethod
    def forward(
        x: Tensor, window: tuple[Any, ...], relu: bool, any_order: bool
    ) -> tuple[Tensor, Tensor]:
        values, places = torch.ops.aten.max_pool2d_with_indices(x, *window)
        return values.relu() if relu else values, places

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.window, ctx.relu, ctx.any_order = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kept = (*ctx.saved_tensors, ctx.window, ctx.relu, ctx.any_order)
        gradient = _PoolGradient.apply(gradients[0], *kept)  # type: ignore[no-untyped-call]
        return gradient, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        x: Tensor,
        window: tuple[Any, ...],
        relu: bool,
        any_order: bool,
    ) -> Any:
        x = stacked(x, in_dims[0], info.batch_size)
        flat, back = _flat(x)
        values, places = MaxPool.forward(flat(x), window, relu, any_order)
        return (settled(back(values), any_order), back(places)), (0, 0)


class _PoolGradient(torch.autograd.Function):
    """The gradient of the images of a max-pooling."""

    @staticmethod
    def forward(
        gradient: Tensor,
        x: Tensor,
        values: Tensor,
        places: Tensor,
        window: tuple[Any, ...],
        relu: bool,
        any_order: bool,
    ) -> Tensor:
        if relu:
            gradient = _where_positive(gradient, values)
        result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient, x, *window, places
        )
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.relu = inputs[5]
        ctx.save_for_backward(*inputs[2:4])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, places = ctx.saved_tensors
        found = gradients[0].flatten(-2).gather(-1, places.flatten(-2)).reshape(places.shape)
        return _where_positive(found, values) if ctx.relu else found, *[None] * 6

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        gradient: Tensor,
        x: Tensor,
        values: Tensor,
        places: Tensor,
        window: tuple[Any, ...],
        relu: bool,
        any_order: bool,
    ) -> Any:
        gradient, x, values, places = (
            stacked(value, dim, info.batch_size)
            for value, dim in zip((gradient, x, values, places), in_dims[:4], strict=True)
        )
        flat, back = _flat(x)
        # all in one memory order before the ReLU: a dense layer's gradient comes in another one,
        # and torch takes ten times as long over two orders
        given = flat(gradient), flat(x), flat(values), flat(places)
        found = _PoolGradient.forward(*given, window, relu, any_order)
        return settled(back(found), any_order), 0


def _where_positive(gradient: Tensor, values: Tensor) -> Tensor:
    """The gradient of a ReLU with these values."""
    result: Tensor = torch.ops.aten.threshold_backward(gradient, values, 0)
    return result


def _flat(x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """To four dimensions with channels last and back, in the order of ``x`` in memory."""
    clients, n = x.shape[:2]
    if is_interleaved(x):
        return side_by_side_last, lambda values: apart(values, clients)

    def last(values: Tensor) -> Tensor:
        return values.flatten(0, 1).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)

    return last, lambda values: values.reshape(clients, n, *values.shape[1:])
