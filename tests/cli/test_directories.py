"""Run directories are made by one process, held by one process, and say how to go on."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from torch import nn

import evenhand as eh
from evenhand.cli.terminal import Begun, stopping_cleanly
from evenhand.files import clear_partial, read_tensors, write_atomic
from evenhand.locks import Held, hold
from evenhand.training.provenance import ElsewhereWarning
from tests.support.commands import results
from tests.support.processes import SPEC, finish, start, wait_for

Call = Callable[..., tuple[int, str, str]]
QUICK, LONG = SPEC.format(rounds=2), SPEC.format(rounds=100_000)


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(QUICK)
    Path("long.toml").write_text(LONG)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def hidden(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob(".*"))


# ---- one process in a directory


@pytest.mark.slow  # benchmarks/torture/kills.py does the same, as one of its tests
def test_runs_started_at_the_same_moment_have_a_directory_each(tmp_path: Path) -> None:
    started = [start("run", "s.toml", "--seed", str(s), "-q", cwd=tmp_path) for s in range(4)]
    assert [finish(process) for process in started] == [(0, "", "")] * 4
    runs = sorted(tmp_path.glob("runs/*"))
    assert [run.name for run in runs] == ["small", "small-2", "small-3", "small-4"]
    seeds = []
    for run in runs:
        spec = tomllib.loads((run / "spec.toml").read_text())
        assert json.loads((run / "about.json").read_text())["seed"] == spec["seed"]
        assert (run / "afl" / "scores.csv").exists()
        assert not hidden(run)
        seeds.append(spec["seed"])
    assert sorted(seeds) == [0, 1, 2, 3]


def test_a_second_process_is_refused_by_name_until_the_first_has_stopped(
    call: Call, tmp_path: Path
) -> None:
    first = start("compare", "long.toml", "--seeds", "2", "--out", "one", "-q", cwd=tmp_path)
    try:
        wait_for(first, lambda: bool(list(tmp_path.glob("one/seed-0/*/checkpoint.safetensors"))))
        for command, place in (
            (("resume", "one"), "one"),
            (("run", "s.toml", "--out", "one"), "one"),
            (("resume", "one/seed-0"), "one/seed-0"),  # the run of a seed, by itself
        ):
            code, out, err = call(*command)
            assert (code, out) == (1, "")
            assert re.fullmatch(
                rf"evenhand: {place} is in use by process {first.pid} on .* since 20.* \(.*compare"
                r" long\.toml.*\); wait for it, or stop it\n",
                err,
            ), err
        first.send_signal(signal.SIGTERM)
        stopped = (143, "", "stopped; continue with: evenhand resume one\n")
        assert finish(first) == stopped
    finally:
        first.kill()
    assert not hidden(tmp_path)
    code, _, err = call("run", "s.toml", "--out", "one")
    assert code == 1
    assert err.startswith("evenhand: one is not empty; give another --out, or continue it with: ")


def test_a_comparison_from_python_and_fit_hold_their_directories(tmp_path: Path) -> None:
    import evenhand as eh

    fed, module = eh.datasets.digits(clients=3, seed=0), network()
    with hold(tmp_path / "held"):
        for work in (
            partial(eh.fit, module, fed, eh.FedAvg(), out="held", rounds=1),
            partial(eh.fit_many, module, fed, [eh.Run(eh.FedAvg(), out="held")], rounds=1),
            partial(eh.compare, module, fed, "fedavg", out="held", rounds=1, seeds=1),
            partial(eh.compare, module, fed, "fedavg", out="held", resume=True, rounds=1, seeds=1),
            eh.fit(module, fed, eh.FedAvg(), rounds=1).save,
        ):
            with pytest.raises(Held, match=rf"held is in use by process {os.getpid()} on"):
                work(*(["held"] if getattr(work, "__name__", "") == "save" else []))
    assert not hidden(tmp_path)
    eh.fit(module, fed, eh.FedAvg(), out="held", rounds=1)
    assert not hidden(tmp_path)
    with pytest.raises(ValueError, match="rounds"):
        eh.fit(module, fed, eh.FedAvg(), out="wrong", rounds=0)
    assert not (tmp_path / "wrong").exists()


# ---- killed during the first write


def test_a_directory_with_nothing_but_a_half_written_spec_is_begun_anew(
    call: Call, tmp_path: Path
) -> None:
    begun = tmp_path / "my run"
    begun.mkdir()
    for left in ("nothing", ".spec.toml.ab12_cd3", ".lock", ".lock.json"):
        if left != "nothing":
            (begun / left).write_text("half")
        code, out, err = call("resume", "my run")
        assert (code, out) == (1, "")
        assert err == (
            "evenhand: my run holds no run: nothing was started in it; run the command again with"
            " --out 'my run'\n"
        )
    assert call("run", "s.toml", "--out", "my run", "-q") == (0, "", "")
    assert not hidden(begun)
    assert call("run", "s.toml", "--out", "whole", "-q") == (0, "", "")
    assert results(begun) == results(tmp_path / "whole")


def test_half_written_tables_are_removed_by_resume_and_files_of_others_stay(
    call: Call, tmp_path: Path
) -> None:
    assert call("run", "s.toml", "--out", "one", "-q")[0] == 0
    before = results(tmp_path / "one")
    for left in (".comparison.csv.ab12_cd3", "afl/.scores.csv.q1w2e3r4", ".about.json.zzzzzzzz"):
        (tmp_path / "one" / left).write_text("half")
    others = [".notes", ".settings.personal", ".comparison.csv.bak", "comparison.csv.q1w2e3r4"]
    for mine in others:
        (tmp_path / "one" / mine).write_text("mine")
    assert call("resume", "one", "-q")[0] == 0
    after = results(tmp_path / "one")
    assert {name: after.pop(name) for name in others} == dict.fromkeys(others, b"mine")
    assert after == before


def test_the_next_write_of_a_file_removes_what_a_killed_one_left_of_it(tmp_path: Path) -> None:
    for left in (".table.csv.ab12_cd3", ".table.csv.bak", ".other.csv.ab12_cd3"):
        (tmp_path / left).write_text("half")
    write_atomic(tmp_path / "table.csv", b"whole")
    assert hidden(tmp_path) == [".other.csv.ab12_cd3", ".table.csv.bak"]


WRITER = """
import os, sys
from pathlib import Path
from evenhand.files import write_atomic
real = os.replace
def halted(*names):
    print("written", flush=True)
    sys.stdin.readline()
    real(*names)
