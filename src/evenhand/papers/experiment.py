"""An experiment of a paper: a table or figure, as its TOML file says how to run it.

A file has one experiment, with one part or several (the data sets of a table). ``[spec]`` and
``[[rows]]`` are common to all parts; ``[parts.NAME]`` has what a part changes.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import product
from typing import Any

from evenhand.algorithms.naming import Table
from evenhand.errors import SpecError, require_known

FOLDER = "evenhand.papers"
ALL = "all"
# what a part may have of its own; `spec` is merged with the experiment's, the others replace it
OF_PARTS = (
    *("about", "stated", "unknown", "reason", "time", "needs"),
    *("spec", "rows", "quick", "substitute"),
)
OF_EXPERIMENTS = ("paper", "number", "seeds", "same_as", "figure", "parts", *OF_PARTS)
# of a [quick] or [substitute] table; `grids = false` takes the first point of every grid
OF_CHANGES = ("about", "reason", "seeds", "spec", "rows", "grids", "judged")
JUDGED = ("everything", "ordering", "nothing")
OF_ROWS = ("row", "rule", "grid", "sweep", "series", "x")


@dataclass(frozen=True)
class Paper:
    """A paper."""

    name: str  # in the names of its experiments
    short: str  # the method, by which people know it
    code: str  # another name, by which our notes know it
    title: str
    authors: str
    venue: str


@dataclass(frozen=True)
class Row:
    """A row of a table, or a point of a figure: one method, with settings that are published, and a
    grid of those that are not."""

    label: str  # as published
    method: Table  # a [[methods]] entry
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    rule: str = ""  # by which a point of the grid is chosen on validation data
    series: str = ""  # of a figure: which line it belongs to
    x: float | None = None  # where on that line


@dataclass(frozen=True)
class Part:
    """What is run at once: one federation with all rows of a table."""

    experiment: str
    name: str  # "" where the experiment has one part
    about: str
    stated: str  # settings that the paper states
    unknown: str  # settings that it does not
    reason: str  # why numbers may differ
    time: str  # what it takes, on what
    seeds: int
    spec: Table
    rows: tuple[Row, ...]
    needs: str = ""  # files under the data root, as a pattern, without which data are incomplete
    same_as: str = ""  # another part with the same runs
    note: str = ""  # how it differs from the paper: a smaller budget, other data
    budget: str = "paper"  # or "quick"
    # what of the runs can be compared with published numbers: "everything", "ordering" (other data
    # have other levels) or "nothing" (too small)
    judged: str = "everything"
    smaller: Mapping[str, Any] = field(default_factory=dict)  # changes for a smaller budget
    other: Mapping[str, Any] = field(default_factory=dict)  # changes for data in place of missing

    @property
    def title(self) -> str:
        """The name on a command line: ``propfair-table6:shakespeare``."""
        return f"{self.experiment}:{self.name}" if self.name else self.experiment

    @property
    def home(self) -> str:
        """The part whose runs these are."""
        return self.same_as or self.title

    def quick(self) -> Part:
        """The part with its smaller budget, where it has one."""
        if not self.smaller:
            return self
        return dataclasses.replace(_changed(self, self.smaller), budget="quick")

    def substituted(self) -> Part:
        """The part with the data that take the place of missing ones."""
        return _changed(self, self.other)


@dataclass(frozen=True)
class Experiment:
    """A table or a figure."""

    name: str
    paper: Paper
    number: str  # Table 1
    about: str
    parts: tuple[Part, ...]
    figure: Mapping[str, Any] = field(default_factory=dict)  # how it is drawn


@cache
def papers() -> dict[str, Paper]:
    """The papers, by name."""
    table = tomllib.loads(_read("papers.toml"))
    return {name: Paper(name, **entry) for name, entry in table.items()}


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the order of the papers, tables before figures."""
    folder = resources.files(FOLDER) / "experiments"
    found = [
        read_experiment(path.name.removesuffix(".toml"), path.read_text(encoding="utf-8"))
        for path in folder.iterdir()
        if path.name.endswith(".toml")
    ]
    named = {one.name: one for one in found}
    found = [_with_runs_of(one, named) for one in found]
    order = list(papers())
    found.sort(
        key=lambda one: (order.index(one.paper.name), one.number.split()[0] != "Table", one.name)
    )
    return {one.name: one for one in found}


def _with_runs_of(experiment: Experiment, named: Mapping[str, Experiment]) -> Experiment:
    """A figure that shows another experiment's runs has its parts, settings and rows."""
    (first, *others) = experiment.parts
    if not first.same_as or others or first.rows:
        return experiment
    require_known(f"experiment in same_as of {experiment.name}.toml:", first.same_as, named)
    parts = tuple(
        dataclasses.replace(one, experiment=experiment.name, same_as=one.title)
        for one in named[first.same_as].parts
    )
    return dataclasses.replace(experiment, parts=parts)


