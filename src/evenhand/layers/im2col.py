"""Convolutions of stacked clients as a matrix product for every client, over patches of images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.layers.convolution import Geometry, Gradients, Sides, Wanted


def im2col(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    kernel = (w.shape[3], w.shape[4])
    product = _products(_patches(x, kernel, how), _filter_matrix(w, how.groups))
    images = _images(product, x.shape[1], *_out_size(x, kernel, how))
    return images if bias is None else images + bias[:, None, :, None, None]


def im2col_backward(
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    rows = _rows(gradient, how.groups)
    of_w = _filter_gradient(rows, x, w, how) if wanted[1] else None
    return (
        _shifted_sum(rows, x, w, how) if wanted[0] else None,
        of_w,
        gradient.sum((1, 3, 4)) if wanted[2] else None,
    )


def im2col_turned_backward(
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    of_w = _filter_gradient(_rows(gradient, how.groups), x, w, how) if wanted[1] else None
    return (
        _turned(gradient, x, w, how) if wanted[0] else None,
        of_w,
        gradient.sum((1, 3, 4)) if wanted[2] else None,
    )


def _patches(x: Tensor, kernel: Sides, how: Geometry) -> Tensor:
    """(K, g, N OH OW, kh kw C/g) from (K, N, C, H, W): the patch under the filter at each place."""
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


def _rows(gradient: Tensor, groups: int) -> Tensor:
    """(K, g, N OH OW, O/g) from (K, N, O, OH, OW)."""
    return torch.unflatten(gradient, 2, (groups, -1)).permute(0, 2, 1, 4, 5, 3).flatten(2, 4)


def _images(rows: Tensor, n: int, height: int, width: int) -> Tensor:
    """(K, N, O, OH, OW) from (K, g, N OH OW, O/g); channels last in memory for one group."""
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


def _filter_gradient(rows: Tensor, x: Tensor, w: Tensor, how: Geometry) -> Tensor:
    kernel = (w.shape[3], w.shape[4])
    product = _products(rows.transpose(2, 3), _patches(x, kernel, how))  # (K, g, O/g, kh kw C/g)
    return (
        torch.unflatten(product, 3, (*kernel, w.shape[2])).permute(0, 1, 2, 5, 3, 4).flatten(1, 2)
    )


def _shifted_sum(rows: Tensor, x: Tensor, w: Tensor, how: Geometry) -> Tensor:
    """The gradient of the images, summed over all patches that contain a place."""
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


def _turned(gradient: Tensor, x: Tensor, w: Tensor, how: Geometry) -> Tensor:
    """The gradient of the images: that of the output, convolved with filters turned around.

    There are zeros where the filters skipped places.
    """
    kernel, (height, width) = w.shape[3:], x.shape[3:]
    last = gradient.permute(0, 1, 3, 4, 2)  # (K, N, OH, OW, O)
    if how.stride != (1, 1):
        rows, columns = (
            (length - 1) * step + 1
            for length, step in zip(last.shape[2:4], how.stride, strict=True)
        )
        spread = gradient.new_zeros(*last.shape[:2], rows, columns, last.shape[4])
        spread[:, :, :: how.stride[0], :: how.stride[1]] = last
        last = spread
    reach = [dilation * (length - 1) for dilation, length in zip(how.dilation, kernel, strict=True)]
    before = [r - p for r, p in zip(reach, how.padding, strict=True)]
    after = [
        size + p - length
        for size, p, length in zip((height, width), how.padding, last.shape[2:4], strict=True)
    ]
    # negative padding crops
    last = F.pad(last, (0, 0, before[1], after[1], before[0], after[0]))
    # (K, C, O/g, kh, kw)
    turned = torch.unflatten(w.flip(3, 4), 1, (how.groups, -1)).transpose(2, 3).flatten(1, 2)
    return im2col(
        last.permute(0, 1, 4, 2, 3),
        turned,
        None,
        Geometry(dilation=how.dilation, groups=how.groups),
    )
