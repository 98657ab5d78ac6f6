"""Metrics as evaluations compute them: what each sample adds, and ratios of the sums."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.errors import first_line
from evenhand.metrics.metric import BETTER, Metric

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

SIGN = ":"  # between the direction and the name of a metric, in tallies and outcomes


def key_of(name: str, better: str) -> str:
    """Return the name of a metric's sums in a tally, such as "higher:top5"."""
    return f"{better}{SIGN}{name}"


def metric_keys(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return key and direction, by name, of the metrics among the names of a tally."""
    found = {}
    for key in names:
        better, sign, name = key.partition(SIGN)
        if sign and better in BETTER:
            found[name] = (key, better)
    return found


@dataclass(frozen=True)
class Measured:
    """A metric that has been tried on samples."""

    name: str
    metric: Metric
    entries: int  # L: of the labels or classes it is a mean over; else 1
    plain: bool = False  # whether the function returns values, whose denominators are all 1
    faults: set[str] = field(default_factory=set, compare=False)  # what went wrong, to say it once

    @property
    def key(self) -> str:
        """Its name in tallies and outcomes."""
        return key_of(self.name, self.metric.better)

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        """Return (B, 2, L): what each sample adds to numerators and denominators.

        The function always gets plain tensors: samples of stacked clients come one after another.
        """
        found: Tensor = _Plain.apply(output, y, self)  # type: ignore[no-untyped-call]
        return found

    def applied(self, output: Tensor, y: Tensor) -> Tensor:
        """Do so with plain tensors; NaN if the function fails, so that no result is lost."""
        rows = len(output)
        try:
            table = table_of(self.metric.function(output, y), self.name, rows)
            if table.shape[2] != self.entries:
                raise ValueError(f"it returned {table.shape[2]} entries, not {self.entries}")
        except Exception as error:
            fault = first_line(error)
            if fault not in self.faults:
                self.faults.add(fault)
                log.warning("metric %r is unknown for some samples: %s", self.name, fault)
            table = torch.full((rows, 2, self.entries), torch.nan, dtype=torch.float64)
        return table.to(output.device)


class _Plain(torch.autograd.Function):
    """A call that ``torch.func.vmap`` passes on for all its rows at once."""

    generate_vmap_rule = False

    @staticmethod
    def forward(output: Tensor, y: Tensor, measured: Measured) -> Tensor:
        return measured.applied(output, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, output: Tensor, y: Tensor, measured: Measured
    ) -> tuple[Tensor, int]:
        stacked = [
            value.expand(info.batch_size, *value.shape)
            if place is None
            else value.movedim(place, 0)
            for value, place in zip((output, y), in_dims, strict=False)
        ]
        rows = stacked[0].shape[:2]
        table = measured(*(value.flatten(0, 1) for value in stacked))
        return table.reshape(*rows, *table.shape[1:]), 0


class MetricError(ValueError):
    """What a metric returned cannot be used."""


def table_of(found: Any, name: str, rows: int) -> Tensor:
    """(B, 2, L) numerators and denominators in float64, from what a function returned."""
    parts = [
        torch.from_numpy(part.copy()) if isinstance(part, np.ndarray) else part
        for part in (found if isinstance(found, tuple) else (found,))
    ]
    shapes = [list(part.shape) if isinstance(part, Tensor) else None for part in parts]
    right = (
        len(parts) in (1, 2)
        and all(shape is not None and len(shape) in (1, len(parts)) for shape in shapes)
        and all(shape == shapes[0] and shape[0] == rows for shape in shapes if shape is not None)
        and shapes[0] != [rows, 0]
    )
    if not right:
        raise MetricError(f"metric {name!r} must return {_wanted(rows)}, got {_got(found)}")
    values = [part.detach().double().reshape(rows, -1 if rows else 1) for part in parts]
    return torch.stack([*values, *[torch.ones_like(values[0])] * (2 - len(parts))], 1)


def _wanted(rows: int) -> str:
    return (
        f"one value per sample, shape [{rows}], or numerators and denominators, each [{rows}] or"
        f" [{rows}, L], so that clients add"
    )


def _got(found: Any) -> str:
    if isinstance(found, tuple):
        return f"({', '.join(map(_got, found))})"
    if not isinstance(found, Tensor):
        return type(found).__name__
    return f"shape {list(found.shape)}" if found.ndim else "one number"


def ratios(table: NDArray[Any]) -> Floats:
    """Return (...) the metric of sums (..., 2, L); NaN where every denominator is 0."""
    above, below = (np.asarray(table, np.float64)[..., row, :] for row in (0, 1))
    there = below != 0
    with np.errstate(invalid="ignore", divide="ignore"):
        each = np.where(there, above / np.where(there, below, 1.0), 0.0)
        return np.asarray(each.sum(-1) / np.where(there.any(-1), there.sum(-1), np.nan))


def warn_of_nan(tally: Mapping[str, NDArray[Any]]) -> None:
    """Warn of metrics that are not a number for some samples though the losses are finite."""
    sound = np.isfinite(tally["loss"])  # (n, A)
    for name, (key, _) in metric_keys(tally).items():
        unknown = ~np.isfinite(tally[key]).all((-2, -1))
        if unknown.shape == sound.shape and bool((unknown & sound).any()):
            log.warning("metric %r is not finite for some samples whose outputs are", name)


def kept(table: Tensor) -> NDArray[Any]:
    """What each sample adds, as small as it can be stored: small whole numbers as bytes."""
    found = table.numpy()
    small = bool(((found >= 0) & (found <= 255) & (found == found.round())).all())
    return found.astype(np.uint8) if small else found


def are_shares(stored: NDArray[Any]) -> bool:
    """Whether a metric of such samples is a share: values are 0 or 1, or every numerator is between
    0 and its denominator."""
    if stored.ndim == 1:
        return bool(np.isin(stored, (0, 1)).all())
    return bool(((stored[:, 0] >= 0) & (stored[:, 0] <= stored[:, 1])).all())
