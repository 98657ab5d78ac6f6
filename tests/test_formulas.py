"""Names that a spreadsheet would take for formulas are texts in every table that is written."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import evenhand as eh
from evenhand.files import as_cell, read_rows, write_rows, write_tables
from evenhand.reading import from_cell
from tests.support.commands import invoke

NAMES = (
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "'=1",
    "''+1",
)
PLAIN = ("a", "", "'", "'a", "a=1", "1", "1e5", " =1", "Köln")


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_begins_like_a_formula_and_reading_gives_the_name_back(
    name: str, tmp_path: Path
) -> None:
    assert as_cell(name) == f"'{name}"
    assert from_cell(as_cell(name)) == name
    path = tmp_path / "scores.csv"
    write_rows(path, [{"name": name, "other": name, "value": -1.5, "count": -2}])
    with path.open(newline="", encoding="utf-8") as file:
        cells = next(csv.DictReader(file))
    assert cells["name"].startswith("'")
    assert (cells["value"], cells["count"]) == ("-1.5", "-2")  # numbers stay numbers
    expected = {"name": name, "other": name, "value": -1.5, "count": -2}
    assert read_rows(path, text=("name",)) == [expected]


@pytest.mark.parametrize("name", PLAIN)
def test_other_texts_are_written_as_they_are(name: str) -> None:
    assert as_cell(name) == name
    assert from_cell(name) == name


def test_numbers_are_no_texts() -> None:
    assert [as_cell(value) for value in (-1, -1.5, True, None)] == [-1, -1.5, True, None]


def test_exported_tables_too(tmp_path: Path) -> None:
    write_tables(tmp_path, {"clients": [{"name": NAMES[0], "accuracy": 0.5}]})
    assert (tmp_path / "clients.csv").read_text().splitlines()[1].startswith("'=cmd|")


def test_a_users_table_with_such_names_becomes_a_run_without_formulas(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "hospital": np.repeat(["=1+1", "+north", "@south"], 20),
            "age": rng.normal(size=60),
            "ill": rng.integers(0, 2, 60),
        }
    )
    data = eh.Federation.from_frame(frame, label="ill", client="hospital", split={"test": 0.25})
    eh.fit(eh.models.Linear(1, 2), data, eh.FedAvg(), rounds=1, out=tmp_path / "run")
    names = {row["name"] for row in read_rows(tmp_path / "run/scores.csv", text=("name",))}
    assert names == {"=1+1", "+north", "@south"}
    for path in (tmp_path / "run").rglob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                assert not any(cell[:1] in "=@+" for cell in row if cell)
    study = eh.load(tmp_path / "run")
    assert study is not None


def test_describe_writes_none_either(tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    pd.DataFrame(
        {"hospital": ["=1+1"] * 6 + ["b"] * 6, "age": range(12), "ill": [0, 1] * 6}
    ).to_csv(table, index=False)
    invoke(
        "data", "describe", str(table), "--label", "ill", "--client", "hospital",
        "--csv", str(tmp_path / "out.csv"),
    )  # fmt: skip
    text = (tmp_path / "out.csv").read_text()
    assert "'=1+1" in text
    assert "\n=1+1" not in text
