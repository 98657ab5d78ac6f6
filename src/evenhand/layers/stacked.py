"""Convolutions and max-pooling of modules in their fastest form, whether clients are stacked or
come one by one.

A module calls torch's functions as ever. While it runs, :class:`FastLayers` sees these calls: under
``torch.vmap`` a convolution goes to one of the forms of :mod:`evenhand.layers.convolution`, chosen
for this layer and machine by measurement; on a CPU convolutions and pooling get images with
channels last, where pooling is several times faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from evenhand.layers import choices
from evenhand.layers.convolution import (
    BLOCK,
    FORMS,
    Geometry,
    Sides,
    Wanted,
    apart,
    convolution,
    convolution_backward,
    side_by_side_last,
)

CANDIDATES = {
    "cpu": ("grouped_last", "loop"),
    "cuda": ("grouped", "grouped_last", "im2col", "im2col_turned"),
}
# what torch's compiler leaves of a form's time, beside what it leaves of the others', for exact
# numbers and for rounded ones (tf32, bf16)
HANDICAPS = ({"im2col": 0.8, "im2col_turned": 0.8}, {"im2col": 0.5, "im2col_turned": 0.5})
IMAGE_CHANNELS = 4  # a layer with so few inputs is the first: nobody asks for the slope of the data
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

transforms_active = torch._C._are_functorch_transforms_active


def fast_layers(module: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which the module's layers take their fastest form."""
    if transforms_active():
        return FastLayers(_sums_nothing(module))
    if device.type == "cpu" and any(
        isinstance(layer, nn.Conv2d | nn.MaxPool2d) for layer in module.modules()
    ):
        return FastLayers(False)
    return nullcontext()


