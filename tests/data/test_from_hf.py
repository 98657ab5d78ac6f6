"""Federations from datasets of Hugging Face."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import evenhand as eh

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

SITES = ["B", "A", "B", "A", "C", "C"]
LENGTHS = [2, 3, 1, 3, 2, 3]


def rows() -> dict[str, list[Any]]:
    return {
        "input_ids": [list(range(1, n + 1)) for n in LENGTHS],
        "labels": [0, 1, 1, 0, 1, 0],
        "site": list(SITES),
        "sex": ["f", "m", "f", "f", "m", "m"],
        "note": ["x"] * 6,
    }


def named(table: Any) -> Any:
    features = table.features.copy()
    features["labels"] = datasets.ClassLabel(names=["no", "yes"])
    return datasets.Dataset.from_dict(rows(), features=features)


def test_tokens_are_padded_and_masked_and_labels_keep_their_names() -> None:
    table = named(datasets.Dataset.from_dict(rows()))
    fed = eh.Federation.from_hf(
        table, client="site", label="labels", group="sex", split={"test": 0}
    )
    assert fed.names == ("A", "B", "C")
    assert fed.group_names == ("f", "m")
    assert fed.label_names == ("no", "yes")
    x = fed.train.x[:]  # by client, in the order of the rows
    assert x["input_ids"].tolist() == [
        [1, 2, 3],
        [1, 2, 3],
        [1, 2, 0],
        [1, 0, 0],
        [1, 2, 0],
        [1, 2, 3],
    ]
    assert x["attention_mask"].sum(1).tolist() == [3, 3, 2, 1, 2, 3]
    assert fed.train.y.tolist() == [1, 0, 0, 1, 1, 0]
    assert fed.train.group is not None
    assert fed.train.group.tolist() == [1, 0, 0, 0, 1, 1]


def test_the_splits_of_a_dataset_dict_are_kept() -> None:
    table = datasets.Dataset.from_dict(rows() | {"site": ["A", "B", "A", "B", "A", "B"]})
    parts = datasets.DatasetDict(
        {
            "train": table.select([0, 1, 2, 3]),
            "validation": table.select([4]),
            "test": table.select([5]),
        }
    )
    fed = eh.Federation.from_hf(parts, client="site", label="labels", pad={"input_ids": 9})
    assert [fed.sizes(part).tolist() for part in ("train", "val", "test")] == [
        [2, 2],
        [1, 0],
        [0, 1],
    ]
    assert fed.val is not None
    assert fed.val.x[:]["input_ids"].tolist() == [[1, 2, 9]]
    with pytest.raises(ValueError, match="splits of its own"):
        eh.Federation.from_hf(parts, client="site", label="labels", split={"test": 0.5})


def test_token_labels_are_padded_so_that_they_do_not_count() -> None:
    table = datasets.Dataset.from_dict(
        rows() | {"labels": [[1] * n for n in LENGTHS], "sex": [0.0] * 6}
    )
    fed = eh.Federation.from_hf(
        table, client="site", label="labels", inputs=["input_ids"], split={"test": 0}
    )
    assert fed.train.y.tolist()[2:4] == [[1, 1, -100], [1, -100, -100]]


def test_columns_of_numbers_become_one_matrix_and_text_labels_classes() -> None:
    table = datasets.Dataset.from_dict(
        {"age": [30, 40, 50], "dose": [0.5, 1.5, 2.5], "site": [1, 2, 1], "ill": ["y", "n", "n"]}
    )
    fed = eh.Federation.from_hf(table, client="site", label="ill", split={"test": 0})
    assert fed.names == ("1", "2")
    assert fed.train.x[:].tolist() == [[30.0, 0.5], [50.0, 2.5], [40.0, 1.5]]
    assert (fed.label_names, fed.train.y.tolist()) == (("n", "y"), [1, 0, 0])


def test_images_become_tensors_between_0_and_1() -> None:
    pytest.importorskip("PIL")
    pictures = [np.full((4, 5, 3), value, dtype=np.uint8) for value in (0, 51, 255)]
    table = datasets.Dataset.from_dict(
        {"image": pictures, "site": ["A", "B", "A"], "label": [0, 1, 0]},
        features=datasets.Features(
            image=datasets.Image(), site=datasets.Value("string"), label=datasets.Value("int64")
        ),
    )
    fed = eh.Federation.from_hf(table, client="site", label="label", split={"test": 0})
    x = fed.train.x[:]
    assert list(x.shape) == [3, 3, 4, 5]
    torch.testing.assert_close(x.amax((1, 2, 3)), torch.tensor([0.0, 1.0, 0.2]))


def test_teams_are_one_per_client() -> None:
    table = datasets.Dataset.from_dict(rows() | {"land": ["x", "y", "x", "y", "y", "y"]})
    options: dict[str, Any] = {"client": "site", "label": "labels", "inputs": ["input_ids"]}
    fed = eh.Federation.from_hf(table, team="land", **options)
    assert fed.teams is not None
    assert [fed.team_names[code] for code in fed.teams.tolist()] == ["y", "x", "y"]
    with pytest.raises(ValueError, match="client A has rows of several teams in column 'sex'"):
        eh.Federation.from_hf(table, team="sex", **options)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"client": "clinic"}, "unknown column 'clinic'"),
        ({}, {"inputs": "note"}, "column 'note' holds text; turn it into numbers"),
        ({"input_ids": ["a"] * 6}, {}, "no column with numbers or images is left"),
        ({"input_ids": [[1.0, float("nan")]] * 6}, {}, "x of row 0 is not finite"),
        ({"input_ids": [[[1], [2]]] * 5 + [[[1, 2]]]}, {}, "row 5 has shape"),
    ],
)
def test_bad_tables_are_refused_in_one_line(change: Any, options: Any, message: str) -> None:
    table = datasets.Dataset.from_dict(rows() | change)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        eh.Federation.from_hf(table, **{"client": "site", "label": "labels", **options})
    assert "\n" not in str(caught.value)


def test_streams_and_clients_without_training_rows_are_refused() -> None:
    table = datasets.Dataset.from_dict(rows())
    with pytest.raises(TypeError, match="a stream of rows"):
        eh.Federation.from_hf(table.to_iterable_dataset(), client="site", label="labels")
    parts = datasets.DatasetDict({"train": table.select([0, 1]), "test": table.select([4])})
    with pytest.raises(ValueError, match="client C has no training rows"):
        eh.Federation.from_hf(parts, client="site", label="labels")
