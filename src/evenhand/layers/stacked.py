"""Convolutions, max-pooling and attention of a module in their fastest form, for one client or a
stack.

A module calls torch's functions as usual, and :class:`FastLayers` intercepts these calls. Under
``torch.vmap`` a convolution uses one of the forms in :mod:`evenhand.layers.forms`, chosen by timing
for this layer and machine. On a CPU, convolutions and pooling get images with channels last, which
makes pooling several times faster. There, a stacked ReLU that is followed by a pooling is taken
after it, of fewer values: in both orders the largest value of a window remains if it is positive,
so no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from evenhand.layers.attention import attention
from evenhand.layers.convolution import Geometry, Sides
from evenhand.layers.convolution_rules import Convolution
from evenhand.layers.pooling import MaxPool
from evenhand.torch_private import transforms_active

SAFE_LAYERS = (
    nn.Conv2d,
    nn.MaxPool2d,
    nn.ReLU,
    nn.LeakyReLU,
    nn.Dropout,
    nn.Dropout2d,
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.Linear,
)
_RELU = (torch.relu, torch.nn.functional.relu, Tensor.relu)
_POOLING = (torch.max_pool2d, torch.nn.functional.max_pool2d)
_CONVOLUTIONS = {  # dimensions, and whether transposed
    torch.conv1d: (1, False),
    torch.conv2d: (2, False),
    torch.conv3d: (3, False),
    torch.conv_transpose1d: (1, True),
    torch.conv_transpose2d: (2, True),
    torch.conv_transpose3d: (3, True),
}


def fast_layers(module: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which the module's layers use their fastest form."""
    if transforms_active():
        return FastLayers(_sums_nothing(module))
    if device.type == "cpu" and any(
        isinstance(layer, nn.Conv2d | nn.MaxPool2d) for layer in module.modules()
    ):
        return FastLayers(False)
    return nullcontext()


def _sums_nothing(module: nn.Module) -> bool:
    """Whether no layer sums the results of convolutions before they are back in order.

    Then stacked images may have any memory order. Otherwise they may not: sums over interleaved
    clients round differently for different numbers of clients, and torch cannot stack some layers
    over images with channels last.
    """
    return all(
        (
            type(layer).forward is nn.Sequential.forward
            if isinstance(layer, nn.Sequential)
            else type(layer) in SAFE_LAYERS
        )
        for layer in module.modules()
    )


class FastLayers(TorchFunctionMode):
    """Replaces convolutions, pooling and stacked attention by their fastest form.

    Args:
        any_order: whether stacked images may have any memory order, such as channels last or
            clients interleaved.
    """

    def __init__(self, any_order: bool) -> None:
        super().__init__()
        self.any_order = any_order
        # what the function before this one was the ReLU of, and its result
        self._relu: tuple[Tensor, Tensor] | None = None

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        relu, self._relu = self._relu, None
        if function in _CONVOLUTIONS:
            return self._convolve(function, *args, **kwargs)
        if function in _POOLING:
            before = relu[0] if relu is not None and args and args[0] is relu[1] else None
            return self._pool(before, function, *args, **kwargs)
        if function in _RELU and transforms_active() and not kwargs.get("inplace", args[1:]):
            result: Tensor = function(*args, **kwargs)
            self._relu = (args[0], result)
            return result
        if function is torch.nn.functional.scaled_dot_product_attention and transforms_active():
            return attention(*args, **kwargs)
        if function is torch.nn.functional.multi_head_attention_forward and transforms_active():
            # with weights, nn.MultiheadAttention does not call the fused kernel, which cannot be
            # intercepted inside of this function
            wanted = kwargs.get("need_weights", True)
            attended, weights = function(*args, **{**kwargs, "need_weights": True})
            return attended, weights if wanted else None
        return function(*args, **kwargs)

    def _convolve(
        self,
        function: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        dimensions, transposed = _CONVOLUTIONS[function]
        on_cpu = input.device.type == "cpu"
        if (
            not transforms_active()
            or input.ndim != dimensions + 2
            or not (on_cpu or function is torch.conv2d)
        ):
            if on_cpu and function is torch.conv2d and input.ndim == 4:
                input = _last(input)
            result: Tensor = function(input, weight, bias, *args, **kwargs)
            return result
        if torch.is_autocast_enabled(input.device.type):
            dtype = torch.get_autocast_dtype(input.device.type)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        how, extra = (_transposed if transposed else _ordinary)(dimensions, weight, *args, **kwargs)
        if any(extra):
            input = torch.nn.functional.pad(input, extra)
        result = Convolution.apply(input, weight, bias, how, self.any_order)  # type: ignore[no-untyped-call]
        return result

    def _pool(
        self,
        before: Tensor | None,  # what ``input`` is the ReLU of
        function: Any,
        input: Tensor,
        kernel_size: int | Sides,
        stride: int | Sides | None = None,
        padding: int | Sides = 0,
        dilation: int | Sides = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        on_cpu = input.device.type == "cpu" and input.ndim == 4
        if not on_cpu or return_indices or not transforms_active():
            if on_cpu:
                input = _last(input)
            rest = {"return_indices": True} if return_indices else {}
            return function(
                input, kernel_size, stride or kernel_size, padding, dilation, ceil_mode, **rest
            )
        window = (
            *(
                _sides(value, 2)
                for value in (kernel_size, stride or kernel_size, padding, dilation)
            ),
            ceil_mode,
        )
        has_relu = before is not None
        given = (before if has_relu else input, window, has_relu, self.any_order)
        return MaxPool.apply(*given)[0]  # type: ignore[no-untyped-call]


def _sides(value: int | Iterable[int], dimensions: int) -> Sides:
    sides = (value,) if isinstance(value, int) else tuple(value)
    return sides * dimensions if len(sides) == 1 else sides


def _ordinary(
    dimensions: int,
    weight: Tensor,
    stride: int | Sides = 1,
    padding: int | Sides | str = 0,
    dilation: int | Sides = 1,
    groups: int = 1,
) -> tuple[Geometry, Sides]:
    """How the filters move, and the extra padding that "same" may need."""
    strides, dilations = _sides(stride, dimensions), _sides(dilation, dimensions)
    none = (0,) * dimensions
    extra: Sides = ()
    if isinstance(padding, str):
        reach = [
            d * (length - 1) if padding == "same" else 0
            for d, length in zip(dilations, weight.shape[2:], strict=True)
        ]
        padding = tuple(r // 2 for r in reach)
        extra = tuple(side for r in reversed(reach) for side in (0, r % 2))
    return Geometry(strides, _sides(padding, dimensions), dilations, groups, False, none), extra


def _transposed(
    dimensions: int,
    weight: Tensor,
    stride: int | Sides = 1,
    padding: int | Sides = 0,
    output_padding: int | Sides = 0,
    groups: int = 1,
    dilation: int | Sides = 1,
) -> tuple[Geometry, Sides]:
    sides = [_sides(value, dimensions) for value in (stride, padding, dilation, output_padding)]
    return Geometry(sides[0], sides[1], sides[2], groups, True, sides[3]), ()


def _last(x: Tensor) -> Tensor:
    """One client's images with channels last, which makes oneDNN and pooling faster.

    Except for float64, where torch's own convolution is slower with it.
    """
    if x.dtype is torch.float64 or not x.numel():
        return x
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    # the same memory; only now does torch recognise channels last
    return x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)
