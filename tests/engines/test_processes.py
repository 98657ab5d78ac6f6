"""Two processes give what one gives: messages, memories, checkpoints, errors and files."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

import evenhand as eh
from evenhand import files
from evenhand.engines import processes
from tests.conftest import Call
from tests.support import two_processes
from tests.support.two_processes import CASES, Outcome

ROOT = Path(__file__).parents[2]
PAIR = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SPEC = """
name = "digits"
rounds = 3
engine = "vmap"
[data]
name = "digits"
clients = 6
[model]
name = "linear"
[[methods]]
name = "fedavg"
[[methods]]
name = "ditto"
"""


def start(*program: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Two processes that talk over the loopback interface."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **loopback, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **changes}
    return subprocess.run(
        [*PAIR, *program],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """What two processes left; one pair serves all workers of a parallel test run."""
    base = tmp_path_factory.getbasetemp()
    directory = (base if worker_id == "master" else base.parent) / "two-processes"
    with FileLock(f"{directory}.lock"):
        if not directory.exists():
            directory.mkdir()
            done = start(two_processes.__file__, str(directory), cwd=directory)
            (directory / "log").write_text(done.stdout + done.stderr)
    return directory


@pytest.fixture(scope="session")
def found(out: Path) -> list[dict[str, Any]]:
    """The outcomes at each of the two processes."""
    paths = [out / f"found-{process}" for process in range(2)]
    assert all(path.exists() for path in paths), (out / "log").read_text()
    return [pickle.loads(path.read_bytes()) for path in paths]


def assert_close(a: Outcome, b: Outcome, tolerance: float = 1e-12) -> None:
    assert a["tensors"].keys() == b["tensors"].keys()
    for key, value in a["tensors"].items():
        torch.testing.assert_close(
            b["tensors"][key],
            value,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda m, key=key: f"{key}: {m}",
        )
    for name in ("history", "scores"):
        for left, right in zip(a.get(name, []), b.get(name, []), strict=True):
            assert left.keys() == right.keys()
            for key, value in left.items():
                assert right[key] == (
                    pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True)
                    if isinstance(value, float)
                    else value
                )


def assert_same(a: Outcome, b: Outcome) -> None:
    """To the bit."""
    assert a["tensors"].keys() == b["tensors"].keys()
    for key, value in a["tensors"].items():
        assert value.dtype == b["tensors"][key].dtype
        assert np.array_equal(
            value.numpy(), b["tensors"][key].numpy(), equal_nan=value.is_floating_point()
        ), key
    assert repr(a.get("history")) == repr(b.get("history"))
    assert repr(a.get("scores")) == repr(b.get("scores"))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_what_one_gives(case: str, found: list[dict[str, Any]]) -> None:
    alone = CASES[case]()
    assert_same(found[0][case], found[1][case])
    assert_close(alone, found[0][case])
    if case == "several runs":  # whole runs at each process: no sum is divided
        assert_same(alone, found[0][case])


def test_cases_are_what_they_are_called() -> None:
    history = {
        case: CASES[case]()["history"]
        for case in ("a client left out", "a client with memory left out", "all left out")
    }
    assert all(
        row["left_out"] == "1" and row["answered"] == 9 for row in history["a client left out"]
    )
    assert {row["left_out"] for row in history["a client with memory left out"]} > {""}
    assert all(row["void"] for row in history["all left out"])
    shapes = {key: value.shape for key, value in CASES["summed tables"]()["tensors"].items()}
    assert shapes["tally/confusion"][0] == 1
    assert shapes["tally/count"][0] == 10


def test_a_run_goes_on_as_if_it_had_not_stopped(found: list[dict[str, Any]]) -> None:
    for process in range(2):
        assert_same(found[process]["resumed"], found[0]["never stopped"])


def test_one_process_goes_on_with_the_checkpoint_of_two(
    out: Path, found: list[dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(out / "half", tmp_path / "half")
    resumed = two_processes.train(
        "ditto", out=tmp_path / "half", resume=True, checkpoint_every=1, engine="vmap"
    )
    assert_close(two_processes.train("ditto", engine="vmap"), resumed)


def test_the_first_process_alone_writes(out: Path, found: list[dict[str, Any]]) -> None:
    assert (out / "run-0" / "checkpoint.safetensors").exists()
    assert not (out / "run-1").exists()


@pytest.mark.parametrize(
    ("attempt", "messages"),
    [
        (
            "a client at process 1",
            ["RunError: process 1: client .*, round 1, train .reply.: no reply from here"] * 2,
        ),
        (
            "a client at process 0",
            ["RunError: process 0: client .*, round 1, train .reply.: no reply from here"] * 2,
        ),
        ("a wrong argument everywhere", ["ValueError: unknown engine 'fast'.*"] * 2),
        (
            "a wrong argument at process 1",
            ["RunError: process 1: ValueError: unknown engine 'fast'.*"] * 2,
        ),
        (
            "other models",
            ["RunError: the processes do not start from the same model and data.*manual_seed.*"]
            * 2,
        ),
        (
            "other lengths",
            [
                "RunError: the processes have lost each other: process 0 at .*; process 1 at .*same"
                " arguments"
            ]
            * 2,
        ),
        (
            "other cohorts",
            ["RunError: the processes have lost each other: process 0 at 'train, round 1.*"] * 2,
        ),
        ("progress", ["RunError: process 0: Stop: enough"] * 2),
        (
            "no place for checkpoints",
            ["RunError: process 0: cannot write .*file/below: (File exists|Not a directory)"] * 2,
        ),
    ],
)
def test_an_error_of_one_process_is_an_error_of_all(
    attempt: str, messages: list[str], found: list[dict[str, Any]]
) -> None:
    for outcomes, message in zip(found, messages, strict=True):
        assert re.fullmatch(message, outcomes["failures"][attempt])


def test_processes_work_on_after_errors(found: list[dict[str, Any]]) -> None:
    assert_same(found[0]["a last one"], found[0]["afl-loop"])


def test_torchrun_and_the_command_line_leave_the_files_of_one_process(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    done = start("-m", "evenhand", "run", "spec.toml", "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nReport: two/report.html\nTables: two/\n") == 1
    assert (tmp_path / "two" / "report.html").is_file()
    call("run", "spec.toml", "--out", "one")
    one, two = (numbers(tmp_path / run) for run in ("one", "two"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert two[name] == (
            pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True)
            if isinstance(value, float)
            else value
        ), name
    before = contents(tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "ditto")
    done = start("-m", "evenhand", "resume", "two", "--quiet", cwd=tmp_path)
    # torch 2.8 says itself that processes are connected
    said = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo] Rank")]
    assert (done.returncode, said) == (0, []), done.stderr
    assert contents(tmp_path / "two") == before


def contents(directory: Path) -> dict[str, bytes]:
    """The files below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def numbers(directory: Path) -> dict[str, Any]:
    """All values in the files below a directory, by file and place."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        content: Any = path.name
        if path.suffix == ".csv":
            content = files.read_rows(path)
        elif path.suffix == ".safetensors":
            content = {
                key: value.flatten().tolist() for key, value in files.read_tensors(path)[0].items()
            }
        elif path.suffix == ".json":
            content = json.loads(path.read_text())
        found |= dict(places(content, str(path.relative_to(directory))))
    return found


def places(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from places(value, f"{place}/{key}")
    else:
        yield place, content


@pytest.mark.parametrize("hands", [1, 2, 3, 7])
def test_clients_are_dealt_evenly(hands: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sizes = torch.from_numpy(rng.integers(1, 300, rng.integers(1, 40)))
        dealt = processes.deal(sizes, hands)
        counts = torch.bincount(dealt, minlength=hands)
        samples = torch.zeros(hands, dtype=sizes.dtype).index_add(0, dealt, sizes)
        assert len(counts) == hands
        assert counts.max() - counts.min() <= 1
        assert samples.max() - samples.min() <= sizes.max()


def test_alone_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    with processes.join():
        assert processes.is_first()
        assert not processes.several()
        assert processes.from_first(lambda: 3) == 3
    model, federation = eh.Model(two_processes.network()), two_processes.ragged()
    exchange = eh.Loop().attach(model, federation, 0)
    assert processes.split(exchange, model, federation) is exchange
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match="but each trains by itself"):
        processes.split(exchange, model, federation)
