"""Building a federation from a torch dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from evenhand.data.contents import Contents
from evenhand.data.dealing import assign
from evenhand.data.nested import joined, shapes
from evenhand.data.pool import Pool
from evenhand.data.samples import first_not_finite
from evenhand.data.torch_items import Items, MapStyle, items_of, label_column


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
    label: str | None = None,
    group: str | None = None,
) -> Contents:
    """Build the contents of ``evenhand.Federation.from_torch`` from a torch dataset.

    Every item is read once, in order, so random augmentation is frozen. Items are (x, y), (x, y,
    group), or dicts with a label. x is a tensor, an array, a number or a PIL image, which becomes
    (channels, height, width) in [0, 1], stored as bytes; or a dict or list of these, for a module
    with several inputs. y is a number or a tensor. A ``TensorDataset``, or a
    ``Subset`` of one, is used directly, without a loop.

    Args:
        dataset: the items.
        client_ids: a number or text per item; these become the clients' names, in sorted order.
        split: as in ``evenhand.deal``: shares of every client's items, by default ``{"test":
            0.2}``. If ``test`` is given, the default is "official", which tests on it.
        seed: of the split.
        groups: a label per item, if items do not include one.
        teams: the team of each client, by its label in ``client_ids``.
        test: items to test on, of clients that have training items.
        test_client_ids: the client of each test item.
        test_groups: the group of each test item.
        label_names: of classes 0, 1, ...
        label: the key of the label, if items are dicts; by default "label", "labels", "y" or
            "target". The other entries are inputs of the module.
        group: the key of the group, if items are dicts.

    >>> data = torch.utils.data.TensorDataset(torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 1, 0]))
    >>> sites = ["north", "north", "south", "south", "south", "north"]
    >>> made = from_torch(data, sites, {"test": 0.34})
    >>> made.names, made.train.sizes.tolist()
    (('north', 'south'), [2, 2])
    """
    if (test is None) != (test_client_ids is None):
        raise ValueError("pass test and test_client_ids together, or neither")
    if test is None and test_groups is not None:
        raise ValueError("test_groups are for the items of test; pass test and test_client_ids too")
    parts = [items_of("dataset", dataset, groups, "groups", label, group)]
    owners = [label_column("client_ids", client_ids, len(parts[0].y))]
    if test is not None and test_client_ids is not None:
        parts.append(items_of("test", test, test_groups, "test_groups", label, group))
        owners.append(label_column("test_client_ids", test_client_ids, len(parts[1].y)))
        _check_alike(*parts)
    client, names = coded("client_ids", owners[0])
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
    coded_group, team = None, None
    group_names: tuple[Any, ...] = ()
    team_names: tuple[Any, ...] = ()
    if parts[0].group is not None:
        codes_of_groups, group_names = coded(
            "groups", [label for part in parts for label in part.group or ()]
        )
        coded_group = torch.from_numpy(codes_of_groups)
    if teams is not None:
        for name in names:
            if name not in teams:
                raise ValueError(
                    f"teams has no entry for client {name!r}; give every client a team"
                )
        codes_of_teams, team_names = coded("teams", [teams[name] for name in names])
        team = torch.from_numpy(codes_of_teams)
    pool = Pool(
        x=joined([part.x for part in parts]),
        y=torch.cat([part.y for part in parts]),
        label_names=tuple(label_names),
        group=coded_group,
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
    return assign(pool, None, split, seed).contents(pool)


def _require_finite(what: str, items: Items) -> None:
    for field, values in (("x", items.x), ("y", items.y)):
        item = first_not_finite(values)
        if item is not None:
            raise ValueError(
                f"{what}: {field} of item {item} is not finite; fill it or leave the item out"
            )


def coded(name: str, labels: list[Any]) -> tuple[NDArray[np.int64], tuple[Any, ...]]:
    """Return codes of labels, and the distinct labels: numbers by value, then texts by alphabet."""
    for row, label in enumerate(labels):
        if not isinstance(label, int | float | str) or label != label:
            raise ValueError(f"{name}: entry {row} must be a number or a text, got {label!r}")
    distinct = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    if len({str(label) for label in distinct}) < len(distinct):
        raise ValueError(
            f"{name} has a number and a text that look alike, such as 1 and '1'; use one type"
        )
    position = {label: code for code, label in enumerate(distinct)}
    return np.array([position[label] for label in labels], dtype=np.int64), tuple(distinct)


def _check_alike(training: Items, test: Items) -> None:
    for what, ours, theirs in (("x", training.x, test.x), ("y", training.y, test.y)):
        if shapes(ours) != shapes(theirs) or ours.is_floating_point() != theirs.is_floating_point():
            kinds = (
                f"{shapes(theirs)} ({theirs.dtype}), but of training items"
                f" {shapes(ours)} ({ours.dtype})"
            )
            raise ValueError(f"{what} of test items is {kinds}; make them the same")
    if (training.group is None) != (test.group is None):
        raise ValueError(
            "training and test items must both have groups, or neither; pass groups and test_groups"
        )
