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

    On a CPU, halves are added until one column is left. A row then has the same bits whatever is
    stacked with it; ``sum`` chooses its order of additions by the shape of the whole.
    """
    rows = stacked.reshape(len(stacked), -1).double()
    rows = rows * rows
    if rows.is_cuda or not rows.shape[1]:
        return rows.sum(1)
    while (width := rows.shape[1]) > 1:
        half = width // 2
        left = rows[:, :half] + rows[:, half : 2 * half]
        rows = torch.cat([left, rows[:, 2 * half :]], 1) if width % 2 else left
    return rows[:, 0]
