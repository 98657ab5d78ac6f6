"""Kill commands at file operations and at random moments, start them together, and see whether what
they leave can be resumed to the bytes of a run that nobody disturbed.

Every command is a process of its own, forked from this one, which has loaded torch: so hundreds of
them fit into minutes. A process kills itself before or after its n-th file operation, or is killed
from here.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of the parent would be missing in a fork

import importlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.torture import Figure
from tests.support import processes

# calls that change a directory or make a change last
OPERATIONS = ("mkdir", "rmdir", "open", "chmod", "fsync", "replace", "unlink")
SPEC = processes.SPEC.format(rounds=4).replace("afl", "ditto")  # whose clients remember
COMMANDS = {
    "run": ("run", "s.toml"),
    "compare": ("compare", "s.toml", "--seeds", "2", "--no-reference"),
    "sweep": ("sweep", "s.toml", "-a", "qffl", "--grid", "q=0.1,1", "--seeds", "1"),
}
STARTED_TOGETHER = 4
LOADED = (
    "sklearn.datasets",
    "torch._dynamo",
    "evenhand.cli",
    "evenhand.studies.entry",
    "evenhand.studies.tables.methods",
)
PATIENCE = 120.0  # seconds; a command takes one or two


class Lost(Exception):
    """Something did not hold; the text says what."""


class Harness:
    """Commands in a directory of its own, and what they leave undisturbed."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.draw = place, random.Random(seed)
        self.number = 0
        self.kills = 0
        self.operations: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.whole: dict[str, dict[str, bytes]] = {}
        _load()
        for name in COMMANDS:
            self._undisturbed(name)

    def _undisturbed(self, name: str) -> None:
        cwd, began = self._new(), time.monotonic()
        self._expect(0, self._started(cwd, *COMMANDS[name], "-q", "--out", "out", count=True), cwd)
        self.seconds[name] = time.monotonic() - began
        self.operations[name] = int((cwd / "operations").read_text(encoding="utf-8"))
        self.whole[name] = contents(cwd / "out")

    # ---- what is tried; each raises Lost

    def killed_at_an_operation(self) -> None:
        """SIGKILL at a file operation, perhaps again while it is resumed; then resume."""
        name, cwd = self.draw.choice(list(COMMANDS)), self._new()
        at = self.draw.randint(1, self.operations[name])
        self._kill(cwd, *COMMANDS[name], "-q", "--out", "out", at=at)
        while self.draw.random() < 0.4 and (cwd / "out").exists():
            at = self.draw.randint(1, self.operations[name])
            self._kill(cwd, "resume", "out", "-q", at=at)
        self._recovers(name, cwd)

    def killed_at_a_moment(self) -> None:
        """SIGKILL after a random time; then resume."""
        name, cwd = self.draw.choice(list(COMMANDS)), self._new()
        process = self._started(cwd, *COMMANDS[name], "-q", "--out", "out")
        time.sleep(self.draw.uniform(0, self.seconds[name]))
        os.kill(process, signal.SIGKILL)
        self.kills += self._code(process) == -signal.SIGKILL
        self._recovers(name, cwd)

    def terminated(self) -> None:
        """SIGTERM after a random time: a word, no lock left; then resume."""
        name, cwd = self.draw.choice(list(COMMANDS)), self._new()
        process = self._started(cwd, *COMMANDS[name], "-q", "--out", "out")
        time.sleep(self.draw.uniform(0, self.seconds[name]))
        os.kill(process, signal.SIGTERM)
        code = self._code(process)
        if code == 143:
            said = (cwd / "log").read_text(encoding="utf-8")
            if not said.startswith("stopped") or said.count("\n") != 1:
                raise Lost(f"SIGTERM: it says {said!r}")
            left = [str(path) for path in cwd.rglob(".*")]
            if left:
                raise Lost(f"SIGTERM leaves {left}")
        elif code not in (0, -signal.SIGTERM):  # done, or not yet begun
            raise Lost(f"SIGTERM ends with {code}")
        self._recovers(name, cwd)

    def started_together(self) -> None:
        """Runs that start at the same moment have a directory each, with one seed."""
        cwd = self._new()
        begun = [
            self._started(cwd, "run", "s.toml", "--seed", str(seed), "-q", log=f"log-{seed}")
            for seed in range(STARTED_TOGETHER)
        ]
        for process in begun:
            self._expect(0, process, cwd)
        runs = sorted((cwd / "runs").iterdir())
        seeds = []
        for run in runs:
            spec = tomllib.loads((run / "spec.toml").read_text(encoding="utf-8"))
            about = json.loads((run / "about.json").read_text(encoding="utf-8"))
            if spec["seed"] != about["seed"]:
                raise Lost(f"{run.name} has the spec of one run and the notes of another")
            seeds.append(spec["seed"])
            if spec["seed"] == 0 and contents(run) != self.whole["run"]:
                raise Lost(f"{run.name}: {differing(contents(run), self.whole['run'])}")
        if sorted(seeds) != list(range(STARTED_TOGETHER)):
            raise Lost(f"directories of seeds {sorted(seeds)}")

    def resumed_twice(self) -> None:
        """Two resume an interrupted run at the same moment: one of them is refused by name."""
        name, cwd = self.draw.choice(list(COMMANDS)), self._new()
        at = self.draw.randint(self.operations[name] // 3, self.operations[name])
        self._kill(cwd, *COMMANDS[name], "-q", "--out", "out", at=at)
        begun = [
            self._started(cwd, "resume", "out", "-q", log=f"log-{number}") for number in range(2)
        ]
        for number, process in enumerate(begun):
            code, said = self._code(process), (cwd / f"log-{number}").read_text(encoding="utf-8")
            if code and "is in use by" not in said:
                raise Lost(f"one of two resumes ends with {code}: {said}")
        self._recovers(name, cwd)

    # ---- how

    def _recovers(self, name: str, cwd: Path) -> None:
        """Resume, or run again where nothing was begun; the same bytes as undisturbed."""
        again = ("resume", "out", "-q") if (cwd / "out").exists() else ()
        code = self._code(self._started(cwd, *again)) if again else 1
        if code:
            said = (cwd / "log").read_text(encoding="utf-8") if again else ""
            if again and "nothing was begun" not in said:
                raise Lost(f"resume of {name} ends with {code}: {said}")
            process = self._started(cwd, *COMMANDS[name], "-q", "--out", "out")
            self._expect(0, process, cwd)
        if contents(cwd / "out") != self.whole[name]:
            raise Lost(f"{name}: {differing(contents(cwd / 'out'), self.whole[name])}")
        shutil.rmtree(cwd)

    def _new(self) -> Path:
        self.number += 1
        cwd = self.place / str(self.number)
        cwd.mkdir()
        (cwd / "s.toml").write_text(SPEC, encoding="utf-8")
        return cwd

    def _kill(self, cwd: Path, *arguments: str, at: int) -> None:
        before = self.draw.random() < 0.5
        code = self._code(self._started(cwd, *arguments, at=at, before=before))
        if code not in (-signal.SIGKILL, 0, 1):  # 0: it had fewer operations; 1: nothing begun
            raise Lost(f"{' '.join(arguments)} ends with {code}")
        self.kills += code == -signal.SIGKILL

    def _expect(self, code: int, process: int, cwd: Path) -> None:
        found = self._code(process)
        if found != code:
            said = [log.read_text(encoding="utf-8") for log in sorted(cwd.glob("log*"))]
            raise Lost(f"exit code {found} in place of {code}: {said}")

    def _code(self, process: int) -> int:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise Lost(f"a command hung for {PATIENCE:.0f} s")

    def _started(self, cwd: Path, *arguments: str, log: str = "log", **hooks: Any) -> int:
        process = os.fork()
        if process:
            return process
        code = 70
        try:
            code = _command(cwd, arguments, log, **hooks)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _load() -> None:
    """Load, before forking, what every command would."""
    for name in LOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)


