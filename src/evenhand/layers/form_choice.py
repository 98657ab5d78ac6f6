"""Choose the fastest form of a convolution of stacked clients on this machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evenhand.layers import choices, kernels
from evenhand.layers.arrangement import arranged, settled
from evenhand.layers.convolution import Geometry, Sides, convolution
from evenhand.layers.forms import FORMS
from evenhand.layers.grouped import BLOCK
from evenhand.torch_private import is_transformed

CANDIDATES = {
    "cpu": ("grouped_last", "loop"),
    "cuda": ("grouped", "grouped_last", "im2col", "im2col_turned", "direct"),
}
# a form's time is multiplied by this, since torch's compiler speeds it up more than the others: for
# exact numbers, and for rounded ones (tf32, bf16)
HANDICAPS = ({"im2col": 0.8, "im2col_turned": 0.8}, {"im2col": 0.65, "im2col_turned": 0.65})
# a layer with so few channels is the first one; the gradient of the data is not needed
IMAGE_CHANNELS = 4


def fastest_form(x: Tensor, w: Tensor, how: Geometry, any_order: bool) -> str:
    """The name of the form for a layer.

    On a CPU it does not depend on the number of clients, so that their bits do not either.
    """
    kind = x.device.type
    if x.ndim != 5 or how.transposed or not x.numel() or kind not in CANDIDATES:
        return "loop" if kind == "cpu" else "grouped"
    if any(map(is_transformed, (x, w))):
        return "grouped"  # stacked more than once: torch handles it
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
        f"{', with kernels' if kind == 'cuda' and kernels.usable(x) else ''}"
    )
    clients = BLOCK if kind == "cpu" else len(x)
    if kind == "cuda":
        question += f", {clients} clients"
        if torch.cuda.is_current_stream_capturing():  # nothing can be timed now
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
    """The fastest form for forward and backward, among those that round each client separately."""
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
            gradient = (
                convolution(x[0], w[0], bias[0], how)
                .sin()
                .expand(clients, -1, -1, -1, -1)
                .contiguous()
            )

            def way(name: str) -> Callable[[], object]:
                images, gradients = (arranged(name, value, any_order) for value in (x, gradient))

                def once() -> None:
                    out = settled(FORMS[name].forward(images, w, bias, how), any_order)
                    of_x = FORMS[name].backward(gradients, images, w, how, wanted)[0]
                    if of_x is not None:
                        settled(of_x, any_order)
                    del out

                return once

            rounded = dtype == torch.bfloat16 or torch.backends.cudnn.allow_tf32
            names = [
                name
                for name in CANDIDATES[device.type]
                if (
                    name != "grouped_last"
                    or device.type != "cpu"
                    or _same_bits(gradient, x, w, bias, how)
                )
                and (not name.startswith("direct") or kernels.usable(x))
            ]
            return choices.race(
                device,
                {name: way(name) for name in names},
                HANDICAPS[rounded] if device.type == "cuda" else {},
            )
    finally:
        torch.set_num_threads(before)


def _same_bits(gradient: Tensor, x: Tensor, w: Tensor, bias: Tensor, how: Geometry) -> bool:
    """Whether each client gets the same bits in blocks of two, three and four, at any place."""
    form = FORMS["grouped_last"]

    def all_of(rows: list[int]) -> list[Tensor]:
        own = [value[rows] for value in (gradient, x, w)]
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
