"""A small piece of the harness that kills commands; docs/results/reliability.md has the figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from benchmarks.torture.kills import figures
for figure in figures(0, seed=7, most=1):
    print(f"{figure.held} of {figure.tried}: {figure.what} ({figure.note})")
"""


def test_killed_and_crowded_commands_end_with_the_bytes_of_undisturbed_ones() -> None:
    done = subprocess.run(  # it forks, which is not for a process with threads such as this one
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    assert all(line.startswith("1 of 1: ") for line in lines), done.stdout
