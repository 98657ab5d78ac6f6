"""Federations from torch datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import evenhand as eh
from evenhand.data.views import View


class Items(Dataset[Any]):
    """A dataset of a list."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def complaint(kind: type[Exception], function: Callable[[], Any]) -> str:
    """The error's text, which is one line."""
    with pytest.raises(kind) as caught:
        function()
    assert "\n" not in str(caught.value)
    return str(caught.value)


X = torch.arange(16.0).reshape(8, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
OWNERS = ["b", "a", "b", "a", "b", "a", "b", "a"]
ALL = {"test": 0.0}


def test_every_item_goes_to_its_client_in_order() -> None:
    federation = eh.Federation.from_torch(TensorDataset(X, Y), OWNERS, ALL)
    assert federation.names == ("a", "b")
    assert federation.train.x[:].tolist() == X[[1, 3, 5, 7, 0, 2, 4, 6]].tolist()
    assert federation.train.y.tolist() == Y[[1, 3, 5, 7, 0, 2, 4, 6]].tolist()
    assert federation.test is None


def pairs(kind: Callable[[Tensor], Any], label: Callable[[Tensor], Any] = int) -> Items:
    return Items([(kind(x), label(y)) for x, y in zip(X, Y, strict=True)])


@pytest.mark.parametrize(
    "dataset",
    [
        pairs(lambda x: x),
        pairs(lambda x: x.numpy()),
        pairs(lambda x: x.tolist(), label=lambda y: y),
        pairs(lambda x: tuple(x.tolist()), label=lambda y: y.numpy()),
        pairs(lambda x: x, label=lambda y: y[None]),
        Items([[x, np.int32(y)] for x, y in zip(X, Y, strict=True)]),
        Subset(TensorDataset(X.flip(0), Y.flip(0)), list(range(7, -1, -1))),
        Subset(Subset(TensorDataset(X, Y), torch.arange(8).tolist()), range(8)),
        Subset(pairs(lambda x: x), range(8)),
        TensorDataset(X, Y[:, None].int()),
    ],
)
def test_all_kinds_of_items_give_the_same_federation(dataset: Any) -> None:
    expected, federation = (
        eh.Federation.from_torch(data, OWNERS, {"test": 0.25}, seed=4)
        for data in (TensorDataset(X, Y), dataset)
    )
    for part in ("train", "test"):
        ours, theirs = getattr(expected, part), getattr(federation, part)
        assert ours.x[:].tolist() == theirs.x[:].tolist()
        assert torch.equal(ours.y, theirs.y)
        assert torch.equal(ours.offsets, theirs.offsets)


class Doubled(TensorDataset):
    """What a subclass may do to its items."""

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return 2 * x, y


def test_a_subclass_is_asked_for_its_items() -> None:
    assert (
        eh.Federation.from_torch(Doubled(X, Y), [0] * 8, ALL).train.x[:].tolist()
        == (2 * X).tolist()
    )


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (torch.tensor([10, 9, 10, 9, 10, 9, 10, 9]), ("9", "10")),
        (np.array(["b", "a"] * 4), ("a", "b")),
        ([10, 9] * 4, ("9", "10")),
        ((x for x in ["z", 5] * 4), ("5", "z")),
        ([torch.tensor(1), np.int64(0)] * 4, ("0", "1")),
    ],
)
def test_clients_are_named_after_their_labels(ids: Any, names: tuple[str, ...]) -> None:
    assert eh.Federation.from_torch(TensorDataset(X, Y), ids, ALL).names == names


def test_groups_come_with_items_or_beside_them() -> None:
    groups = ["f", "m", "m", "f", "f", "m", "m", "f"]
    beside = eh.Federation.from_torch(TensorDataset(X, Y), OWNERS, ALL, groups=groups)
    within = eh.Federation.from_torch(
        Items([(x, y, g) for x, y, g in zip(X, Y, groups, strict=True)]), OWNERS, ALL
    )
    coded = eh.Federation.from_torch(
        TensorDataset(X, Y, torch.tensor([g == "m" for g in groups]).long()), OWNERS, ALL
    )
    assert beside.group_names == within.group_names == ("f", "m")
    assert coded.group_names == ("0", "1")
    for federation in (beside, within, coded):
        assert federation.train.group is not None
        assert federation.train.group.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]


