"""Differential privacy for single samples: the settings, and what a client draws in secret."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand import tree
from evenhand.errors import (
    brief,
    require,
    require_kind,
    require_known,
    require_number,
    require_whole,
)
from evenhand.local.order import Batches
from evenhand.local.secret import gaussians, uniforms
from evenhand.tree import Tree

# A sum of clipped gradients is rounded to multiples of a grid before noise is added, so that it has
# no low bits that give it away. Rounding moves a gradient by at most this share of the bound.
ROUNDING = 2.0**-20
GRAIN = 8  # batches are padded to multiples of at least this many samples
ALL_DATA = 256  # a batch of all data is padded as if it had this many samples


@dataclass(frozen=True)
class SampleDP:
    """Hide single samples in a client's local steps: DP-SGD (Abadi et al., CCS 2016).

        g <- (sum over the batch of clip(grad f_j) + N(0, (noise * clip)^2)) / batch_size

    Every step draws a new batch, each of the client's n samples with probability batch_size / n, so
    batches differ in size; the denominator does not. Noise and batches come from a key that no
    message and no file for others contains. What a client sends then hides any one of its samples
    from everyone, including the server, up to (epsilon, delta); ``result.privacy`` says for which
    epsilon. It does not hide that a client takes part, how many samples it has, or what all its
    samples have in common.

    >>> from evenhand import LocalSGD
    >>> LocalSGD(lr=0.1, batch_size=32, dp=SampleDP(clip=1.0, noise=1.0)).dp.noise
    1.0

    Args:
        clip: the largest norm of one sample's gradient, over everything that the client optimises.
            ``inf`` does not clip, and needs noise = 0: no privacy, for tests.
        noise: standard deviation of the noise, as a multiple of ``clip``. 0 gives no privacy, and
            shows what clipping alone costs.
        delta: for which epsilon is reported; choose it well below 1 / n.
        seed: draw noise and batches from this number instead of a new secret, to repeat a run. Who
            knows it can remove the noise, so results made with it are not private. In a real
            federation it has no effect: a node always draws from its own secret.
        held: how many samples' gradients are in memory at once for a client; None chooses it.
    """

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    seed: int | None = None
    held: int | None = None
    key: bytes | None = field(default=None, repr=False, kw_only=True)  # set by the run

    def __post_init__(self) -> None:
        require_number("noise of SampleDP", self.noise, "[0, inf)", "1 is usual")
        if self.clip != math.inf:
            require_number("clip of SampleDP", self.clip, "(0, inf)", "1 is usual")
        require(
            self.clip != math.inf or self.noise == 0,
            "clip = inf bounds nothing, so no noise hides a sample; set a clip such as 1.0 (or"
            " noise = 0, for a test without privacy)",
        )
        require_number("delta of SampleDP", self.delta, "(0, 1)", "1e-5 is usual")
        require_whole("seed of SampleDP", self.seed, 0, optional=True)
        require_whole("held of SampleDP", self.held, 1, optional=True)

    def keyed(self, key: bytes) -> SampleDP:
        """Return the same settings with a secret key to draw from."""
        return dataclasses.replace(self, key=key)

    @property
    def secret(self) -> bytes:
        """The key that noise and batches are drawn from."""
        if self.key is not None:
            return self.key
        if self.seed is None:
            raise ValueError("SampleDP has no secret to draw from; a run or a node sets it")
        return f"seed {self.seed}".encode()

    # ---- one step

    def grid(self, numbers: int) -> float:
        """Return the grid that sums of gradients with this many numbers are rounded to."""
        # half a grid for each number is a vector of norm grid / 2 * sqrt(numbers)
        return 2.0 ** math.floor(math.log2(self.clip * ROUNDING / math.sqrt(max(1, numbers))))

    @property
    def bound(self) -> float:
        """The norm that gradients are scaled to, so that rounding keeps them below ``clip``."""
        return self.clip * (1 - ROUNDING)

    def batch_width(self, batch_size: int | None) -> int:
        """Return the number that padded batches are a multiple of."""
        return max(GRAIN, -(-(batch_size or ALL_DATA) // 4))


@dataclass(frozen=True)
class StepNoise:
    """The noise of the steps of some clients in one round.

    Args:
        dp: the settings, with a key.
        numbers: (k,) the clients, in the whole federation.
        seeds: (k,) of their runs.
        round: the round, counted from 0.
    """

    dp: SampleDP
    numbers: Tensor
    seeds: Tensor
    round: int

    def of(self, step: int, stacked: int, taking_part: int, variables: Tree) -> Tree:
        """Return (stacked, ...) noise of a step in multiples of the grid, for the form of
        ``variables``; zeros for clients that no longer take part."""
        leaves = tree.leaves(variables)
        sizes = [leaf[0].numel() for leaf in leaves]
        found = np.zeros((stacked, sum(sizes)))
        if self.dp.noise:
            scale = self.dp.noise * self.dp.clip / self.dp.grid(sum(sizes))
            for row in range(taking_part):
                place = f"noise {self.seeds[row]} {self.round} {self.numbers[row]} {step}"
                found[row] = np.rint(scale * gaussians(self.dp.secret, place, sum(sizes)))
        device = leaves[0].device
        pieces = iter(torch.split(torch.from_numpy(found).to(device), sizes, dim=1))
        return tree.map(lambda leaf: next(pieces).reshape(stacked, *leaf.shape[1:]), variables)


def poisson_batches(
    dp: SampleDP,
    ids: Tensor,
    sizes: Tensor,
    round: int,
    seeds: Tensor,
    *,
    batch_size: int | None,
    epochs: int | None,
    steps: int | None,
) -> Batches:
    """Return the samples of each step: every sample with probability batch_size / n, on its own.

    A client with fewer samples than a batch uses all of them in every step. An epoch is n /
    batch_size steps, rounded up.
    """
    per_epoch = -(-sizes // batch_size) if batch_size else torch.ones_like(sizes)  # (K,)
    each = torch.full_like(sizes, steps) if steps else per_epoch * (epochs or 1)
    drawn = [
        _drawn(dp, f"batches {seed} {round} {client}", size, count, batch_size)
        for client, size, count, seed in zip(
            ids.tolist(), sizes.tolist(), each.tolist(), seeds.tolist(), strict=True
        )
    ]
    width = dp.batch_width(batch_size)
    most = max(int(lengths.max()) for _, lengths in drawn)
    shape = len(ids), int(each.max()), max(1, -(-most // width)) * width
    positions, valid = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
    for row, (samples, lengths) in enumerate(drawn):
        inside = np.arange(shape[2]) < lengths[:, None]
        valid[row, : len(lengths)] = inside
        positions[row, : len(lengths)][inside] = samples
    return Batches(torch.from_numpy(positions), torch.from_numpy(valid), each)


def _drawn(
    dp: SampleDP, place: str, size: int, steps: int, batch_size: int | None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the samples of all steps of a client, step by step, and their number (steps,)."""
    trials = steps * size
    if batch_size is None or batch_size >= size:
        return np.tile(np.arange(size), steps), np.full(steps, size)
    rate = batch_size / size
    # the gaps between successes of independent trials, one trial for each sample of each step
    found, last, part = [], -1, 0
    while last < trials:
        expected = rate * (trials - last)
        count = int(expected + 6 * math.sqrt(expected)) + 8
        gaps = np.log(uniforms(dp.secret, f"{place} {part}", count)) / math.log1p(-rate)
        # no gap is longer than all trials: a larger one would not fit into 64 bits
        found.append(last + np.cumsum(np.minimum(gaps, trials).astype(np.int64) + 1))
        last, part = int(found[-1][-1]), part + 1
    places = np.concatenate(found)
    places = places[places < trials]
    return places % size, np.bincount(places // size, minlength=steps)


def dp_table(dp: SampleDP) -> dict[str, Any]:
    """Return the settings as a table, without defaults and without the key."""
    shown = [entry for entry in dataclasses.fields(dp) if entry.name != "key"]
    table = {entry.name: getattr(dp, entry.name) for entry in shown}
    unset = {entry.name for entry in shown[2:] if table[entry.name] == entry.default}
    return {name: value for name, value in table.items() if name not in unset}


def built_dp(table: object) -> SampleDP:
    """Return the settings of a table, such as { clip = 1.0, noise = 1.0 }."""
    if isinstance(table, SampleDP):
        return table
    if not isinstance(table, Mapping):
        raise ValueError(
            f"dp must be a table such as {{ clip = 1.0, noise = 1.0 }}, got {brief(table)}"
        )
    known = [entry.name for entry in dataclasses.fields(SampleDP) if entry.name != "key"]
    for name in table:
        require_known("keyword of dp:", name, known)
    return SampleDP(**table)


def require_dp(value: object) -> None:
    """Raise unless ``value`` is a SampleDP or None."""
    if value is not None:
        require_kind("dp", value, SampleDP, "SampleDP(clip=1.0, noise=1.0)")
