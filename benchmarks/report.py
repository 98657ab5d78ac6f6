"""The report of a large study: 5 methods x 5 seeds x 1000 clients x 500 rounds. Time, size of the
page and memory.

    python -m benchmarks.report [--check] [--dir DIR]

Trains multinomial regression on the synthetic data of Li et al. with cohorts of ten clients (many
minutes; with --dir only once: a directory that holds the study already is used as it is), then runs
`evenhand report` in a process of its own. --check fails over 5 s of CPU time, 1.5 MB or 1 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe

CLIENTS, ROUNDS, SEEDS = 1000, 500, 5
MOST_SECONDS, MOST_MEGABYTES, MOST_MEMORY = 5.0, 1.5, 1.0
SPEC = f"""
name = "large"
rounds = {ROUNDS}
seeds = {list(range(SEEDS))}
loss = "cross_entropy"

[data]
name = "synthetic"
clients = {CLIENTS}

[model]
name = "linear"

[local]
lr = 0.05
steps = 5
batch_size = 32

[cohort]
name = "uniform"
k = 10

[[methods]]
name = "fedavg"

[[methods]]
name = "qffl"

[[methods]]
name = "afl"

[[methods]]
name = "ditto"

[[methods]]
name = "localonly"
"""


def train(directory: Path) -> float:
    """Make the study, or what is left to make of it; the seconds that it took."""
    from evenhand.studies.runs.comparing import check_comparison, execute_comparison
    from evenhand.studies.specs.spec import Spec

    begin = time.perf_counter()
    planned = check_comparison(Spec.from_toml(SPEC, "the benchmark's spec"))
    execute_comparison(planned, directory, lambda *_, **__: lambda done, row: None)
    return time.perf_counter() - begin


def report(directory: Path, page: Path) -> tuple[float, float, float]:
    """CPU seconds, megabytes of the page, gigabytes of memory of `evenhand report`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evenhand", "report", str(directory), "--out", str(page), "--quiet"]
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    if process.returncode:
        sys.exit(f"evenhand report ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, page.stat().st_size / 1e6, usage.ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--dir", type=Path, help="where the study is, or will be kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.dir or Path(temporary) / "study"
        kept = directory.exists()
        trained = train(directory)
        seconds, megabytes, memory = report(directory, Path(temporary) / "report.html")
    print(f"{describe()}\n")
    print("| study | training, s | `evenhand report`, CPU s | page, MB | peak memory, GB |")
    print("|---|---|---|---|---|")
    study = f"5 methods x {SEEDS} seeds x {CLIENTS:,} clients x {ROUNDS} rounds"
    print(
        f"| {study} | {'kept' if kept else f'{trained:.0f}'} | {seconds:.1f} | {megabytes:.1f} |"
        f" {memory:.2f} |"
    )
    over = seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES or memory > MOST_MEMORY
    if arguments.check and over:
        sys.exit(
            f"not reached: {MOST_SECONDS:g} s of CPU time, a page of {MOST_MEGABYTES:g} MB,"
            f" {MOST_MEMORY:g} GB"
        )


if __name__ == "__main__":
    main()
