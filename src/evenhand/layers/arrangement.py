"""How the images of stacked clients lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def stacked(value: Tensor, dim: int | None, clients: int) -> Tensor:
    """Put the client dimension first; repeat values that all clients share."""
    return value.expand(clients, *value.shape) if dim is None else value.movedim(dim, 0)


def settled(images: Tensor, any_order: bool) -> Tensor:
    """Images in a memory order that the next layer can use; on a GPU, any order."""
    if any_order or images.is_cuda:
        return images
    # contiguous() would leave odd strides where a side is 1, which torch takes for an order
    return images.flatten().reshape(images.shape)


def arranged(name: str, value: Tensor, any_order: bool) -> Tensor:
    """Images in the memory order in which a layer of the same form leaves them."""
    if name == "grouped_last" and (any_order or value.is_cuda):
        return apart(side_by_side_last(value), len(value))
    if name == "grouped":
        return value.transpose(0, 1).contiguous().transpose(0, 1)
    if not any_order and not value.is_cuda:
        return value.contiguous()
    return value.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def is_interleaved(images: Tensor) -> bool:
    """Whether the channels of all clients are next to each other in memory."""
    return len(images) > 1 and images.permute(1, 3, 4, 0, 2).is_contiguous()


def side_by_side(x: Tensor) -> Tensor:
    """(N, K C, H, W) from (K, N, C, H, W)."""
    return x.transpose(0, 1).flatten(1, 2)


def apart(x: Tensor, clients: int) -> Tensor:
    """(K, N, C, H, W) from (N, K C, H, W): the inverse, a view."""
    return torch.unflatten(x, 1, (clients, x.shape[1] // clients)).transpose(0, 1)


def side_by_side_last(x: Tensor) -> Tensor:
    """(N, K C, H, W) from (K, N, C, H, W), with the channels of all clients last in memory."""
    return x.permute(1, 3, 4, 0, 2).contiguous().flatten(3).permute(0, 3, 1, 2)
