"""Readers of files: whatever has happened to one, the error names it, on one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from evenhand import files
from evenhand.errors import RunError
from evenhand.reading import digest_of, read_json, read_rows, read_tensors, read_text
from evenhand.studies.runs.contents import read_about, read_columns, read_scores
from evenhand.studies.runs.directories import load_spec

DEEP = "[" * 100_000


def refusal(read: Callable[[Path], Any], path: Path) -> str:
    with pytest.raises(RunError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged: ")
    assert "\n" not in message
    return message.removeprefix(f"{path} is damaged: ")


ROWS = [
    (b"", "it is empty"),
    (b"by,name,count\nclient,a\n", "line 2 has 2 cells, the first 3"),
    (b"by,name,count\nclient,a,1,2\n", "line 2 has 4 cells, the first 3"),
    (b"by,by,count\nclient,a,1\n", "its first line does not name every column once"),
    (b"by,name,\nclient,a,1\n", "its first line does not name every column once"),
    (b"by,name,count\nclient,\xff,1\n", "byte 21 is not UTF-8"),
    (b'by,name,count\nclient,"a,1\n', "unexpected end of data"),
    (b"by,name,accuracy\nclient,a,1\n", "it has no column 'count'"),
    (b"by,name,count\nclienu,a,1\n", "line 2 has by = 'clienu', not one of client, everyone"),
    (b"by,name,count\nclient,a,x1\n", "count in line 2 is 'x1', not a number"),
    (b"by,name,count\nclient,a,1_0\n", "count in line 2 is '1_0', not a number"),
    (b"by,name,count\nclient,a," + b"9" * 99 + b"\n", "count in line 2 is '9999"),
    (b"by,name,count\nclient,a,-1\n", "count is -1, not a whole number"),
    (b"by,name,count\nclient,a,1.5\n", "count is 1.5, not a whole number"),
    (b"by,name,count,accuracy\nclient,a,1,1.5\n", "accuracy is 1.5, not between 0 and 1"),
]


@pytest.mark.parametrize(("content", "reason"), ROWS)
def test_scores_that_cannot_be_are_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_bytes(content)
    assert refusal(read_scores, path).startswith(reason)


def test_a_file_that_is_missing_or_a_directory_is_named(tmp_path: Path) -> None:
    for read in (read_rows, read_json, read_tensors, read_text, read_columns):
        assert refusal(read, tmp_path / "a.file").startswith("it is missing; restore a copy")
        assert refusal(read, tmp_path).startswith("it is a directory; ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not valid JSON"),
        (b'{"a": 1', "it is not valid JSON"),
        (DEEP.encode(), "it is not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "it is not valid JSON"),
        (b"[]", "it holds no JSON object"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"labels": "no"}', "labels is 'no'"),
        (b'{"label_scale": NaN}', "label_scale is nan, not a positive number"),
        (b'{"label_scale": 1e999}', "label_scale is inf, not a positive number"),
        (b'{"data": 5}', "data is '5'"),
    ],
)
def test_what_a_run_cannot_say_of_itself_is_refused(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "about.json"
    path.write_bytes(content)
    assert refusal(read_about, path).startswith(reason)


@pytest.mark.parametrize(
    "content",
    [
        b"rounds = ",
        b"rounds = " + b"9" * 5000,
        b"seeds = " + DEEP.encode(),
        b"name = '\xff'",
        b"nonsense = 1",
        b"rounds = 'three'",
        b"methods = [1]",
        b"[[methods]]\nname = 'fedavh'\nlabel = '/'",
    ],
)
def test_a_damaged_spec_in_a_run_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_bytes(content)
    with pytest.raises(RunError) as caught:
        load_spec(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'spec.toml'} is damaged: ")
    assert message.endswith("; correct it, or put a copy of it back")
    assert "\n" not in message


def test_every_byte_of_a_file_with_tensors_counts(tmp_path: Path) -> None:
    """Tensors, their order, and metadata."""
    path = tmp_path / "some.safetensors"
    tensors = {"b": torch.arange(3.0), "a": torch.tensor([1, 2])}
    files.write_tensors(path, tensors, {"history": [{"round": 1, "loss": 0.25}]})
    whole, content = read_tensors(path), path.read_bytes()
    assert list(whole[0]) == ["b", "a"]
    assert whole[1] == {"order": ["b", "a"], "history": [{"round": 1, "loss": 0.25}]}
    seen = 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            found = read_tensors(path)
        except RunError as error:
            assert str(error).startswith(f"{path} is damaged: ")  # noqa: PT017
            seen += 1
        else:
            assert found[1] == whole[1]
            assert all(torch.equal(found[0][name], whole[0][name]) for name in whole[0])
    assert seen >= len(content) - 16  # some spaces at the end of the header mean nothing


def test_tensors_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Their digest is of the tensors alone."""
    from safetensors.torch import save

    path, tensors = tmp_path / "old.safetensors", {"a": torch.arange(3.0)}
    about = {"order": ["a"], "sha256": digest_of(tensors, ""), "rounds": 2}
    path.write_bytes(save(tensors, {"evenhand": json.dumps(about)}))
    assert torch.equal(read_tensors(path)[0]["a"], tensors["a"])
    path.write_bytes(save({"a": torch.ones(3)}, {"evenhand": json.dumps(about)}))
    assert refusal(read_tensors, path).startswith("its contents do not match their checksum")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("1", "-3"), np.array([1, -3])),
        (("1", ""), np.array([1, np.nan])),
        (("1", "0.5"), np.array([1, 0.5])),
        (("inf", "nan"), np.array([np.inf, np.nan])),
        (("True", "False"), np.array([True, False])),
        (("True", "0.5"), np.array([1, 0.5])),
        (("1e30", "1"), np.array([1e30, 1])),
        ((str(2**63 - 1), str(-(2**63))), np.array([2**63 - 1, -(2**63)])),
    ],
)
def test_columns_have_the_type_of_their_cells(
    cells: tuple[str, str], expected: NDArray[Any], tmp_path: Path
) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("by,value,empty\n" + "".join(f"client,{cell},\n" for cell in cells))
    found = read_columns(path)
    assert list(found) == ["by", "value"]
    assert found["by"] == ["client", "client"]
    assert found["value"].dtype == expected.dtype
    assert found["value"] == pytest.approx(expected, nan_ok=True, rel=0)


@pytest.mark.parametrize("cells", [("0.5", "1_0"), ("nan", "no"), ("0.5", str(2**63 + 1))])
def test_a_column_with_one_cell_that_is_no_number_is_refused(
    cells: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("value\n" + "".join(f"{cell}\n" for cell in cells))
    assert refusal(read_columns, path).startswith("value in line 3 is ")


def test_a_table_without_rows_has_its_columns_of_text(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("by,value\n")
    assert read_columns(path) == {"by": []}
