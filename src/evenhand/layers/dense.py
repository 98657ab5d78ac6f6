"""Operations of dense layers of stacked clients, by kernels that read the weights in float32.

``scores`` multiplies a batch with the weights, ``step_back`` takes the gradient of the batch and
the step of the weights in one reading, and ``subtract_product`` takes the step alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.layers import choices, kernels
from evenhand.layers.direct_plan import power_of_two

MOST_SAMPLES = 64  # that the kernels hold at once
LEAST_WEIGHTS = 1 << 16  # of a layer; for fewer, starting kernels takes most of the time
MOST_CLIENTS = 1 << 16  # fewer than that; a side of a grid
# blocks and programs as measured on an H200, with 50 layers of 128 x 12544 and 10 of 128 x 3136
PROGRAMS = 528


def _precision(x: Tensor) -> str:
    return kernels.precision(x, torch.backends.cuda.matmul.allow_tf32)


def _block(samples: int) -> int:
    return max(16, power_of_two(samples))


def _splits(values: Tensor, wide: int) -> tuple[int, int]:
    """Into how many sums the columns are divided, and the blocks of each."""
    clients, rows, columns = values.shape
    steps = -(-columns // wide)
    most = min(steps // 4, PROGRAMS // (clients * -(-rows // 64)), MOST_CLIENTS // clients)
    each = -(-steps // max(1, most))
    return -(-steps // each), each


def _wide(x: Tensor) -> int:
    return 32 if _precision(x) == "tf32x3" else 64


@torch.library.custom_op("evenhand::scores", mutates_args=())
def _scores(values: Tensor, x: Tensor) -> Tensor:
    """(splits, K, R, N) in float32: parts of weights (K, R, C) times samples (K, N, C)."""
    from evenhand.layers import dense_kernels

    out: Tensor = _scores_shape(values, x)
    (clients, rows, columns), samples = values.shape, x.shape[1]
    splits, each = _splits(values, _wide(x))
    with kernels.on(values.device):
        dense_kernels.scores[(-(-rows // 64), clients * splits)](
            values,
            x,
            out,
            clients,
            rows,
            columns,
            samples,
            *x.stride(),
            each,
            PRECISION=_precision(x),
            BLOCK_R=64,
            BLOCK_C=_wide(x),
            BLOCK_N=_block(samples),
            num_warps=4,
            num_stages=4,
        )
    return out


@_scores.register_fake
def _scores_shape(values: Tensor, x: Tensor) -> Tensor:
    shape = (_splits(values, _wide(x))[0], *values.shape[:2], x.shape[1])
    out: Tensor = values.new_empty(shape)
    return out


@torch.library.custom_op("evenhand::step_back", mutates_args={"values"})
def _step_back(values: Tensor, slopes: Tensor, x: Tensor, rates: Tensor) -> Tensor:
    """slopes @ values, and then ``values -= rates * slopes^T @ x``.

    values (K, R, C), slopes (K, N, R), x (K, N, C), rates (K, 1, 1).
    """
    from evenhand.layers import dense_kernels

    out: Tensor = _step_back_shape(values, slopes, x, rates)
    (clients, rows, columns), samples = values.shape, x.shape[1]
    with kernels.on(values.device):
        dense_kernels.step_back[(-(-columns // 128), clients)](
            values,
            slopes,
            x,
            rates,
            out,
            rows,
            columns,
            samples,
            *slopes.stride(),
            *x.stride(),
            PRECISION=_precision(x),
            BLOCK_R=16,
            BLOCK_C=128,
            BLOCK_N=_block(samples),
            num_warps=4,
            num_stages=3,
        )
    return out


@_step_back.register_fake
def _step_back_shape(values: Tensor, slopes: Tensor, x: Tensor, rates: Tensor) -> Tensor:
    out: Tensor = x.new_empty(x.shape)
    return out


@torch.library.custom_op("evenhand::subtract_product", mutates_args={"values"})
def _subtract_product(values: Tensor, a: Tensor, b: Tensor, rates: Tensor) -> None:
    """``values -= rates * a @ b``: values (K, R, C), a (K, R, D), b (K, D, C), rates (K, 1, 1)."""
    from evenhand.layers import dense_kernels

    clients, rows, columns = values.shape
    high, wide = (64, 64) if a.element_size() == 2 else (32, 256)
    if rows <= 16:
        high, wide = 16, 256
    with kernels.on(values.device):
        dense_kernels.subtract_product[(-(-columns // wide), -(-rows // high), clients)](
            values,
            a,
            b,
            rates,
            rows,
            columns,
            a.shape[2],
            *a.stride(),
            *b.stride(),
            PRECISION=_precision(a),
            BLOCK_R=high,
            BLOCK_C=wide,
            BLOCK_D=16 if a.shape[2] <= 16 else 32,
            num_warps=4,
        )


@_subtract_product.register_fake
def _(values: Tensor, a: Tensor, b: Tensor, rates: Tensor) -> None:
    return None


def faster(shape: torch.Size, samples: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels beat torch's products for weights of this shape, as measured."""
    if shape[1] * shape[2] < LEAST_WEIGHTS:
        return False

    def race() -> str:
        ops = torch.ops.evenhand
        with torch.no_grad():
            values = torch.full(shape, 0.1, device=device)
            slopes, x = (
                torch.full((shape[0], samples, side), 0.1, dtype=dtype, device=device)
                for side in shape[1:]
            )
            rates = torch.full((shape[0], 1, 1), 1e-3, device=device)

            def own() -> None:
                ops.scores(values, x).sum(0)
                ops.step_back(values, slopes, x, rates)

            def torchs() -> None:
                rounded = values.to(dtype)
                torch.bmm(x, rounded.transpose(1, 2))
                torch.bmm(slopes, rounded)
                ops.subtract_product(values, slopes.transpose(1, 2), x, rates)

            return choices.race(device, {"kernels": own, "torch": torchs})

    sizes, number = "x".join(map(str, shape)), torch.empty(0, dtype=dtype, device=device)
    question = f"dense layers of {sizes}, {samples} samples, {dtype}, {_precision(number)}"
    return choices.remembered(question, device, race) == "kernels"