def test_teams_belong_to_clients() -> None:
    federation = eh.Federation.from_torch(
        TensorDataset(X, Y),
        [3, 12] * 4,
        ALL,
        teams={3: "rural", 12: "city"},
        label_names=("x", "y", "z"),
    )
    assert federation.names == ("3", "12")
    assert federation.teams is not None
    assert [federation.team_names[team] for team in federation.teams] == ["rural", "city"]
    assert federation.label_names == ("x", "y", "z")


def test_a_test_dataset_is_the_official_split() -> None:
    test = TensorDataset(X[:3] + 100, Y[:3])
    federation = eh.Federation.from_torch(
        TensorDataset(X, Y), OWNERS, test=test, test_client_ids=["b", "a", "b"]
    )
    assert federation.train.sizes.tolist() == [4, 4]
    assert federation.test is not None
    assert federation.test.sizes.tolist() == [1, 2]
    assert federation.test.x[:].tolist() == (X[[1, 0, 2]] + 100).tolist()
    with_val = eh.Federation.from_torch(
        TensorDataset(X, Y),
        OWNERS,
        {"official": True, "val": 0.25},
        test=test,
        test_client_ids=["b", "a", "b"],
        groups=OWNERS,
        test_groups=["a", "b", "c"],
    )
    assert with_val.val is not None
    assert with_val.val.sizes.tolist() == [1, 1]
    assert with_val.group_names == ("a", "b", "c")


def test_regression_targets_stay_numbers() -> None:
    federation = eh.Federation.from_torch(
        Items([(x, float(y) / 2) for x, y in zip(X, Y, strict=True)]), OWNERS, ALL
    )
    assert federation.train.y.is_floating_point()
    assert sorted(federation.train.y.tolist()) == sorted((Y / 2).tolist())


def test_a_federation_from_torch_trains() -> None:
    federation = eh.Federation.from_torch(pairs(lambda x: x / 16), OWNERS, {"test": 0.25})
    torch.manual_seed(0)
    result = eh.fit(torch.nn.Linear(2, 3), federation, eh.FedAvg(), rounds=2)
    assert len(result.history_rows) == 2


def test_images_become_bytes_scaled_when_used() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    federation = eh.Federation.from_torch(
        Items([(image.fromarray(p), i % 2) for i, p in enumerate(pixels)]), [0, 0, 1, 1], ALL
    )
    assert isinstance(federation.train.x, View)
    assert federation.train.x.source.dtype == torch.uint8
    torch.testing.assert_close(
        federation.train.x[:], torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    )
    grey = [image.fromarray(p[:, :, 0]) for p in pixels]
    both = eh.Federation.from_torch(
        Items([(g, 0) for g in grey]), [0] * 4, test=Items([(grey[0], 1)]), test_client_ids=[0]
    )
    assert both.train.x.shape == (4, 1, 5, 6)
    assert isinstance(both.train.x, View)
    bits = eh.Federation.from_torch(
        Items([(image.new("1", (6, 5), 1), 0), (image.new("1", (6, 5), 0), 0)]), [0, 0], ALL
    )
    assert bits.train.x[:].flatten(1).mean(1).tolist() == [1.0, 0.0]
    real = eh.Federation.from_torch(Items([(image.new("F", (6, 5), 2.5), 0)]), [0], ALL)
    assert real.train.x[:].unique().tolist() == [2.5]


