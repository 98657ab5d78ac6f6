"""Reading the items of any map-style torch dataset whose items are (x, y) or (x, y, group)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from evenhand.data.samples import View
from evenhand.errors import first_line


class MapStyle(Protocol):
    """A dataset with items by number and a length (torch's own ``Dataset`` only promises the
    items)."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Items:
    """All items of a dataset, as arrays."""

    x: Tensor | View
    y: Tensor
    group: list[Any] | None


def items_of(name: str, dataset: Any, groups: Iterable[Any] | None, groups_name: str) -> Items:
    """Read all items of a dataset."""
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError(
            f"{name} must be a map-style dataset, with len() and items by number; got"
            f" {type(dataset).__name__}"
        )
    if len(dataset) == 0:
        raise ValueError(f"{name} has no items")
    columns = _tensors(dataset)
    items = _from_tensors(name, columns) if columns is not None else _one_by_one(name, dataset)
    if groups is not None and items.group is not None:
        raise ValueError(f"{name} has a group in each item; remove {groups_name}")
    return (
        items
        if groups is None
        else Items(items.x, items.y, label_column(groups_name, groups, len(items.y)))
    )


def _tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """Return the columns of a dataset that is made of tensors, None for another."""
    if type(dataset) is TensorDataset:  # a subclass may change what its items are
        return dataset.tensors
    if type(dataset) is Subset and (columns := _tensors(dataset.dataset)) is not None:
        rows = torch.as_tensor(dataset.indices)
        return tuple(column[rows] for column in columns)
    return None


def _from_tensors(name: str, columns: tuple[Tensor, ...]) -> Items:
    if len(columns) not in (2, 3):
        raise ValueError(
            f"{name} has {len(columns)} tensors; items must be (x, y) or (x, y, group)"
        )
    x, y, *group = (column.detach().cpu() for column in columns)
    return Items(
        x.to(torch.uint8) if x.dtype == torch.bool else x,
        _labels(y),
        group[0].tolist() if group else None,
    )


def _one_by_one(name: str, dataset: MapStyle) -> Items:
    count = len(dataset)
    x: Tensor | None = None
    labels: list[Tensor] = []
    group: list[Any] = []
    width = pictures = 0
    for number in range(count):
        try:
            item = dataset[number]
        except Exception as error:
            raise ValueError(
                f"{name}: item {number} cannot be read: {first_line(error)}"
            ) from error
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            shown = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
            raise ValueError(f"{name}: item {number} must be (x, y) or (x, y, group), got {shown}")
        features, picture = _picture(item[0])
        features = _tensor(f"{name}: x of item {number}", features)
        label = _tensor(f"{name}: y of item {number}", item[1])
        if x is None:
            x = torch.empty((count, *features.shape), dtype=features.dtype)
            width, pictures = len(item), picture
            labels.append(label)
        elif len(item) != width or picture != pictures:
            raise ValueError(
                f"{name}: item {number} differs in kind from item 0; give all items a group or"
                " none, and one type of x"
            )
        elif features.shape != x.shape[1:] or label.shape != labels[0].shape:
            what, got, first = (
                ("x", features, x[0]) if features.shape != x.shape[1:] else ("y", label, labels[0])
            )
            raise ValueError(
                f"{name}: {what} of item {number} has shape {list(got.shape)}, but item 0 has"
                f" {list(first.shape)}; make them the same"
            )
        elif (
            features.is_floating_point() != x.is_floating_point()
            or label.is_floating_point() != labels[0].is_floating_point()
        ):
            raise ValueError(
                f"{name}: item {number} and item 0 mix integers and floating-point numbers; use one"
                " type"
            )
        else:
            labels.append(label)
        x[number] = features
        group.extend(item[2:])
    assert x is not None
    source = (
        View(x, None, torch.tensor(1 / 255), torch.tensor(0.0))
        if pictures and x.dtype == torch.uint8
        else x
    )
    return Items(source, _labels(torch.stack(labels)), group or None)


def _picture(value: Any) -> tuple[Any, bool]:
    """Return a PIL image as (channels, height, width), and whether it was one; other values
    unchanged."""
    if not (hasattr(value, "getbands") and hasattr(value, "convert")):
        return value, False
    plain = {"1": "L", "P": "RGB"}  # one bit per pixel, and a palette
    array = np.asarray(value.convert(plain[value.mode]) if value.mode in plain else value)
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return (array if array.dtype == np.uint8 else array.astype(np.float32)), True


def _tensor(what: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "iufb":
            raise TypeError(
                f"{what} must be a tensor, an array, a number or an image, got"
                f" {type(value).__name__}"
            )
        # a copy, since torch warns about read-only arrays such as images
        tensor = torch.from_numpy(array.copy())
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def _labels(y: Tensor) -> Tensor:
    """Return classes as int64, one per item; other targets unchanged."""
    y = y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y
    return y if y.is_floating_point() else y.long()


def label_column(name: str, labels: Iterable[Any], count: int) -> list[Any]:
    """Return one label per item."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise TypeError(f"{name} must have a label for every item, got {labels!r}")
    listed: list[Any] = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
    if len(listed) != count:
        raise ValueError(f"{name} has {len(listed)} entries for {count} items; pass one per item")
    return [label.item() if isinstance(label, Tensor | np.generic) else label for label in listed]
