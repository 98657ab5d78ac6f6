"""Codebooks: every node turns its table into the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.errors import DataError, SpecError
from evenhand.flower.codebook import Codebook

CODEBOOK = """
label = "ill"
classes = ["no", "yes"]
group = "sex"
test = 0.25

[columns]
age = { mean = 50, std = 10 }
ward = { values = ["A", "B", "C"] }
smoker = { values = ["no", "yes"] }
dose = { mean = 2, std = 0.5, missing = true }
"""


def table(**changes: list[Any]) -> pd.DataFrame:
    columns: dict[str, list[Any]] = {
        "age": [50, 60, 45, 70],
        "ward": ["A", "C", "B", "D"],
        "smoker": ["yes", "no", "yes", "no"],
        "dose": [2.0, None, 3.0, 1.5],
        "sex": ["f", "m", "f", "f"],
        "ill": ["yes", "no", "no", "yes"],
        "note": ["text that", "is not", "used", "at all"],
    }
    return pd.DataFrame(columns | changes)


def test_rows_become_numbers_by_the_codebook_alone() -> None:
    codebook = Codebook.parse(CODEBOOK)

    found = codebook.encoding.transform(table())

    assert codebook.encoding.features == (
        "age",
        "ward=A",
        "ward=B",
        "ward=C",
        "smoker=yes",
        "dose",
        "dose missing",
    )
    assert (codebook.inputs, codebook.outputs) == (7, 2)
    assert found.tolist() == [
        [0.0, 1, 0, 0, 1, 0, 0],
        [1.0, 0, 0, 1, 0, 0, 1],
        [-0.5, 0, 1, 0, 1, 2, 0],
        [2.0, 0, 0, 0, 0, -1, 0],
    ]


def test_a_node_encodes_as_if_it_had_all_rows() -> None:
    codebook = Codebook.parse(CODEBOOK)
    whole = codebook.encoding.transform(table())
    alone = codebook.encoding.transform(table().iloc[[2]])
    assert torch.equal(whole[[2]], alone)


def test_a_table_becomes_the_data_of_one_client() -> None:
    codebook = Codebook.parse(CODEBOOK)

    found = codebook.federation(table())

    assert found.clients == 1
    assert found.test is not None
    assert (len(found.train.x), len(found.test.x)) == (3, 1)
    assert (found.label_names, found.group_names) == (("no", "yes"), ("f", "m"))
    rows = torch.cat(
        [
            torch.cat([part.x, part.y[:, None], part.group[:, None]], 1)
            for part in (found.train, found.test)
        ]
    )  # type: ignore[index]
    expected = torch.cat(
        [codebook.encoding.transform(table()), torch.tensor([[1, 0], [0, 1], [0, 0], [1, 0]])], 1
    )
    # every row once, with its own label and group
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    again = codebook.federation(table())
    assert torch.equal(again.train.x, found.train.x)


def test_classes_are_those_of_the_codebook_also_where_a_node_lacks_one() -> None:
    found = Codebook.parse(CODEBOOK).federation(table(ill=["yes"] * 4))
    assert found.label_names == ("no", "yes")
    assert found.train.y.tolist() == [1, 1, 1]


def test_rows_without_a_label_are_left_out() -> None:
    found = Codebook.parse(CODEBOOK).federation(table(ill=["yes", None, "no", "yes"]))
    assert found.test is not None
    assert (len(found.train.x), len(found.test.x)) == (2, 1)
    ages = [
        (float(x[0]), int(y))
        for part in (found.train, found.test)
        for x, y in zip(part.x, part.y, strict=True)
    ]
    # of the rows that are left, each with its own label
    assert sorted(ages) == [(-0.5, 0), (0.0, 1), (2.0, 1)]


def test_one_row_is_for_training() -> None:
    found = Codebook.parse(CODEBOOK).federation(table().iloc[:1])
    assert (len(found.train.x), found.test) == (1, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": [50, "old", 45, 70]}, r"column 'age': 'old' in row 2 is not a number"),
        (
            {"ill": ["yes", "no", "maybe", "no"]},
            r"label 'ill' has the value 'maybe', which is not a class of the codebook; its classes are no, yes",
        ),
        ({"ill": [None] * 4}, r"no row has a value of 'ill'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(changes: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Codebook.parse(CODEBOOK).federation(table(**changes))


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match="column 'ward' is missing"):
        Codebook.parse(CODEBOOK).federation(table().drop(columns="ward"))
    with pytest.raises(ValueError, match="label: there is no column 'ill'"):
        Codebook.parse(CODEBOOK).federation(table().drop(columns="ill"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('label = "ill"', "", "label is missing or not a text"),
        (
            'classes = ["no", "yes"]',
            'classes = ["no"]',
            "classes must be at least two values of 'ill', got ['no']",
        ),
        (
            "test = 0.25",
            "test = 1.5",
            "test must be in [0, 1), got 1.5; it is the share of rows kept for testing",
        ),
        ("test = 0.25", "tset = 0.25", "unknown entry 'tset'; did you mean 'test'?"),
        ("std = 10", "std = 0", "std of 'age' must be a finite number > 0, got 0"),
        (
            "mean = 50",
            'mean = "50"',
            "mean of 'age' must be a finite number, got '50'; write it as a number: 50",
        ),
        (
            "mean = 50, ",
            "",
            'column \'age\' must be { mean = ..., std = ... } or { values = ["...", "..."] }',
        ),
        (
            '["A", "B", "C"]',
            '["A"]',
            'column \'ward\' must be { mean = ..., std = ... } or { values = ["...", "..."] }',
        ),
    ],
)
def test_codebooks_that_make_no_sense_are_refused_in_one_line(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "codebook.toml"
    assert CODEBOOK.count(old) == 1
    path.write_text(CODEBOOK.replace(old, new))
    with pytest.raises(SpecError) as refused:
        Codebook.load(path)
    assert str(refused.value) == f"codebook.toml is not a codebook: {message}"


def test_a_codebook_of_a_table_has_rounded_numbers_and_no_counts() -> None:
    rows = pd.DataFrame(
        {
            "age": [41.234, 52.345, 63.456, 30.0] * 5,
            "dose": [1.0, 2.0, 3.5, None] * 5,
            "ward": ["B", "A", "C", "A"] * 5,
            "day": ["2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01"] * 5,
            "always": [1] * 20,
            "secret": [1, 5, 3, 4] * 5,
            "stage": [1, 2, 3, 4] * 5,
        }
    )

    codebook = Codebook.of_table(rows, "stage > 2", ("ward",), drop=("secret",))

    # mean 46.75875, population std 12.44989 of age; 2.1667 and 1.0274 of dose
    assert [
        (column.name, column.kind, column.mean, column.std, column.missing)
        for column in codebook.columns
    ] == [
        ("age", "number", 47.0, 12.0, 0),
        ("dose", "number", 2.2, 1.0, 1),
        ("ward", "category", 0.0, 1.0, 0),
    ]
    assert codebook.columns[2].categories == ("A", "B", "C")
    assert codebook.columns[2].counts == (0, 0, 0)
    assert codebook.classes == ("stage <= 2", "stage > 2")
    assert [name for name, _ in codebook.left_out] == ["day", "always"]
    text = codebook.to_toml()
    assert Codebook.parse(text).encoding == codebook.encoding
    assert Codebook.parse(text).group == ("ward",)
    assert "# always: constant in the training rows\n" in text
    assert "46.7" not in text
    federation = codebook.federation(rows)
    assert federation.test is not None
    assert (
        federation.train.y.bincount(minlength=2) + federation.test.y.bincount(minlength=2)
    ).tolist() == [10, 10]


def test_odd_names_survive_a_codebook() -> None:
    odd = pd.DataFrame({'a "b" \\ c': ["x\ty", "é", 'q"'] * 4, "größe": range(12), "y": [0, 1] * 6})
    codebook = Codebook.of_table(odd, "y")
    assert Codebook.parse(codebook.to_toml()).encoding == codebook.encoding
    assert codebook.encoding.features == (
        'a "b" \\ c=q"',
        'a "b" \\ c=x\ty',
        'a "b" \\ c=é',
        "größe",
    )


def test_a_label_with_too_many_values_needs_a_condition() -> None:
    with pytest.raises(ValueError, match=r"label: 'y' has 30 different values.*'y > \.\.\.'"):
        Codebook.of_table(pd.DataFrame({"x": range(30), "y": range(30)}), "y")


def test_texts_that_mean_missing_go_with_the_codebook(tmp_path: Path) -> None:
    codebook = Codebook.parse(CODEBOOK.replace("test = 0.25", 'test = 0\nmissing = ["<1", 9]'))
    assert codebook.missing == ("<1", "9")
    assert Codebook.parse(codebook.to_toml()) == codebook
    rows = table(dose=["<1", 9.0, "3", "1.5"], ill=["yes", "no", "9", "yes"])
    path = tmp_path / "node.csv"
    rows.to_csv(path, index=False)
    for given in (rows, path):
        found = codebook.federation(given).train
        assert found.y.tolist() == [1, 0, 1]  # without the row whose label is missing
        assert found.x[:, 5:].tolist() == [[0, 1], [0, 1], [-1, 0]]
    assert "missing = [" not in Codebook.parse(CODEBOOK).to_toml()


def test_a_codebook_of_a_table_has_hints_and_what_is_missing() -> None:
    rows = pd.DataFrame(
        {
            "record": range(60),
            "crp": ["<1", *map(str, range(1, 60))],
            "sex": ["f", "m", "M"] * 20,
            "ill": ["no", "no", "yes", "yes", "no", None] * 10,
        }
    )
    made = Codebook.of_table(rows, "ill", ("sex",), missing=("<1",))
    assert made.missing == ("<1",)
    assert [column.name for column in made.columns] == ["record", "crp", "sex"]
    assert made.hints[0] == "10 of 60 rows have no value of 'ill'; nodes exclude such rows"
    assert [hint.split(" has ")[0] for hint in made.hints[1:]] == ["'record'", "'crp'", "'sex'"]
    assert made.hints[3] == (
        "'sex' has 'm' (20 rows) and 'M' (10 rows), which may mean the same but count as different"
        " groups; unify them in the file"
    )
    with pytest.raises(ValueError, match="drop: there is no column 'recrd'; did you mean 'record'"):
        Codebook.of_table(rows, "ill", drop=("recrd",), missing=("<1",))
    with pytest.raises(DataError, match=r"column 'crp': '<1' in row 1 is not a number"):
        Codebook.of_table(rows, "ill")


@pytest.mark.parametrize(
    ("label", "group", "message"),
    [
        (
            "stage > 9",
            "ward",
            "label: 'stage > 9' holds in none of the 20 rows; stage goes from 1 to 4; choose"
            " another condition",
        ),
        (
            "stage >= 1",
            "ward",
            "label: 'stage >= 1' holds in all of the 20 rows; stage goes from 1 to 4; choose"
            " another condition",
        ),
        (
            "stage > 2",
            "age > 200",
            "group: 'age > 200' holds in none of the 20 rows; age goes from 30 to 63.5; choose"
            " another condition",
        ),
        (
            "stage > 2",
            "one == 7",
            "group: 'one == 7' holds in all of the 20 rows; one has the values 7; choose another"
            " condition",
        ),
    ],
)
def test_a_condition_that_never_or_always_holds_is_said_at_once(
    label: str, group: str, message: str
) -> None:
    rows = pd.DataFrame(
        {
            "age": [41.2, 52.3, 63.5, 30.0] * 5,
            "ward": ["B", "A", "C", "A"] * 5,
            "one": [7] * 20,
            "stage": [1, 2, 3, 4] * 5,
        }
    )
    with pytest.raises(ValueError, match="holds in") as refused:
        Codebook.of_table(rows, label, (group,))
    assert str(refused.value) == message
