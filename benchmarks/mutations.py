"""Do the tests notice errors? One deliberate one-line error at a time, and the tests that should
fail.

    python -m benchmarks.mutations [--checkout DIR] [--out FILE.json] [--only NAME ...]

The errors are in mutations.toml. Each is applied to a temporary copy of a checkout, and tests run
there: first those named with the error, then, where they pass, the files of its area. The checkout
itself is never changed. An error is found by its code, whatever the line breaks, and tests by parts
of their names, whatever their file: so that the same errors can be tried on an earlier version.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LEFT_OUT = (".git", ".venv", ".data", ".peers", "__pycache__", ".*_cache", ".hypothesis")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
FIRST, WIDER = 600, 1800  # seconds


@dataclass(frozen=True)
class Error:
    """A deliberate error: ``old`` code becomes ``new``."""

    name: str
    area: str
    wrong: str  # what is wrong then
    old: str
    new: str
    tests: tuple[str, ...]  # regular expressions of names of tests to try first
    file: str = "*"  # where the code is, if it is in several places
    also: tuple[tuple[str, str], ...] = ()  # old and new code of other versions


def errors() -> tuple[list[Error], dict[str, list[str]]]:
    """The errors, and the test files of each area."""
    table = tomllib.loads((HERE / "mutations.toml").read_text(encoding="utf-8"))
    entries = [
        Error(**{key: _tuples(value) for key, value in entry.items()}) for entry in table["error"]
    ]
    doubled = [name for name, count in Counter(e.name for e in entries).items() if count > 1]
    if doubled:
        raise ValueError(f"two errors are called {doubled[0]}")
    return entries, table["areas"]


@cache
def squeezed(text: str) -> tuple[str, list[int]]:
    """Code without white space and trailing commas, and where each character was."""
    places = [place for place, character in enumerate(text) if not character.isspace()]
    kept = [
        place
        for place, following in zip(places, [*places[1:], len(text)], strict=True)
        if not (text[place] == "," and text[following : following + 1] in (")", "]", "}"))
    ]
    return "".join(text[place] for place in kept), kept


def changed(package: Path, error: Error) -> tuple[Path, str] | str:
    """The file that an error is in and its text with the error, or why there is none."""
    files = {
        path: path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
        if fnmatch.fnmatch(str(path.relative_to(package)), error.file)
    }
    why = "not found"
    for old, new in ((error.old, error.new), *error.also):
        wanted, _ = squeezed(old)
        found = []
        for path, text in files.items():
            code, places = squeezed(text)
            found += [
                (path, text[: places[at.start()]] + new + text[places[at.end() - 1] + 1 :])
                for at in re.finditer(re.escape(wanted), code)
            ]
        if len(found) == 1:
            return found[0]
        if found:
            why = f"found {len(found)} times"
    return why


def named(tests: Path, parts: Iterable[str]) -> list[str]:
    """Tests whose names have one of ``parts`` in them, as pytest takes them."""
    found = [
        f"{path}::{name}"
        for path in sorted(tests.rglob("test_*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if any(re.search(part, name) for part in parts)
    ]
    return list(dict.fromkeys(found))


def in_area(tests: Path, patterns: Iterable[str]) -> list[str]:
    """Test files of an area, whichever layout the checkout has."""
    found = [
        str(path)
        for pattern in patterns
        for path in sorted(tests.glob(pattern))
        if path.suffix == ".py"
    ]
    return list(dict.fromkeys(found))


def run(checkout: Path, tests: list[str], limit: float, *options: str) -> tuple[str, str]:
    """("passed", "failed", "timeout" or "not run", the first test that fails)."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # most modules are those of the last time
    try:
        done = subprocess.run(
            [*PYTEST, *options, *tests],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout", ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    kind = {0: "passed", 1: "failed"}.get(done.returncode, "not run")
    return kind, "\n".join(failed) or ("" if kind == "passed" else done.stdout[-2000:])


def trial(checkout: Path, error: Error, tests: list[str], limit: float) -> dict[str, Any]:
    """What tests make of an error in a copy of the checkout, which is then as it was."""
    made = changed(checkout / "src" / "evenhand", error)
    if isinstance(made, str):
        return {"outcome": "not applied", "by": made}
    path, text = made
    before = path.read_text(encoding="utf-8")
    cached = Path(importlib.util.cache_from_source(str(path)))
    try:
        path.write_text(text)
        cached.unlink(missing_ok=True)  # its time stamp may be the same to the second
        kind, by = run(checkout, tests, limit, "-x") if tests else ("passed", "")
    finally:
        path.write_text(before)
        cached.unlink(missing_ok=True)
    outcome = {"failed": "caught", "passed": "not caught"}.get(kind, kind)
    return {"outcome": outcome, "by": by.replace(f"{checkout}/", "")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, default=HERE.parent, help="what is tested")
    parser.add_argument("--out", type=Path, help="a JSON file; errors that it has are not repeated")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these errors alone")
    parser.add_argument("--again", action="store_true", help="tests are known to pass without")
    parser.add_argument("--list", action="store_true", help="list the errors and where they are")
    arguments = parser.parse_args()
    entries, areas = errors()
    if arguments.only:
        entries = [error for error in entries if error.name in arguments.only]
    found: dict[str, dict[str, Any]] = (
        json.loads(arguments.out.read_text(encoding="utf-8"))
        if arguments.out and arguments.out.exists()
        else {}
    )
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        shutil.copytree(
            arguments.checkout.resolve(), checkout, ignore=shutil.ignore_patterns(*LEFT_OUT)
        )
        tests = {error.name: named(checkout / "tests", error.tests) for error in entries}
        if arguments.list:
            for error in entries:
                made = changed(checkout / "src" / "evenhand", error)
                where = made if isinstance(made, str) else made[0].relative_to(checkout)
                print(f"{error.name:32} {len(tests[error.name]):3} tests  {where}")
            return
        todo = [error for error in entries if error.name not in found]
        sound = sorted({test for error in todo for test in tests[error.name]})
        kind, by = run(checkout, sound, 3600) if sound and not arguments.again else ("passed", "")
        if kind != "passed":
            sys.exit(f"tests must pass without an error first; they end with {kind}:\n{by}")
        wider = {name: in_area(checkout / "tests", patterns) for name, patterns in areas.items()}
        passes = {
            "named": [(error, tests[error.name], FIRST) for error in entries],
            "area": [(error, wider[error.area], WIDER) for error in entries],
        }
        for among, trials in passes.items():
            for error, chosen, limit in trials:
                known = found.get(error.name, {"among": "", "outcome": "not caught"})
                if known["outcome"] != "not caught" or known["among"] in (among, "area"):
                    continue
                begin = time.perf_counter()
                one = trial(checkout, error, chosen, limit)
                took = round(time.perf_counter() - begin, 1)
                found[error.name] = one | {"among": among, "seconds": took}
                print(f"{error.name:26} {among:5} {one['outcome']:12} {one['by'][:90]}", flush=True)
                if arguments.out:
                    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    outcomes = Counter(found[error.name]["outcome"] for error in entries)
    print(f"{len(entries)} errors:", ", ".join(f"{n} {what}" for what, n in outcomes.items()))
    for error in entries:
        if found[error.name]["outcome"] != "caught":
            print(f"  {error.name}: {error.wrong} ({found[error.name]['outcome']})")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


if __name__ == "__main__":
    main()
