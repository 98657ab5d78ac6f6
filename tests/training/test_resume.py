"""A run that was interrupted, at any round and in any way, ends bit for bit like one that was
not."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import evenhand as eh
from evenhand.studies.runs import executing
from evenhand.studies.runs.directories import load_spec
from evenhand.studies.specs.spec import Spec
from tests.support import federations

ROUNDS, EVERY = 8, 3
CHECKPOINT = "checkpoint.safetensors"


class Stop(Exception):
    """What interrupts a run here."""


def data(teams: bool = False, scale: float = 1.0, clients: int = 6) -> eh.Federation:
    rng = np.random.default_rng(0)
    train, test = [], []
    for i in range(clients):
        for part, rows in ((train, 5 + 2 * i), (test, 4)):
            x = rng.normal(size=(rows, 4)).astype(np.float32) * scale
            group = ["old" if r % 3 else "young" for r in range(rows)]
            row = {"x": x, "y": (x.sum(1) > 0.3 * i) * 1, "group": group, "name": f"clinic {i}"}
            part.append(row | ({"team": ["north", "south", "east"][i % 3]} if teams else {}))
    return eh.Federation.from_arrays(train, test=test)


def module(seed: int = 0, hidden: int = 5, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, 2))


SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "local": eh.LocalSGD(
        lr=0.2, epochs=1, batch_size=6, momentum=0.5, weight_decay=1e-3, decay=0.9
    ),
    "cohort": eh.Uniform(3),
    "seed": 7,
    "engine": "loop",
    "eval_every": 2,
}


def train(
    algorithm: eh.Algorithm,
    federation: eh.Federation | None = None,
    start: nn.Module | None = None,
    **changes: Any,
) -> eh.Result:
    return eh.fit(start or module(), federation or data(), algorithm, **{**SETTINGS, **changes})


def interrupted(
    at: int, out: Path, algorithm: eh.Algorithm, *arguments: Any, **changes: Any
) -> None:
    """A run that is stopped after round ``at``."""

    def progress(done: int, row: dict[str, Any]) -> None:
        if done == at:
            raise Stop

    with pytest.raises(Stop):
        train(algorithm, *arguments, out=out, checkpoint_every=EVERY, progress=progress, **changes)


def same_tensors(a: dict[str, Any], b: dict[str, Any]) -> None:
    a, b = eh.tree.flatten(a), eh.tree.flatten(b)
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].dtype == b[key].dtype, key
        assert torch.equal(a[key], b[key]), key


def same(a: eh.Result, b: eh.Result) -> None:
    """Two results agree in every bit."""
    same_tensors(a.params, b.params)
    same_tensors(a.state, b.state)
    assert (a.personal is None) == (b.personal is None)
    for mine, yours in zip(a.personal or [], b.personal or [], strict=True):
        same_tensors(mine, yours)
    # all digits, order of columns, NaN equal to NaN
    assert repr(a.history_rows) == repr(b.history_rows)
    assert repr(a.score_rows) == repr(b.score_rows)
    assert repr(a.weight_rows) == repr(b.weight_rows)


METHODS: dict[str, tuple[eh.Algorithm, bool]] = {
    "FedAvg": (eh.FedAvg(), False),
    "PropFair": (eh.PropFair(M=2.0), False),
    "QFFL": (eh.QFFL(q=2.0), False),
    "AFL": (eh.AFL(), False),
    "AFL average": (eh.Averaged(eh.AFL()), False),
    "FAFL": (eh.FAFL(alpha=0.5, lr_eta=0.05), False),
    "FAFL one alpha each": (eh.FAFL(alpha=(0.3, 0.4, 0.5, 0.6, 0.7, 1.0)), False),
    "FedMinMax": (eh.FedMinMax(), False),
    "FedMinMax average": (eh.Averaged(eh.FedMinMax(floor=0.1)), False),
    "GIFAIR Global": (eh.GIFAIR(), False),
    "GIFAIR Per": (eh.GIFAIR(personal=True), False),
    "GIFAIR Global teams": (eh.GIFAIR(), True),
    "GIFAIR Per teams": (eh.GIFAIR(personal=True), True),
    "Ditto": (eh.Ditto(), False),
}
METHODS |= {
    name: (algorithm, True)
    for name, algorithm in federations.METHODS.items()
    if type(algorithm) not in {type(listed) for listed, _ in METHODS.values()} or "_" in name
}
COHORTS = [
    eh.Uniform(3),
    eh.Proportional(3),
    eh.Uniform(2, unbiased=True),
    eh.Proportional(3, replacement=False),
]


def test_every_method_is_among_those_resumed_here() -> None:
    # private runs have a secret to resume with: tests/privacy/test_runs.py
    here = {eh.Private, *(type(algorithm) for algorithm, _ in METHODS.values())}
    assert here == set(eh.ALGORITHMS.values())


@pytest.mark.parametrize(
    ("cohort", "at"),
    [(COHORTS[0], 7), (COHORTS[1], 3)],
    ids=["after a checkpoint", "at a checkpoint"],
)
@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(
    name: str, cohort: eh.Cohort, at: int, tmp_path: Path
) -> None:
    algorithm, teams = METHODS[name]
    federation = data(teams)
    whole = train(algorithm, federation, cohort=cohort)
    interrupted(at, tmp_path, algorithm, federation, cohort=cohort)
    resumed = train(
        algorithm,
        federation,
        cohort=cohort,
        out=tmp_path,
        checkpoint_every=EVERY,
        resume=True,
    )
    same(resumed, whole)


@pytest.mark.parametrize("cohort", [*COHORTS[2:], eh.Full()], ids=repr)
@pytest.mark.parametrize("engine", ["loop", "vmap", eh.Vmap(chunk=2)], ids=repr)
def test_other_cohorts_and_engines_resume_bit_for_bit_as_well(
    engine: Any, cohort: eh.Cohort, tmp_path: Path
) -> None:
    start, algorithm = module(dropout=0.3), eh.Ditto(lam=0.3)
    whole = train(algorithm, None, start, cohort=cohort, engine=engine)
    interrupted(5, tmp_path, algorithm, None, start, cohort=cohort, engine=engine)
    same(
        train(
            algorithm,
            None,
            start,
            cohort=cohort,
            engine=engine,
            out=tmp_path,
            checkpoint_every=EVERY,
            resume=True,
        ),
        whole,
    )


def test_a_stacked_module_with_dropout_resumes_bit_for_bit_though_its_steps_are_traced_at_another_time(
    tmp_path: Path,
) -> None:
    start = module(dropout=0.3)
    changes = {
        "cohort": eh.Full(),
        "engine": "vmap",
        "local": eh.LocalSGD(lr=0.2, steps=30, batch_size=4),
    }
    whole = train(eh.FedAvg(), None, start, **changes)
    interrupted(5, tmp_path, eh.FedAvg(), None, start, **changes)
    same(
        train(
            eh.FedAvg(), None, start, out=tmp_path, checkpoint_every=EVERY, resume=True, **changes
        ),
        whole,
    )


def test_a_run_interrupted_again_and_again_ends_the_same(tmp_path: Path) -> None:
    whole = train(eh.Ditto())
    for at in (4, 5, 7):
        interrupted(at, tmp_path, eh.Ditto(), resume=True)
    rounds: list[int] = []
    resumed = train(
        eh.Ditto(),
        out=tmp_path,
        resume=True,
        checkpoint_every=EVERY,
        progress=lambda done, row: rounds.append(done),
    )
    same(resumed, whole)
    assert rounds == [7, 8]


def test_a_client_left_out_before_the_interruption_is_still_in_the_history(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "x": (
                np.full((4, 4), 1e30, np.float32)
                if bad
                else rng.normal(size=(4, 4)).astype(np.float32)
            ),
            "y": [0, 1, 0, 1],
        }
        for bad in (0, 1, 0)
    ]
    tests = [{"x": np.ones((1, 4), np.float32), "y": [0]} for _ in rows]
    federation = eh.Federation.from_arrays(rows, test=tests)
    changes = {"cohort": eh.Uniform(1), "local": eh.LocalSGD(lr=0.5, steps=3)}
    start = nn.Linear(4, 2)
    whole = train(eh.AFL(), federation, start, **changes)
    assert {row["void"] for row in whole.history_rows} == {True, False}
    interrupted(7, tmp_path, eh.AFL(), federation, start, **changes)
    same(
        train(
            eh.AFL(),
            federation,
            start,
            out=tmp_path,
            checkpoint_every=EVERY,
            resume=True,
            **changes,
        ),
        whole,
    )


def test_resuming_a_finished_run_trains_no_further_and_gives_the_same(tmp_path: Path) -> None:
    rounds: list[int] = []
    whole = train(eh.Ditto(), out=tmp_path)
    again = train(
        eh.Ditto(), out=tmp_path, resume=True, progress=lambda done, row: rounds.append(done)
    )
    same(again, whole)
    assert not rounds


def test_parameters_come_back_in_their_order_since_sums_over_them_depend_on_it(
    tmp_path: Path,
) -> None:
    order = [name for name, _ in module().named_parameters()]
    assert list(train(eh.Ditto(), out=tmp_path).state["model"]) == order
    assert list(train(eh.Ditto(), out=tmp_path, resume=True).state["model"]) == order


def test_resume_without_a_checkpoint_starts_at_the_first_round(tmp_path: Path) -> None:
    rounds: list[int] = []
    same(
        train(
            eh.FedAvg(),
            out=tmp_path / "new",
            resume=True,
            progress=lambda done, row: rounds.append(done),
        ),
        train(eh.FedAvg()),
    )
    assert rounds == list(range(1, ROUNDS + 1))


def test_without_resume_an_earlier_runs_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    interrupted(7, tmp_path, eh.QFFL(q=5.0))
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(
        eh.RunError,
        match=(
            "holds the checkpoint of an earlier run; resume it with resume=True, or use another"
        ),
    ):
        train(eh.FedAvg(), out=tmp_path)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_checkpoints_come_every_n_rounds_and_after_the_last(tmp_path: Path) -> None:
    saved: list[int] = []

    def progress(done: int, row: dict[str, Any]) -> None:
        if (tmp_path / CHECKPOINT).exists():
            with safe_open(tmp_path / CHECKPOINT, framework="pt") as file:
                saved.append(json.loads(file.metadata()["evenhand"])["rounds"])
        else:
            saved.append(0)

    train(eh.FedAvg(), out=tmp_path, checkpoint_every=EVERY, progress=progress)
    assert saved == [0, 0, 3, 3, 3, 6, 6, 8]


# ---- more rounds


@pytest.mark.parametrize("method", [eh.Ditto(), eh.AFL(), eh.Averaged(eh.FedAvg())], ids=str)
def test_a_finished_run_goes_on_with_more_rounds_as_if_it_had_been_asked_for_them(
    method: eh.Algorithm, tmp_path: Path
) -> None:
    whole = train(method, rounds=ROUNDS + 3)
    train(method, out=tmp_path)
    rounds: list[int] = []
    longer = train(
        method,
        out=tmp_path,
        rounds=ROUNDS + 3,
        resume=True,
        progress=lambda done, row: rounds.append(done),
    )
    assert rounds == [ROUNDS + 1, ROUNDS + 2, ROUNDS + 3]
    for found, expected in (
        (longer.params, whole.params),
        (eh.tree.flatten(longer.state), eh.tree.flatten(whole.state)),
    ):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert tomllib.loads((tmp_path / "spec.toml").read_text())["rounds"] == ROUNDS + 3
    assert eh.load(tmp_path) is not None
    with pytest.raises(eh.RunError, match="other settings or data; use another directory"):
        train(method, out=tmp_path, rounds=ROUNDS, resume=True)


# ---- another run's directory


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, 0] - target) ** 2


OTHERS: dict[str, dict[str, Any]] = {
    "another method": {"algorithm": eh.QFFL()},
    "another hyper-parameter": {"algorithm": eh.Ditto(lam=0.7)},
    "another step size": {"local": eh.LocalSGD(lr=0.1)},
    "another cohort": {"cohort": eh.Uniform(4)},
    "other rounds": {"rounds": 9},
    "another seed": {"seed": 8},
    "other weights": {"weights": "uniform"},
    "other evaluations": {"eval_every": 3},
    "another loss": {"loss": "brier"},
    "a loss of one's own": {"loss": squared},
    "another module": {"start": module(hidden=6)},
    "other initial parameters": {"start": module(seed=1)},
    "fewer clients": {"federation": data(clients=5)},
    "more clients and other data": {"federation": data(clients=7, scale=2.0)},
    "other data of the same size": {"federation": data(scale=2.0)},
    "teams": {"federation": data(teams=True)},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_of_a_run_with_other_settings_is_refused(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    interrupted(4, tmp_path, eh.Ditto())
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(
        eh.RunError, match=r"other settings or data; use another directory"
    ) as caught:
        train(
            **{
                "algorithm": eh.Ditto(),
                "out": tmp_path,
                "resume": True,
                "checkpoint_every": EVERY,
                **changes,
            }
        )
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


# ---- damage and crashes


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in the header": lambda content: content[:20],
    "cut in the numbers": lambda content: content[:-40],
    "cut by one byte": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"not a checkpoint\n" * 20,
    "longer": lambda content: content + b"\0" * 16,
    "without its history": lambda content: content.replace(b'\\"history\\"', b'\\"mystery\\"'),
    "one bit of one number": lambda content: (
        content[:-3] + bytes([content[-3] ^ 64]) + content[-2:]
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_the_file_is_named(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    interrupted(4, tmp_path, eh.Ditto())
    content = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(damage(content))
    assert (tmp_path / CHECKPOINT).read_bytes() != content
    with pytest.raises(eh.RunError) as caught:
        train(eh.Ditto(), out=tmp_path, resume=True, checkpoint_every=EVERY)
    assert str(tmp_path / CHECKPOINT) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fault", [OSError("no space left on device"), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_crash_while_a_checkpoint_is_written_leaves_the_earlier_one_whole(
    function: str, fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier: list[bytes] = []
    real = getattr(os, function)

    def crash(*arguments: Any) -> Any:
        # of the file that will become the checkpoint, not of the history's or the directory
        if function == "fsync":
            crashes = any(
                os.path.samestat(os.fstat(arguments[0]), path.stat())
                for path in tmp_path.glob(f".{CHECKPOINT}*")
            )
        else:
            crashes = Path(arguments[1]).name == CHECKPOINT
        if crashes:
            raise fault
        return real(*arguments)

    def progress(done: int, row: dict[str, Any]) -> None:
        if done == 5:
            earlier.append((tmp_path / CHECKPOINT).read_bytes())
            monkeypatch.setattr(os, function, crash)

    with pytest.raises(type(fault)):
        train(eh.Ditto(), out=tmp_path, checkpoint_every=EVERY, progress=progress)
    monkeypatch.undo()
    assert (tmp_path / CHECKPOINT).read_bytes() == earlier[0]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "manifest.json") == [
        "about.json",
        CHECKPOINT,
        "history.csv",
    ]
    same(train(eh.Ditto(), out=tmp_path, checkpoint_every=EVERY, resume=True), train(eh.Ditto()))


def test_a_checkpoint_reaches_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noting_fsync(descriptor: int) -> None:
        calls.append(
            "fsync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file"
        )
        fsync(descriptor)

    def noting_replace(source: Any, target: Any) -> None:
        assert Path(source).parent == Path(target).parent  # a rename within one file system
        calls.append(f"replace {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    train(eh.FedAvg(), out=tmp_path, rounds=1)
    at = calls.index(f"replace {CHECKPOINT}")
    assert calls[at - 1] == "fsync file"
    assert calls[at + 1] == "fsync directory"


# ---- a whole run directory

SPEC = """
name = "kill"
rounds = 40
seed = 3
checkpoint_every = 7

