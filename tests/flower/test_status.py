"""evenhand flower status: of runs in progress, killed, finished and damaged."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")

from evenhand.cli.operate import lines
from evenhand.flower import journal
from evenhand.flower.faults import note_fault
from evenhand.flower.status import Status, read_status
from evenhand.locks import HOLDER
from tests.conftest import Call
from tests.support.federations import METHODS, network, ragged
from tests.support.flower_nodes import Setting

SIZES = (9, 7, 12)

HOLD = """
import sys, time
from pathlib import Path
from evenhand.locks import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(100)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds, of which client 1 missed the second."""
    place = tmp_path_factory.mktemp("finished")
    setting = Setting(place, ragged(SIZES), network())
    setting.grid.spoil = lambda node, reply: (
        [] if node == 2 and reply.content["about"].get("round") == 1 else [reply]
    )
    setting.run(METHODS["fedavg"], rounds=3, deadline=0.5)
    (place / "run" / "fedavg" / "faults.jsonl").unlink(missing_ok=True)
    note_fault(place / "run" / "fedavg", 2, 1, "1", "late", "it has not answered within 0.5 s")
    note_fault(
        place / "run" / "fedavg", 2, None, "stranger", "refused", "node has no training samples"
    )
    return place / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def interrupted(run: Path, rounds: int = 5) -> Path:
    """As if the run were of more rounds, and had not come to its end."""
    (run / "fedavg" / "model.safetensors").unlink()
    text = (run / "spec.toml").read_text()
    (run / "spec.toml").write_text(text.replace("rounds = 3", f"rounds = {rounds}"))
    path = run / journal.PROGRESS
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    return run


@contextmanager
def held(run: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process at work in the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_finished_run(run: Path, call: Call) -> None:
    code, out, err = call("flower", "status", str(run))
    assert (code, err) == (0, "")
    told = out.splitlines()
    assert told[0] == f"{run}: round 3 of 3 done; finished; model and scores are written"
    assert told[1].startswith("a round takes 0.")
    assert told[2] == "stranger is not a client: node has no training samples"
    rows = [line.split() for line in told[4:] if line[:1] in ("0", "1", "2")]  # others are folded
    assert [row[:4] for row in rows] == [
        ["0", "client", "round", "3"],
        ["1", "client", "round", "3"],
        ["2", "client", "round", "3"],
    ]
    assert rows[1][4:9] == ["once", "round", "2:", "it", "has"]


def test_for_programs(run: Path, call: Call) -> None:
    code, out, _ = call("flower", "status", str(run), "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["state"], found["done"], found["rounds"]) == ("finished", 3, 3)
    assert found["clients"][1] == {
        "number": 1,
        "name": "1",
        "share": "client",
        "answered": 3,
        "left_out": 1,
        "why": "it has not answered within 0.5 s",
        "when": 2,
    }
    assert found["others"][0]["name"] == "stranger"
    assert found["problems"] == []


def test_without_reasons_the_history_says_who_was_left_out(run: Path) -> None:
    (run / "fedavg" / "faults.jsonl").unlink()
    found = read_status(run).clients
    assert [(client.left_out, client.when, client.why) for client in found] == [
        (0, None, ""),
        (1, 2, "the server's log says why"),
        (0, None, ""),
    ]


def test_times_are_means_over_the_last_rounds(run: Path) -> None:
    interrupted(run, rounds=10)
    path = run / journal.PROGRESS
    path.unlink()
    for i, seconds in enumerate((1000.0, *[2.0] * 19, 42.0), 1):
        journal.append(
            path,
            {
                "time": "2026-11-16T20:00:00.000+00:00",
                "event": "round",
                "round": i,
                "seconds": seconds,
            },
        )
    now = datetime(2026, 11, 16, 20, 5, tzinfo=UTC)
    with held(run):
        found = read_status(run, now)
    assert found.seconds == (19 * 2 + 42) / 20  # the first is beyond the last 20
    assert found.last_seconds == 42
    assert found.left_seconds == 4 * (10 - 3)
    assert found.quiet_seconds == 300
    told = lines(found)
    assert told[1] == "a round takes 4.0 s, the last took 42.0 s; about 28 s left"
    assert told[2] == "last activity 5 min ago (2026-11-16T20:00:00.000+00:00)"


def test_a_server_at_work_and_one_that_was_killed(run: Path) -> None:
    interrupted(run)
    with held(run) as process:
        found = read_status(run)
        assert (found.state, found.done, found.rounds) == ("working", 3, 5)
        assert found.server is not None
        assert (found.server.pid, found.server.runs) == (process.pid, True)
        assert f"; the server is running (process {process.pid} on " in lines(found)[0]
        process.kill()
        process.wait()
    assert (run / HOLDER).exists()  # nobody has cleared it away
    found = read_status(run)
    assert found.state == "stopped"
    assert lines(found)[0].endswith(
        "round 3 of 5 done; no server is running; start the run again with the same out to resume it"
    )


def test_a_number_that_another_process_has_now_is_no_server(run: Path) -> None:
    interrupted(run)
    with held(run):
        about = json.loads((run / HOLDER).read_text())
    (run / HOLDER).write_text(json.dumps(about | {"pid": 1}))
    (run / ".lock").touch()
    assert read_status(run).state == "stopped"


def test_a_server_on_another_machine_is_believed(run: Path) -> None:
    interrupted(run)
    (run / HOLDER).write_text(
        json.dumps({"pid": 1, "host": "elsewhere", "since": "2026-11-16 20:00:00", "command": ""})
    )
    found = read_status(run)
    assert found.server is not None
    assert found.server.runs is None
    assert found.state == "working"


def test_a_server_that_waits_and_one_that_hangs(run: Path) -> None:
    interrupted(run)
    journal.append(
        run / journal.PROGRESS,
        {"time": journal.utc(), "event": "start", "rounds": 5, "deadline": 20, "patience": 30},
    )
    with held(run):
        now = datetime.now(UTC)
        assert read_status(run, now + timedelta(seconds=45)).state == "waiting"
        hung = read_status(run, now + timedelta(seconds=55))
    assert hung.state == "stalled"
    assert "; stop that process and start the run again with the same out" in lines(hung)[0]


def test_a_run_of_an_earlier_version_has_no_times(run: Path, call: Call) -> None:
    (run / journal.PROGRESS).unlink()
    code, out, _ = call("flower", "status", str(run))
    assert code == 0
    assert "a round takes" not in out
    assert ["0", "client", "unknown"] in [line.split()[:3] for line in out.splitlines()]


def test_before_the_first_round(tmp_path: Path) -> None:
    journal.append(
        tmp_path / journal.PROGRESS,
        {"time": journal.utc(), "event": "start", "rounds": 5, "deadline": 20, "patience": 30},
    )
    with held(tmp_path):
        found = read_status(tmp_path)
    assert (found.state, found.done, found.rounds) == ("waiting", 0, 5)
    assert "round 0 of 5 done; the server is waiting for nodes" in lines(found)[0]


def test_what_is_no_run_is_told_in_one_line(tmp_path: Path, call: Call) -> None:
    code, out, err = call("flower", "status", str(tmp_path / "none"))
    assert (code, out) == (1, "")
    assert err == (
        f"evenhand: {tmp_path}/none is not a directory; give the out of a server app, such as"
        " runs/ours\n"
    )
    code, _, err = call("flower", "status", str(tmp_path))
    assert code == 1
    assert err.startswith(f"evenhand: {tmp_path} contains no run of a federation; give the out")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("roster.json", "roster.json is damaged"),
        ("spec.toml", "spec.toml is damaged"),
        ("fedavg/checkpoint.safetensors", "checkpoint.safetensors is damaged"),
        ("progress.jsonl", "progress.jsonl has 6 damaged lines, which are ignored"),
        ("fedavg/faults.jsonl", "faults.jsonl has 2 damaged lines, which are ignored"),
    ],
)
def test_a_damaged_file_is_told_in_one_line(name: str, problem: str, run: Path, call: Call) -> None:
    path = run / name
    path.write_bytes(b"\xff[" + path.read_bytes()[2:].replace(b"\n{", b"\n\xff"))
    code, out, err = call("flower", "status", str(run))
    assert (code, err) == (0, "")
    assert len([line for line in out.splitlines() if problem in line]) == 1
    assert "round 3 of" in out


def test_nothing_on_disk_makes_it_fail(run: Path) -> None:
    """Random bytes in random places of every file it reads."""
    rng = random.Random(0)
    names = ("roster.json", "spec.toml", "progress.jsonl", HOLDER)
    paths = [run / name for name in names] + [
        run / "fedavg" / name for name in ("checkpoint.safetensors", "faults.jsonl", "history.csv")
    ]
    (run / HOLDER).write_text('{"pid": 1, "host": "h", "since": "s"}')
    whole = {path: path.read_bytes() for path in paths}
    for turn in range(700):
        path = paths[turn % len(paths)]
        content = bytearray(whole[path])
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(min(len(content), 3000))
            content[place] = rng.randrange(256)
        path.write_bytes(bytes(content[: rng.choice([len(content), rng.randrange(len(content))])]))
        assert isinstance(read_status(run), Status)
        path.write_bytes(whole[path])


def test_it_takes_no_time(run: Path) -> None:
    """Neither torch nor Flower is loaded, so --watch costs next to nothing."""
    code = (
        "import sys; from pathlib import Path; from evenhand.flower.status import read_status;"
        " print(read_status(Path(sys.argv[1])).state, 'torch' in sys.modules, 'flwr' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "finished False False\n"


def test_watching_ends_when_the_run_does(run: Path) -> None:
    model = (run / "fedavg" / "model.safetensors").read_bytes()
    (run / "fedavg" / "model.safetensors").unlink()
    command = "from evenhand.cli import main; main()"
    arguments = ["flower", "status", str(run), "--json", "--watch", "--every", "0.2"]
    with subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["state"] == "stopped"
        (run / "fedavg" / "model.safetensors").write_bytes(model)
        time.sleep(0.3)
        *_, last = watching.stdout.read().splitlines()
        assert watching.wait(10) == 0
    assert json.loads(last)["state"] == "finished"
