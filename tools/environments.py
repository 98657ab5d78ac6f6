"""Run the fast tests with the lowest versions that pyproject.toml allows, or with the newest.

    python -m tools.environments lowest    # in .venv-lowest
    python -m tools.environments newest    # in .venv-newest

Options after these go to pytest. Without a wheel for the CPU at hand, torch comes with CUDA: allow
6 GB of disk space for each environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("plots", "parquet", "images", "hdf5")  # Flower pins its own dependencies
TOOLS = ("pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "mpmath", "fairlearn")
TESTS = (
    "tests/test_surface.py",
    "tests/test_torch_private.py",
    "tests/test_locks.py",
    "tests/models",
    "tests/engines",
    "tests/training",
    "tests/algorithms",
    "tests/metrics",
    "tests/studies/test_compare.py",
)


def lowest(project: dict[str, object]) -> list[str]:
    """The declared lower bounds as exact versions: "numpy>=1.26" gives "numpy==1.26"."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    declared = [*project["dependencies"], *(it for name in EXTRAS for it in extras[name])]  # type: ignore[misc]
    found = []
    for requirement in declared:
        bound = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,.*)?", requirement)
        if bound is None:
            sys.exit(f"{requirement} in pyproject.toml has no lower bound; write NAME>=VERSION")
        found.append(f"{bound[1]}=={bound[2]}")
    return found


def main(which: str, *options: str) -> int:
    """Make the environment, unless it is newer than pyproject.toml, and run the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = lowest(project) if which == "lowest" else []
    folder = ROOT / f".venv-{which}"
    python, ready = folder / "bin" / "python", folder / "ready"
    changed = (ROOT / "pyproject.toml").stat().st_mtime
    if not ready.exists() or ready.stat().st_mtime < changed:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        itself = f"{ROOT}[{','.join(EXTRAS)}]"
        subprocess.run([*install, *pins, *TOOLS, "--editable", itself], check=True)
        ready.touch()
    subprocess.run([python, "-m", "pip", "freeze", "--exclude-editable"], check=True)
    tests = [python, "-m", "pytest", *(options or ("-n", "auto")), *TESTS]
    return subprocess.run(tests, cwd=ROOT).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("lowest", "newest"):
        sys.exit("usage: python -m tools.environments lowest|newest [PYTEST-OPTION ...]")
    sys.exit(main(*sys.argv[1:]))
