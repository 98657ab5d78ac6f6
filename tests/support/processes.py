"""Commands as real processes, on a federation that is trained in moments."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "evenhand"]
SPEC = """
name = "small"
rounds = {rounds}
checkpoint_every = 2
eval_every = 2

[data]
name = "digits"
clients = 3

[model]
name = "linear"

[local]
lr = 0.3
steps = 1
batch_size = 8

[[methods]]
name = "fedavg"

[[methods]]
name = "afl"
"""


def start(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """A command, under way."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, out, err


def wait_for(process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    """Return as soon as something is there, while the process is at work."""
    deadline = time.monotonic() + 300
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
