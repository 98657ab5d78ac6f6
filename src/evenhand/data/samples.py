"""Samples, stored flat: one array for all clients, and offsets.

A million tiny clients are then a few arrays, not a million Python objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.errors import require_kind

PARTS = ("train", "val", "test")
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
            _rows(
                self.source,
                index if self.rows is None else _rows(self.rows[:, None], index).squeeze(-1),
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


class Samples(NamedTuple):
    """Flat arrays that batches are gathered from."""

    x: Tensor | View  # (N, ...)
    y: Tensor  # (N, ...)
    group: Tensor  # (N,) int64 codes; zeros if the data have no groups

    def to(self, dtype: torch.dtype, device: torch.device) -> Samples:
        """Move to ``device``, floating-point arrays as ``dtype``; no copy if nothing changes."""
        x, y = self.x, self.y
        return Samples(
            x.to(device, dtype if isinstance(x, View) or x.is_floating_point() else x.dtype),
            y.to(device, dtype if y.is_floating_point() else y.dtype),
            self.group.to(device),
        )


class Batch:
    """Samples of one client, gathered when they are used.

    ``weight`` (B,) is 1 for a real sample and 0 for padding.
    """

    def __init__(
        self, samples: Samples, index: Tensor, weight: Tensor, whole: Batch | None = None
    ) -> None:
        self._samples, self._index = samples, index  # index (B,)
        self.weight = weight  # (B,)
        self._whole = whole

    @property
    def whole(self) -> Batch:
        """All of the client's data, for methods with ``LocalWork(whole_data=True)``."""
        if self._whole is None:
            raise ValueError(
                "batch.whole needs a method whose local_work() returns LocalWork(whole_data=True)"
            )
        return self._whole

    @cached_property
    def x(self) -> Tensor:
        """(B, ...) features."""
        values = self._samples.x
        return (
            values.gather(self._index) if isinstance(values, View) else _rows(values, self._index)
        )

    @cached_property
    def y(self) -> Tensor:
        """(B, ...) labels."""
        return _rows(self._samples.y, self._index)

    @cached_property
    def group(self) -> Tensor:
        """(B,) int64 codes of the samples' groups."""
        return _rows(self._samples.group, self._index)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    # embedding instead of values[index]: under vmap it stays one gather of whole rows, five to ten
    # times faster on a CPU
    gathered = F.embedding(index, values.reshape(len(values), -1)).reshape(
        *index.shape, *values.shape[1:]
    )
    return gathered if gathered.is_floating_point() else gathered.long()


@dataclass(frozen=True)
class Part:
    """The samples of all clients in one split; client k owns rows ``offsets[k]:offsets[k + 1]``.

    Attributes:
        x: (N, ...) features.
        y: (N, ...) labels.
        offsets: (n + 1,) int64.
        group: (N,) int64 codes of the samples' groups.
    """

    x: Tensor | View
    y: Tensor
    offsets: Tensor
    group: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("x", "y", "offsets"):
            if name != "x" or not isinstance(self.x, View):
                require_kind(
                    f"{name} of a Part", getattr(self, name), Tensor, "torch.from_numpy(array)"
                )
        offsets, count = self.offsets, len(self.x)
        if offsets.dtype != torch.int64 or offsets.ndim != 1 or len(offsets) < 2:
            raise ValueError(
                "offsets must be an int64 vector with one entry more than there are clients"
            )
        if offsets[0] != 0 or offsets[-1] != count or bool((offsets.diff() < 0).any()):
            raise ValueError(f"offsets must rise from 0 to the number of samples, {count}")
        if len(self.y) != count or (self.group is not None and self.group.shape != (count,)):
            raise ValueError(f"x has {count} samples; y and group must have as many")

    @cached_property
    def sizes(self) -> Tensor:
        """(n,) samples of each client."""
        return self.offsets.diff()

    @property
    def owners(self) -> Tensor:
        """(N,) the client that each sample belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)

    def counts(self, groups: int) -> Tensor:
        """Return (n, A) samples per client and group; (n, 1) without groups."""
        clients, columns = len(self.sizes), max(1, groups)
        cells = self.owners * columns
        if self.group is not None:
            cells = cells + self.group
        return torch.bincount(cells, minlength=clients * columns).reshape(clients, columns)

    def all(self) -> Samples:
        """Return the arrays of all clients."""
        group = torch.zeros(len(self.x), dtype=torch.int64) if self.group is None else self.group
        return Samples(self.x, self.y, group)

    def samples(self, dtype: torch.dtype, device: torch.device) -> Samples:
        """Return the arrays of all clients on ``device``, floating-point ones as ``dtype``."""
        return self.all().to(dtype, device)

    def first(self, clients: int) -> Part:
        """Return the samples of the first clients."""
        offsets = self.offsets[: clients + 1]
        rows = slice(0, int(offsets[-1]))
        x = self.x[rows] if isinstance(self.x, Tensor) else self.x.pick(torch.arange(rows.stop))
        return Part(x, self.y[rows], offsets, None if self.group is None else self.group[rows])

    def select(self, chosen: Tensor) -> Part:
        """Return the samples that a mask (N,) selects; their features are a view, not a copy."""
        rows = chosen.nonzero().flatten()
        sizes = torch.bincount(self.owners[rows], minlength=len(self.sizes))
        x = self.x.pick(rows) if isinstance(self.x, View) else View(self.x, rows)
        group = None if self.group is None else self.group[rows]
        return Part(x, self.y[rows], F.pad(sizes.cumsum(0), (1, 0)), group)

    def client(self, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return views of one client's x, y and group."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.x[rows], self.y[rows], None if self.group is None else self.group[rows]


def first_not_finite(array: Tensor | View) -> int | None:
    """Return the first sample with a value that is not finite, or None."""
    source = array.source if isinstance(array, View) else array
    if not source.is_floating_point() or bool(torch.isfinite(source).all()):
        return None
    # in a view, the value may be in a row of the source that no sample uses
    values = array[:]
    bad = torch.isfinite(values.reshape(len(values), -1)).all(1).logical_not().nonzero()
    return int(bad[0]) if len(bad) else None