class Failing(Items):
    def __getitem__(self, index: int) -> Any:
        if index == 1:
            raise RuntimeError("no such file\nat all")
        return super().__getitem__(index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(GOOD)


GOOD: list[Any] = [(X[0], 0), (X[1], 1), (X[2], 0)]


def changed(row: int, item: Any) -> Items:
    return Items([item if index == row else good for index, good in enumerate(GOOD)])


@pytest.mark.parametrize(
    ("dataset", "kind", "message"),
    [
        (Items([]), ValueError, "dataset has no items"),
        (Stream(), TypeError, "dataset must be a map-style dataset"),
        (
            42,
            TypeError,
            "dataset must be a map-style dataset, with len() and items by number; got int",
        ),
        (Failing(GOOD), ValueError, "dataset: item 1 cannot be read: no such file"),
        (changed(1, X[1]), ValueError, "item 1 must be (x, y) or (x, y, group), got Tensor"),
        (changed(1, (X[1],)), ValueError, "item 1 must be (x, y) or (x, y, group), got 1 values"),
        (changed(2, (X[2], 0, "f")), ValueError, "item 2 differs in kind from item 0"),
        (
            changed(2, (X.flatten()[:3], 0)),
            ValueError,
            "x of item 2 has shape [3], but item 0 has [2]",
        ),
        (changed(2, (X[2], [0, 1])), ValueError, "y of item 2 has shape [2], but item 0 has []"),
        (
            changed(1, (X[1].long(), 1)),
            ValueError,
            "item 1 and item 0 mix integers and floating-point numbers",
        ),
        (
            changed(1, (X[1], 0.5)),
            ValueError,
            "item 1 and item 0 mix integers and floating-point numbers",
        ),
        (
            changed(1, ("text", 1)),
            TypeError,
            "x of item 1 must be a tensor, an array, a number or an image, got str",
        ),
        (
            changed(0, (X[0], None)),
            TypeError,
            "y of item 0 must be a tensor, an array, a number or an image, got NoneType",
        ),
        (changed(1, (X[1], "cat")), TypeError, "y of item 1 must be"),
        (TensorDataset(X[:3]), ValueError, "dataset has 1 tensors; items must be (x, y)"),
    ],
)
def test_wrong_items_are_named(dataset: Any, kind: type[Exception], message: str) -> None:
    assert message in complaint(kind, lambda: eh.Federation.from_torch(dataset, [0, 0, 0]))


TRIO = TensorDataset(X[:3], Y[:3])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"client_ids": [0, 0]}, ValueError, "client_ids has 2 entries for 3 items"),
        ({"client_ids": "abc"}, TypeError, "client_ids must have a label for every item"),
        ({"client_ids": 3}, TypeError, "client_ids must have a label for every item, got 3"),
        (
            {"client_ids": [0, None, 0]},
            ValueError,
            "client_ids: entry 1 must be a number or a text, got None",
        ),
        (
            {"client_ids": [0, float("nan"), 0]},
            ValueError,
            "client_ids: entry 1 must be a number or a text, got nan",
        ),
        (
            {"client_ids": [1, "1", 1]},
            ValueError,
            "client_ids has a number and a text that look alike",
        ),
        ({"groups": ["f"]}, ValueError, "groups has 1 entries for 3 items"),
        ({"teams": {}}, ValueError, "teams has no entry for client 0"),
        ({"test": TRIO}, ValueError, "pass test and test_client_ids together"),
        ({"test_client_ids": [0]}, ValueError, "pass test and test_client_ids together"),
        ({"test_groups": [0]}, ValueError, "test_groups are for the items of test"),
        (
            {"test": TRIO, "test_client_ids": [0, 7, 0]},
            ValueError,
            "client 7 (item 1) has no training items",
        ),
        (
            {"test": TRIO, "test_client_ids": [0, 0]},
            ValueError,
            "test_client_ids has 2 entries for 3 items",
        ),
        (
            {"test": TensorDataset(X[:3, :1], Y[:3]), "test_client_ids": [0] * 3},
            ValueError,
            "x of test items is [1]",
        ),
        (
            {"test": TensorDataset(X[:3], X[:3, 0]), "test_client_ids": [0] * 3},
            ValueError,
            "y of test items is [] (torch.float32)",
        ),
        (
            {"test": TRIO, "test_client_ids": [0] * 3, "groups": [0] * 3},
            ValueError,
            "pass groups and test_groups",
        ),
        (
            {"dataset": TensorDataset(X[:3], Y[:3], Y[:3]), "groups": [0] * 3},
            ValueError,
            "dataset has a group in each item",
        ),
        ({"split": "official"}, ValueError, "no official test set"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    assert message in complaint(
        kind,
        lambda: eh.Federation.from_torch(**{"dataset": TRIO, "client_ids": [0, 0, 0], **arguments}),
    )


def test_many_clients_are_quick() -> None:
    count = 200_000
    federation = eh.Federation.from_torch(
        TensorDataset(torch.zeros(count, 1), torch.arange(count) % 2), torch.arange(count) // 2, ALL
    )
    assert federation.clients == count // 2
    assert federation.names is not None
    assert federation.names[:2] == ("0", "1")
