"""A federation from a torch dataset: any map-style one whose items are (x, y) or (x, y, group)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from evenhand.data.federation import Federation
from evenhand.data.partitions import deal
from evenhand.data.pool import Pool
from evenhand.data.samples import View
from evenhand.errors import first_line


class MapStyle(Protocol):
    """What is needed of a dataset: items by number, and how many there are (torch's own ``Dataset``
    promises only the first)."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


def from_torch(
    dataset: Dataset[Any] | MapStyle,
    client_ids: Iterable[Any],
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    groups: Iterable[Any] | None = None,
    teams: Mapping[Any, Any] | None = None,
    test: Dataset[Any] | MapStyle | None = None,
    test_client_ids: Iterable[Any] | None = None,
    test_groups: Iterable[Any] | None = None,
    label_names: Sequence[str] = (),
) -> Federation:
    """A federation from a torch dataset and the client of each of its items.

    Every item is asked for once, in order, so random augmentation is frozen as it came. Items are
    (x, y) or (x, y, group); x is a tensor, an array, a number or a PIL image (which becomes
    (channels, height, width) in [0, 1], kept as bytes), y a number or a tensor. A
    ``TensorDataset``, or a ``Subset`` of one, is taken as it is, without a loop.

    Args:
        client_ids: one label for each item: numbers or texts. They become the clients' names, in
            sorted order.
        split: as in :func:`evenhand.data.partitions.deal`: shares of every client's items, by
            default ``{"test": 0.2}``; "official", the default where ``test`` is given, tests on
            that.
        groups: one label for each item, where items do not come with one.
        teams: the team of each client, by its label in ``client_ids``.
        test, test_client_ids, test_groups: items to test on, of clients that have training items.
        label_names: of classes 0, 1, ...

    >>> data = TensorDataset(torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 1, 0]))
    >>> sites = ["north", "north", "south", "south", "south", "north"]
    >>> federation = from_torch(data, sites, {"test": 0.34})
    >>> federation.names, federation.train.sizes.tolist()
    (('north', 'south'), [2, 2])
    """
    if (test is None) != (test_client_ids is None):
        raise ValueError("give test and test_client_ids together, or neither")
    if test is None and test_groups is not None:
        raise ValueError(
            "test_groups are for the items of test; give test and test_client_ids, too"
        )
    parts = [_items("dataset", dataset, groups, "groups")]
    owners = [_column("client_ids", client_ids, len(parts[0].y))]
    if test is not None and test_client_ids is not None:
        parts.append(_items("test", test, test_groups, "test_groups"))
        owners.append(_column("test_client_ids", test_client_ids, len(parts[1].y)))
        _check_alike(*parts)
    client, names = _coded("client_ids", owners[0])
    codes = [client]
    if len(owners) > 1:
        number = {name: code for code, name in enumerate(names)}
        for row, owner in enumerate(owners[1]):
            if owner not in number:
                raise ValueError(
                    f"test_client_ids: client {owner} (item {row}) has no training items; leave its"
                    " test items out"
                )
        codes.append(np.array([number[owner] for owner in owners[1]], dtype=np.int64))
    group, team = None, None
    group_names: tuple[Any, ...] = ()
    team_names: tuple[Any, ...] = ()
    if parts[0].group is not None:
        coded, group_names = _coded(
            "groups", [label for part in parts for label in part.group or ()]
        )
        group = torch.from_numpy(coded)
    if teams is not None:
        for name in names:
            if name not in teams:
                raise ValueError(
                    f"teams has no entry for client {name!r}; give every client a team"
                )
        coded, team_names = _coded("teams", [teams[name] for name in names])
        team = torch.from_numpy(coded)
    pool = Pool(
        x=_together([part.x for part in parts]),
        y=torch.cat([part.y for part in parts]),
        label_names=tuple(label_names),
        group=group,
        group_names=tuple(str(name) for name in group_names),
        client=torch.from_numpy(np.concatenate(codes)),
        client_names=tuple(str(name) for name in names),
        team=team,
        team_names=tuple(str(name) for name in team_names),
        held_out=(
            None
            if test is None
            else torch.arange(sum(len(part.y) for part in parts)) >= len(parts[0].y)
        ),
    )
    for what, part in zip(("dataset", "test"), parts, strict=False):
        _require_finite(what, part)
    return deal(pool, None, split, seed)


@dataclass(frozen=True)
class _Items:
    x: Tensor | View
    y: Tensor
    group: list[Any] | None


def _require_finite(what: str, items: _Items) -> None:
    for field, values in (("x", items.x), ("y", items.y)):
        array = values.source if isinstance(values, View) else values
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            item = int((~torch.isfinite(array.reshape(len(array), -1))).any(1).nonzero()[0])
            raise ValueError(
                f"{what}: {field} of item {item} is not finite; fill it or leave the item out"
            )


