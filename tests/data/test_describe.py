"""Who holds what."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import evenhand as eh


def federation() -> eh.Federation:
    return eh.Federation.from_arrays(
        [
            {
                "x": np.zeros((3, 2)),
                "y": [0, 1, 1],
                "group": ["f", "f", "m"],
                "team": "T",
                "name": "a",
            },
            {"x": np.zeros((1, 2)), "y": [2], "group": ["m"], "team": "S", "name": "b"},
        ],
        test=[{"x": np.zeros((1, 2)), "y": [1], "group": ["m"]}, None],
    )


def test_balance_counts_labels_and_groups_of_every_client() -> None:
    names, counts = federation().balance()
    assert (names, counts.tolist()) == (("0", "1", "2"), [[1, 3, 0], [0, 0, 1]])
    assert federation().balance("label", "train")[1].tolist() == [[1, 2, 0], [0, 0, 1]]
    names, counts = federation().balance("group", "test")
    assert (names, counts.tolist()) == (("f", "m"), [[0, 1], [0, 0]])


def test_samples_with_several_labels_have_no_label_shares() -> None:
    fed = eh.Federation.from_arrays([{"x": np.zeros((3, 2)), "y": np.ones((3, 4), int)}] * 2)
    assert fed.describe().columns.tolist() == ["client", "train"]
    with pytest.raises(ValueError, match="samples with several labels cannot be counted by label"):
        fed.balance()


def test_describe_has_sizes_and_shares() -> None:
    table = federation().describe()
    assert table.to_dict("list") == {
        "client": ["a", "b"],
        "team": ["T", "S"],
        "train": [3, 1],
        "test": [1, 0],
        "label 0": [0.25, 0.0],
        "label 1": [0.75, 0.0],
        "label 2": [0.0, 1.0],
        "group f": [0.5, 0.0],
        "group m": [0.5, 1.0],
    }


def test_a_regression_shows_mean_labels() -> None:
    fed = eh.Federation.from_arrays(
        [{"x": np.zeros((2, 1)), "y": [1.0, 4.0]}, {"x": np.zeros((1, 1)), "y": [-1.0]}]
    )
    assert fed.describe().to_dict("list") == {
        "client": ["0", "1"],
        "train": [2, 1],
        "mean label": [2.5, -1.0],
    }
    with pytest.raises(ValueError, match="labels of a regression cannot be counted"):
        fed.balance()


def test_what_is_not_there_is_named() -> None:
    fed = eh.Federation.from_arrays([{"x": np.zeros((2, 1)), "y": [1, 0]}])
    with pytest.raises(ValueError, match="these data have no groups"):
        fed.balance("group")
    with pytest.raises(ValueError, match="these data have no val split"):
        fed.balance(part="val")
    with pytest.raises(ValueError, match='by must be "label" or "group", got \'size\''):
        fed.balance("size")


def test_half_a_million_clients_are_described_from_counts() -> None:
    part = eh.Part(torch.zeros(500_000, 1), torch.arange(500_000) % 3, torch.arange(500_001))
    assert eh.Federation(part).balance()[1].sum(0).tolist() == [166_667, 166_667, 166_666]
