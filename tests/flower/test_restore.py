"""A server whose directory is put back from a copy: nodes do as they are told, and nothing is lost
but the rounds since."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

import torch
from flwr.app import Message

from evenhand.flower.gathering import next_session
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import FAST, Setting, flat

SIZES = (9, 7, 12)
ROUNDS = 6


class Killed(Exception):
    """The server dies here."""


def run_until(setting: Setting, round: int) -> None:
    """Train until a client replies to ``round``, and die."""

    def spoil(node: int, reply: Message) -> list[Message]:
        if "about" in reply.content and reply.content["about"].get("round") == round:
            raise Killed
        return [reply]

    setting.grid.spoil = spoil
    setting.grid.waiting.clear()
    with pytest.raises(Killed):
        setting.run(METHODS["ditto"], rounds=ROUNDS, **FAST)
    setting.grid.spoil = None


def test_a_copy_from_before_several_starts_goes_on_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    setting = Setting(tmp_path, ragged(SIZES), network())
    run_until(setting, 2)
    shutil.copytree(out, tmp_path / "copy")
    for round in (2, 3, 3):  # the server is started again and again, and nodes hear of it
        run_until(setting, round)
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "copy", out)

    found = setting.run(METHODS["ditto"], rounds=ROUNDS, **FAST)

    whole = Setting(tmp_path / "whole", ragged(SIZES), network()).run(
        METHODS["ditto"], rounds=ROUNDS, **FAST
    )
    assert [row["left_out"] for row in found.history_rows] == [""] * ROUNDS
    for key, value in flat(whole).items():
        assert torch.equal(flat(found)[key], value), key


def test_sessions_grow_with_time_and_with_every_start(tmp_path: Path) -> None:
    later = next_session(1)
    assert later > 1_700_000_000_000  # milliseconds
    assert next_session(later + 100) == later + 101  # the clock was set back
    Setting(tmp_path, ragged(SIZES), network()).run(METHODS["fedavg"], rounds=1)
    assert json.loads((tmp_path / "run" / "roster.json").read_text())["session"] == 1