os.replace = halted
write_atomic(Path("table.csv"), b"theirs")
"""


def test_what_a_live_process_is_writing_is_not_removed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "written\n"
        (left,) = hidden(tmp_path)
        clear_partial(tmp_path)
        write_atomic(tmp_path / "table.csv", b"ours")
        assert hidden(tmp_path) == [left]
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.wait() == 0
    assert (tmp_path / "table.csv").read_bytes() == b"theirs"
    assert not hidden(tmp_path)


# ---- signals


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_a_run_like_ctrl_c_with_a_word_and_a_lock_given_back(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    process = start("run", "long.toml", "--out", "my run", "-q", cwd=tmp_path)
    try:
        wait_for(process, (tmp_path / "my run/fedavg/checkpoint.safetensors").exists)
        process.send_signal(number)
        process.send_signal(number)  # shell and terminal may both send it
        assert finish(process) == (
            code,
            "",
            "stopped; continue with: evenhand resume 'my run'\n",
        )
    finally:
        process.kill()
    assert not hidden(tmp_path)
    read_tensors(tmp_path / "my run/fedavg/checkpoint.safetensors")


@pytest.mark.slow
def test_nohup_stays_in_force(tmp_path: Path) -> None:
    process = start(
        "run", "long.toml", "--out", "one", "-q", cwd=tmp_path,
        preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    try:
        checkpoint = tmp_path / "one/fedavg/checkpoint.safetensors"
        wait_for(process, checkpoint.exists)
        process.send_signal(signal.SIGHUP)
        before = checkpoint.stat().st_mtime_ns
        wait_for(process, lambda: checkpoint.stat().st_mtime_ns > before)  # it goes on
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_command_with_one_line_and_its_handler_is_put_back(
    number: signal.Signals, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.toml").write_text("")
    with pytest.raises(SystemExit) as done:
        _get(number, tmp_path)
    assert done.value.code == code
    said = capsys.readouterr()
    resume = f"evenhand resume {shlex.quote(str(tmp_path))}"
    assert (said.out, said.err) == ("", f"stopped; continue with: {resume}\n")
    assert signal.getsignal(number) is signal.SIG_DFL
    assert not hidden(tmp_path)


def _get(number: signal.Signals, directory: Path) -> None:
    """Get a signal in the middle of a command, twice, as shell and terminal may send it."""
    with stopping_cleanly(quiet=True) as begun, hold(directory):
        begun.directory = directory
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), number)


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_cleanly():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_only_what_has_begun_can_be_continued(tmp_path: Path) -> None:
    begun = Begun(tmp_path)
    assert begun.resume == ""
    (tmp_path / "spec.toml").write_text("")
    assert begun.resume == f"continue with: evenhand resume {shlex.quote(str(tmp_path))}"


# ---- no room


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of 100 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_names_the_file_and_how_to_go_on_and_then_it_goes_on(
    tiny: Path, call: Call, tmp_path: Path
) -> None:
    (tiny / "ballast").write_bytes(bytes(60_000))
    code, out, err = finish(start("run", "s.toml", "--out", "disk/one", "-q", cwd=tmp_path))
    assert (code, out) == (1, "")
    said = (
        r"evenhand: cannot write disk/one/(fedavg/|afl/)?[\w.]+: No space left on device; make"
        r" room; then continue with: evenhand resume disk/one\n"
    )
    assert re.fullmatch(said, err), err
    assert not hidden(tiny)
    (tiny / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=10m", str(tiny)], check=True)
    assert call("resume", "disk/one", "-q") == (0, "", "")
    assert call("run", "s.toml", "--out", "whole", "-q") == (0, "", "")
    assert results(tiny / "one") == results(tmp_path / "whole")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    code, out, err = call("resume", "disk/one", "-q")
    assert (code, out) == (1, "")
    assert err == "evenhand: cannot write disk/one: Read-only file system; make it writable\n"


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_is_named_with_the_file(tmp_path: Path) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2_000, 2_000))
    code, out, err = finish(
        start("run", "s.toml", "--out", "one", "-q", cwd=tmp_path, preexec_fn=limit)
    )
    assert (code, out) == (1, "")
    assert re.fullmatch(
        r"evenhand: cannot write one/[\w./]+: File too large; make room; then continue with:"
        r" evenhand resume one\n",
        err,
    ), err


# ---- provenance


@pytest.mark.filterwarnings("always")
def test_what_a_run_was_begun_with_stays_and_another_machine_is_noted_with_a_warning(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("run", "s.toml", "--out", "one", "-q")[0] == 0
    path = tmp_path / "one" / "about.json"
    begun = path.read_bytes()
    assert json.loads(begun)["engine"] == "vmap"
    here = platform.platform()
    monkeypatch.setattr(platform, "platform", lambda: "another machine")
    code, _, err = call("resume", "one")  # it is finished: nothing is computed elsewhere
    assert (code, err) == (0, "")
    assert path.read_bytes() == begun
    (tmp_path / "one/afl/scores.csv").unlink()
    code, _, err = call("resume", "one")
    assert code == 0
    assert err == (
        f"warning: one is resumed with machine another machine (before: {here}); its last digits may"
        " differ from those of an uninterrupted run\n"
    )
    about, known = json.loads(path.read_text()), json.loads(begun)
    (elsewhere,) = about.pop("resumed")
    assert about == known
    kept = {key: known[key] for key in ("device", "engine", "versions")}
    assert elsewhere == kept | {"machine": "another machine"}
    (tmp_path / "one/afl/scores.csv").unlink()  # once more there: known by now
    now = path.read_bytes()
    assert call("resume", "one")[::2] == (0, "")
    assert path.read_bytes() == now


def test_the_engine_that_auto_chose_at_the_first_start_is_taken_again(
    call: Call, tmp_path: Path
) -> None:
    for command in (("run",), ("compare", "--seeds", "2", "--no-reference")):
        name = command[0]
        assert call(*command, "s.toml", "--out", name, "-q")[0] == 0
        for run in [tmp_path / name, *tmp_path.glob(f"{name}/seed-*")]:
            if not (path := run / "about.json").exists():
                continue
            about = json.loads(path.read_text())
            path.write_text(json.dumps({**about, "engine": "loop"}))
            (run / "manifest.json").unlink()  # which would tell that it was changed
            (run / "afl" / "scores.csv").unlink()
        loop = ("--engine", "loop")
        assert call(*command, "s.toml", *loop, "--out", f"{name}-loop", "-q")[0] == 0
        assert call("resume", name, "-q") == (0, "", "")
        found = sorted((tmp_path / name).rglob("afl/model.safetensors"))
        assert len(found) == (1 if name == "run" else 2)
        for model in found:
            assert (
                model.read_bytes()
                == (tmp_path / f"{name}-loop" / model.relative_to(tmp_path / name)).read_bytes()
            )
            about = json.loads((model.parents[1] / "about.json").read_text())
            assert about["engine"] == "loop"
            assert "resumed" not in about  # which would name another engine


def test_a_run_of_fit_keeps_where_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, module = eh.datasets.digits(clients=3, seed=0), network()

    def stop(done: int, row: object) -> None:
        raise KeyboardInterrupt

    fit = partial(
        eh.fit, module, fed, eh.FedAvg(), out="one", rounds=2, checkpoint_every=1, resume=True
    )
    with pytest.raises(KeyboardInterrupt):
        fit(progress=stop)
    begun = json.loads((tmp_path / "one/about.json").read_text())
    assert begun.keys() == {"device", "engine", "machine", "versions"}
    here = platform.platform
    monkeypatch.setattr(platform, "platform", lambda: "another machine")
    with pytest.warns(UserWarning, match=r"one is resumed with machine another machine \(before: "):
        fit()
    about = json.loads((tmp_path / "one/about.json").read_text())
    assert begun.items() <= about.items()
    assert [place["machine"] for place in about["resumed"]] == ["another machine"]
    monkeypatch.setattr(platform, "platform", here)
    before = (tmp_path / "one/about.json").read_bytes()
    fit()
    assert (tmp_path / "one/about.json").read_bytes() == before


def test_tuning_that_goes_on_elsewhere_says_so_though_its_other_warnings_are_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    compare = partial(
        eh.compare, Path("s.toml"), methods="fedavg", references=(), seeds=1, out="one",
        tune={"rule": "mean", "grid": {"local.lr": [0.1, 0.3]}},
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        compare(progress=stop)
    monkeypatch.setattr(platform, "platform", lambda: "another machine")
    with pytest.warns(
        ElsewhereWarning, match=r"^one/tuning/seed-0 is resumed with machine another"
    ):
        compare(resume=True)