def find_parts(names: Iterable[str]) -> list[Part]:
    """The parts that names ask for: ``all``, ``gifair`` (a paper), ``fafl-table2``,
    ``fafl-table2:vehicle``, or with a paper's code, ``003-table1``."""
    known = {name.lower(): one for name, one in experiments().items()}
    codes = {paper.code: paper.name for paper in papers().values()}
    found: dict[str, Part] = {}
    for given in names:
        name, _, part = given.strip().lower().partition(":")
        begin, _, rest = name.partition("-")
        name = "-".join(filter(None, [codes.get(begin, begin), rest]))
        if name == ALL or name in papers():
            chosen = [one for one in known.values() if name in (ALL, one.paper.name)]
        else:
            require_known("experiment", name, (*known, *papers(), ALL, "list"))
            chosen = [known[name]]
        if part:
            require_known(f"part of {name}:", part, [one.name for one in chosen[0].parts])
        for one in (one for experiment in chosen for one in experiment.parts):
            if not part or one.name == part:
                found[one.title] = one
    return list(found.values())


def read_experiment(name: str, text: str) -> Experiment:
    """An experiment from its TOML file."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name}.toml is not valid TOML: {error}") from error
    for key in table:
        require_known(f"key of {name}.toml:", key, OF_EXPERIMENTS)
    common = {key: table[key] for key in OF_PARTS if key in table}
    parts = []
    for part, changes in table.get("parts", {"": {}}).items():
        for key in changes:
            require_known(f"key of part {part} of {name}.toml:", key, OF_PARTS)
        spec = merged(common.get("spec", {}), changes.get("spec", {}))
        own = {"about": "", **changes, "spec": spec}  # the experiment's about is not repeated
        parts.append(_part(name, part, table, {**common, **own}))
    return Experiment(
        name,
        papers()[table["paper"]],
        table["number"],
        table["about"],
        tuple(parts),
        table.get("figure", {}),
    )


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """A table with changes; tables inside are merged, too, unless they name something else."""
    found = dict(base)
    for key, value in changes.items():
        old = found.get(key)
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            found[key] = merged(old, value)
        else:
            found[key] = value
    return found


def _part(experiment: str, name: str, table: Table, entry: Table) -> Part:
    same_as = table.get("same_as", "")
    return Part(
        experiment,
        name,
        entry.get("about", ""),
        entry.get("stated", ""),
        entry.get("unknown", ""),
        entry.get("reason", ""),
        entry.get("time", ""),
        table.get("seeds", 1),
        entry.get("spec", {}),
        _rows(entry.get("rows", [])),
        entry.get("needs", ""),
        f"{same_as}:{name}" if same_as and name else same_as,
        smaller=entry.get("quick", {}),
        other=entry.get("substitute", {}),
    )


def _changed(part: Part, changes: Mapping[str, Any]) -> Part:
    """A part with the changes of a [quick] or [substitute] table."""
    if not changes:
        return part
    for key in changes:
        require_known(f"key of {part.title}:", key, OF_CHANGES)
    rows = _rows(changes["rows"]) if "rows" in changes else part.rows
    if not changes.get("grids", True):
        rows = tuple(map(_first_point, rows))
    return dataclasses.replace(
        part,
        spec=merged(part.spec, changes.get("spec", {})),
        rows=rows,
        seeds=changes.get("seeds", part.seeds),
        reason=changes.get("reason", part.reason),
        judged=max(part.judged, changes.get("judged", part.judged), key=JUDGED.index),
        note="; ".join(filter(None, [part.note, changes.get("about", "")])),
        # a smaller budget of the paper's data does not suit other data, and the other way round
        smaller={} if changes is part.smaller else part.smaller,
        other={} if changes is part.other else part.other,
    )


def _first_point(row: Row) -> Row:
    """The row with the first of all values that are tried."""
    point = nested({key: values[0] for key, values in row.grid.items()})
    return dataclasses.replace(row, method=merged(row.method, point), grid={})


def _rows(entries: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Rows from their tables; one with ``sweep = { M = [2, 3] }`` stands for one row a value."""
    rows = []
    for entry in entries:
        sweep = entry.get("sweep", {})
        plain = {key: value for key, value in entry.items() if key not in OF_ROWS}
        grid, rule = entry.get("grid", {}), entry.get("rule", "")
        for values in product(*sweep.values()):
            point = dict(zip(sweep, values, strict=True))
            label = " ".join([entry["row"], *(f"{key}={value}" for key, value in point.items())])
            series = entry.get("series", entry["row"] if sweep else "")
            x = float(values[0]) if sweep else entry.get("x")
            method = merged(plain, nested(point))
            rows.append(Row(label, {**method, "label": label}, grid, rule, series, x))
    return tuple(rows)


def nested(settings: Mapping[str, Any]) -> Table:
    """Settings by dotted keys as tables in tables.

    >>> nested({"q": 1, "local.lr": 0.1})
    {'q': 1, 'local': {'lr': 0.1}}
    """
    found: Table = {}
    for path, value in settings.items():
        *tables, key = path.split(".")
        inner = found
        for step in tables:
            inner = inner.setdefault(step, {})
        inner[key] = value
    return found


def _read(name: str) -> str:
    return (resources.files(FOLDER) / name).read_text(encoding="utf-8")
