"""A convolution's geometry, the interface of its forms, and one client's convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Sides = tuple[int, ...]
Wanted = tuple[bool, bool, bool]  # which gradients: of images, filters and bias
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Geometry(NamedTuple):
    """How filters move over an image.

    All forms except the loop need two dimensions and filters that are not transposed.
    """

    stride: Sides = (1, 1)
    padding: Sides = (0, 0)
    dilation: Sides = (1, 1)
    groups: int = 1
    transposed: bool = False
    output_padding: Sides = (0, 0)


# (gradient of the output, x, w, how, wanted)
Backward = Callable[[Tensor, Tensor, Tensor, Geometry, Wanted], Gradients]


class Form(NamedTuple):
    """One way to convolve images x (K, N, C, H, W) with filters w (K, O, C / groups, kh, kw).

    A bias (K, O) is added.
    """

    # (x, w, bias, how) -> (K, N, O, OH, OW)
    forward: Callable[[Tensor, Tensor, Tensor | None, Geometry], Tensor]
    backward: Backward


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
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    """The gradients of one client's images, filters and bias."""
    # oneDNN takes several times as long over the bias as a sum does
    alone = wanted[2] and not gradient.is_cuda
    channels = w.shape[1] * how.groups if how.transposed else w.shape[0]
    sides = (
        list(how.stride),
        list(how.padding),
        list(how.dilation),
        how.transposed,
        list(how.output_padding),
    )
    gradients = torch.ops.aten.convolution_backward(
        gradient, x, w, [channels], *sides, how.groups, [*wanted[:2], wanted[2] and not alone]
    )
    if alone:
        gradients = (*gradients[:2], of_bias(gradient))
    images, filters, bias = (
        value if want else None for value, want in zip(gradients, wanted, strict=True)
    )
    return images, filters, bias


def of_bias(gradient: Tensor) -> Tensor:
    """The gradient of one client's bias: that of its output, summed over images and places."""
    return gradient.sum((0, *range(2, gradient.ndim)))
