"""Layers with running statistics, above all BatchNorm: frozen, or local to each client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenhand.tree import Tree

NORMALISATIONS = ("frozen", "local")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
AFFINE = ("weight", "bias")


def norm_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that normalise over batches or keep running statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False)
    }


class LocalBatchNorm(_BatchNorm):
    """BatchNorm without side effects, for batches with padding.

    In training mode it normalises by the mean and variance over the real rows of a batch, and
    replaces its running statistics as torch does. Rows with one value per channel have no variance:
    such a batch is normalised by the running statistics, which stay as they are.
    """

    rows: Tensor | None = None  # (B,) weights of the batch's rows; None if all are real
    name = ""

    def forward(self, input: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        assert mean is not None and var is not None
        if not self.training:
            return F.batch_norm(input, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        x = input.to(mean.dtype)  # of bf16, sums keep full precision
        shape = (1, -1, *[1] * (x.ndim - 2))
        over = (0, *range(2, x.ndim))
        real = self._real(x)
        count = real.to(x.dtype).sum() * x[0, 0].numel()
        enough = count > 1
        center = torch.where(real, x, 0.0).sum(over) / count.clamp(min=1)
        spread = torch.where(real, x - center.reshape(shape), 0.0).square().sum(over)
        self._move(center.detach(), spread.detach() / (count - 1).clamp(min=1), enough)
        center = torch.where(enough, center, mean.detach())
        spread = torch.where(enough, spread / count.clamp(min=1), var.detach())
        found = (x - center.reshape(shape)) * (spread + self.eps).rsqrt().reshape(shape)
        if self.affine:
            found = found * self.weight.reshape(shape) + self.bias.reshape(shape)
        return found.to(input.dtype)

    def _real(self, x: Tensor) -> Tensor:
        """Return which rows are no padding, in a shape that broadcasts over ``x``."""
        rows = x.new_ones(len(x)) if self.rows is None else self.rows
        if len(rows) != len(x):
            raise ValueError(
                f"layer {self.name!r} gets {len(x)} rows for a batch of {len(rows)} samples, so"
                ' padding cannot be told apart; use normalisation="frozen"'
            )
        return (rows > 0).reshape(-1, *[1] * (x.ndim - 1))

    def _move(self, mean: Tensor, var: Tensor, enough: Tensor) -> None:
        """Move the running statistics towards those of a batch."""
        seen = self.num_batches_tracked
        assert self.running_mean is not None and self.running_var is not None and seen is not None
        seen = seen + enough.to(seen.dtype)
        share = 1 / seen.clamp(min=1).to(mean.dtype) if self.momentum is None else self.momentum
        for name, old, new in (
            ("running_mean", self.running_mean, mean),
            ("running_var", self.running_var, var),
        ):
            setattr(self, name, torch.where(enough, (1 - share) * old + share * new, old))
        self.num_batches_tracked = seen


def made_local(module: nn.Module) -> dict[str, LocalBatchNorm]:
    """Make every BatchNorm layer of the module local, in place; return them by name."""
    found = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)
    }
    for name, layer in found.items():
        layer.__class__ = LocalBatchNorm
        layer.name = name or "itself"  # type: ignore[assignment]
    return found  # type: ignore[return-value]


@contextmanager
def real_rows(module: nn.Module, weight: Tensor | None) -> Iterator[None]:
    """Tell the module's local layers which rows are padding: those of weight 0."""
    layers = [layer for layer in module.modules() if isinstance(layer, LocalBatchNorm)]
    for layer in layers:
        layer.rows = weight
    try:
        yield
    finally:
        for layer in layers:
            layer.rows = None


class Norms:
    """The normalisation of one model: affine parameters and running statistics by name.

    ``after`` gets the statistics after the first batch in training mode.
    """

    def __init__(self, values: Tree) -> None:
        self.values = values
        self.after: Tree | None = None


class NormTable:
    """Which normalisation belongs to which parameters, for as long as a function of a method runs.

    A method sees trees without normalisation, and may pass any of them to the model. A tree that is
    not in the table, such as the mean of two models, is evaluated with the default.
    """

    def __init__(self, default: Tree) -> None:
        self._default = default
        self._known: dict[int, tuple[Tree, Norms]] = {}

    def add(self, params: Tree, values: Tree) -> Norms:
        """Note the normalisation of ``params``, a tree that is known by its identity."""
        norms = Norms(values)
        self._known[id(params)] = (params, norms)
        return norms

    def knows(self, params: Tree) -> bool:
        """Whether ``params`` is in the table."""
        return id(params) in self._known

    def of(self, params: Tree) -> Norms:
        """Return the normalisation of ``params``."""
        return self._known[id(params)][1] if self.knows(params) else Norms(self._default)
