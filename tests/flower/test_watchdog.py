"""A node's process gives way, in real processes: on SIGTERM, when its task expires, and when an
older one hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.flower import client_app, watchdog
from evenhand.flower.watchdog import Stopped, giving_up, leftovers, watched
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import Setting

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc")

STUCK = """
import time
from evenhand.flower.watchdog import Stopped, giving_up
with giving_up(0.3, grace=0.3):
    while True:
        try:
            time.sleep(10)
        except Stopped:  # code that swallows everything
            pass
"""


def test_a_process_that_is_told_to_end_gives_a_reason_and_lives_on() -> None:
    before = signal.getsignal(signal.SIGTERM)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Stopped, match=r"^its process got SIGTERM$"), giving_up(60):
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is before


def test_work_stops_when_nobody_waits_for_it_any_more() -> None:
    start = time.monotonic()
    with (
        pytest.raises(Stopped, match=r"^its task has expired after 0\.3 s; raise the deadline"),
        giving_up(0.3),
    ):
        time.sleep(5)
    assert time.monotonic() - start < 2


def test_work_in_time_is_left_alone() -> None:
    with giving_up(0.2):
        pass
    time.sleep(0.4)  # no signal comes later


def test_a_process_that_does_not_give_way_is_ended() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "a task expired after 0.3 s and does not stop; its process is killed" in done.stderr


def test_processes_that_are_not_for_one_message_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with watched(0.01):  # a server in whose process clients are simulated
        assert signal.getsignal(signal.SIGTERM) is before
        time.sleep(0.05)


@needs_proc
def test_older_processes_for_messages_of_the_same_node_are_told_to_end(tmp_path: Path) -> None:
    script = tmp_path / watchdog.COMMAND
    script.write_text("import time; time.sleep(60)")
    other = tmp_path / "something-else"
    other.write_text("import time; time.sleep(60)")
    places = [  # in this order
        (script, "127.0.0.1:9094"),
        (other, "127.0.0.1:9094"),
        (script, "127.0.0.1:9095"),  # of another node
        (script, "127.0.0.1:9094"),
        (script, "127.0.0.1:9094"),
    ]
    started = []
    try:
        for path, address in places:
            command = [sys.executable, str(path), "--runtime-api-address", address]
            started.append(subprocess.Popen(command))
            time.sleep(0.05)
        time.sleep(0.2)
        assert leftovers(started[3].pid) == [started[0].pid]
        assert leftovers(started[0].pid) == []
        assert leftovers(os.getpid()) == []  # which is not for a message
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_the_server_hears_why_also_where_the_owners_function_was_at_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def load(config: dict[str, object]) -> dict[str, object]:
        raise Stopped("its process got SIGTERM")

    setting = Setting(tmp_path, ragged((9, 7)), network())
    setting.grid.app = client_app(network(), load)
    with pytest.raises(TimeoutError):
        setting.run(METHODS["fedavg"], rounds=1, patience=0.5)
    assert "cannot take part: its process got SIGTERM" in caplog.text
