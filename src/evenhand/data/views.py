"""Samples that are rows of a larger array."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# up to this many bytes, features are scaled once instead of in every batch
SCALED_AT_ONCE = 128 * 2**20


@dataclass(frozen=True)
class View:
    """Samples that are rows of a larger array, gathered and scaled when they are used.

    Every split and partition then shares one array, image bytes stay bytes, and windows of a text
    overlap in memory.

    Attributes:
        source: (M, ...); rows may overlap in memory.
        rows: (N,) int64, the row of ``source`` of each sample; None means all rows in order.
        scale: features are source * scale + shift; scalar or of a sample's shape. None leaves the
            values as they are (tokens).
        shift: see ``scale``.
    """

    source: Tensor
    rows: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.scale is None) != (self.shift is None):
            raise ValueError("give a View both scale and shift, or neither")

    def __len__(self) -> int:
        return len(self.source if self.rows is None else self.rows)

    @property
    def shape(self) -> torch.Size:
        """Shape of the samples as one array."""
        return torch.Size((len(self), *self.source.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the features after scaling."""
        return self.source.dtype if self.scale is None else self.scale.dtype

    def is_floating_point(self) -> bool:
        """Whether the features are floating-point numbers."""
        return self.dtype.is_floating_point

    def element_size(self) -> int:
        """Bytes per number after scaling."""
        return self.dtype.itemsize

    def __getitem__(self, key: slice | Tensor) -> Tensor:
        """Return the samples themselves, as a new array."""
        rows = torch.arange(len(self))[key] if self.rows is None else self.rows[key]
        return self._scaled(self.source[rows.to(self.source.device)])

    def pick(self, rows: Tensor) -> View:
        """Return a view of some of the samples, in the order of ``rows``."""
        return View(
            self.source, rows if self.rows is None else self.rows[rows], self.scale, self.shift
        )

    def gather(self, index: Tensor) -> Tensor:
        """Return samples ``index``, in a way that can be batched over clients."""
        return self._scaled(
            rows_of(
                self.source,
                index if self.rows is None else rows_of(self.rows[:, None], index).squeeze(-1),
            )
        )

    def _scaled(self, values: Tensor) -> Tensor:
        return (
            values
            if self.scale is None or self.shift is None
            else values.to(self.scale.dtype) * self.scale + self.shift
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> View:
        """Return the view on ``device``, with features as ``dtype``; overlapping rows keep
        overlapping.

        A small view is scaled here instead of in every batch, with the same result.
        """
        span = 1 + sum(
            (length - 1) * stride
            for length, stride in zip(self.source.shape, self.source.stride(), strict=True)
        )
        flat = torch.as_strided(self.source, (span if self.source.numel() else 0,), (1,)).to(device)
        source = torch.as_strided(flat, self.source.shape, self.source.stride())
        rows = None if self.rows is None else self.rows.to(device)
        scale, shift = (
            None if value is None else value.to(device, dtype) for value in (self.scale, self.shift)
        )
        view = View(source.to(dtype) if source.is_floating_point() else source, rows, scale, shift)
        room = view.shape.numel() * view.element_size()
        return View(view[:]) if scale is not None and room <= SCALED_AT_ONCE else view


def rows_of(values: Tensor, index: Tensor) -> Tensor:
    """Return rows ``index`` of an array, in a way that can be batched over clients."""
    # embedding instead of values[index]: under vmap it stays one gather of whole rows, five to ten
    # times faster on a CPU
    gathered = F.embedding(index, values.reshape(len(values), -1)).reshape(
        *index.shape, *values.shape[1:]
    )
    return gathered if gathered.is_floating_point() else gathered.long()
