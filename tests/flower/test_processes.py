"""Real processes on loopback: the simulator's numbers to the bit, and training that goes on when
something dies."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")


import evenhand as eh
from evenhand.flower.tryout.loopback import Loopback, Run
from tests.support.flower_trial import (
    LIMIT,
    PATIENCE,
    ROUNDS,
    SECRET,
    SIZES,
    Trial,
    history,
    same_params,
    wait_for_round,
    wait_until,
)

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("trial"))


@pytest.fixture(scope="module")
def federation(trial: Trial) -> Iterator[Loopback]:
    """A SuperLink and three SuperNodes with TLS and node keys."""
    with trial.federation("federation", tls=True) as running:
        yield running


# needs each client's loss; sums only, and client memories
METHODS_IN_PROCESSES = ("afl", "ditto")


@pytest.fixture(scope="module")
def runs(
    federation: Loopback, trial: Trial, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Run, Path]]:
    """A run of each method, all at once: they wait more for Flower than for each other."""
    places = {method: tmp_path_factory.mktemp(method) for method in METHODS_IN_PROCESSES}
    return {method: (trial.start(federation, out, method), out) for method, out in places.items()}


@needs_proc
@pytest.mark.parametrize("method", METHODS_IN_PROCESSES)
def test_a_method_gives_what_the_simulator_gives_to_the_bit(
    method: str, runs: dict[str, tuple[Run, Path]], federation: Loopback, trial: Trial
) -> None:
    run, out = runs[method]
    _assert_completes(run, out)
    _assert_equal(out, trial.simulated(method))
    _assert_tells_nothing(run.log())
    kept = (federation.directory / "state").glob(
        f"node-*/{(out / 'run-name').read_text()}/client-*/after-1.safetensors"
    )
    # each at its own node
    memories = (
        [(f"node-{i}", f"client-{i}") for i in range(len(SIZES))] if method == "ditto" else []
    )
    assert sorted((path.parts[-4], path.parts[-2]) for path in kept) == memories


# Processes that die; the figures in docs/explanation/federation.md are what these print with -s


@needs_proc
@pytest.mark.slow
def test_a_killed_server_app_is_resumed_by_a_new_run(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = trial.start(federation, tmp_path, "ditto", rounds=3)
    wait_for_round(federation, run, 2)
    clock = _Clock("server app killed")
    run.kill_server_app()
    again = trial.start(federation, tmp_path, "ditto", rounds=3)
    wait_until(lambda: len(history(tmp_path)) == 2)
    clock.tell("round 2 is done")
    _assert_completes(again, tmp_path)
    clock.tell("the new run has completed")
    _assert_equal(tmp_path, trial.simulated("ditto", rounds=3))
    assert run.wait(90) == "finished:failed"


@needs_proc
@pytest.mark.slow
def test_a_killed_superlink_is_started_again_and_a_new_run_goes_on(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = trial.start(federation, tmp_path, "ditto", rounds=3)
    wait_for_round(federation, run, 2)
    clock = _Clock("SuperLink killed")
    federation.link.kill()
    federation.link.restart()
    clock.tell("it listens again")
    run = trial.start(federation, tmp_path, "ditto", rounds=3)
    wait_until(lambda: len(history(tmp_path)) == 2)
    clock.tell("round 2 is done")
    _assert_completes(run, tmp_path)
    clock.tell("the new run has completed")
    _assert_equal(tmp_path, trial.simulated("ditto", rounds=3))
    assert all(node.pid is not None for node in federation.nodes)  # nobody had to start them again


@needs_proc
@pytest.mark.slow
def test_a_killed_node_that_comes_back_under_another_number_goes_on(
    trial: Trial, tmp_path: Path
) -> None:
    with trial.federation("without keys", tls=False) as federation:
        run = trial.start(federation, tmp_path, "ditto", rounds=4)
        wait_for_round(federation, run, 2)
        clock = _Clock("node without a key killed")
        federation.node(1).kill()
        federation.node(1).restart()
        clock.tell("it is back")
        wait_until(lambda: len(history(tmp_path)) == 2)
        clock.tell("round 2 is done")
        _assert_completes(run, tmp_path)
        clock.tell("the run has completed")
        log = run.log()
    assert _assert_only_absent(tmp_path, trial, "ditto", client=1, rounds=4) == [2]
    assert "client 1 is skipped: its node is gone (Flower's error 5)" in log
    assert "client 1 has a new node" in log
    _assert_tells_nothing(log)


@needs_proc
@pytest.mark.slow
def test_a_killed_node_with_a_key_comes_back_under_its_number(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = trial.start(federation, tmp_path, "ditto", rounds=5)
    wait_for_round(federation, run, 2)
    clock = _Clock("node with a key killed")
    federation.node(1).kill()
    federation.node(1).restart()  # tries until the heartbeats of the killed process have run out
    clock.tell("it is back")
    wait_until(lambda: len(history(tmp_path)) >= 2)
    clock.tell("round 2 is done")
    _assert_completes(run, tmp_path)
    clock.tell("the run has completed")
    # the next round begins in the moment in which the SuperLink gives the node up, most often
    # before it is back
    absent = _assert_only_absent(tmp_path, trial, "ditto", client=1, rounds=5)
    assert absent in ([2], [2, 3])
    clock.tell(f"absent in rounds {absent}")
    log = run.log()
    assert "client 1 is skipped: its node is gone (Flower's error 5)" in log
    assert "new node" not in log
    assert ("client 1 has no node any more and is skipped in round 3" in log) == (absent == [2, 3])


# Replies that must not count


@needs_proc
@pytest.mark.slow
def test_a_late_reply_of_a_node_that_comes_back_is_not_counted(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    """It was halted while it trained, and has written down what it learned in that round before it
    hears that nobody waits for it."""
    node = federation.node(1)
    run = trial.start(federation, tmp_path, "ditto", rounds=4)
    wait_for_round(federation, run, 2)
    clock = _Clock("node stopped")
    stopped = node.pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: len(history(tmp_path)) == 2)
        clock.tell("round 2 is done")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    _assert_completes(run, tmp_path)
    clock.tell("the run has completed")
    absent = _assert_only_absent(tmp_path, trial, "ditto", client=1, rounds=4)
    assert absent in ([2], [2, 3])  # it may still be busy with what is late
    clock.tell(f"absent in rounds {absent}")
    kept = (
        federation.directory / "state" / "node-1" / (tmp_path / "run-name").read_text() / "client-1"
    )
    assert (kept / "after-1.safetensors").exists()  # it has done the work of round 2, and sent it
    assert f"[RUN {run.id}, ROUND 1]\nINFO :      Sending: train message" in node.text()
    assert "client 1 is skipped: its node is gone (Flower's error 5)" in run.log()


@needs_proc
@pytest.mark.slow
def test_a_reply_of_ten_times_the_limit_costs_its_node_the_round(
    federation: Loopback, trial: Trial, tmp_path: Path
) -> None:
    run = trial.start(federation, tmp_path, "afl", app=trial.swollen)
    _assert_completes(run, tmp_path)
    assert _assert_only_absent(tmp_path, trial, "afl", client=1, rounds=ROUNDS) == [1, 2]
    log = run.log()
    told = re.findall(
        rf"client 1 is skipped: a message has (\d+) bytes, the limit is {LIMIT} bytes", log
    )
    assert [int(size) > 10 * LIMIT for size in told] == [True] * ROUNDS
    _assert_tells_nothing(log)


class _Clock:
    """Tells how long things took since something happened."""

    def __init__(self, event: str) -> None:
        self.event, self.start = event, time.monotonic()

    def tell(self, what: str) -> None:
        print(f"{self.event}: after {time.monotonic() - self.start:.0f} s {what}")


def _assert_completes(run: Run, out: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    # asking Flower takes the time of nodes
    while not (out / "final.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert run.wait(30) == "finished:completed", run.log()


def _assert_equal(out: Path, reference: eh.Result) -> None:
    """The run in ``out`` has every round once, left nobody out, and ends with the parameters of
    ``reference``."""
    rows = [(row["round"], row["answered"], row["left_out"]) for row in history(out)]
    assert rows == [(str(row["round"]), str(len(SIZES)), "") for row in reference.history_rows]
    assert all(value.dtype == torch.float64 for value in reference.params.values())
    assert same_params(out, reference)


def _assert_only_absent(
    out: Path, trial: Trial, method: str, client: int, rounds: int
) -> list[int]:
    """The run in ``out`` has every round once and, but for rounds without ``client``, is the
    simulator's to the bit; those rounds."""
    rows = history(out)
    absent = [int(row["round"]) for row in rows if row["left_out"]]
    expected = [
        (str(i), "3", "2", str(client)) if i in absent else (str(i), "3", "3", "")
        for i in range(1, rounds + 1)
    ]
    assert [
        (row["round"], row["asked"], row["answered"], row["left_out"]) for row in rows
    ] == expected
    assert same_params(
        out, trial.simulated(method, rounds, [("train", round - 1, client) for round in absent])
    )
    return absent


def _assert_tells_nothing(log: str) -> None:
    """No path of a node, and no number with a fraction: no loss, no value of a sample."""
    assert SECRET not in log
    # the path of an app ends in version and hash, which may be digits: 0.1.0.9289234f
    log = re.sub(r"^Successfully installed .*$", "", log, flags=re.MULTILINE)
    assert not re.findall(r"\d\.\d{3,}", log)
