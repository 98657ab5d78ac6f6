"""What a user waits for at the command line: CPU seconds and peak memory of whole commands, each in
a process of its own.

    python -m benchmarks.commands [--check] [--against SRC] [NAME ...]

* csv: `evenhand run --data big.csv --client hospital --label complication` on 100,000 made-up
  patients in 50 hospitals (11 columns, as in examples/make_patients.py).
* heart: `evenhand compare --data heart_disease --seeds 5`; EVENHAND_DATA must have the data.
* example: `evenhand run`, which is what `make run` does after installation.

CPU time counts all threads, so it depends less on other users of the machine than seconds do.
--against measures another checkout's src folder in turns, as "before". --check fails over a bar.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.machine import describe

ROWS, CLIENTS, SEED = 100_000, 50, 7
ROOT = Path(__file__).resolve().parent.parent


class Command(NamedTuple):
    arguments: tuple[str, ...]
    most_seconds: float  # of CPU time
    most_memory: float  # GB


COMMANDS = {
    "csv": Command(
        ("run", "--data", "big.csv", "--client", "hospital", "--label", "complication"), 40.0, 0.8
    ),
    "heart": Command(("compare", "--data", "heart_disease", "--seeds", "5"), 12.0, 0.8),
    "example": Command(("run",), 12.0, 0.8),
}


class Used(NamedTuple):
    cpu: float  # seconds, of the system too
    wall: float
    memory: float  # GB, at its peak


def write_patients(path: Path) -> None:
    """A table of patients in hospitals of very different size; most measure glucose fasting."""
    example = runpy.run_path(str(ROOT / "examples" / "make_patients.py"))
    rng = np.random.default_rng(SEED)
    sizes = np.maximum((rng.dirichlet(np.full(CLIENTS, 5.0)) * ROWS).astype(int), 50)
    sizes[0] += ROWS - sizes.sum()
    tables = []
    for number, rows in enumerate(sizes):
        name, women = f"hospital {number:02}", float(rng.uniform(0.3, 0.7))
        example["HOSPITALS"][name] = (int(rows), women, bool(rng.random() < 0.85))
        tables.append(example["patients"](name, rng))
    pd.concat(tables).to_csv(path, index=False)


def used(command: Command, directory: Path, out: str, src: Path) -> Used:
    """Run a command in ``directory`` with the code in ``src``."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "evenhand", *command.arguments, "--quiet", "--out", out],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(src)},
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    if process.returncode:
        sys.exit(f"evenhand {' '.join(command.arguments)} ended with {process.returncode}")
    scale = 1 if sys.platform == "darwin" else 1024
    return Used(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * scale / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--against", type=Path, metavar="SRC", help="another checkout's src folder")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(COMMANDS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(COMMANDS)}")
    missed = []
    print(f"{describe()}\n")
    print("| command | before, CPU s | before, GB | CPU s | seconds | memory, GB | bars |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        write_patients(directory / "big.csv")
        for name in arguments.names or COMMANDS:
            command, before = COMMANDS[name], ("", "")
            if arguments.against is not None:
                then = used(command, directory, f"{name}-before", arguments.against.resolve())
                before = (f"{then.cpu:.1f}", f"{then.memory:.2f}")
            now = used(command, directory, name, ROOT / "src")
            bars = f"≤ {command.most_seconds:g} s, ≤ {command.most_memory:g} GB"
            print(
                f"| `evenhand {' '.join(command.arguments)}` | {before[0]} | {before[1]} |"
                f" {now.cpu:.1f} | {now.wall:.1f} | {now.memory:.2f} | {bars} |",
                flush=True,
            )
            if now.cpu > command.most_seconds or now.memory > command.most_memory:
                missed.append(name)
    if arguments.check and missed:
        sys.exit(f"over the bar: {', '.join(missed)}")


if __name__ == "__main__":
    main()
