"""Convolutions of stacked clients in several forms, the same function up to rounding.

Every client has its own filters. Which form is fastest depends on the layer and the machine.

    grouped        one convolution with a group for every client: what ``torch.vmap`` does
    grouped_last   the same with the channels of all clients last in memory; on a CPU in blocks of
                   a few clients
    im2col         patches of the images as rows of a matrix, and a batched product; channels last
    im2col_turned  the same, but the gradient of the images is a convolution of that of the output
                   with the filters turned around, not a sum of shifted patches
    direct         on a GPU, kernels that read patches where the images lie; channels last
    loop           one client after another
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenhand.layers.convolution import (
    Form,
    Geometry,
    Gradients,
    Wanted,
    convolution,
    convolution_backward,
)
from evenhand.layers.direct import direct, direct_backward
from evenhand.layers.grouped import grouped, grouped_backward, grouped_last, grouped_last_backward
from evenhand.layers.im2col import im2col, im2col_backward, im2col_turned_backward


def _loop(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    biases: Sequence[Tensor | None] = [None] * len(x) if bias is None else bias.unbind(0)
    return _stack(
        [
            convolution(images, filters, own, how)
            for images, filters, own in zip(_each(x), w.unbind(0), biases, strict=True)
        ]
    )


def _loop_backward(
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    clients = zip(_each(gradient), _each(x), w.unbind(0), strict=True)
    gradients = [convolution_backward(*client, how, wanted) for client in clients]
    of_x, of_w, of_bias = (
        _stack(each) if want else None
        for each, want in zip(zip(*gradients, strict=True), wanted, strict=True)
    )
    return of_x, of_w, of_bias


def _each(x: Tensor) -> list[Tensor]:
    """Every client's images; on a CPU always in the same memory order.

    So the order in which they come changes no bit.
    """
    if x.is_cuda or x.ndim != 5:
        return list(x.unbind(0))
    # oneDNN has no float64
    order = torch.contiguous_format if x.dtype is torch.float64 else torch.channels_last
    return [images.contiguous(memory_format=order) for images in x.unbind(0)]


def _stack(values: Sequence[Tensor]) -> Tensor:
    """Client by client, each in its own memory order."""
    if values[0].ndim != 4 or values[0].is_contiguous():
        return torch.stack(list(values))
    return torch.stack([value.permute(0, 2, 3, 1) for value in values]).permute(0, 1, 4, 2, 3)


FORMS = {
    "grouped": Form(grouped, grouped_backward),
    "grouped_last": Form(grouped_last, grouped_last_backward),
    "im2col": Form(im2col, im2col_backward),
    "im2col_turned": Form(im2col, im2col_turned_backward),
    "direct": Form(direct, direct_backward),
    "loop": Form(_loop, _loop_backward),
}
