"""Convolutions of stacked clients, each with filters of its own, in several forms that are the same
function up to rounding.

    grouped        one convolution with a group for every client: what ``torch.vmap`` does
    grouped_last   the same with the channels of all clients last in memory; on a CPU in blocks of a
    few clients im2col         patches of the images as rows of a matrix, and a batched product;
    channels last im2col_turned  the same, but the slope of the images is a convolution of the
    output's slope with the filters turned around,
                   not a sum of shifted patches
    loop           one client after another

Which one is fastest depends on the layer and the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Sides = tuple[int, ...]


class Geometry(NamedTuple):
    """How filters move over an image. All forms but the loop take two dimensions and filters that
    are not transposed."""

    stride: Sides = (1, 1)
    padding: Sides = (0, 0)
    dilation: Sides = (1, 1)
    groups: int = 1
    transposed: bool = False
    output_padding: Sides = (0, 0)


Wanted = tuple[bool, bool, bool]  # which slopes: of images, filters and bias
Slopes = tuple[Tensor | None, Tensor | None, Tensor | None]


class Form(NamedTuple):
    """One way to convolve images x (K, N, C, H, W) with filters w (K, O, C / groups, kh, kw) and to
    add a bias (K, O)."""

    # (x, w, bias, how) -> (K, N, O, OH, OW)
    forward: Callable[[Tensor, Tensor, Tensor | None, Geometry], Tensor]
    # (slope of the output, x, w, how, wanted)
    backward: Callable[[Tensor, Tensor, Tensor, Geometry, Wanted], Slopes]


def convolution(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    """One client's convolution, as torch does it."""
    return torch.convolution(
        x,
        w,
        bias,
        how.stride,
        how.padding,
        how.dilation,
        how.transposed,
        how.output_padding,
        how.groups,
    )