[data]
name = "digits"
clients = 6

[model]
name = "linear"

[local]
lr = 0.3
steps = 2
batch_size = 16

[cohort]
name = "uniform"
k = 3

[[methods]]
name = "fedavg"

[[methods]]
name = "ditto"

[[methods]]
name = "gifair"
personal = true
"""


def silent(method: Any) -> Callable[[int, dict[str, Any]], None]:
    return lambda done, row: None


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a run but the note on versions and machine, and the manifest that lists it."""
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    return {
        name: content
        for name, content in found.items()
        if name not in ("about.json", "manifest.json")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of SPEC."""
    directory = tmp_path_factory.mktemp("whole")
    executing.execute(executing.check(Spec.from_toml(SPEC, "SPEC")), directory, silent)
    return directory


def test_a_run_killed_in_its_second_method_resumes_to_the_same_files_byte_for_byte(
    whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    command = [sys.executable, "-m", "evenhand"]
    process = subprocess.Popen([*command, "run", "spec.toml", "--out", "run", "-q"], cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "ditto" / CHECKPOINT).exists():
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(os.getpid() % 10 / 200)  # not always at the same place
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert (tmp_path / "run" / "fedavg" / "scores.csv").exists()
    assert not (tmp_path / "run" / "gifair" / "scores.csv").exists()
    done = subprocess.run(
        [*command, "resume", "run", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = contents(tmp_path / "run")
    assert {
        name: content for name, content in found.items() if name in contents(whole)
    } == contents(whole)
    assert "comparison.csv" in found


def test_a_run_stopped_in_every_method_ends_with_the_same_files(
    whole: Path, tmp_path: Path
) -> None:
    def stop_at(label: str, at: int) -> Callable[[Any], Callable[[int, dict[str, Any]], None]]:
        def watch(method: Any) -> Callable[[int, dict[str, Any]], None]:
            def progress(done: int, row: dict[str, Any]) -> None:
                if method.label == label and done == at:
                    raise Stop

            return progress

        return watch

    spec = Spec.from_toml(SPEC, "SPEC")
    for label, at in (("fedavg", 3), ("fedavg", 40), ("ditto", 20), ("gifair", 39)):
        with pytest.raises(Stop):
            executing.execute(executing.check(spec), tmp_path, stop_at(label, at))
    executing.execute(executing.check(load_spec(tmp_path)), tmp_path, silent)
    assert contents(tmp_path) == contents(whole)


def test_what_a_killed_process_leaves_half_done_is_cleared_away_on_resume(
    whole: Path, tmp_path: Path
) -> None:
    for name, content in contents(whole).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "ditto" / "scores.csv").unlink()
    # killed before the rename
    (tmp_path / "ditto" / f".{CHECKPOINT}.q1w2e3r4").write_bytes(b"part of a checkpoint")
    # killed after the scores, before the checkpoint was removed
    (tmp_path / "gifair" / CHECKPOINT).write_bytes(b"a checkpoint")
    executing.execute(executing.check(load_spec(tmp_path)), tmp_path, silent)
    assert sorted(contents(tmp_path)) == sorted(contents(whole))


def test_results_of_a_spec_that_was_changed_since_are_not_passed_off_as_its_own(
    tmp_path: Path,
) -> None:
    short = SPEC.replace("rounds = 40", "rounds = 2")
    executing.execute(executing.check(Spec.from_toml(short, "SPEC")), tmp_path, silent)
    text = (tmp_path / "spec.toml").read_text()
    assert "rounds = 2" in text
    (tmp_path / "spec.toml").write_text(text.replace("rounds = 2", "rounds = 4"))
    with pytest.raises(eh.RunError, match="other settings"):
        executing.execute(executing.check(load_spec(tmp_path)), tmp_path, silent)
