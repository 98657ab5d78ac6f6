"""Callbacks on the server of a real federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed")

import evenhand as eh
from tests.support.federations import network, ragged
from tests.support.flower_nodes import SETTINGS, SIZES, Setting

OPTIONS = {**SETTINGS, "rounds": 14, "eval_every": 1, "cohort": eh.Uniform(2)}
STOP = eh.EarlyStopping("worst", patience=2)


def validated() -> tuple[eh.Federation, list[eh.Federation]]:
    """Clients with validation data: all of them, and each by itself."""
    rng = np.random.default_rng(0)

    def part(size: int) -> dict[str, Any]:
        x = rng.normal(size=(size, 5))
        group = ["a", "b"] * (size // 2)
        return {"x": x, "y": (x.sum(1) > 0).astype(int) + (x[:, 0] > 1), "group": group}

    parts = [(part(12 + 4 * i), part(8), part(8)) for i in range(4)]

    def built(some: list[Any]) -> eh.Federation:
        train, val, test = ([one[kind] for one in some] for kind in range(3))
        return eh.Federation.from_arrays(train, val=val, test=test)

    return built(parts), [built([one]) for one in parts]


def test_nodes_validate_and_the_server_stops(tmp_path: Path) -> None:
    whole, held = validated()
    reference = eh.fit(network(), whole, eh.FedAvg(), engine="loop", callbacks=[STOP], **OPTIONS)
    setting = Setting(tmp_path, whole, network(), data=held)
    result = setting.run(eh.FedAvg(), callbacks=[STOP], **OPTIONS)
    assert reference.stopped is not None
    assert (result.stopped, result.restored) == (reference.stopped, reference.restored)
    assert result.restored is not None
    assert all(torch.equal(result.params[key], reference.params[key]) for key in result.params)
    column = [row["val_worst"] for row in result.history_rows]
    assert column == pytest.approx([row["val_worst"] for row in reference.history_rows])
    assert eh.load(tmp_path / "run").trial("fedavg", 3).stopped == result.stopped


def test_what_nodes_remember_cannot_be_restored(tmp_path: Path) -> None:
    whole, held = validated()
    setting = Setting(tmp_path, whole, network(), data=held)
    with pytest.raises(ValueError, match="restore_best=True cannot restore what clients of ditto"):
        setting.run(eh.Ditto(), callbacks=[STOP], **OPTIONS)
    plain = eh.EarlyStopping("worst", patience=2, restore_best=False)
    setting = Setting(tmp_path / "again", whole, network(), data=held)
    assert setting.run(eh.Ditto(), callbacks=[plain], **OPTIONS).restored is None


def test_nodes_without_validation_data_are_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    with pytest.raises(ValueError, match="EarlyStopping needs validation data"):
        setting.run(eh.FedAvg(), callbacks=[STOP], rounds=1)
