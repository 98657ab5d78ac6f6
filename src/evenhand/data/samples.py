"""Samples, stored flat: one array for all clients, and offsets.

A million tiny clients are then a few arrays, not a million Python objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.nested import Nested
from evenhand.data.parts import PARTS as PARTS
from evenhand.data.views import View, rows_of
from evenhand.errors import require_kind

Features = Tensor | View | Nested


class Samples(NamedTuple):
    """Flat arrays that batches are gathered from."""

    x: Features  # (N, ...)
    y: Tensor  # (N, ...)
    group: Tensor  # (N,) int64 codes; zeros if the data have no groups

    def to(self, dtype: torch.dtype, device: torch.device) -> Samples:
        """Move to ``device``, floating-point arrays as ``dtype``; no copy if nothing changes."""
        x, y = self.x, self.y
        keeps = isinstance(x, Tensor) and not x.is_floating_point()
        return Samples(
            x.to(device, x.dtype if keeps else dtype),
            y.to(device, dtype if y.is_floating_point() else y.dtype),
            self.group.to(device),
        )

    def first(self, count: int) -> Samples:
        """Return the first samples, as arrays of their own."""
        x = self.x.first(count) if isinstance(self.x, Nested) else self.x[:count]
        return Samples(x, self.y[:count], self.group[:count])


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
    def x(self) -> Any:
        """(B, ...) features; a dict or tuple of such tensors if samples have several inputs."""
        values = self._samples.x
        if isinstance(values, Tensor):
            return rows_of(values, self._index)
        return values.gather(self._index)

    @cached_property
    def y(self) -> Tensor:
        """(B, ...) labels."""
        return rows_of(self._samples.y, self._index)

    @cached_property
    def group(self) -> Tensor:
        """(B,) int64 codes of the samples' groups."""
        return rows_of(self._samples.group, self._index)


@dataclass(frozen=True)
class Part:
    """The samples of all clients in one split; client k owns rows ``offsets[k]:offsets[k + 1]``.

    Attributes:
        x: (N, ...) features.
        y: (N, ...) labels.
        offsets: (n + 1,) int64.
        group: (N,) int64 codes of the samples' groups.
        rows: (N,) int64, where each sample is in the table or data set it comes from, counted from
            0; not part of the data: nothing is computed from it, and no node sends it.
    """

    x: Features
    y: Tensor
    offsets: Tensor
    group: Tensor | None = None
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("x", "y", "offsets"):
            if name != "x" or not isinstance(self.x, View | Nested):
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
        each = [values for values in (self.group, self.rows) if values is not None]
        if len(self.y) != count or any(values.shape != (count,) for values in each):
            raise ValueError(f"x has {count} samples; y, group and rows must have as many")

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
        # without groups a single zero, seen by every sample
        none = torch.zeros(1, dtype=torch.int64).expand(len(self.x))
        return Samples(self.x, self.y, none if self.group is None else self.group)

    def samples(self, dtype: torch.dtype, device: torch.device) -> Samples:
        """Return the arrays of all clients on ``device``, floating-point ones as ``dtype``."""
        return self.all().to(dtype, device)

    def first(self, clients: int) -> Part:
        """Return the samples of the first clients."""
        offsets = self.offsets[: clients + 1]
        rows = slice(0, int(offsets[-1]))
        x = self.x[rows] if isinstance(self.x, Tensor) else self.x.pick(torch.arange(rows.stop))
        return Part(x, self.y[rows], offsets, *self._beside(rows))

    def select(self, chosen: Tensor) -> Part:
        """Return the samples that a mask (N,) selects; their features are a view, not a copy."""
        rows = chosen.nonzero().flatten()
        sizes = torch.bincount(self.owners[rows], minlength=len(self.sizes))
        x = View(self.x, rows) if isinstance(self.x, Tensor) else self.x.pick(rows)
        return Part(x, self.y[rows], F.pad(sizes.cumsum(0), (1, 0)), *self._beside(rows))

    def _beside(self, chosen: slice | Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return group and row of some samples."""
        group, rows = (
            None if values is None else values[chosen] for values in (self.group, self.rows)
        )
        return group, rows

    def client(self, index: int) -> tuple[Any, Tensor, Tensor | None]:
        """Return one client's x, y and group, without a copy where possible."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.x[rows], self.y[rows], None if self.group is None else self.group[rows]


def first_not_finite(array: Features) -> int | None:
    """Return the first sample with a value that is not finite, or None."""
    if isinstance(array, Nested):
        bad_rows = [first_not_finite(values) for values in array.arrays().values()]
        return min((row for row in bad_rows if row is not None), default=None)
    source = array.source if isinstance(array, View) else array
    if not source.is_floating_point() or _all_finite(source):
        return None
    # in a view, the value may be in a row of the source that no sample uses
    values = array[:]
    bad = torch.isfinite(values.reshape(len(values), -1)).all(1).logical_not().nonzero()
    return int(bad[0]) if len(bad) else None


def _all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite, without a second array of this size."""
    if not values.numel():
        return True
    if values.element_size() == 1:  # of which torch does not know the smallest
        values = values.half()
    return all(bool(end.isfinite()) for end in values.aminmax())  # a NaN shows in both ends
