"""Layers with running statistics, above all BatchNorm: frozen, or local to each client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

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


class PureBatchNorm(_BatchNorm):
    """BatchNorm whose result for one client does not depend on the clients stacked with it.

    In training mode it normalises by the mean and variance over the real rows of a batch, and
    replaces its running statistics as torch does. A batch with one value per channel has no
    variance: it is normalised by the running statistics, which stay as they are.
    """

    rows: Tensor | None = None  # (B,) weights of the batch's rows; None if all are real
    name = ""

    def forward(self, input: Tensor) -> Tensor:
        known = {name: getattr(self, name) for name in STATISTICS}
        mean, var = known["running_mean"], known["running_var"]
        shape = (1, -1, *[1] * (input.ndim - 2))
        x = input.to(mean.dtype)  # of bf16, sums keep full precision
        if self.training:
            real = self._real(x)
            x = torch.where(real, x, 0.0)  # padding may be infinite
            mean, var = self._of_batch(x, real, shape, known)
        found = (x - mean.reshape(shape)) * (var + self.eps).rsqrt().reshape(shape)
        if self.affine:
            found = found * self.weight.reshape(shape) + self.bias.reshape(shape)
        result: Tensor = found.to(input.dtype)
        return result

    def _of_batch(
        self, x: Tensor, real: Tensor, shape: tuple[int, ...], known: Tree
    ) -> tuple[Tensor, Tensor]:
        """Return what to normalise a batch by, and move the running statistics."""
        over = (0, *range(2, x.ndim))
        count = real.to(x.dtype).sum() * x[0, 0].numel()
        enough = count > 1
        mean = x.sum(over) / count.clamp(min=1)
        squares = torch.where(real, x - mean.reshape(shape), 0.0).square().sum(over)
        self._move(known, mean.detach(), squares.detach() / (count - 1).clamp(min=1), enough)
        return (
            torch.where(enough, mean, known["running_mean"].detach()),
            torch.where(enough, squares / count.clamp(min=1), known["running_var"].detach()),
        )

    def _real(self, x: Tensor) -> Tensor:
        """Return which rows are no padding, in a shape that broadcasts over ``x``."""
        rows = x.new_ones(len(x)) if self.rows is None else self.rows
        if len(rows) != len(x):
            raise ValueError(
                f"layer {self.name!r} gets {len(x)} rows for a batch of {len(rows)} samples, so"
                ' padding cannot be told apart; use normalisation="frozen"'
            )
        return (rows > 0).reshape(-1, *[1] * (x.ndim - 1))

    def _move(self, known: Tree, mean: Tensor, var: Tensor, enough: Tensor) -> None:
        """Move the running statistics towards those of a batch, if it has any."""
        seen = known["num_batches_tracked"] + enough.to(known["num_batches_tracked"].dtype)
        share = 1 / seen.clamp(min=1).to(mean.dtype) if self.momentum is None else self.momentum
        for name, new in (("running_mean", mean), ("running_var", var)):
            moved = (1 - share) * known[name] + share * new
            setattr(self, name, torch.where(enough, moved, known[name]))
        self.num_batches_tracked = seen


def has_usual_forward(layer: nn.Module) -> bool:
    """Whether a BatchNorm layer only normalises, as torch's own layers do."""
    return type(layer).forward in (_BatchNorm.forward, SyncBatchNorm.forward)


def made_pure(module: nn.Module) -> dict[str, nn.Module]:
    """Make BatchNorm layers pure, in place; return them by name."""
    found: dict[str, nn.Module] = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and has_usual_forward(layer)
    }
    for name, layer in found.items():
        layer.__class__, layer.name = PureBatchNorm, name or "itself"  # type: ignore[assignment]
    return found


@contextmanager
def real_rows(module: nn.Module, weight: Tensor | None) -> Iterator[None]:
    """Tell the module's pure layers which rows are padding: those of weight 0."""
    layers = [layer for layer in module.modules() if isinstance(layer, PureBatchNorm)]
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