def convolution_backward(
    slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Slopes:
    """The slopes of one client's images, filters and bias."""
    channels = w.shape[1] * how.groups if how.transposed else w.shape[0]
    sides = (
        list(how.stride),
        list(how.padding),
        list(how.dilation),
        how.transposed,
        list(how.output_padding),
    )
    slopes = torch.ops.aten.convolution_backward(
        slope, x, w, [channels], *sides, how.groups, list(wanted)
    )
    of_x, of_w, of_bias = (
        value if want else None for value, want in zip(slopes, wanted, strict=True)
    )
    return of_x, of_w, of_bias


# ---- one client after another


def _loop(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    biases: Sequence[Tensor | None] = [None] * len(x) if bias is None else bias.unbind(0)
    return _stack(
        [
            convolution(images, filters, own, how)
            for images, filters, own in zip(_each(x), w.unbind(0), biases, strict=True)
        ]
    )


def _loop_backward(slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted) -> Slopes:
    clients = zip(_each(slope), _each(x), w.unbind(0), strict=True)
    slopes = [convolution_backward(*client, how, wanted) for client in clients]
    of_x, of_w, of_bias = (
        _stack(each) if want else None
        for each, want in zip(zip(*slopes, strict=True), wanted, strict=True)
    )
    return of_x, of_w, of_bias


def _each(x: Tensor) -> list[Tensor]:
    """Every client's images; on a CPU always in the same order in memory, so that the order before
    changes no bit."""
    if x.is_cuda or x.ndim != 5:
        return list(x.unbind(0))
    # oneDNN has no float64
    order = torch.contiguous_format if x.dtype is torch.float64 else torch.channels_last
    return [images.contiguous(memory_format=order) for images in x.unbind(0)]


def _stack(values: Sequence[Tensor]) -> Tensor:
    """Client by client, each laid out in memory as it was."""
    if values[0].ndim != 4 or values[0].is_contiguous():
        return torch.stack(list(values))
    return torch.stack([value.permute(0, 2, 3, 1) for value in values]).permute(0, 1, 4, 2, 3)


# ---- a group for every client


def side_by_side(x: Tensor) -> Tensor:
    """(N, K C, H, W) from (K, N, C, H, W)."""
    return x.transpose(0, 1).flatten(1, 2)


def apart(x: Tensor, clients: int) -> Tensor:
    """(K, N, C, H, W) from (N, K C, H, W): the inverse, a view."""
    return torch.unflatten(x, 1, (clients, x.shape[1] // clients)).transpose(0, 1)


def side_by_side_last(x: Tensor) -> Tensor:
    """(N, K C, H, W) from (K, N, C, H, W), with the channels of all clients next to each other in
    memory."""
    return x.permute(1, 3, 4, 0, 2).contiguous().flatten(3).permute(0, 3, 1, 2)


def _filters_last(w: Tensor) -> Tensor:
    return w.flatten(0, 1).contiguous(memory_format=torch.channels_last)


def _together(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    """Convolution of clients that are side by side."""
    flat = None if bias is None else bias.flatten()
    return apart(
        convolution(
            side_by_side_last(x), _filters_last(w), flat, how._replace(groups=len(x) * how.groups)
        ),
        len(x),
    )


def _together_backward(
    slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Slopes:
    beside = (side_by_side_last(slope), side_by_side_last(x), _filters_last(w))
    return _separated(
        convolution_backward(*beside, how._replace(groups=len(x) * how.groups), wanted), w
    )


def _separated(slopes: Slopes, w: Tensor) -> Slopes:
    of_x, of_w, of_bias = slopes
    return (
        None if of_x is None else apart(of_x, len(w)),
        None if of_w is None else of_w.reshape(w.shape),
        None if of_bias is None else of_bias.reshape(w.shape[:2]),
    )


def _grouped(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    flat = None if bias is None else bias.flatten()
    return apart(
        convolution(
            side_by_side(x), w.flatten(0, 1), flat, how._replace(groups=len(x) * how.groups)
        ),
        len(x),
    )


def _grouped_backward(slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted) -> Slopes:
    beside = (side_by_side(slope), side_by_side(x), w.flatten(0, 1))
    return _separated(
        convolution_backward(*beside, how._replace(groups=len(x) * how.groups), wanted), w
    )


# ---- the same in blocks: on a CPU a group's rounding may depend on how many there are, so there
# are always two, three or four


BLOCK = 4


def _grouped_last(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    if x.is_cuda or 2 <= len(x) <= BLOCK:
        return _together(x, w, bias, how)
    if len(x) == 1:
        return _together(_twice(x), _twice(w), None if bias is None else _twice(bias), how)[:1]
    pieces = -(-len(x) // BLOCK)
    biases: Sequence[Tensor | None] = [None] * pieces if bias is None else bias.tensor_split(pieces)
    blocks = zip(x.tensor_split(pieces), w.tensor_split(pieces), biases, strict=True)
    return _joined([_together(images, filters, own, how) for images, filters, own in blocks])


def _grouped_last_backward(
    slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Slopes:
    if x.is_cuda or 2 <= len(x) <= BLOCK:
        return _together_backward(slope, x, w, how, wanted)
    if len(x) == 1:
        both = _together_backward(_twice(slope), _twice(x), _twice(w), how, wanted)
        of_x, of_w, of_bias = (None if value is None else value[:1] for value in both)
        return of_x, of_w, of_bias
    blocks = zip(*(value.tensor_split(-(-len(x) // BLOCK)) for value in (slope, x, w)), strict=True)
    slopes = [
        _together_backward(slopes, images, filters, how, wanted)
        for slopes, images, filters in blocks
    ]
    of_x, of_w, of_bias = (
        _joined(each) if want else None
        for each, want in zip(zip(*slopes, strict=True), wanted, strict=True)
    )
    return of_x, of_w, of_bias


def _twice(value: Tensor) -> Tensor:
    return value.expand(2, *value.shape[1:])


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    """Blocks of clients (k, ...) one after the other; images with channels last, client by
    client."""
    if blocks[0].ndim != 5:
        return torch.cat(list(blocks))
    return torch.cat([block.permute(0, 1, 3, 4, 2) for block in blocks]).permute(0, 1, 4, 2, 3)


# ---- a matrix product for every client


def _patches(x: Tensor, kernel: Sides, how: Geometry) -> Tensor:
    """(K, g, N OH OW, kh kw C/g) from (K, N, C, H, W): what a filter sees at each place, one copy
    on any device."""
    (top, left), groups = how.padding, how.groups
    last = x.permute(0, 1, 3, 4, 2)  # (K, N, H, W, C)
    if top or left:
        last = F.pad(last, (0, 0, left, left, top, top))
    for side in (0, 1):  # -> (K, N, OH, OW, C, kh, kw)
        last = last.unfold(2 + side, how.dilation[side] * (kernel[side] - 1) + 1, how.stride[side])
    last = last[..., :: how.dilation[0], :: how.dilation[1]]
    split = torch.unflatten(last, 4, (groups, -1))  # (K, N, OH, OW, g, C/g, kh, kw)
    return split.permute(0, 4, 1, 2, 3, 6, 7, 5).flatten(5).flatten(2, 4)


def _filter_matrix(w: Tensor, groups: int) -> Tensor:
    """(K, g, kh kw C/g, O/g) from (K, O, C/g, kh, kw)."""
    return torch.unflatten(w, 1, (groups, -1)).permute(0, 1, 4, 5, 3, 2).flatten(2, 4)


def _rows(slope: Tensor, groups: int) -> Tensor:
    """(K, g, N OH OW, O/g) from (K, N, O, OH, OW)."""
    return torch.unflatten(slope, 2, (groups, -1)).permute(0, 2, 1, 4, 5, 3).flatten(2, 4)


def _images(rows: Tensor, n: int, height: int, width: int) -> Tensor:
    """(K, N, O, OH, OW) from (K, g, N OH OW, O/g): the inverse, channels last in memory where there
    is one group."""
    split = torch.unflatten(rows, 2, (n, height, width))  # (K, g, N, OH, OW, O/g)
    return split.permute(0, 2, 1, 5, 3, 4).flatten(2, 3)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Matrix products of (K, g, ., .) with (K, g, ., .)."""
    return torch.unflatten(torch.bmm(a.flatten(0, 1), b.flatten(0, 1)), 0, a.shape[:2])


def _out_size(x: Tensor, kernel: Sides, how: Geometry) -> Sides:
    sizes = [
        (side + 2 * padding - dilation * (length - 1) - 1) // stride + 1
        for side, padding, dilation, length, stride in zip(
            x.shape[3:], how.padding, how.dilation, kernel, how.stride, strict=True
        )
    ]
    return sizes[0], sizes[1]


def _im2col(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    kernel = (w.shape[3], w.shape[4])
    product = _products(_patches(x, kernel, how), _filter_matrix(w, how.groups))
    images = _images(product, x.shape[1], *_out_size(x, kernel, how))
    return images if bias is None else images + bias[:, None, :, None, None]


def _slope_of_filters(rows: Tensor, x: Tensor, w: Tensor, how: Geometry) -> Tensor:
    kernel = (w.shape[3], w.shape[4])
    product = _products(rows.transpose(2, 3), _patches(x, kernel, how))  # (K, g, O/g, kh kw C/g)
    return (
        torch.unflatten(product, 3, (*kernel, w.shape[2])).permute(0, 1, 2, 5, 3, 4).flatten(1, 2)
    )


def _im2col_backward(slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted) -> Slopes:
    rows = _rows(slope, how.groups)
    of_w = _slope_of_filters(rows, x, w, how) if wanted[1] else None
    return (
        _shifted_sum(rows, x, w, how) if wanted[0] else None,
        of_w,
        slope.sum((1, 3, 4)) if wanted[2] else None,
    )


def _shifted_sum(rows: Tensor, x: Tensor, w: Tensor, how: Geometry) -> Tensor:
    """The slope of the images: every place's share in each patch, added up."""
    (clients, n, channels, height, width), kernel, groups = x.shape, w.shape[3:], how.groups
    out = _out_size(x, (kernel[0], kernel[1]), how)
    # (K, g, N OH OW, kh kw C/g)
    shares = _products(rows, _filter_matrix(w, groups).transpose(2, 3))
    shares = shares.reshape(clients, groups, n, *out, *kernel, channels // groups)
    top, left = how.padding
    padded = x.new_zeros(clients, n, height + 2 * top, width + 2 * left, groups, channels // groups)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            down, right = i * how.dilation[0], j * how.dilation[1]
            ends = (
                down + (out[0] - 1) * how.stride[0] + 1,
                right + (out[1] - 1) * how.stride[1] + 1,
            )
            place = padded[:, :, down : ends[0] : how.stride[0], right : ends[1] : how.stride[1]]
            place.add_(shares[:, :, :, :, :, i, j].permute(0, 2, 3, 4, 1, 5))
    inner = padded[:, :, top : top + height, left : left + width].flatten(4, 5)
    return inner.permute(0, 1, 4, 2, 3)


def _im2col_turned_backward(
    slope: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Slopes:
    of_w = _slope_of_filters(_rows(slope, how.groups), x, w, how) if wanted[1] else None
    return (
        _turned(slope, x, w, how) if wanted[0] else None,
        of_w,
        slope.sum((1, 3, 4)) if wanted[2] else None,
    )


def _turned(slope: Tensor, x: Tensor, w: Tensor, how: Geometry) -> Tensor:
    """The slope of the images: the output's slope, with zeros where the filters skipped places,
    convolved with turned filters."""
    kernel, (height, width) = w.shape[3:], x.shape[3:]
    last = slope.permute(0, 1, 3, 4, 2)  # (K, N, OH, OW, O)
    if how.stride != (1, 1):
        rows, columns = (
            (length - 1) * step + 1
            for length, step in zip(last.shape[2:4], how.stride, strict=True)
        )
        spread = slope.new_zeros(*last.shape[:2], rows, columns, last.shape[4])
        spread[:, :, :: how.stride[0], :: how.stride[1]] = last
        last = spread
    reach = [dilation * (length - 1) for dilation, length in zip(how.dilation, kernel, strict=True)]
    before = [r - p for r, p in zip(reach, how.padding, strict=True)]
    after = [
        size + p - length
        for size, p, length in zip((height, width), how.padding, last.shape[2:4], strict=True)
    ]
    # a negative amount cuts off
    last = F.pad(last, (0, 0, before[1], after[1], before[0], after[0]))
    # (K, C, O/g, kh, kw)
    turned = torch.unflatten(w.flip(3, 4), 1, (how.groups, -1)).transpose(2, 3).flatten(1, 2)
    return _im2col(
        last.permute(0, 1, 4, 2, 3),
        turned,
        None,
        Geometry(dilation=how.dilation, groups=how.groups),
    )


FORMS = {
    "grouped": Form(_grouped, _grouped_backward),
    "grouped_last": Form(_grouped_last, _grouped_last_backward),
    "im2col": Form(_im2col, _im2col_backward),
    "im2col_turned": Form(_im2col, _im2col_turned_backward),
    "loop": Form(_loop, _loop_backward),
}
