"""Result files: written, read again, merged; and what makes a result out of date."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evenhand.errors import RunError
from evenhand.papers.experiment import Part, Row, find_parts
from evenhand.papers.results import Result, identity_of, merge, read_result


def result(part: str = "fafl-table2:vehicle", value: float = 1.0) -> Result:
    return Result(
        part=part,
        budget="quick",
        note="fewer rounds",
        identity="0123",
        seeds=(0, 1),
        values={"FedAvg": {"mean": (value, 2.0), "std": (float("nan"), 0.5)}},
        chosen={"FedAvg": {"local.lr": 0.1}},
        edges={"FedAvg": ("local.lr",)},
        diverged=("AFL",),
        clients=3,
        samples=100,
        rounds=5,
        seconds=1.5,
        about={"date": "2026-01-01"},
    )


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = result().write(tmp_path)
    assert path.name == "fafl-table2.vehicle.quick.json"
    assert "NaN" not in path.read_text()
    assert repr(read_result(path)) == repr(result())  # NaN differs from itself


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    path = result().write(tmp_path)
    path.write_text("{}")
    with pytest.raises(RunError, match=r"vehicle\.quick\.json is damaged.*delete it"):
        read_result(path)


def test_merging_takes_what_is_new_and_keeps_what_differs(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    result("a-table1").write(here)
    result("b-table1", 1.0).write(here)
    for one in (result("a-table1"), result("b-table1", 9.0), result("c-table1")):
        one.write(there)
    assert merge(there, here) == (["c-table1.quick.json"], ["b-table1.quick.json"])
    assert read_result(here / "b-table1.quick.json").values["FedAvg"]["mean"] == (1.0, 2.0)


def test_merging_finds_the_results_in_a_run_and_refuses_folders_without(tmp_path: Path) -> None:
    result("a-table1").write(tmp_path / "there" / "results")
    assert merge(tmp_path / "there", tmp_path / "here") == (["a-table1.quick.json"], [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="there are no results in"):
        merge(tmp_path / "empty", tmp_path / "here")


def test_the_identity_changes_with_what_is_run_and_not_with_where() -> None:
    (part,) = find_parts(["fedminmax-table1:esg"])
    identity = identity_of(part)

    def changed(**fields: object) -> Part:
        return dataclasses.replace(part, **fields)  # type: ignore[arg-type]

    assert identity_of(changed(spec={**part.spec, "device": "cuda"})) == identity
    assert identity_of(changed(about="other words", reason="another")) == identity
    assert identity_of(changed(spec={**part.spec, "rounds": 1})) != identity
    assert identity_of(changed(seeds=1)) != identity
    assert identity_of(changed(rows=(Row("FedAvg", {"name": "fedavg"}),))) != identity
