"""The gradient of a step that hides single samples: clipped sample by sample, summed, with noise.

Clipped gradients are rounded to whole multiples of a grid, and whole numbers in float64 add up
exactly: the sum changes by at most the bound if a sample comes or goes, whatever the order and the
number of samples computed at once. (In float32, the last bit of a sample's own gradient may depend
on which samples are computed beside it; that is far below the noise.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from evenhand import tree
from evenhand.engines.batching import Batching, ChunkFunction, ClientFunction
from evenhand.local import SampleDP
from evenhand.torch_private import grad
from evenhand.tree import Tree

HELD = 256 << 20  # bytes that the gradients of one client's samples may take
COPIES = 20  # bytes for each number: the gradient, and in float64 its square and its multiple


def held_at_once(dp: SampleDP, numbers: int, width: int) -> int:
    """How many samples' gradients, of so many numbers each, are in memory for one client."""
    return min(width, dp.held or max(1, HELD // (COPIES * max(1, numbers))))


def hidden_gradient(
    objective: Callable[[Tree, Tree], Tensor], dp: SampleDP, batching: Batching, additive: bool
) -> ChunkFunction:
    """The gradient that a chunk of clients descends with.

    Args:
        objective: () of a client, as a function of (shared, inputs).
        additive: whether the objective has terms besides the mean over samples. They depend on no
            sample, so their gradient is neither clipped nor hidden.
    """
    by_sample = batching.map(gradients_by_sample(objective))

    def gradient(shared: Tree, inputs: Tree) -> Tree:
        batch, variables = inputs["batch"], inputs["variables"]
        few = {"variables": variables, "own": inputs["own"]}

        def of(index: Tensor, weight: Tensor) -> Tree:
            return by_sample(shared, {**few, "batch": {"index": index, "weight": weight}})

        index, weight = batch["index"], batch["weight"]
        rest = None
        if additive:  # the gradient without any sample
            rest = of(index[:, :1], torch.zeros_like(weight[:, :1]))
        numbers = sum(leaf[0].numel() for leaf in tree.leaves(variables))
        once = held_at_once(dp, numbers, index.shape[1])
        unit = dp.grid(numbers) if dp.clip < math.inf else 1.0
        total = batch["noise"]
        for here, real in zip(index.split(once, 1), weight.split(once, 1), strict=True):
            found = of(here, real)
            if rest is not None:
                found = tree.map(torch.sub, found, rest)
            total = tree.map(torch.add, total, clipped_sum(found, real, dp, unit))
        expected = batch["expected"].double()  # (K,)
        mean = tree.map(
            lambda leaf, like: _by_row(unit / expected, leaf).mul(leaf).to(like.dtype),
            total,
            variables,
        )
        if rest is None:
            return mean
        return tree.map(lambda leaf, more: leaf + more[:, 0], mean, rest)

    return gradient


def gradients_by_sample(objective: Callable[[Tree, Tree], Tensor]) -> ClientFunction:
    """The gradients (B, ...) of a client's objective, one for each sample alone."""

    def of_batch(shared: Tree, inputs: Tree) -> Tree:
        def of_sample(index: Tensor, weight: Tensor) -> Tree:
            batch = {"index": index[None], "weight": weight[None]}
            result: Tree = grad(
                lambda variables: objective(
                    shared, {**inputs, "variables": variables, "batch": batch}
                )
            )(inputs["variables"])
            return result

        batch = inputs["batch"]
        found: Tree = vmap(of_sample, randomness="different")(batch["index"], batch["weight"])
        return found

    return of_batch


def clipped_sum(gradients: Tree, weight: Tensor, dp: SampleDP, unit: float) -> Tree:
    """Sum gradients (K, B, ...), each clipped, over the samples with a weight (K, B), in multiples
    of ``unit``.

    A gradient that is not finite counts as zero: to leave out its client would show that the sample
    is there.
    """
    norms = [
        torch.linalg.vector_norm(leaf.reshape(*weight.shape, -1), dim=2, dtype=torch.float64)
        for leaf in tree.leaves(gradients)
    ]
    norm = torch.stack(norms).square().sum(0).sqrt()  # (K, B)
    left_out = (weight <= 0) | ~norm.isfinite()
    factor = torch.ones_like(norm)
    if dp.clip < math.inf:
        factor = (dp.bound / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
    factor = factor / unit

    def summed(leaf: Tensor) -> Tensor:
        # in place: a new array this large costs as much as the arithmetic
        scaled = leaf.double() if leaf.dtype != torch.float64 else leaf.clone()
        scaled.mul_(_by_row(factor, leaf))
        if dp.clip < math.inf:
            scaled.round_()
        return scaled.masked_fill_(_by_row(left_out, leaf), 0).sum(1)

    return tree.map(summed, gradients)


def _by_row(values: Tensor, like: Tensor) -> Tensor:
    """``values`` in a shape that multiplies ``like``, whose first dimensions are the same."""
    return values.reshape(*values.shape, *[1] * (like.ndim - values.ndim))
