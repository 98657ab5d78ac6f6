"""A server that runs for months: silent nodes, a second server, a full disk, more rounds."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from flwr.app import Error, Message

import evenhand as eh
from evenhand.errors import RunError
from evenhand.flower.backoff import BackOff
from evenhand.flower.faults import in_words
from evenhand.flower.memory import DAY, NodeMemory, forget_old_runs
from evenhand.locks import Held, hold
from evenhand.training.checkpoints import Checkpoints
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_grid import InProcessGrid
from tests.support.flower_nodes import FAST, Setting, flat

SIZES = (10, 12, 14, 11)


def federation(directory: Path) -> Setting:
    return Setting(directory, ragged(SIZES), network(torch.float64))


def asked(setting: Setting, node: int) -> list[tuple[str, int]]:
    """Work and round of each task that a node was sent."""
    found = [
        message.content["about"]
        for message in setting.grid.sent
        if message.metadata.dst_node_id == node and "work" in message.content.get("about", {})
    ]
    return [(str(about["work"]), int(about["round"])) for about in found]  # type: ignore[call-overload]


class Silent(InProcessGrid):
    """Node 2 reports and then says nothing until it is asked about a round."""

    back = 10**9

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        about = self.sent[-1].content.get("about", {})
        self.down = {2} if "round" in about and int(about["round"]) < self.back else set()
        return super().pull_messages(message_ids)


# ---- silence


def test_a_silent_client_is_asked_less_and_less_often_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = federation(tmp_path)
    setting.grid.__class__ = Silent
    before = time.monotonic()
    result = setting.run(eh.FedAvg(), rounds=12, deadline=0.2, **{**FAST, "eval_every": 100})
    # in rounds 1 and 2, not in 3, in 4, not in 5 and 6, in 7, not in 8 to 11, in 12; at the end
    # everyone evaluates
    assert asked(setting, 2) == [
        *(("train", round) for round in (0, 1, 3, 6, 11)),
        ("evaluate", 11),
    ]
    assert time.monotonic() - before < 12 * 0.2 + 10
    assert [row["left_out"] for row in result.history_rows] == ["1"] * 12
    line = (
        "client 1 has missed 2 rounds in a row; it is asked again in round 4, then less and"
        " less often until it answers"
    )
    assert caplog.text.count("rounds in a row") == 1
    assert line in caplog.text


def test_a_client_that_answers_again_is_asked_as_before(tmp_path: Path) -> None:
    setting = federation(tmp_path)
    setting.grid.__class__ = Silent
    setting.grid.back = 3  # type: ignore[attr-defined]
    result = setting.run(eh.FedAvg(), rounds=6, deadline=0.2, **{**FAST, "eval_every": 100})
    assert [row["left_out"] for row in result.history_rows] == ["1", "1", "1", "", "", ""]


def test_nobody_is_let_rest_where_nobody_else_is_there() -> None:
    rest = BackOff()
    for round in (0, 1):
        rest.note([], [0, 1], round, str)
    assert rest.waiting([0, 1, 2], 2) == {0, 1}
    assert rest.waiting([0, 1], 2) == set()
    rest.note([0], [], 2, str)
    assert rest.waiting([0, 1, 2], 2) == {1}
    for round in range(2, 30):
        rest.note([], [1], round, str)
    assert rest.waiting([1, 2], 29 + 64) == {1}
    assert rest.waiting([1, 2], 30 + 64) == set()


def test_a_quorum_goes_on_when_the_others_have_had_their_grace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = federation(tmp_path)
    setting.grid.__class__ = Silent
    before = time.monotonic()
    options = {**FAST, "eval_every": 100, "rounds": 2}
    setting.run(eh.FedAvg(), deadline=60, quorum=0.75, grace=0.3, **options)
    assert time.monotonic() - before < 15
    assert "client 1 has not answered within 0." in caplog.text
    assert "and is skipped in round 1" in caplog.text


def test_where_all_answer_a_quorum_changes_nothing(tmp_path: Path) -> None:
    whole = federation(tmp_path / "whole").run(METHODS["afl"], rounds=3, **FAST)
    some = federation(tmp_path / "some").run(METHODS["afl"], rounds=3, quorum=0.5, **FAST)
    assert all(torch.equal(flat(some)[key], value) for key, value in flat(whole).items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quorum": 0}, r"quorum must be in \(0, 1\], got 0"),
        ({"quorum": 1.5}, r"quorum must be in \(0, 1\], got 1.5"),
        ({"grace": -1}, "grace must be a finite number >= 0, got -1; it is in seconds"),
        ({"admission": 5}, "admission must be"),
    ],
)
def test_limits_that_cannot_be_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        federation(tmp_path).run(eh.FedAvg(), **settings)


def test_a_mute_stranger_holds_up_nothing(tmp_path: Path) -> None:
    setting = Setting(tmp_path, ragged(SIZES), network())
    setting.grid.down = {4}
    before = time.monotonic()
    result = setting.run(
        eh.FedAvg(), rounds=5, clients=3, deadline=1.0, **{**FAST, "eval_every": 100}
    )
    assert time.monotonic() - before < 8  # its first answer is waited for, once
    assert [row["answered"] for row in result.history_rows] == [3] * 5


def test_errors_of_flower_are_told_in_words() -> None:
    assert in_words(3) == "it has not answered in time (Flower's error 3)"
    assert in_words(8) == "its app was killed or has crashed, see its log (Flower's error 8)"
    assert in_words(99) == "its node has failed, see its log (Flower's error 99)"


def test_an_error_of_flower_in_place_of_a_report_is_told_in_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def expired(node: int, reply: Message) -> list[Message]:
        if node == 4:
            reply.__dict__["_error"], reply.__dict__["_content"] = Error(3, "expired"), None
        return [reply]

    setting = Setting(tmp_path, ragged(SIZES), network(), spoil=expired)
    setting.run(eh.FedAvg(), rounds=1, clients=3, **FAST)
    assert "node 4 cannot take part: it has not answered in time (Flower's error 3)" in caplog.text


# ---- two servers


def test_a_second_server_is_told_who_is_at_work(tmp_path: Path) -> None:
    setting = federation(tmp_path)
    with hold(tmp_path / "run"), pytest.raises(Held, match=f"in use by process {os.getpid()} on"):
        setting.run(eh.FedAvg(), rounds=1, **FAST)
    setting.run(eh.FedAvg(), rounds=1, **FAST)
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_killed_server_frees_the_directory(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from evenhand.locks import hold\n"
    code += "with hold(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(Held, match=f"in use by process {other.pid} on"):
        federation(tmp_path).run(eh.FedAvg(), rounds=1, **FAST)
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    federation(tmp_path).run(eh.FedAvg(), rounds=1, **FAST)


def test_a_server_that_wakes_after_another_took_over_writes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock was removed, or is on another machine; the other server has finished meanwhile."""
    setting = federation(tmp_path)
    save, files = Checkpoints.save, dict[Path, bytes]()

    def halted(store: Checkpoints, now: Any) -> None:
        if len(now.history) == 2 and not files:
            files[tmp_path] = b""  # once
            (tmp_path / "run" / ".lock").unlink()
            federation(tmp_path).run(eh.FedAvg(), rounds=4, **FAST)
            files.update({path: path.read_bytes() for path in everything()})
        save(store, now)

    def everything() -> list[Path]:
        return [path for path in (tmp_path / "run").rglob("*") if path.is_file()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", halted)
        with pytest.raises(RunError, match=r"another server has taken over the run in .*run"):
            setting.run(eh.FedAvg(), rounds=4, **FAST)
    del files[tmp_path]
    assert {path: path.read_bytes() for path in everything()} == files
    assert "this one's 1); this one stops and writes nothing more" in caplog.text


# ---- a full disk


def test_a_full_disk_is_one_line_and_a_restart_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = federation(tmp_path / "whole").run(METHODS["ditto"], rounds=4, **FAST)
    setting, save = federation(tmp_path), Checkpoints.save

    def full(store: Checkpoints, now: Any) -> None:
        if len(now.history) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", "/out/checkpoint.safetensors")
        save(store, now)

    line = (
        "cannot write /out/checkpoint.safetensors: No space left on device; make room; then start"
        " the run again, it resumes after its last round"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", full)
        with pytest.raises(RunError) as caught:
            setting.run(METHODS["ditto"], rounds=4, **FAST)
    assert str(caught.value) == line
    assert line in [record.getMessage() for record in caplog.records]
    result = setting.run(METHODS["ditto"], rounds=4, **FAST)
    assert all(torch.equal(flat(result)[key], value) for key, value in flat(whole).items())


# ---- more rounds


@pytest.mark.parametrize("method", ["afl", "finetuned"])
def test_a_finished_run_goes_on_with_more_rounds(method: str, tmp_path: Path) -> None:
    whole = federation(tmp_path / "whole").run(METHODS[method], rounds=5, **FAST)
    setting = federation(tmp_path)
    setting.run(METHODS[method], rounds=3, **FAST)
    longer = setting.run(METHODS[method], rounds=5, **FAST)
    assert all(torch.equal(flat(longer)[key], value) for key, value in flat(whole).items())
    assert longer.score_columns["accuracy"].tolist() == pytest.approx(
        whole.score_columns["accuracy"].tolist(), nan_ok=True
    )
    assert eh.load(tmp_path / "run") is not None
    assert "rounds = 5" in (tmp_path / "run" / "spec.toml").read_text()
    with pytest.raises(RunError, match=r"started with other settings \(rounds\)"):
        setting.run(METHODS[method], rounds=4, **FAST)


def test_an_unfinished_run_is_finished_first(tmp_path: Path) -> None:
    setting, save = federation(tmp_path), Checkpoints.save

    def stopped(store: Checkpoints, now: Any) -> None:
        save(store, now)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            setting.run(eh.FedAvg(), rounds=3, **FAST)
    with pytest.raises(RunError, match=r"started with other settings \(rounds\)"):
        setting.run(eh.FedAvg(), rounds=5, **FAST)
    assert len(setting.run(eh.FedAvg(), rounds=3, **FAST).history_rows) == 3


# ---- what nodes remember of old runs


def test_nodes_forget_old_runs_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory = {"personal": torch.ones(2)}
    ages = {"r0": 1, "r1": 2, "r2": 3, "r3": 5, "r4": 6, "r5": 6.5, "r6": 8, "r7": 30, "r8": 91}
    for name, days in ages.items():
        NodeMemory(tmp_path, name, 0, keep_runs=99).remember(0, -1, memory)
        for path in (tmp_path / name).rglob("*"):
            os.utime(path, (time.time() - days * DAY,) * 2)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("of the owner")
    os.utime(tmp_path / "notes" / "mine.txt", (0, 0))
    NodeMemory(tmp_path, "now", 0).remember(0, -1, memory)
    # beyond the five used last only those that are idle for a week go, and the old ones
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"r0", "r1", "r2", "r3", "r4", "r5", "notes", "now"}
    assert "removed the memory of 3 old runs: r6, r7, r8" in caplog.text
    assert forget_old_runs(tmp_path, "r5", keep=0) == []
    os.utime(tmp_path / "r5" / "client-0", (0, 0))
    for path in (tmp_path / "r5").rglob("*"):
        os.utime(path, (0, 0))
    assert forget_old_runs(tmp_path, "r5", keep=0) == []  # the current one stays, however old
    assert forget_old_runs(tmp_path, "now", keep=9) == ["r5"]


def test_the_owner_says_how_many_runs_are_remembered(tmp_path: Path) -> None:
    setting = federation(tmp_path)
    old = tmp_path / "state0" / "old" / "client-0"
    NodeMemory(tmp_path / "state0", "old", 0).remember(0, -1, {"personal": torch.ones(2)})
    for path in (old, *old.iterdir()):
        os.utime(path, (time.time() - 8 * DAY,) * 2)
    setting.grid.contexts[1].node_config["keep-runs"] = 0
    setting.run(METHODS["ditto"], rounds=1, **FAST)
    assert not old.exists()
    assert json.loads((tmp_path / "run/roster.json").read_text())["session"] == 1
