"""What Flower's logs mean, and whose clock is off. The logs are what Flower 1.41 has written when
these things were done to real processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.flower import diagnosis
from evenhand.flower.diagnosis import clock_ahead, clock_words, explain, reason
from tests.conftest import Call

STARTS = "\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode\nINFO:     Started server process [6385]\n"
LET_IN = "INFO :      SuperNode ID: 4391259015364085567\n"
RECEIVED = """INFO :      [RUN 1721]
INFO :      Receiving: query message (ID: 692a)
INFO :      Received successfully
INFO :      Start `flwr-clientapp` process
"""
SENT = "INFO :      [RUN 1721]\nINFO :      Sending: query message (ID: 40f9)\nINFO :      Sent successfully\n"
LEAVES = "INFO :      SuperNode terminated gracefully.\nINFO:     Shutting down\n"
IGNORED = "INFO :      Run ID 1047 is not in `RUNNING` status. Ignoring message ed2d.\n"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (STARTS + LEAVES, diagnosis.CLOCK),  # its clock 7 s ahead, or 310 s behind
        (STARTS + LET_IN + RECEIVED + "working\nINFO :      Task stopped.\n", diagnosis.DEAF),
        (STARTS + LET_IN + RECEIVED + IGNORED, diagnosis.LOST),
        (
            '2026-11-16T22:05:11Z INFO [uvicorn.access] 127.0.0.1:36838 - "POST'
            ' /v1/fleet/activate-node HTTP/1.1" 401\n',
            f"a node was refused: {diagnosis.CLOCK}",
        ),
        ("finished:failed (No heartbeat received from the task)", diagnosis.HALTED),
        ("OSError: [Errno 28] No space left on device: 'runs/ours'", diagnosis.FULL),
        ("[code: 2004] Failed to activate SuperNode", diagnosis.REASONS["[code: 2004]"]),
    ],
    ids=["clock", "deaf", "lost", "refused", "halted", "full", "key"],
)
def test_what_is_known_to_go_wrong_is_told_in_one_line(log: str, words: str) -> None:
    assert explain(log) == [words]
    assert "\n" not in words


@pytest.mark.parametrize(
    "log",
    [
        "",
        STARTS + LET_IN + RECEIVED + SENT + LEAVES,  # told to end by its owner
        STARTS + LET_IN + RECEIVED,  # at work
        STARTS + LET_IN + RECEIVED + "INFO :      Task stopped.\n" + SENT,
        STARTS + LEAVES + STARTS + LET_IN + RECEIVED + SENT,  # its clock was set, and it came back
    ],
)
def test_a_log_in_which_nothing_is_wrong(log: str) -> None:
    assert explain(log) == []
    assert reason(log) == "" or STARTS + LEAVES in log


@pytest.fixture
def link() -> Iterator[tuple[str, dict[str, float]]]:
    """A server that tells a time: an address, and by how much its clock is behind ours."""
    shift = {"behind": 0.0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(404)  # as a SuperLink does
            self.send_header("Date", formatdate(time.time() - shift["behind"], usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", shift
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("behind", [0.0, 7.0, -310.0])
def test_a_clock_is_compared_with_the_superlinks(
    behind: float, link: tuple[str, dict[str, float]]
) -> None:
    address, shift = link
    shift["behind"] = behind
    assert abs(clock_ahead(address, None) - behind) < 0.8  # it tells whole seconds


@pytest.mark.parametrize(
    ("ahead", "near", "words"),
    [
        (0.4, True, "the clock agrees with the SuperLink's"),
        (3.0, True, "the clock is 3 s ahead of the SuperLink's: close enough"),
        (-200.0, True, "the clock is 200 s behind the SuperLink's: close enough"),
        (4.5, False, "the clock is 4 s ahead of the SuperLink's: its clock may be off"),
        (-310.0, False, "the clock is 310 s behind the SuperLink's: its clock may be off"),
    ],
)
def test_clocks_in_words(ahead: float, near: bool, words: str) -> None:
    found, told = clock_words(ahead)
    assert found is near
    assert told.startswith(words)


def test_the_command_says_what_to_do_and_exits_with_1(
    call: Call, tmp_path: Path, link: tuple[str, dict[str, float]]
) -> None:
    (tmp_path / "node.log").write_text(STARTS + LEAVES)
    (tmp_path / "well.log").write_text(STARTS + LET_IN)
    address, shift = link
    shift["behind"] = 60.0
    code, out, _ = call("flower", "check", "node.log", "well.log", "--superlink", address)
    assert code == 1
    assert out.splitlines() == [
        f"node.log: {diagnosis.CLOCK}",
        "well.log: no known problem",
        f"the clock is 60 s ahead of the SuperLink's: {diagnosis.CLOCK}",
    ]
    shift["behind"] = 0.0
    assert call("flower", "check", "well.log", "--superlink", address)[0] == 0


def test_the_command_needs_something_to_check(call: Call) -> None:
    code, _, err = call("flower", "check")
    assert code == 2
    assert "give a log file, --superlink HOST:PORT, or both" in err
    code, out, _ = call("flower", "check", "--superlink", "127.0.0.1:1")
    assert code == 1
    assert out == "127.0.0.1:1 does not answer: [Errno 111] Connection refused\n"
