"""Fuzzing: every input gives a result or an error of one line, in time and within memory.

``python -m benchmarks.torture fuzz --seconds 1800`` for figures, ``python -m
benchmarks.torture.fuzz TARGET CASE --seed SEED`` for one case again.

Executions run in a forked process with a limit on memory and an alarm. A case is a function of
(target, seed, number), so that each can be repeated.
"""

from __future__ import annotations

import contextlib
import io
import logging
import mmap
import multiprocessing
import os
import random
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch

from benchmarks.torture import Figure
from benchmarks.torture.fuzz_targets import TARGETS, saved_run
from evenhand.errors import is_expected

PATIENCE = 10  # seconds of CPU time that an execution may take, whatever else the machine does
DEAF = 120  # seconds by the clock after which a process that does nothing is ended
MEMORY = 2 << 30  # bytes that it may take beyond the start
BATCH = 20_000  # executions of a process: what they leave behind does not pile up


class Hang(BaseException):
    """An execution took too long."""


class Failure(NamedTuple):
    """What did not hold."""

    case: int
    why: str


def figures(seconds: float, seed: int) -> list[Figure]:
    """As many executions as fit into ``seconds``, by target."""
    found = []
    with tempfile.TemporaryDirectory(dir=_memory_disk()) as place:
        for name, target in TARGETS.items():
            tried, failures = fuzz(name, target.share * seconds, seed, Path(place))
            note = "; ".join(f"case {one.case}: {one.why}" for one in failures[:3])
            found.append(Figure(target.what, tried, tried - len(failures), note))
    tried, held = (sum(getattr(one, key) for one in found) for key in ("tried", "held"))
    return [*found, Figure("all", tried, held)]


def fuzz(
    name: str, seconds: float, seed: int, place: Path, most: int = 1 << 40
) -> tuple[int, list[Failure]]:
    """Executions of one target, and those that failed; ``most`` of them at most."""
    torch.set_num_threads(1)
    if name == "saved":
        with _quiet():
            saved_run(place)
    ends, start, failures = time.monotonic() + seconds, 0, []
    while time.monotonic() < ends and start < most:
        seen = mmap.mmap(-1, 16)  # the case at work, and when it began
        here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=_work,
            args=(name, seed, range(start, min(most, start + BATCH)), ends, place, seen, there),
        )
        child.start()
        there.close()
        start = _watch(child, here, seen, failures, start)
    return start, failures


def _watch(child: Any, here: Any, seen: mmap.mmap, failures: list[Failure], start: int) -> int:
    """Listen to a worker until it ends, or does not: how many cases are done."""
    while True:
        if here.poll(0.2):
            try:
                told = here.recv()
            except EOFError:
                break
            if isinstance(told, int):
                child.join()
                return told
            failures.append(Failure(*told))
        case, began = struct.unpack("qd", seen[:])
        if began and time.monotonic() - began > DEAF:  # the alarm was not heard
            child.kill()
            child.join()
            failures.append(Failure(case, f"nothing for {DEAF} s"))
            return int(case) + 1
    child.join()
    case, _ = struct.unpack("qd", seen[:])
    failures.append(Failure(case, f"the process ended with {child.exitcode}"))
    return max(start, int(case)) + 1


def _work(
    name: str, seed: int, cases: range, ends: float, place: Path, seen: mmap.mmap, tell: Any
) -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    own = place / f"{name}-{os.getpid()}"
    own.mkdir()
    if name == "saved":
        shutil.copytree(place / "run", own / "run")
    case = cases.start
    with _quiet():
        for case in cases:
            seen[:] = struct.pack("qd", case, time.monotonic())
            if why := once(name, seed, case, own):
                tell.send((case, why))
            if time.monotonic() > ends:
                break
    shutil.rmtree(own, ignore_errors=True)
    tell.send(case + 1)


def once(name: str, seed: int, case: int, place: Path) -> str:
    """One execution; empty where it held, else what happened."""
    rng = random.Random(f"{name} {seed} {case}")
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        TARGETS[name].once(rng, place)
    except Hang:
        return f"more than {PATIENCE} s"
    except Exception as error:
        if is_expected(error) and "\n" not in str(error):
            return ""
        last = traceback.extract_tb(error.__traceback__)[-1]
        lines = str(error).count("\n") + 1
        of = f" of {lines} lines" if lines > 1 else ""
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"{type(error).__name__}{of} at {where}: {str(error)[:120]!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def _too_long(*_: object) -> None:
    raise Hang


@contextlib.contextmanager
def _quiet() -> Any:
    logging.disable(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _memory_disk() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@click.command()
@click.argument("target", type=click.Choice(list(TARGETS)))
@click.argument("case", type=int, required=False)
@click.option("--seed", default=0)
@click.option("--seconds", default=20.0)
def main(target: str, case: int | None, seed: int, seconds: float) -> None:
    """Fuzz one target and list what fails, or show one CASE with its traceback."""
    with tempfile.TemporaryDirectory(dir=_memory_disk()) as folder:
        if case is not None:
            TARGETS[target].once(random.Random(f"{target} {seed} {case}"), Path(folder))
            return
        tried, failures = fuzz(target, seconds, seed, Path(folder))
    click.echo(f"{target}: {tried} tried, {len(failures)} failed, {tried / seconds:.0f} a second")
    kinds = Counter(one.why[:90] for one in failures)
    for why, count in kinds.most_common(40):
        first = next(one for one in failures if one.why.startswith(why))
        click.echo(f"  {count} x case {first.case}: {first.why}")


if __name__ == "__main__":
    main()
