"""Common parts of the image data sets: pixel scaling, selected classes, classes as groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenhand.data.pool import Pool
from evenhand.data.views import View
from evenhand.errors import DataError, require, require_choice

# for data without clients of their own
DIRICHLET: Mapping[str, Any] = {"name": "dirichlet", "clients": 10, "alpha": 0.5}
STANDARDISE = ("scale", "dataset", "pixel")


def image_pool(
    images: Tensor, labels: Tensor, label_names: tuple[str, ...], held_out: Tensor | None
) -> Pool:
    """Return a pool of images (N, channels, height, width), stored as bytes and read as numbers
    in [0, 1]."""
    view = View(images, None, torch.tensor(1 / 255), torch.tensor(0.0))
    return Pool(view, labels.long(), label_names, held_out=held_out)


def check_labels(path: Path, labels: Tensor, classes: int, first: int = 0) -> None:
    """Raise a DataError unless all labels are in [0, classes); the file counts them from
    ``first``."""
    unknown = ((labels < 0) | (labels >= classes)).nonzero()
    if len(unknown):
        row = int(unknown[0])
        raise DataError(
            f"{path}: row {row} (from 0) has label {int(labels[row]) + first}, but classes are"
            f" {first} to {classes - 1 + first}; download the file again"
        )


def prepared(
    pool: Pool,
    classes: Sequence[int | str] | None = None,
    standardise: str = "scale",
    flat: bool = False,
    group: str | None = None,
    channels: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Pool:
    """Select and scale the images of a pool.

    Args:
        classes: numbers or names of the classes to keep; the first becomes label 0, the second
            label 1, and so on.
        standardise: "scale" divides pixels by 255; "dataset" also subtracts the mean and divides by
            the standard deviation of each channel; "pixel" does so for every pixel, with 0.001 (of
            255) added to the standard deviation. The statistics are those of all training images,
            whichever classes are kept.
        flat: return images as vectors.
        group: "class" makes the class of a sample its group.
        channels: published mean and standard deviation of each channel, for pixels in [0, 1].
    """
    require_choice("standardise", standardise, STANDARDISE)
    require(group in (None, "class"), 'group must be None or "class", got {!r}', group)
    pool = _standardised(pool, standardise, channels)
    if flat:
        view = _view(pool)
        scale, shift = (
            value if value is None or value.ndim == 0 else value.flatten()
            for value in (view.scale, view.shift)
        )
        pool = replace(
            pool, x=replace(view, source=view.source.flatten(1), scale=scale, shift=shift)
        )
    if classes is not None:
        pool = _only(pool, classes)
    return pool if group is None else replace(pool, group=pool.y, group_names=pool.label_names)


def _view(pool: Pool) -> View:
    assert isinstance(pool.x, View)
    return pool.x


def _standardised(
    pool: Pool, standardise: str, channels: tuple[Sequence[float], Sequence[float]] | None
) -> Pool:
    if standardise == "scale":
        return pool
    view = _view(pool)
    if standardise == "dataset" and channels is not None:
        mean, std = (
            255 * torch.tensor(values, dtype=torch.float64)[:, None, None] for values in channels
        )
    else:
        mean, square = _moments(
            view.source if pool.held_out is None else view.source[~pool.held_out]
        )
        if standardise == "dataset":
            mean, square = (values.mean((1, 2), keepdim=True) for values in (mean, square))
        std = (square - mean**2).clamp(min=0).sqrt()
    if standardise == "pixel":
        std = std + 0.001
    scale, shift = (
        value.float().expand(view.shape[1:]).contiguous() for value in (1 / std, -mean / std)
    )
    return replace(pool, x=replace(view, scale=scale, shift=shift))


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and mean square of every pixel, exact up to one division (sums of integers)."""
    total = np.zeros(images.shape[1:], np.int64)
    square = total.copy()
    for start in range(0, len(images), 4096):  # small enough for the cache
        values = images[start : start + 4096].numpy()
        total += values.sum(0, dtype=np.uint32)
        square += np.square(values, dtype=np.uint16).sum(0, dtype=np.uint32)
    mean, mean_square = (torch.from_numpy(sums / len(images)) for sums in (total, square))
    return mean, mean_square


def _only(pool: Pool, classes: Sequence[int | str]) -> Pool:
    """Return the samples of some classes, renumbered in the order given."""
    require(
        not isinstance(classes, str) and len(classes) > 0,
        "classes must be a list such as [0, 2, 6], got {!r}",
        classes,
    )
    names = pool.label_names
    chosen = [
        names.index(value) if isinstance(value, str) and value in names else value
        for value in classes
    ]
    for value in chosen:
        known = isinstance(value, int) and 0 <= value < len(names)
        require(
            known,
            "classes must be numbers from 0 to {} or names ({}, ...), got {!r}",
            len(names) - 1,
            ", ".join(names[:3]),
            value,
        )
    require(len(set(chosen)) == len(chosen), "classes must differ, got {!r}", list(classes))
    number = torch.full((len(names),), -1)
    number[torch.tensor(chosen)] = torch.arange(len(chosen))
    kept = pool.select(number[pool.y] >= 0)
    return replace(kept, y=number[kept.y], label_names=tuple(names[int(value)] for value in chosen))
