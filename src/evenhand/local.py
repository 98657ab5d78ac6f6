"""The local solver, and the order in which a client visits its samples.

The order depends on (seed, round, client) alone: every sample gets a key from a counter-based hash, and the keys are sorted.
Every engine and device finds the same permutation, and there is no generator state to save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from evenhand import tree
from evenhand.errors import require, require_number, require_whole
from evenhand.tree import Tree

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio, as a signed 64-bit number
LAST = torch.iinfo(torch.int64).max


class Schedule(NamedTuple):
    """Which samples each of K clients visits at each local step."""

    positions: Tensor  # (K, S', W) positions within the client's data; 0 where not valid
    valid: Tensor  # (K, S', W) whether this is a sample, not padding
    steps: Tensor  # (K,) number of local steps; step s uses row s of positions, or row 0 where S' is 1 (whole local data)


@dataclass(frozen=True)
class LocalSGD:
    """Stochastic gradient descent on a client, for any objective over any tree of variables.

    Args:
        lr: step size of the first round.
        epochs, steps: how long a client works in one round: passes over its data (default one), or a number of steps.
        batch_size: samples per step; None takes all local data at once.
        momentum: heavy-ball momentum, started at zero in every round.
        weight_decay: adds weight_decay * parameter to the gradient of models (not of scalars such as rFedFair's eta).
        decay: the step size of round r is lr * decay**r.
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
        require(not both, "give epochs or steps, not both (got epochs={}, steps={})", self.epochs, self.steps)
        for name in ("epochs", "steps", "batch_size"):
            require_whole(name, getattr(self, name), 1, optional=True)
        require_number("momentum", self.momentum, "[0, 1)", "0 is plain SGD")
        require_number("weight_decay", self.weight_decay, "[0, inf)")
        require_number("decay", self.decay, "(0, 1]", "1 keeps the step size")

    def rate(self, round: int) -> float:
        """Step size of a round (the first is 0)."""
        return self.lr * self.decay**round

    def schedule(self, ids: Tensor, sizes: Tensor, width: int, round: int, seed: int) -> Schedule:
        """The samples that clients ``ids`` (K,) with ``sizes`` (K,) visit, each client's data padded to ``width``.

        One epoch visits every sample exactly once; the last batch of an epoch may be smaller.
        """
        position = torch.arange(width)
        if self.batch_size is None:
            valid = position < sizes[:, None]  # (K, W)
            index = torch.where(valid, position, 0)
            steps = torch.full_like(sizes, self.steps or self.epochs or 1)
            return Schedule(index[:, None], valid[:, None], steps)
        batch = min(self.batch_size, width)
        per_epoch = (sizes + batch - 1) // batch  # (K,)
        steps = torch.full_like(sizes, self.steps) if self.steps else per_epoch * (self.epochs or 1)
        epochs = int(((steps + per_epoch - 1) // per_epoch).max())
        order = permutation(ids, sizes, width, epochs, round, seed)  # (K, E, width)
        step = torch.arange(int(steps.max()))  # (S,)
        epoch = (step // per_epoch[:, None]).clamp(max=epochs - 1)  # (K, S)
        place = (step % per_epoch[:, None] * batch)[..., None] + torch.arange(batch)  # (K, S, B)
        valid = (place < sizes[:, None, None]) & (step < steps[:, None])[..., None]
        row = torch.arange(len(sizes))[:, None, None]
        index = torch.where(valid, order[row, epoch[..., None], place.clamp(max=width - 1)], 0)
        return Schedule(index, valid, steps)

    def update(self, variables: Tree, velocity: Tree, gradient: Tree, rates: dict[str, Tensor], active: Tensor | None) -> None:
        """One step of K clients, in place on stacked trees; clients that are not ``active`` (K,) stay where they are.

        Products and differences are separate operations on purpose: a fused multiply-add rounds differently in vectorised
        and scalar code, and a client's result would then depend on its neighbours.
        """
        for name, variable in variables.items():
            is_model = isinstance(variable, dict)
            parts = zip(*(tree.leaves({"": branch[name]}) for branch in (variables, velocity, gradient)), strict=True)
            for value, speed, slope in parts:
                shape = (-1,) + (1,) * (value.ndim - 1)
                rate = rates[name].reshape(shape)
                if self.weight_decay and is_model:
                    slope = slope + value * self.weight_decay
                # without momentum, speed is only room for the step: a new array this large costs as much as the product
                move = speed.mul_(self.momentum).add_(slope) * rate if self.momentum else torch.mul(slope, rate, out=speed)
                if active is not None:
                    move = torch.where(active.reshape(shape), move, 0)
                value.sub_(move)


def permutation(ids: Tensor, sizes: Tensor, width: int, epochs: int, round: int, seed: int) -> Tensor:
    """(K, E, width) for each client and epoch a random order of its samples; positions past its size come last."""
    key = fold_key(torch.tensor(seed), torch.tensor(round))
    key = fold_key(key, ids[:, None, None])
    key = fold_key(key, torch.arange(epochs)[:, None])
    key = fold_key(key, torch.arange(width))  # (K, E, width)
    key = torch.where(torch.arange(width) < sizes[:, None, None], _shift(key, 1), LAST)
    return key.argsort(dim=-1, stable=True)


def fold_key(key: Tensor, value: Tensor) -> Tensor:
    """Mix one more counter into a 64-bit key (the finaliser of SplitMix64; products wrap around)."""
    z = key + (value + 1) * GOLDEN
    z = (z ^ _shift(z, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    z = (z ^ _shift(z, 27)) * (0x94D049BB133111EB - (1 << 64))
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch shifts signed numbers arithmetically)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
