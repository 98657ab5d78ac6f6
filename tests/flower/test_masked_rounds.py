"""Masked sums over Flower's messages: what the simulator gives with the same fixed-point sums, to
the bit, whoever drops out, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import evenhand as eh
from evenhand.algorithm import visible
from tests.support.federations import METHODS, ragged
from tests.support.flower_masks import SIZES, Masked
from tests.support.flower_nodes import flat

SUMS_ONLY = [name for name in METHODS if not visible(METHODS[name], ragged(SIZES).census())]


def assert_equal(result: eh.Result, reference: eh.Result) -> None:
    for key, value in flat(reference).items():
        assert torch.equal(flat(result)[key], value), key
    for mine, theirs in zip(result.history_rows, reference.history_rows, strict=True):
        assert mine["answered"] == theirs["answered"]
        assert mine.get("loss") == theirs.get("loss")
        assert mine.get("worst10") == theirs.get("worst10")


@pytest.mark.parametrize("method", SUMS_ONLY)
def test_every_method_of_sums_gives_what_fixed_point_gives_to_the_bit(
    method: str, tmp_path: Path
) -> None:
    setting = Masked(tmp_path)
    result = setting.run(METHODS[method], weights="uniform")
    assert_equal(result, setting.plain_sums(METHODS[method], weights="uniform"))
    assert {row["answered"] for row in result.history_rows} == {5}
