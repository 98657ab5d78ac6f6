"""The steps of docs/how-to/operate.md with real processes: back-up and restore, keys, certificates, a
server that moves, nodes that go, hung processes, a clock that is off."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.cli.operate import lines
from evenhand.flower import journal
from evenhand.flower.diagnosis import CLOCK, DEAF, HALTED, clock_ahead, explain
from evenhand.flower.status import read_status
from evenhand.flower.tryout.certificates import write_certificates, write_node_key
from evenhand.flower.tryout.loopback import Loopback, Run
from evenhand.flower.tryout.member import Member
from evenhand.flower.tryout.options import CONNECTION
from evenhand.flower.tryout.ports import free_ports
from tests.support.flower_trial import (
    AT_WORK,
    PATIENCE,
    SIZES,
    Trial,
    history,
    same_params,
    wait_for_round,
    wait_until,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc"),
]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("trial"))


@pytest.fixture(scope="module")
def federation(trial: Trial) -> Iterator[Loopback]:
    with trial.federation("federation", tls=True) as running:
        yield running


def test_a_run_outlives_its_disk_its_keys_its_certificates_and_its_place(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    rounds, out, copy = 6, tmp_path / "out", tmp_path / "copy"
    run = trial.start(federation, out, "ditto", rounds=rounds)
    wait_until(lambda: len(history(out)) >= 1)

    # a copy while the server works: each file is whole, and the checkpoint is enough by itself
    shutil.copytree(out, copy, ignore=shutil.ignore_patterns(".*"))
    with (
        sqlite3.connect(federation.directory / "link.db") as source,
        sqlite3.connect(tmp_path / "link.db") as target,
    ):
        source.backup(target)
    _told(out, "working")
    run.kill_server_app()
    _told(out, "stopped")

    # the server's disk is lost, and the copy is put in its place
    shutil.rmtree(out)
    shutil.copytree(copy, out)
    run = trial.start(federation, out, "ditto", rounds=rounds)
    done = len(history(out))
    wait_until(lambda: len(history(out)) > done)
    print("went on from the copy, at round", done)

    # node 2 gets another key: the new one is registered, the old one thrown out
    node = federation.node(2)
    old = _node_id(node)
    key = write_node_key(tmp_path / "keys", "new")
    federation.flwr_json("supernode", "register", str(key.public), CONNECTION)
    node.stop()
    place = node.command.index("--auth-supernode-private-key") + 1
    before, node.command[place] = node.command[place], str(key.private)
    node.restart()
    federation.flwr_json("supernode", "unregister", old, CONNECTION)
    done = len(history(out))
    wait_until(lambda: len(history(out)) > done)
    node.command[place], new = before, node.command[place]
    node.stop()
    node.launch()
    wait_until(lambda: node.pid is None)  # the old key opens nothing
    assert "[code: 2004]" in node.text()
    node.command[place] = new
    node.restart()
    print("node 2 has another key")

    # another certificate: nodes first trust both, then the SuperLink changes
    assert federation.certificates is not None
    fresh = write_certificates(tmp_path / "tls")
    both = tmp_path / "both.crt"
    both.write_bytes(federation.certificates.authority.read_bytes() + fresh.authority.read_bytes())
    for one in federation.nodes:
        one.stop()
        one.command[one.command.index("--root-certificates") + 1] = str(both)
        one.restart()
    run.kill_server_app()
    federation.link.stop()
    for ours, theirs in zip(federation.certificates, fresh, strict=True):
        shutil.copy(theirs, ours)

    # and the run moves: the database and the run directory are put elsewhere
    moved = tmp_path / "elsewhere"
    shutil.move(out, moved)
    command = federation.link.command
    database = command.index("--database") + 1
    shutil.copy(command[database], tmp_path / "moved.db")
    command[database] = str(tmp_path / "moved.db")
    federation.link.restart()
    run = trial.start(federation, moved, "ditto", rounds=rounds)
    _assert_completes(run, moved)
    print("another certificate, another place")

    rows = history(moved)
    assert [row["round"] for row in rows] == [str(i) for i in range(1, rounds + 1)]
    lost = [
        ("train", int(row["round"]) - 1, int(client))
        for row in rows
        for client in row["left_out"].replace(",", " ").split()
    ]
    print("left out:", lost)
    assert same_params(moved, trial.simulated("ditto", rounds, lost))
    _told(moved, "finished")


def test_a_client_app_that_is_told_to_end_does_not_silence_its_node(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    """With Flower alone the SuperNode waits for its reply for ever."""
    run = trial.start(federation, tmp_path, "fedavg", rounds=3, app=trial.slow)
    wait_for_round(federation, run, 2)
    node = federation.node(1)
    begun = node.text().count(AT_WORK)
    wait_until(lambda: node.text().count(AT_WORK) > begun)
    os.kill(_processes(node, "flwr-clientapp")[-1], signal.SIGTERM)
    _assert_completes(run, tmp_path)
    assert [row["left_out"] for row in history(tmp_path)] == ["", "1", ""]
    assert "client 1 is skipped: its process got SIGTERM" in run.log()
    assert DEAF not in explain(node.text())


def test_a_node_with_a_clock_that_is_off_is_told_so(federation: Loopback, tmp_path: Path) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("needs faketime")
    assert federation.certificates is not None
    authority = federation.certificates.authority
    assert abs(clock_ahead(federation.address, authority)) < 2
    found = {}
    for shift in ("+7s", "-310s", "+3s"):
        key = write_node_key(tmp_path / "keys", shift)
        federation.flwr_json("supernode", "register", str(key.public), CONNECTION)
        known = ["--root-certificates", str(authority), "--auth-supernode-private-key"]
        command = ["faketime", "-f", shift, "flower-supernode", "--superlink", federation.address]
        port = ["--host", "127.0.0.1", "--port", str(free_ports(0, 1)[0])]
        node = Member(
            federation.processes, f"clock {shift}", [*command, *port, *known, str(key.private)],
            lambda text: "SuperNode ID:" in text,
        )  # fmt: skip
        node.launch()
        wait_until(lambda node=node: node.pid is None or node.is_ready())  # type: ignore[misc]
        found[shift] = (node.pid is None, explain(node.text()))
        node.kill()
    assert found == {"+7s": (True, [CLOCK]), "-310s": (True, [CLOCK]), "+3s": (False, [])}


def test_a_server_app_that_is_halted_for_long_is_started_again(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = trial.start(federation, tmp_path, "ditto", rounds=3)
    wait_for_round(federation, run, 2)
    halted = _processes(federation.link, "flwr-serverapp")
    for pid in halted:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert run.wait(150) == "finished:failed"
        assert explain(run.details()) == [HALTED]
    finally:
        for pid in halted:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not any(_runs(pid) for pid in halted))
    again = trial.start(federation, tmp_path, "ditto", rounds=3)
    _assert_completes(again, tmp_path)
    assert same_params(tmp_path, trial.simulated("ditto", 3))


def test_processes_that_wait_for_a_killed_server_are_ended_by_the_next_task(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = trial.start(federation, tmp_path, "fedavg", rounds=2, app=trial.large, limit=1 << 29)
    _kill_while_it_sends(federation, run)
    hung = [pid for node in federation.nodes for pid in _processes(node, "flwr-clientapp")]
    print("hung:", len(hung))
    again = trial.start(federation, tmp_path, "fedavg", rounds=2, app=trial.large, limit=1 << 29)
    _assert_completes(again, tmp_path)
    assert not any(_runs(pid) for pid in hung)


def test_a_try_out_is_watched_from_outside(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from evenhand.cli import main; main()", "flower"]
    new = [*command, "new", "ours", "--clients", "2", "--method", "fedavg"]
    subprocess.run(new, cwd=tmp_path, check=True, timeout=300)
    port = free_ports(0, 1)[0]
    options = ["--nodes", "2", "--data", "ours/data", "-c", "num-rounds=3"]
    watched = ["--log-json", "log.jsonl", "--metrics", str(port)]
    with subprocess.Popen([*command, "up", "ours", *options, *watched], cwd=tmp_path) as up:
        wait_until(lambda: "evenhand_rounds_done 1.0\n" in _get(port, "/metrics"))
        assert "of 3 done" in _get(port, "/healthz")
        found = read_status(tmp_path / "runs" / "ours")
        assert (found.done >= 1, found.rounds) == (True, 3)
        assert up.wait(PATIENCE) == 0
    assert read_status(tmp_path / "runs" / "ours").state == "finished"
    written = journal.read(tmp_path / "log.jsonl")
    assert written.damaged == 0
    rounds = [line["round"] for line in written.records if line["event"] == "round"]
    assert rounds == [1, 2, 3]
    # nodes at which nothing goes wrong have nothing to say
    assert {line["process"] for line in written.records} == {"server"}


def _get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _kill_while_it_sends(federation: Loopback, run: Run) -> None:
    """Kill the server app when the first node has heard of its first task."""
    before = {node.name: node.text().count("Receiving: train") for node in federation.nodes}

    def heard() -> bool:
        return any(
            node.text().count("Receiving: train") > before[node.name] for node in federation.nodes
        )

    wait_until(heard)
    run.kill_server_app()
    assert run.wait(120) == "finished:failed"
    time.sleep(5)


def _assert_completes(run: Run, out: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (out / "final.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert run.wait(60) == "finished:completed", run.log()


def _told(out: Path, state: str) -> None:
    found = read_status(out)
    print("\n".join(lines(found)))
    assert found.state in (state, "stopped" if state == "working" else state)
    assert len(found.clients) == len(SIZES)
    assert found.problems == []


def _node_id(node: Member) -> str:
    return node.text().split("SuperNode ID: ")[-1].split()[0]


def _processes(member: Member, command: str) -> list[int]:
    return [pid for pid in member.pids() if command.encode() in _read(pid, "cmdline")]


def _runs(pid: int) -> bool:
    """Whether a process has not ended; Flower does not ask for the end of those it starts."""
    return bool(_read(pid, "cmdline"))


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
