"""The order in which a client visits its samples.

The order depends only on (seed, round, client): every sample gets a key from a counter-based hash,
and the keys are sorted. Every engine and device finds the same permutation, and there is no
generator state to save.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ONE, GOLDEN = np.uint64(1), np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
LAST = np.uint64(2**63 - 1)


class Batches(NamedTuple):
    """Which samples each of K clients visits at each local step."""

    positions: Tensor  # (K, S', W) positions within the client's data; 0 where not valid
    valid: Tensor  # (K, S', W) whether this is a sample, not padding
    # (K,) number of local steps; step s uses row s of positions, or row 0 if S' is 1 (all data)
    steps: Tensor


def batches_of(
    ids: Tensor,
    sizes: Tensor,
    width: int,
    round: int | Tensor,
    seed: int | Tensor,
    *,
    batch_size: int | None,
    epochs: int | None,
    steps: int | None,
) -> Batches:
    """Return the samples that clients ``ids`` (K,) with ``sizes`` (K,) visit.

    One epoch visits every sample exactly once; the last batch of an epoch may be smaller.

    Args:
        ids: the clients.
        sizes: number of samples of each client.
        width: the length to which each client's data are padded.
        round: the round, counted from 0; one for all clients, or one per client (K,).
        seed: one for all clients, or one per client (K,).
        batch_size, epochs, steps: as in :class:`evenhand.LocalSGD`.
    """
    if batch_size is None:
        position = torch.arange(width)
        valid = position < sizes[:, None]  # (K, W)
        index = torch.where(valid, position, 0)
        every = torch.full_like(sizes, steps or epochs or 1)
        return Batches(index[:, None], valid[:, None], every)
    batch, have = min(batch_size, width), sizes.numpy()
    per_epoch = (have + batch - 1) // batch  # (K,)
    steps_each = np.full_like(have, steps) if steps else per_epoch * (epochs or 1)
    passes = int(((steps_each + per_epoch - 1) // per_epoch).max())
    order = permutation(ids, sizes, width, passes, round, seed).numpy()  # (K, E, width)
    if passes == 1 and not steps:  # the order itself, cut into batches
        most = int(per_epoch.max())
        places = np.arange(most * batch)
        inside = places < have[:, None]
        visited = np.where(inside, order[:, 0, np.minimum(places, width - 1)], 0)
        index, valid = (
            torch.from_numpy(values.reshape(-1, most, batch)) for values in (visited, inside)
        )
        return Batches(index, valid, torch.from_numpy(steps_each))
    step = np.arange(int(steps_each.max()))  # (S,)
    epoch = np.minimum(step // per_epoch[:, None], passes - 1)  # (K, S)
    place = (step % per_epoch[:, None] * batch)[..., None] + np.arange(batch)  # (K, S, B)
    inside = (place < have[:, None, None]) & (step < steps_each[:, None])[..., None]
    row = np.arange(len(have))[:, None, None]
    visited = np.where(inside, order[row, epoch[..., None], np.minimum(place, width - 1)], 0)
    return Batches(
        torch.from_numpy(visited), torch.from_numpy(inside), torch.from_numpy(steps_each)
    )


def permutation(
    ids: Tensor, sizes: Tensor, width: int, epochs: int, round: int | Tensor, seed: int | Tensor
) -> Tensor:
    """Return (K, E, width) a random order of samples per client and epoch, with padding last."""
    seeds, rounds = (
        _unsigned(torch.as_tensor(number)).reshape(-1, 1, 1) for number in (seed, round)
    )
    key = _mix(seeds, rounds)
    key = _mix(key, _unsigned(ids)[:, None, None])
    key = _mix(key, np.arange(epochs, dtype=np.uint64)[:, None])
    place = np.arange(width, dtype=np.uint64)
    key = _mix(key, place)  # (K, E, width)
    key = np.where(place < _unsigned(sizes)[:, None, None], key >> np.uint64(1), LAST)
    return torch.from_numpy(key.argsort(axis=-1, kind="stable"))


def fold_key(key: Tensor, value: Tensor) -> Tensor:
    """Mix one more counter into a 64-bit key: the finaliser of SplitMix64."""
    return torch.from_numpy(_mix(_unsigned(key), _unsigned(value)).view(np.int64)).reshape(
        key.shape
    )


def _mix(key: NDArray[np.uint64], value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = key + (value + ONE) * GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def _unsigned(values: Tensor) -> NDArray[np.uint64]:
    return np.atleast_1d(values.numpy()).view(np.uint64)
