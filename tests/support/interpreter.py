"""Triton's interpreter, which runs GPU kernels on a CPU: slowly, but with the same results.

It must be chosen before triton is imported, so a file of tests runs once more in a process of its
own. Triton need not be in the environment: .ci/run puts it into ``.kernels``, where torch does not
notice it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APART = ROOT / ".kernels"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def run_in_interpreter(file: str) -> None:
    """Run the tests of a file in the interpreter; skip where there is no triton."""
    if INTERPRETED:
        pytest.skip("this is the interpreter")
    if find_spec("triton") is None and not (APART / "triton").is_dir():
        pytest.skip("no triton, and none in .kernels")
    paths = [str(APART), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, *["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], file],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
