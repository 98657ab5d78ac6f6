"""Convolutions of stacked clients as one convolution, with a group for every client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenhand.layers.arrangement import apart, side_by_side, side_by_side_last
from evenhand.layers.convolution import (
    Geometry,
    Gradients,
    Wanted,
    convolution,
    convolution_backward,
    of_bias,
)

# clients per convolution on a CPU: rounding may depend on the number of groups, so there are always
# two, three or four
BLOCK = 4


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
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    beside = (side_by_side_last(gradient), side_by_side_last(x), _filters_last(w))
    # the sum over all channels at once would round by a client's place among the others
    alone = wanted[2] and not x.is_cuda
    of_x, of_w, biases = _separated(
        convolution_backward(
            *beside,
            how._replace(groups=len(x) * how.groups),
            (*wanted[:2], wanted[2] and not alone),
        ),
        w,
    )
    if alone:
        biases = torch.stack([of_bias(own) for own in apart(beside[0], len(x)).unbind(0)])
    return of_x, of_w, biases


def _separated(gradients: Gradients, w: Tensor) -> Gradients:
    of_x, of_w, of_bias = gradients
    return (
        None if of_x is None else apart(of_x, len(w)),
        None if of_w is None else of_w.reshape(w.shape),
        None if of_bias is None else of_bias.reshape(w.shape[:2]),
    )


def grouped(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    """One grouped convolution, as ``torch.vmap`` does it."""
    flat = None if bias is None else bias.flatten()
    return apart(
        convolution(
            side_by_side(x), w.flatten(0, 1), flat, how._replace(groups=len(x) * how.groups)
        ),
        len(x),
    )


def grouped_backward(
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    beside = (side_by_side(gradient), side_by_side(x), w.flatten(0, 1))
    return _separated(
        convolution_backward(*beside, how._replace(groups=len(x) * how.groups), wanted), w
    )


def grouped_last(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    """The same with channels last; on a CPU in blocks of two to four clients."""
    if x.is_cuda or 2 <= len(x) <= BLOCK:
        return _together(x, w, bias, how)
    if len(x) == 1:
        return _together(_twice(x), _twice(w), None if bias is None else _twice(bias), how)[:1]
    pieces = -(-len(x) // BLOCK)
    biases: Sequence[Tensor | None] = [None] * pieces if bias is None else bias.tensor_split(pieces)
    blocks = zip(x.tensor_split(pieces), w.tensor_split(pieces), biases, strict=True)
    return _joined([_together(images, filters, own, how) for images, filters, own in blocks])


def grouped_last_backward(
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    if x.is_cuda or 2 <= len(x) <= BLOCK:
        return _together_backward(gradient, x, w, how, wanted)
    if len(x) == 1:
        both = _together_backward(_twice(gradient), _twice(x), _twice(w), how, wanted)
        of_x, of_w, of_bias = (None if value is None else value[:1] for value in both)
        return of_x, of_w, of_bias
    blocks = zip(
        *(value.tensor_split(-(-len(x) // BLOCK)) for value in (gradient, x, w)), strict=True
    )
    gradients = [
        _together_backward(own, images, filters, how, wanted) for own, images, filters in blocks
    ]
    of_x, of_w, of_bias = (
        _joined(each) if want else None
        for each, want in zip(zip(*gradients, strict=True), wanted, strict=True)
    )
    return of_x, of_w, of_bias


def _twice(value: Tensor) -> Tensor:
    return value.expand(2, *value.shape[1:])


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    """Blocks of clients (k, ...) one after another; images with channels last, by client."""
    if blocks[0].ndim != 5:
        return torch.cat(list(blocks))
    return torch.cat([block.permute(0, 1, 3, 4, 2) for block in blocks]).permute(0, 1, 4, 2, 3)
