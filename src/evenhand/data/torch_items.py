"""Reading the items of any map-style torch dataset whose items are (x, y) or (x, y, group)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from evenhand.data.nested import Nested, inputs_of, is_nested
from evenhand.data.samples import Features
from evenhand.data.views import View
from evenhand.errors import first_line

LABELS = ("label", "labels", "y", "target")  # of items that are dicts, in this order


class MapStyle(Protocol):
    """A dataset with items by number and a length (torch's own ``Dataset`` only promises the
    items)."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Items:
    """All items of a dataset, as arrays."""

    x: Features
    y: Tensor
    group: list[Any] | None


def items_of(
    name: str,
    dataset: Any,
    groups: Iterable[Any] | None,
    groups_name: str,
    label: str | None = None,
    group: str | None = None,
) -> Items:
    """Read all items of a dataset; ``label`` and ``group`` are keys of items that are dicts."""
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError(
            f"{name} must be a map-style dataset, with len() and items by number; got"
            f" {type(dataset).__name__}"
        )
    if len(dataset) == 0:
        raise ValueError(f"{name} has no items")
    columns = _tensors(dataset)
    items = (
        _from_tensors(name, columns)
        if columns is not None
        else _one_by_one(name, dataset, label, group)
    )
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


def _one_by_one(name: str, dataset: MapStyle, label: str | None, group: str | None) -> Items:
    count = len(dataset)
    features, labels = Column(f"{name}: x", count), Column(f"{name}: y", count)
    groups: list[Any] = []
    width = 0
    for number in range(count):
        try:
            item = dataset[number]
        except Exception as error:
            raise ValueError(
                f"{name}: item {number} cannot be read: {first_line(error)}"
            ) from error
        if isinstance(item, Mapping):
            item = _from_mapping(f"{name}: item {number}", item, label, group)
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            shown = f"{len(item)} values" if isinstance(item, tuple | list) else type(item).__name__
            raise ValueError(f"{name}: item {number} must be (x, y) or (x, y, group), got {shown}")
        if number and len(item) != width:
            raise ValueError(f"{name}: {_differs(number)}")
        width = len(item)
        features.add(number, item[0])
        labels.add(number, item[1])
        groups.extend(item[2:])
    y = labels.array()
    assert isinstance(y, Tensor)
    return Items(features.array(), _labels(y), groups or None)


def _from_mapping(
    what: str, item: Mapping[Any, Any], label: str | None, group: str | None
) -> tuple[Any, ...]:
    """Return an item that is a dict as (x, y) or (x, y, group)."""
    found = next((key for key in LABELS if key in item), None) if label is None else label
    if found is None or found not in item:
        problem = "there is no label" if found is None else f"there is no {found!r}"
        raise ValueError(f"{what} has {', '.join(map(str, item))}; {problem}; name it with label=")
    if group is not None and group not in item:
        raise ValueError(f"{what} has no {group!r}, the group")
    rest = {key: value for key, value in item.items() if key not in (found, group)}
    if not rest:
        raise ValueError(f"{what} has nothing but its label")
    x = rest["x"] if rest.keys() == {"x"} else rest
    return (x, item[found]) if group is None else (x, item[found], item[group])


class Column:
    """The values of one field of all items: an array, or several inputs."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.values: Tensor | None = None
        self.inputs: dict[str, Column] = {}
        self.picture = self.named = False

    def add(self, number: int, value: Any) -> None:
        """Add the value of one item."""
        what = f"{self.name} of item {number}"
        if is_nested(value):
            inputs = inputs_of(value)
            if not number:
                self.named = isinstance(value, Mapping)
                self.inputs = {key: Column(f"{self.name}[{key}]", self.count) for key in inputs}
            if not inputs or inputs.keys() != self.inputs.keys():
                raise ValueError(
                    f"{what} has the inputs {', '.join(inputs) or 'none'}, but item 0 has"
                    f" {', '.join(self.inputs) or 'one array'}; give all items the same"
                )
            for key, entry in inputs.items():
                self.inputs[key].add(number, entry)
            return
        if self.inputs:
            raise ValueError(f"{self.name}: {_differs(number)}")
        plain, picture = _picture(value)
        array = _tensor(what, plain)
        if self.values is None:
            self.values = torch.empty((self.count, *array.shape), dtype=array.dtype)
            self.picture = picture
        elif picture != self.picture:
            raise ValueError(f"{self.name}: {_differs(number)}")
        elif array.shape != self.values.shape[1:]:
            raise ValueError(
                f"{what} has shape {list(array.shape)}, but item 0 has"
                f" {list(self.values.shape[1:])}; make them the same"
            )
        elif array.is_floating_point() != self.values.is_floating_point():
            raise ValueError(
                f"{self.name} of item {number} and item 0 mix integers and floating-point numbers;"
                " use one type"
            )
        self.values[number] = array

    def array(self) -> Features:
        """Return the values of all items."""
        if self.inputs:
            return Nested({key: one.array() for key, one in self.inputs.items()}, self.named)
        assert self.values is not None
        if self.picture and self.values.dtype == torch.uint8:
            return View(self.values, None, torch.tensor(1 / 255), torch.tensor(0.0))
        return self.values


def _differs(number: int) -> str:
    return (
        f"item {number} differs in kind from item 0; give all items a group or none, and one type"
        " of x"
    )


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
