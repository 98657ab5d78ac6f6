"""Convolutions of stacked clients by kernels that read patches where the images lie.

The kernels (``direct_kernels.py``) need Triton, which comes with torch for CUDA. They are
operations of their own (``torch.ops.evenhand``), so that a step with them can be traced, compiled
and captured. In fp32 a product is three products of TF32, or six of bfloat16, which together are as
exact as one of float32.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.layers import direct_plan as plan
from evenhand.layers import kernels
from evenhand.layers.convolution import Geometry, Gradients, Wanted
from evenhand.layers.parts import in_parts

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def direct(x: Tensor, w: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    _check(x, w, how)
    last, filters = _last(x), w.permute(0, 1, 3, 4, 2).contiguous()
    if plan.NARROW <= x.shape[2] < 16:  # with 16 channels nothing but whole blocks is read
        last, filters = (F.pad(value, (0, 16 - x.shape[2])) for value in (last, filters))
    out = torch.ops.evenhand.convolve(
        last, filters, bias, how.stride[0], list(how.padding), how.dilation[0]
    )
    return _first(out)


def direct_backward(
    gradient: Tensor, x: Tensor, w: Tensor, how: Geometry, wanted: Wanted
) -> Gradients:
    _check(x, w, how)
    slopes = _last(gradient)
    moves = (how.stride[0], list(how.padding), how.dilation[0])
    of_x = of_w = of_bias = None
    if wanted[0]:
        turned = w.permute(0, 2, 3, 4, 1).contiguous()
        of_x = _first(torch.ops.evenhand.image_gradient(slopes, turned, list(x.shape[3:]), *moves))
    if wanted[1]:
        parts = plan.parts(_precision(x), x.shape[2])
        factors = (in_parts(value, parts) for value in (slopes, _last(x)))
        found = torch.ops.evenhand.filter_gradient(*factors, list(w.shape[3:]), *moves)
        of_w = _whole(found).to(w.dtype).permute(0, 1, 4, 2, 3)
    if wanted[2]:
        of_bias = _whole(torch.ops.evenhand.sum_places(slopes)).to(w.dtype)
    return of_x, of_w, of_bias


def _check(x: Tensor, w: Tensor, how: Geometry) -> None:
    """Raise for what the kernels cannot do; another form does it."""
    stride, dilation = how.stride, how.dilation
    # places in the images of a client, or in what becomes of them, are counted in 32 bits
    largest = max(x.shape[2], w.shape[1]) * math.prod(
        side + 2 * added for side, added in zip(x.shape[3:], how.padding, strict=True)
    )
    if (
        x.shape[1] * largest >= 1 << 31
        or len(x) >= 1 << 16  # of a grid's last side; so many clients need no splits
        or x.ndim != 5
        or x.dtype not in TYPES
        or how.transposed
        or how.groups != 1
        or stride[0] != stride[1]
        or dilation[0] != dilation[1]
        or (stride[0] > 1 and dilation[0] > 1)
    ):
        raise ValueError(f"no kernel for {how} on {x.dtype}")


def _last(images: Tensor) -> Tensor:
    return images.permute(0, 1, 3, 4, 2).contiguous()


def _first(images: Tensor) -> Tensor:
    return images.permute(0, 1, 4, 2, 3)


def _whole(splits: Tensor) -> Tensor:
    return splits[0] if len(splits) == 1 else splits.sum(0)


def _out_side(size: int, length: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (length - 1) - 1) // stride + 1


def _precision(x: Tensor) -> str:
    return kernels.precision(x, torch.backends.cudnn.allow_tf32)


def _place(
    source: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    out: Tensor,
    placed: tuple[int, int],
    taps: tuple[plan.Taps, plan.Taps],
    tap_steps: tuple[int, int, int],  # first taps of the launch, and the step between used ones
    move: int,
    reach: int,
    out_places: tuple[int, int, int],  # step, row and column of the first place
) -> None:
    """Launch :func:`direct_kernels.convolve`."""
    from evenhand.layers import direct_kernels

    clients, images, rows, columns, depth = source.shape
    outputs, kh, kw = filters.shape[1:4]
    places = images * placed[0] * placed[1]
    tile = plan.placing_tile(source, clients, places, outputs)
    grid = (-(-places // tile.places), -(-outputs // tile.outputs), clients)
    with kernels.on(source.device):
        direct_kernels.convolve[grid](
            source,
            filters,
            filters if bias is None else bias,
            out,
            images,
            rows,
            columns,
            depth,
            *placed,
            *out.shape[2:4],
            outputs,
            taps[0].start,
            taps[1].start,
            KH=kh,
            KW=kw,
            TAPS=taps[0].number,
            TAPS_ACROSS=taps[1].number,
            FIRST_TAP=tap_steps[0] + taps[0].first * tap_steps[2],
            FIRST_TAP_ACROSS=tap_steps[1] + taps[1].first * tap_steps[2],
            TAP_STEP=tap_steps[2],
            MOVE=move,
            REACH=reach,
            OUT_STEP=out_places[0],
            OUT_ROW=out_places[1],
            OUT_COLUMN=out_places[2],
            HAS_BIAS=bias is not None,
            DEPTH=0 if tile.aligned else depth,
            PRECISION=_precision(source),
            BLOCK_P=tile.places,
            BLOCK_O=tile.outputs,
            BLOCK_D=tile.depth,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


@torch.library.custom_op("evenhand::convolve", mutates_args=())
def _convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: list[int], dilation: int
) -> Tensor:
    """(K, N, OH, OW, O) from x (K, N, H, W, C) and w (K, O, kh, kw, C)."""
    out: Tensor = _convolve_shape(x, w, bias, stride, padding, dilation)
    placed = (out.shape[2], out.shape[3])
    taps = tuple(
        plan.used_taps(w.shape[2 + i], -padding[i], dilation, stride, placed[i], x.shape[2 + i])
        for i in (0, 1)
    )
    _place(x, w, bias, out, placed, (taps[0], taps[1]), (0, 0, 1), stride, dilation, (1, 0, 0))
    return out


@_convolve.register_fake
def _convolve_shape(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: list[int], dilation: int
) -> Tensor:
    sides = [
        _out_side(x.shape[2 + i], w.shape[2 + i], stride, padding[i], dilation) for i in (0, 1)
    ]
    out: Tensor = x.new_empty(x.shape[0], x.shape[1], *sides, w.shape[1])
    return out


@torch.library.custom_op("evenhand::image_gradient", mutates_args=())
def _image_gradient(
    slopes: Tensor, w: Tensor, size: list[int], stride: int, padding: list[int], dilation: int
) -> Tensor:
    """(K, N, H, W, C) from the output's gradient (K, N, OH, OW, O) and w (K, C, kh, kw, O).

    With a stride, places of an image whose remainders by the stride are equal see the same taps of
    the filter: there is a launch for each pair of remainders.
    """
    out: Tensor = _image_gradient_shape(slopes, w, size, stride, padding, dilation)
    reach = -dilation if stride == 1 else -1
    for over in range(stride):
        for across in range(stride):
            first, placed, taps = [], [], []
            for i, rest in enumerate((over, across)):
                first.append((rest + padding[i]) % stride)
                placed.append(-(-(size[i] - rest) // stride))
                start = (rest + padding[i] - first[i]) // stride
                count = len(range(first[i], w.shape[2 + i], stride))
                taps.append(plan.used_taps(count, start, reach, 1, placed[i], slopes.shape[2 + i]))
            if min(placed) > 0:
                _place(
                    slopes,
                    w,
                    None,
                    out,
                    (placed[0], placed[1]),
                    (taps[0], taps[1]),
                    (first[0], first[1], stride),
                    1,
                    reach,
                    (stride, over, across),
                )
    return out


@_image_gradient.register_fake
def _image_gradient_shape(
    slopes: Tensor, w: Tensor, size: list[int], stride: int, padding: list[int], dilation: int
) -> Tensor:
    out: Tensor = slopes.new_empty(slopes.shape[0], slopes.shape[1], *size, w.shape[1])
    return out


@torch.library.custom_op("evenhand::filter_gradient", mutates_args=())
def _filter_gradient(
    slopes: Tensor, x: Tensor, sides: list[int], stride: int, padding: list[int], dilation: int
) -> Tensor:
    """(splits, K, O, kh, kw, C) from parts of the output's gradient (P, K, N, OH, OW, O) and x."""
    from evenhand.layers import direct_kernels

    out: Tensor = _filter_gradient_shape(slopes, x, sides, stride, padding, dilation)
    sums = plan.sums(slopes, x, sides)
    (parts, clients, images, rows, columns, depth), outputs = x.shape, slopes.shape[5]
    entries = sides[0] * sides[1] * depth
    grid = (-(-outputs // sums.outputs), -(-entries // sums.depth), clients * sums.splits)
    with kernels.on(x.device):
        direct_kernels.filter_gradient[grid](
            slopes,
            x,
            out,
            slopes.stride(0),
            x.stride(0),
            clients,
            images,
            rows,
            columns,
            depth,
            *slopes.shape[3:5],
            outputs,
            sums.each,
            sums.steps,
            KW=sides[1],
            TAPS=sides[0] * sides[1],
            STRIDE=stride,
            PADDING=padding[0],
            PADDING_ACROSS=padding[1],
            DILATION=dilation,
            DEPTH=0 if sums.aligned else depth,
            # three products of bfloat16 are more exact than TF32
            PRECISION={"tf32": "bf16x3"}.get(_precision(x), _precision(x)),
            PARTS=parts,
            IMAGES=sums.taken[0],
            ROWS=sums.taken[1],
            COLUMNS=sums.taken[2],
            BLOCK_O=sums.outputs,
            BLOCK_D=sums.depth,
            num_warps=sums.warps,
            num_stages=sums.stages,
        )
    return out


@_filter_gradient.register_fake
def _filter_gradient_shape(
    slopes: Tensor, x: Tensor, sides: list[int], stride: int, padding: list[int], dilation: int
) -> Tensor:
    count = plan.sums(slopes, x, sides).splits
    shape = (count, x.shape[1], slopes.shape[5], *sides, x.shape[5])
    out: Tensor = x.new_empty(shape, dtype=torch.float32)
    return out


@torch.library.custom_op("evenhand::sum_places", mutates_args=())
def _sum_places(slopes: Tensor) -> Tensor:
    """(splits, K, O): sums of (K, N, OH, OW, O) over samples and places."""
    from evenhand.layers import direct_kernels

    out: Tensor = _sum_places_shape(slopes)
    splits, each = plan.sum_splits(slopes)
    clients, outputs = len(slopes), slopes.shape[4]
    block = min(64, max(16, plan.power_of_two(outputs)))
    with kernels.on(slopes.device):
        direct_kernels.sum_places[(-(-outputs // block), clients * splits)](
            slopes,
            out,
            clients,
            slopes[0, ..., 0].numel(),
            outputs,
            each * plan.PLACES_AT_ONCE,
            BLOCK_P=plan.PLACES_AT_ONCE,
            BLOCK_O=block,
        )
    return out


@_sum_places.register_fake
def _sum_places_shape(slopes: Tensor) -> Tensor:
    shape = (plan.sum_splits(slopes)[0], len(slopes), slopes.shape[4])
    out: Tensor = slopes.new_empty(shape, dtype=torch.float32)
    return out
