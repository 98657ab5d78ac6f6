"""The local solver, and the order in which a client visits its samples.

The order depends only on (seed, round, client): every sample gets a key from a counter-based hash,
and the keys are sorted. Every engine and device finds the same permutation, and there is no
generator state to save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand import tree
from evenhand.errors import require, require_number, require_whole
from evenhand.tree import Tree

ONE, GOLDEN = np.uint64(1), np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
LAST = np.uint64(2**63 - 1)


class Schedule(NamedTuple):
    """Which samples each of K clients visits at each local step."""

    positions: Tensor  # (K, S', W) positions within the client's data; 0 where not valid
    valid: Tensor  # (K, S', W) whether this is a sample, not padding
    # (K,) number of local steps; step s uses row s of positions, or row 0 if S' is 1 (all data)
    steps: Tensor


@dataclass(frozen=True)
class LocalSGD:
    """Stochastic gradient descent on a client's data.

    >>> LocalSGD(lr=0.1, epochs=2, batch_size=32, decay=0.5).rate(round=3)
    0.0125

    Args:
        lr: step size in the first round.
        epochs: passes over the client's data per round; one if neither ``epochs`` nor ``steps`` is
            given.
        steps: number of steps per round, instead of ``epochs``.
        batch_size: samples per step; None uses all local data in every step.
        momentum: heavy-ball momentum, reset to zero in every round.
        weight_decay: adds weight_decay * parameter to the gradient of the model (but not of scalars
            such as rFedFair's eta).
        decay: the step size of round r is lr * decay**r, counting from 0.
    """

    lr: float
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        require_number("lr", self.lr, "(0, inf)")
        both = self.epochs is not None and self.steps is not None
        require(
            not both,
            "pass epochs or steps, not both (got epochs={}, steps={})",
            self.epochs,
            self.steps,
        )
        for name in ("epochs", "steps", "batch_size"):
            require_whole(name, getattr(self, name), 1, optional=True)
        require_number("momentum", self.momentum, "[0, 1)", "0 is plain SGD")
        require_number("weight_decay", self.weight_decay, "[0, inf)")
        require_number("decay", self.decay, "(0, 1]", "1 keeps the step size")

    def rate(self, round: int) -> float:
        """Return the step size of a round; the first round is 0."""
        return self.lr * self.decay**round

    def schedule(
        self, ids: Tensor, sizes: Tensor, width: int, round: int, seed: int | Tensor
    ) -> Schedule:
        """Return the samples that clients ``ids`` (K,) with ``sizes`` (K,) visit.

        One epoch visits every sample exactly once; the last batch of an epoch may be smaller.

        Args:
            ids: the clients.
            sizes: number of samples of each client.
            width: the length to which each client's data are padded.
            round: the round, counted from 0.
            seed: one for all clients, or one per client (K,).
        """
        if self.batch_size is None:
            position = torch.arange(width)
            valid = position < sizes[:, None]  # (K, W)
            index = torch.where(valid, position, 0)
            steps = torch.full_like(sizes, self.steps or self.epochs or 1)
            return Schedule(index[:, None], valid[:, None], steps)
        batch, have = min(self.batch_size, width), sizes.numpy()
        per_epoch = (have + batch - 1) // batch  # (K,)
        steps_each = (
            np.full_like(have, self.steps) if self.steps else per_epoch * (self.epochs or 1)
        )
        epochs = int(((steps_each + per_epoch - 1) // per_epoch).max())
        order = permutation(ids, sizes, width, epochs, round, seed).numpy()  # (K, E, width)
        if epochs == 1 and not self.steps:  # the order itself, cut into batches
            most = int(per_epoch.max())
            places = np.arange(most * batch)
            inside = places < have[:, None]
            visited = np.where(inside, order[:, 0, np.minimum(places, width - 1)], 0)
            index, valid = (
                torch.from_numpy(values.reshape(-1, most, batch)) for values in (visited, inside)
            )
            return Schedule(index, valid, torch.from_numpy(steps_each))
        step = np.arange(int(steps_each.max()))  # (S,)
        epoch = np.minimum(step // per_epoch[:, None], epochs - 1)  # (K, S)
        place = (step % per_epoch[:, None] * batch)[..., None] + np.arange(batch)  # (K, S, B)
        inside = (place < have[:, None, None]) & (step < steps_each[:, None])[..., None]
        row = np.arange(len(have))[:, None, None]
        visited = np.where(inside, order[row, epoch[..., None], np.minimum(place, width - 1)], 0)
        return Schedule(
            torch.from_numpy(visited), torch.from_numpy(inside), torch.from_numpy(steps_each)
        )

    def update(
        self,
        variables: Tree,
        velocity: Tree,
        gradient: Tree,
        rates: dict[str, Tensor],
        active: Tensor | None,
    ) -> None:
        """Take one step of K clients, in place on stacked trees.

        Clients that are not ``active`` (K,) do not move. Without momentum, ``velocity`` is a buffer
        for the step, and may be empty on a GPU. On a CPU, products and differences are separate
        operations on purpose: a fused multiply-add rounds differently in vectorised and scalar
        code, so a client's result would depend on its neighbours.
        """
        for name, variable in variables.items():
            is_model = isinstance(variable, dict)
            values, grads = (tree.leaves({"": branch[name]}) for branch in (variables, gradient))
            speeds = tree.leaves({"": velocity[name]}) if velocity else values
            for value, speed, grad in zip(values, speeds, grads, strict=True):
                shape = (-1,) + (1,) * (value.ndim - 1)
                rate = rates[name].reshape(shape)
                if self.weight_decay and is_model:
                    grad = grad + value * self.weight_decay
                # one pass over memory, since memory bandwidth is the limit
                if value.is_cuda and active is None:
                    value.addcmul_(
                        speed.mul_(self.momentum).add_(grad) if self.momentum else grad,
                        rate,
                        value=-1,
                    )
                    continue
                if not velocity:
                    speed = torch.empty_like(value)
                # without momentum, speed is a buffer for the step: a new array this large costs as
                # much as the product
                move = (
                    speed.mul_(self.momentum).add_(grad) * rate
                    if self.momentum
                    else torch.mul(grad, rate, out=speed)
                )
                if active is not None:
                    move = torch.where(active.reshape(shape), move, 0)
                value.sub_(move)


def permutation(
    ids: Tensor, sizes: Tensor, width: int, epochs: int, round: int, seed: int | Tensor
) -> Tensor:
    """Return (K, E, width) a random order of samples per client and epoch, with padding last."""
    key = _mix(
        _unsigned(torch.as_tensor(seed)).reshape(-1, 1, 1), np.array([round], dtype=np.uint64)
    )
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