def _items(name: str, dataset: Any, groups: Iterable[Any] | None, groups_name: str) -> _Items:
    """All items of a dataset."""
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
        raise ValueError(f"{name} gives a group with each item; leave out {groups_name}")
    return (
        items
        if groups is None
        else _Items(items.x, items.y, _column(groups_name, groups, len(items.y)))
    )


def _tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """The whole columns of a dataset that holds tensors, None for another."""
    if type(dataset) is TensorDataset:  # a subclass may change what its items are
        return dataset.tensors
    if type(dataset) is Subset and (columns := _tensors(dataset.dataset)) is not None:
        rows = torch.as_tensor(dataset.indices)
        return tuple(column[rows] for column in columns)
    return None


def _from_tensors(name: str, columns: tuple[Tensor, ...]) -> _Items:
    if len(columns) not in (2, 3):
        raise ValueError(
            f"{name} has {len(columns)} tensors; items must be (x, y) or (x, y, group)"
        )
    x, y, *group = (column.detach().cpu() for column in columns)
    return _Items(
        x.to(torch.uint8) if x.dtype == torch.bool else x,
        _labels(y),
        group[0].tolist() if group else None,
    )


def _one_by_one(name: str, dataset: MapStyle) -> _Items:
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
                f"{name}: item {number} is not of the kind of item 0; give all a group or none, and"
                " one kind of x"
            )
        elif features.shape != x.shape[1:] or label.shape != labels[0].shape:
            what, got, first = (
                ("x", features, x[0]) if features.shape != x.shape[1:] else ("y", label, labels[0])
            )
            raise ValueError(
                f"{name}: {what} of item {number} has shape {list(got.shape)}, that of item 0"
                f" {list(first.shape)}"
            )
        elif (
            features.is_floating_point() != x.is_floating_point()
            or label.is_floating_point() != labels[0].is_floating_point()
        ):
            raise ValueError(
                f"{name}: item {number} has whole numbers where item 0 has not, or the reverse; use"
                " one kind"
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
    return _Items(source, _labels(torch.stack(labels)), group or None)


def _picture(value: Any) -> tuple[Any, bool]:
    """A PIL image as (channels, height, width), and whether it was one; anything else as it is."""
    if not (hasattr(value, "getbands") and hasattr(value, "convert")):
        return value, False
    plain = {"1": "L", "P": "RGB"}  # one bit for each pixel, and a palette
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
        # a copy: torch warns of read-only arrays, and images are such
        tensor = torch.from_numpy(array.copy())
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def _labels(y: Tensor) -> Tensor:
    """Classes as int64, one for each item; other targets as they are."""
    y = y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y
    return y if y.is_floating_point() else y.long()


def _column(name: str, labels: Iterable[Any], count: int) -> list[Any]:
    """One label for each item."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise TypeError(f"{name} must have a label for every item, got {labels!r}")
    listed: list[Any] = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
    if len(listed) != count:
        raise ValueError(f"{name} has {len(listed)} entries for {count} items; give one for each")
    return [label.item() if isinstance(label, Tensor | np.generic) else label for label in listed]


def _coded(name: str, labels: list[Any]) -> tuple[NDArray[np.int64], tuple[Any, ...]]:
    """Codes of labels, and the different labels: numbers by value, then texts by alphabet."""
    for row, label in enumerate(labels):
        if not isinstance(label, int | float | str) or label != label:
            raise ValueError(f"{name}: entry {row} must be a number or a text, got {label!r}")
    distinct = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    if len({str(label) for label in distinct}) < len(distinct):
        raise ValueError(
            f"{name} has a number and a text that look alike, such as 1 and '1'; use one kind"
        )
    position = {label: code for code, label in enumerate(distinct)}
    return np.array([position[label] for label in labels], dtype=np.int64), tuple(distinct)


def _check_alike(training: _Items, test: _Items) -> None:
    for what, ours, theirs in (("x", training.x, test.x), ("y", training.y, test.y)):
        if (
            ours.shape[1:] != theirs.shape[1:]
            or ours.is_floating_point() != theirs.is_floating_point()
        ):
            shapes = (
                f"{list(theirs.shape[1:])} ({theirs.dtype}), of training items"
                f" {list(ours.shape[1:])} ({ours.dtype})"
            )
            raise ValueError(f"{what} of test items is {shapes}; they need the same")
    if (training.group is None) != (test.group is None):
        raise ValueError(
            "training and test items need groups, or neither; give groups and test_groups"
        )


def _together(parts: Sequence[Tensor | View]) -> Tensor | View:
    if len(parts) == 1:
        return parts[0]
    views = [part for part in parts if isinstance(part, View)]
    if len(views) == len(parts):  # all are images, whole and scaled alike
        return View(
            torch.cat([view.source for view in views]), None, views[0].scale, views[0].shift
        )
    return torch.cat([part[:] if isinstance(part, View) else part for part in parts])
