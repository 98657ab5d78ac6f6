"""The command line, called from tests that need it before any test runs, and what it leaves."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from evenhand.training.manifest import Manifest, seal


def invoke(*arguments: str) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output and standard error."""
    from evenhand.cli import main

    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as done,
    ):
        main(list(arguments), prog_name="evenhand")
    return int(done.value.code or 0), out.getvalue(), err.getvalue()


# made of the results of a run, or of those of all seeds
TABLES = (
    *("comparison", "differences", "ledger", "gaps", "local_gaps", "clients"),
    *("metrics", "metric_gains"),
)


def results(directory: Path, tables: bool = True) -> dict[str, bytes]:
    """Every file but the notes on versions and machine, the manifests that list them, and the
    report, which names the directory; with or without the tables made of them."""
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    left_out = (
        "about.json",
        "manifest.json",
        "report.html",
        *(() if tables else (f"{name}.csv" for name in TABLES)),
    )
    return {name: content for name, content in found.items() if not name.endswith(left_out)}


def reseal(folder: Path) -> None:
    """Take the files of a method as they are now for what was written."""
    found = Manifest.read(folder)
    assert found is not None
    seal(folder, found.entries, found.owner)
