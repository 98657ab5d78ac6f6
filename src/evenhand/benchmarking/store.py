"""Where records are: those that come with the package, one file for each federation, and those that
were made here, one file for each unit."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from evenhand import files
from evenhand.benchmarking.record import Record
from evenhand.benchmarking.suite import Unit
from evenhand.errors import RunError
from evenhand.reading import read_text

ENDING = ".record.json"


class Merged(NamedTuple):
    """The outcome of importing records."""

    taken: list[Record]
    known: list[Record]  # were there already, with the same numbers
    conflicts: list[str]  # in words: different numbers for the same unit


def committed(name: str) -> list[Record]:
    """Records of a federation that come with the package."""
    path = resources.files("evenhand.benchmarking") / "results" / f"{name}.jsonl"
    if not path.is_file():
        return []
    return _lines(path.read_text(encoding="utf-8"), path.name)


def made(directory: Path, name: str | None = None) -> list[Record]:
    """Records that were made in a directory: of one federation, or of all."""
    found = sorted(directory.glob(f"{name or '*'}/*{ENDING}"))
    return [Record.parse(read_text(path), str(path)) for path in found]


def place(directory: Path, federation: str, method: str) -> Path:
    """The file of a unit's record."""
    return directory / federation / f"{method}{ENDING}"


def keep(directory: Path, record: Record) -> Path:
    """Write a record."""
    path = place(directory, record.federation, record.method)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, (record.line() + "\n").encode())
    return path


def known(directory: Path, unit: Unit) -> Record | None:
    """The record of a unit: made here, or else committed, for the same spec."""
    return next((r for r in _both(directory, unit) if r.identity == unit.identity), None)


def is_outdated(directory: Path, unit: Unit) -> bool:
    """Whether all records of the unit are for another spec."""
    return known(directory, unit) is None and any(_both(directory, unit))


def _both(directory: Path, unit: Unit) -> Iterable[Record]:
    name, label = unit.bench.name, unit.entry.label
    path = place(directory, name, label)
    own = [Record.parse(read_text(path), str(path))] if path.exists() else []
    return [*own, *(record for record in committed(name) if record.method == label)]


def merge(directory: Path, other: Path) -> Merged:
    """Take over records from another directory, or from a file of lines; a unit that has other
    numbers here keeps them."""
    if not other.exists():
        raise RunError(f"{other} does not exist; give a directory that evenhand benchmark wrote")
    found = _lines(read_text(other), str(other)) if other.is_file() else made(other)
    if not found and other.is_dir():
        found = [r for path in sorted(other.glob("*.jsonl")) for r in _lines(read_text(path), path)]
    if not found:
        raise RunError(f"{other} holds no records; give a directory that evenhand benchmark wrote")
    merged = Merged([], [], [])
    for record in found:
        path = place(directory, record.federation, record.method)
        here = [Record.parse(read_text(path), str(path))] if path.exists() else []
        here += [one for one in committed(record.federation) if one.method == record.method]
        same = [one for one in here if one.identity == record.identity]
        if any(one.same_numbers(record) for one in same):
            merged.known.append(record)
        elif same:
            merged.conflicts.append(
                f"{record.federation}, {record.method}: {other} ({record.machine}) and this machine"
                f" ({same[0].machine}) have different numbers for the same spec; the numbers here"
                " are kept"
            )
        else:
            keep(directory, record)
            merged.taken.append(record)
    return merged


def write_lines(directory: Path, records: Iterable[Record]) -> list[Path]:
    """Write records as they are committed, a file for each federation, and a line for each
    method."""
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.federation, []).append(record)
    paths = []
    for name, found in by_name.items():
        paths.append(directory / f"{name}.jsonl")
        directory.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{record.line()}\n" for record in found)
        files.write_atomic(paths[-1], text.encode())
    return paths


def _lines(text: str, source: object) -> list[Record]:
    return [
        Record.parse(line, f"{source}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
