"""What our runs of a part gave: a small JSON file, kept, read again and merged."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from evenhand import files
from evenhand.errors import RunError
from evenhand.papers.experiment import FOLDER, Part
from evenhand.reading import damaged, read_json

QUICK = "quick"
REMEDY = "delete it, and run the experiment again"


@dataclass(frozen=True)
class Result:
    """The numbers of all rows of a part, with all seeds."""

    part: str  # its title
    budget: str  # "paper" or "quick"
    note: str  # how the runs differ from the paper's
    identity: str  # changes when what was run would
    seeds: tuple[int, ...]
    # by row, then metric: one value for each seed, in the units that papers print
    values: Mapping[str, Mapping[str, tuple[float, ...]]]
    chosen: Mapping[str, Mapping[str, Any]]  # by row: settings chosen on validation data
    edges: Mapping[str, tuple[str, ...]]  # by row: those that are the largest or smallest tried
    diverged: tuple[str, ...]  # rows whose training diverged
    clients: int
    samples: int  # for testing
    rounds: int
    seconds: float  # 0 where the run was interrupted, and the time is not known
    about: Mapping[str, Any]  # date, command, machine, device, versions

    @property
    def name(self) -> str:
        """Of its file."""
        return file_name(self.part, self.budget)

    def note_of_data(self, part: Part) -> bool:
        """Whether it was made on data in place of the paper's."""
        return bool(part.other) and str(part.other.get("about", "")) in self.note

    def write(self, folder: Path) -> Path:
        """Keep it in a folder; what was there before is replaced."""
        path = folder / self.name
        table = asdict(self)
        table["values"] = {
            row: {
                metric: [None if math.isnan(v) else v for v in seeds]
                for metric, seeds in of.items()
            }
            for row, of in self.values.items()
        }
        files.write_atomic(path, (json.dumps(table, indent=1) + "\n").encode())
        return path


def file_name(title: str, budget: str) -> str:
    """
    >>> file_name("fafl-table2:vehicle", "quick")
    'fafl-table2.vehicle.quick.json'
    """
    return f"{title.replace(':', '.')}{'.quick' * (budget == QUICK)}.json"


def identity_of(part: Part) -> str:
    """A text that changes when what is run does: settings, rows, seeds; not the device."""
    spec = {key: value for key, value in part.spec.items() if key not in ("device", "engine")}
    rows = [[row.label, row.method, dict(row.grid), row.rule] for row in part.rows]
    text = json.dumps([spec, rows, part.seeds], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_result(path: Path) -> Result:
    """A result from its file."""
    try:
        table = read_json(path, REMEDY)
        return Result(
            **{
                **table,
                "seeds": tuple(table["seeds"]),
                "diverged": tuple(table["diverged"]),
                "edges": {row: tuple(keys) for row, keys in table["edges"].items()},
                "values": {
                    row: {
                        metric: tuple(math.nan if v is None else float(v) for v in seeds)
                        for metric, seeds in found.items()
                    }
                    for row, found in table["values"].items()
                },
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        missing = f": {error} is missing" if isinstance(error, KeyError) else ""
        reason = f"it is not a result of evenhand reproduce{missing}"
        raise damaged(path, reason, REMEDY) from error


def committed() -> dict[str, Result]:
    """The results that come with the package, by file name."""
    with resources.as_file(resources.files(FOLDER) / "results") as folder:
        return dict(read_all(folder))


def read_all(folder: Path) -> Iterator[tuple[str, Result]]:
    """The results in a folder."""
    for path in sorted(folder.glob("*.json")):
        yield path.name, read_result(path)


def merge(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Take over results that were made elsewhere: which files are new, and which are there already
    with other numbers and stay as they are."""
    source = source / "results" if (source / "results").is_dir() else source
    if not any(source.glob("*.json")):
        raise RunError(f"there are no results in {source}; give the folder results/ of another run")
    new, other = [], []
    for name, result in read_all(source):
        path = target / name
        known = read_result(path) if path.exists() else None
        if known is None:
            result.write(target)
            new.append(name)
        elif (known.identity, known.values) != (result.identity, result.values):
            other.append(name)
    return new, other