def _command(
    cwd: Path,
    arguments: Sequence[str],
    log: str,
    at: int = 0,
    before: bool = True,
    count: bool = False,
) -> int:
    """A command in this process, which has just been forked; its exit code."""
    os.chdir(cwd)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    done = [0]
    if at or count:
        for name in OPERATIONS:
            setattr(os, name, _counted(getattr(os, name), done, at, before))
    from evenhand.cli import main

    try:
        main(list(arguments), prog_name="evenhand")
    except SystemExit as end:
        if count:
            Path("operations").write_text(str(done[0]), encoding="utf-8")
        return int(end.code or 0)
    return 0


def _counted(
    real: Callable[..., Any], done: list[int], at: int, before: bool
) -> Callable[..., Any]:
    """A file operation that kills its process when it is the ``at``-th."""

    def call(*arguments: Any, **options: Any) -> Any:
        done[0] += 1
        if before and done[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if done[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, hidden ones too, but the report, which names the directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "report.html"
    }


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> str:
    """The files that differ, in words."""
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return f"{', '.join(names)} differ from an undisturbed run"


TRIED = {
    "SIGKILL at a file operation, then resumed": Harness.killed_at_an_operation,
    "SIGKILL at a random moment, then resumed": Harness.killed_at_a_moment,
    "SIGTERM at a random moment, then resumed": Harness.terminated,
    f"{STARTED_TOGETHER} runs started together": Harness.started_together,
    "2 resumes of one run at once": Harness.resumed_twice,
}


def figures(seconds: float, seed: int, most: int | None = None) -> list[Figure]:
    """Try each in turn for so many seconds, or ``most`` times each: the same bytes in the end?"""
    tried, held, notes = Counter[str](), Counter[str](), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="evenhand-kills-") as place:
        harness = Harness(Path(place), seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end if most is None else min(tried.values(), default=0) < most:
            for what, attempt in TRIED.items():
                tried[what] += 1
                try:
                    attempt(harness)
                    held[what] += 1
                except Lost as error:
                    notes.setdefault(what, f"attempt {tried[what]}: {error}")
    if not any(notes.values()):
        notes[next(iter(TRIED))] = f"{harness.kills} processes were killed in all"
    return [Figure(what, tried[what], held[what], notes.get(what, "")) for what in TRIED]
