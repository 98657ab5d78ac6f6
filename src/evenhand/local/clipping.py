"""Clipping the gradient of each of several stacked clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SMALL = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def clipped(grads: Sequence[Tensor], most: float) -> list[Tensor]:
    """Scale the gradients (K, ...) of each client so that their common norm is at most ``most``.

    >>> clipped([torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])], 1.0)[1]
    tensor([[0.8000],
            [0.4000]])
    """
    if not grads:
        return []
    squares = torch.stack([sums_of_squares(grad) for grad in grads])
    total = squares[0]
    for more in squares[1:]:  # in the order of the layers
        total = total + more
    factor = (most / (total.sqrt() + SMALL)).clamp(max=1.0)
    return [grad * factor.to(grad.dtype).reshape((-1,) + (1,) * (grad.ndim - 1)) for grad in grads]


def sums_of_squares(stacked: Tensor) -> Tensor:
    """Return (K,) the sum of squares of each row, in float64, which no float32 overflows.

    Rows lie one after another in memory, so that each is summed as if it were alone.
    """
    rows = stacked.reshape(len(stacked), -1).double().contiguous()
    return (rows * rows).sum(1)