def _sums_nothing(module: nn.Module) -> bool:
    """Whether no layer of a module adds up what convolutions give, but layers that first bring it
    into their own order.

    Then stacked images may lie in memory in any order. Else not: sums over interleaved clients
    round by how many they are, and some of torch's layers cannot be stacked over images with
    channels last.
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
    """Hands convolutions and pooling over.

    Args:
        any_order: whether stacked images may lie in memory in any order: channels last, clients
            interleaved.
    """

    def __init__(self, any_order: bool) -> None:
        super().__init__()
        self.any_order = any_order

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _CONVOLUTIONS:
            return self._convolve(function, *args, **kwargs)
        if function in _POOLING:
            return self._pool(function, *args, **kwargs)
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
        result = _Convolution.apply(input, weight, bias, how, self.any_order)  # type: ignore[no-untyped-call]
        return result

    def _pool(
        self,
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
        return _MaxPool.apply(input, window, self.any_order)[0]  # type: ignore[no-untyped-call]


_POOLING = (torch.max_pool2d, torch.nn.functional.max_pool2d)
_CONVOLUTIONS = {  # dimensions, and whether transposed
    torch.conv1d: (1, False),
    torch.conv2d: (2, False),
    torch.conv3d: (3, False),
    torch.conv_transpose1d: (1, True),
    torch.conv_transpose2d: (2, True),
    torch.conv_transpose3d: (3, True),
}


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
    """How the filters move, and what is to be added to the images at their ends: "same" may need
    one more at the end."""
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
    """One client's images with channels last, which oneDNN and pooling are faster with; torch's own
    convolution of float64 is slower."""
    if x.dtype is torch.float64 or not x.numel():
        return x
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    # the same place in memory; only now torch takes it for channels last
    return x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)


# ---- convolution


class _Convolution(torch.autograd.Function):
    """torch's convolution, with a rule of its own for stacked clients."""

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry, any_order: bool
    ) -> Tensor:
        return convolution(x, w, bias, how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, ctx.how, ctx.any_order = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        wanted = (
            ctx.needs_input_grad[0],
            ctx.needs_input_grad[1],
            ctx.has_bias and ctx.needs_input_grad[2],
        )
        found = iter(_Slopes.apply(slopes[0], *ctx.saved_tensors, ctx.how, wanted, ctx.any_order))  # type: ignore[no-untyped-call]
        return (*(next(found) if want else None for want in wanted), None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        how: Geometry,
        any_order: bool,
    ) -> Any:
        x, w = (
            _stacked(value, dim, info.batch_size)
            for value, dim in zip((x, w), in_dims[:2], strict=True)
        )
        bias = None if bias is None else _stacked(bias, in_dims[2], info.batch_size)
        return _settled(FORMS[_form(x, w, how, any_order)].forward(x, w, bias, how), any_order), 0


class _Slopes(torch.autograd.Function):
    """The wanted slopes of a convolution's images, filters and bias, with a rule of its own for
    stacked clients."""

    @staticmethod
    def forward(
        slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted, any_order: bool
    ) -> tuple[Tensor, ...]:
        return tuple(
            found for found in convolution_backward(slope, x, w, how, wanted) if found is not None
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *values, ctx.how, ctx.wanted, _ = inputs
        ctx.save_for_backward(*values)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        def again(slope: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            return tuple(
                found
                for found in convolution_backward(slope, x, w, ctx.how, ctx.wanted)
                if found is not None
            )

        return (*torch.func.vjp(again, *ctx.saved_tensors)[1](slopes), None, None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        slope: Tensor,
        x: Tensor,
        w: Tensor,
        how: Geometry,
        wanted: Wanted,
        any_order: bool,
    ) -> Any:
        slope, x, w = (
            _stacked(value, dim, info.batch_size)
            for value, dim in zip((slope, x, w), in_dims[:3], strict=True)
        )
        of_x, *rest = FORMS[_form(x, w, how, any_order)].backward(slope, x, w, how, wanted)
        found = [None if of_x is None else _settled(of_x, any_order), *rest]
        results = tuple(value for value in found if value is not None)
        return results, (0,) * len(results)


def _stacked(value: Tensor, dim: int | None, clients: int) -> Tensor:
    """With the clients first; what all of them share is repeated."""
    return value.expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)


def _settled(images: Tensor, any_order: bool) -> Tensor:
    """Images in an order in memory that what follows can take; on a GPU that is any."""
    if any_order or images.is_cuda:
        return images
    return images.flatten().reshape(
        images.shape
    )  # not contiguous(): that leaves odd strides where a side is 1, which torch takes for an order


def _is_interleaved(images: Tensor) -> bool:
    return len(images) > 1 and images.permute(1, 3, 4, 0, 2).is_contiguous()


# ---- which form


def _form(x: Tensor, w: Tensor, how: Geometry, any_order: bool) -> str:
    """The name of the form for these layers. On a CPU it does not depend on how many clients there
    are: neither must their bits."""
    kind = x.device.type
    if x.ndim != 5 or how.transposed or not x.numel() or kind not in CANDIDATES:
        return "loop" if kind == "cpu" else "grouped"
    if torch._C._functorch.is_functorch_wrapped_tensor(
        x
    ) or torch._C._functorch.is_functorch_wrapped_tensor(w):
        return "grouped"  # stacked more than once: torch knows how
    shapes = "x".join(map(str, x.shape[1:])), "x".join(map(str, w.shape[1:]))
    geometry = (
        f"stride {how.stride} padding {how.padding} dilation {how.dilation} groups {how.groups}"
    )
    dtype = (
        "tf32"
        if kind == "cuda" and x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32
        else str(x.dtype)
    )
    question = (
        f"convolution of {shapes[0]} with {shapes[1]}, {geometry}, {dtype},"
        f" {'in any order' if any_order else 'in order'}"
    )
    clients = BLOCK if kind == "cpu" else len(x)
    if kind == "cuda":
        question += f", {clients} clients"
        if torch.cuda.is_current_stream_capturing():  # no time to try things out
            return choices.known(question, x.device) or "grouped"
    device, sides, kind_of_number = x.device, (tuple(x.shape[1:]), tuple(w.shape[1:])), x.dtype
    return choices.remembered(
        question, device, lambda: _measured(clients, *sides, how, kind_of_number, device, any_order)
    )


def _measured(
    clients: int,
    x_shape: Sides,
    w_shape: Sides,
    how: Geometry,
    dtype: torch.dtype,
    device: torch.device,
    any_order: bool,
) -> str:
    """The fastest form for forward and backward together, of those whose rounding does not depend
    on a client's company."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the engine
    try:
        with torch.no_grad():
            x, w = (
                torch.ones(clients, *shape, dtype=dtype, device=device)
                for shape in (x_shape, w_shape)
            )
            for value in (x, w):
                value.copy_(
                    torch.linspace(-1, 1, value.numel(), dtype=torch.float64)
                    .sin()
                    .reshape(value.shape)
                )
            bias = w.flatten(2).sum(2)
            wanted = (x_shape[1] > IMAGE_CHANNELS, True, True)
            slope = (
                convolution(x[0], w[0], bias[0], how)
                .sin()
                .expand(clients, -1, -1, -1, -1)
                .contiguous()
            )

            def way(name: str) -> Callable[[], object]:
                images, slopes = (_arranged(name, value, any_order) for value in (x, slope))

                def once() -> None:
                    out = _settled(FORMS[name].forward(images, w, bias, how), any_order)
                    of_x = FORMS[name].backward(slopes, images, w, how, wanted)[0]
                    if of_x is not None:
                        _settled(of_x, any_order)
                    del out

                return once

            rounded = dtype == torch.bfloat16 or torch.backends.cudnn.allow_tf32
            names = [
                name
                for name in CANDIDATES[device.type]
                if name != "grouped_last"
                or device.type != "cpu"
                or _same_bits(slope, x, w, bias, how)
            ]
            return choices.race(
                device,
                {name: way(name) for name in names},
                HANDICAPS[rounded] if device.type == "cuda" else {},
            )
    finally:
        torch.set_num_threads(before)


def _arranged(name: str, value: Tensor, any_order: bool) -> Tensor:
    """Images as the layer before leaves them in memory if it has the same form."""
    if name == "grouped_last" and (any_order or value.is_cuda):
        return apart(side_by_side_last(value), len(value))
    if name == "grouped":
        return value.transpose(0, 1).contiguous().transpose(0, 1)
    if not any_order and not value.is_cuda:
        return value.contiguous()
    return value.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _same_bits(slope: Tensor, x: Tensor, w: Tensor, bias: Tensor, how: Geometry) -> bool:
    """Whether a block of two, three or four clients gives each of them the same numbers, wherever
    in the block it is."""
    form = FORMS["grouped_last"]

    def all_of(rows: list[int]) -> list[Tensor]:
        own = [value[rows] for value in (slope, x, w)]
        found = (
            form.forward(own[1], own[2], bias[rows], how),
            *form.backward(own[0], own[1], own[2], how, (True, True, True)),
        )
        return [value for value in found if value is not None]

    whole = all_of(list(range(BLOCK)))
    some = [list(range(size)) for size in range(2, BLOCK)] + [list(range(BLOCK))[::-1]]
    return all(
        torch.equal(a, b[rows]) for rows in some for a, b in zip(all_of(rows), whole, strict=True)
    )


# ---- max-pooling: exact, so only its speed depends on the order in memory


class _MaxPool(torch.autograd.Function):
    """torch's max-pooling, with a rule of its own for stacked clients: values, and where in the
    image they were."""

    @staticmethod
    def forward(x: Tensor, window: tuple[Any, ...], any_order: bool) -> tuple[Tensor, Tensor]:
        values, places = torch.ops.aten.max_pool2d_with_indices(x, *window)
        return values, places

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.window, ctx.any_order = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        kept = (*ctx.saved_tensors, ctx.window, ctx.any_order)
        slope = _PoolSlope.apply(slopes[0], *kept)  # type: ignore[no-untyped-call]
        return slope, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, window: tuple[Any, ...], any_order: bool
    ) -> Any:
        x = _stacked(x, in_dims[0], info.batch_size)
        flat, back = _flat(x)
        values, places = torch.ops.aten.max_pool2d_with_indices(flat(x), *window)
        return (_settled(back(values), any_order), back(places)), (0, 0)


class _PoolSlope(torch.autograd.Function):
    """The slope of the images of a max-pooling."""

    @staticmethod
    def forward(
        slope: Tensor, x: Tensor, places: Tensor, window: tuple[Any, ...], any_order: bool
    ) -> Tensor:
        result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(slope, x, *window, places)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return (
            slopes[0].flatten(-2).gather(-1, places.flatten(-2)).reshape(places.shape),
            None,
            None,
            None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        slope: Tensor,
        x: Tensor,
        places: Tensor,
        window: tuple[Any, ...],
        any_order: bool,
    ) -> Any:
        slope, x, places = (
            _stacked(value, dim, info.batch_size)
            for value, dim in zip((slope, x, places), in_dims[:3], strict=True)
        )
        flat, back = _flat(x)
        found = torch.ops.aten.max_pool2d_with_indices_backward(
            flat(slope), flat(x), *window, flat(places)
        )
        return _settled(back(found), any_order), 0


def _flat(x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """To four dimensions with channels last and back, in the order that x (K, N, C, H, W) has in
    memory."""
    clients, n = x.shape[:2]
    if _is_interleaved(x):
        return side_by_side_last, lambda values: apart(values, clients)

    def last(values: Tensor) -> Tensor:
        return values.flatten(0, 1).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)

    return last, lambda values: values.reshape(clients, n, *values.shape[1:])
