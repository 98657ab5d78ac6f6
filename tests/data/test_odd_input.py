"""Input that fuzzing found: read as it is meant, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import evenhand as eh
from evenhand.data.tables.files import read_table
from evenhand.errors import DataError, brief, gibibytes, require_memory, require_number
from evenhand.metrics.counts import Counts
from evenhand.studies.audits.counting import read_counts

ROWS = ("a,b,y", "h1,1,0", "h2,2,1", 'h1,"3",1')


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end_gives_the_same_table(tmp_path: Path, end: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(end.join(ROWS).encode())
    table = read_table(path)
    assert table.columns.tolist() == ["a", "b", "y"]
    assert table["b"].tolist() == [1, 2, 3]


def test_counts_and_audits_with_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(b"label,prediction,count\ryes,yes,3\rno,yes,1\r")
    assert eh.audit(str(path), counts=True).counts.table.sum() == 4


def test_counts_of_hundreds_of_digits_are_refused() -> None:
    for count in ("9" * 400, "1e400", "2.5", "-1", "x"):
        table = pd.DataFrame({"label": ["a"], "prediction": ["a"], "count": [count]})
        with pytest.raises(DataError, match=r"row 1: count is .* not a whole number from 0"):
            read_counts(table)


def test_counts_of_a_continuous_label_ask_whether_it_is_a_number() -> None:
    values = [f"{value}.5" for value in range(5000)]
    table = pd.DataFrame({"label": values, "prediction": values, "count": 1})
    with pytest.raises(
        DataError, match=r"the label has 5,000 different values .* if it is a number, count ranges"
    ):
        read_counts(table)


def test_a_table_of_counts_that_no_memory_holds_is_refused() -> None:
    codes = np.zeros(1, np.int64)
    names = [str(name) for name in range(5000)]
    with pytest.raises(ValueError, match=r"would make a table of 186 GiB: is the label a number"):
        Counts.of(codes, codes, codes, codes, names[:1000], [""], names)


@pytest.mark.parametrize("partition", ["iid", "power_law", "log_normal", "dirichlet"])
def test_more_clients_than_samples_are_refused_before_memory_is_taken(partition: str) -> None:
    table = pd.DataFrame({"x": range(20), "y": [0, 1] * 10})
    with pytest.raises(
        ValueError, match="1000000000000 clients need a sample each, but there are only 20"
    ):
        eh.Federation.from_frame(
            table, client=None, label="y", partition={"name": partition, "clients": 10**12}
        )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("population", {"clients": 10**12}),
        ("synthetic", {"clients": 10**12}),
        ("synthetic_minimax", {"clients": 10**12}),
    ],
)
def test_data_that_this_machine_cannot_hold_are_refused(
    name: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"would need about [\d,]+ GiB of memory; this"):
        getattr(eh.datasets, name)(**arguments)


def test_memory_in_words() -> None:
    assert gibibytes(1.5 * 2**30) == "1.5 GiB"
    require_memory("nothing", 1.0)
    with pytest.raises(ValueError, match="all of it would need about 909,495 GiB"):
        require_memory("all of it", 1e6 * 1e9 / 1.024)


def test_numbers_of_hundreds_of_digits_are_out_of_range() -> None:
    for value in (10**400, -(10**400)):
        with pytest.raises(ValueError, match="q must be a finite number >= 0, got") as caught:
            require_number("q", value, "[0, inf)")
        assert len(str(caught.value)) < 150
    assert brief("a\nb") == "'a\\nb'"
    assert brief(np.int64(3)) == "3"
    assert brief(torch.zeros(2, 2)) == "tensor([[0., 0.], [0., 0.]])"


X, Y = np.zeros((2, 3), np.float32), np.array([0, 1])


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([{"x": X, "y": Y, "name": X}], "the name of client 0 must be a text or a number"),
        ([{"x": X, "y": Y, "team": [1]}], "label must be a text or a number, got list"),
        ([{"x": X, "y": Y, "group": [[1], [2]]}], "label must be a text or a number, got list"),
        ([{"x": X, "y": Y, "team": 1j}], "label must be a text or a number, got complex"),
        ([{"x": X, "y": Y, 3: 4, "z": 1}], "unknown key 3"),
    ],
)
def test_odd_arrays_are_refused_in_one_line(clients: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        eh.Federation.from_arrays(clients)
    assert "\n" not in str(caught.value)


def test_odd_test_data_are_refused() -> None:
    with pytest.raises(TypeError, match="client 0: test data must be a mapping"):
        eh.Federation.from_arrays([{"x": X, "y": Y}], test=[3])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_unsigned_whole_numbers_can_be_mixed(kind: str) -> None:
    rows = [
        {"x": np.full((2, 3), 250, "uint8"), "y": np.array([0, 1])},
        {"x": np.full((2, 3), 60_000, kind), "y": np.array([0, 1])},
    ]
    fed = eh.Federation.from_arrays(rows)
    assert fed.train.x[:].double().sum() == 6 * 250 + 6 * 60_000


def test_whole_numbers_beyond_63_bits_are_refused() -> None:
    rows = [{"x": np.full((2, 3), 2**63, "uint64"), "y": np.array([0, 1])}]
    with pytest.raises(TypeError, match=r"2\*\*63 or more cannot be used"):
        eh.Federation.from_arrays(rows)
