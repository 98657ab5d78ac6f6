"""A small piece of the fuzz harness, the same cases every time."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from benchmarks.torture.fuzz import Failure, once
from benchmarks.torture.fuzz_targets import TARGETS

CASES = {"trained": 3, "audits": 4, "counts": 4, "specs": 20, "tables": 15}
# what fuzzing has found, beside what tests near their topics hold: damaged Parquet files, for which
# pyarrow raises a KeyError, JSON's and Unicode's errors and others; LEAF with labels near 2**63
FOUND = {"parquet": (157, 160, 472, 521, 570, 1879, 2087), "leaf": (233, 891)}
ELSEWHERE = ("saved",)  # damaged run directories have a harness of their own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in ELSEWHERE])
def test_every_input_gives_a_result_or_one_line(name: str, tmp_path: Path) -> None:
    found = [
        Failure(case, why)
        for case in range(CASES.get(name, 60))
        if (why := once(name, 0, case, tmp_path))
    ]
    assert found == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name: str, tmp_path: Path) -> None:
    assert [once(name, 0, case, tmp_path) for case in FOUND[name]] == [""] * len(FOUND[name])
