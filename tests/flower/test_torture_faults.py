"""The parts of the harness of faults that need no processes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import torch

from benchmarks.torture.faults import ROUNDS, is_told, lost_in
from evenhand.files import write_tensors
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import FAST, Setting
from tests.support.flower_trial import same_params

SIZES = (9, 7, 12)


def test_who_was_lost_is_read_from_the_history_and_changes_the_parameters(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.spoil = lambda node, reply: (
        [] if node > 1 and reply.content["about"].get("round") == 1 else [reply]
    )
    result = setting.run(METHODS["ditto"], rounds=ROUNDS, **FAST, deadline=0.5)
    out = tmp_path / "run"
    write_tensors(out / "final.safetensors", result.params)

    assert lost_in(out) == [("train", 1, 1), ("train", 1, 2)]
    assert same_params(out, result)
    assert is_told(out)
    name = next(iter(result.params))
    write_tensors(
        out / "final.safetensors",
        result.params | {name: torch.nextafter(result.params[name], torch.tensor(9.0).double())},
    )
    assert not same_params(out, result)  # one bit of each number
