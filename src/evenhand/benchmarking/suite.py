"""The suite: federations, methods, and how each method is tuned; read from files beside this one.

``federations/NAME.toml`` is a spec without methods, with a title, why it is there, and whether it
is quick. ``methods.toml`` has a line for each method.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import numpy as np

from evenhand.algorithms import ALGORITHMS
from evenhand.algorithms.naming import Table, imported, label_of
from evenhand.errors import SpecError, unknown
from evenhand.studies.specs.grid import parse_axis
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.parsing import parse_method
from evenhand.studies.specs.spec import Spec
from evenhand.studies.specs.tuning import FACTORS, LR

ABOUT = ("title", "why", "quick", "groups")  # keys of a federation's file that change no number
PERSONAL = ("localonly", "finetuned", "ditto", "gifair-personal")  # a model for each client


@dataclass(frozen=True)
class Budget:
    """How every method is tuned and trained."""

    rule: str = "worst10"  # the number on validation data that settings are chosen by
    settings: int = 15  # tried for every method, with the first seed
    seeds: int = 5


@dataclass(frozen=True)
class Bench:
    """A federation of the suite."""

    name: str
    title: str
    why: str
    quick: bool
    groups: bool  # whether samples have demographic groups, which some methods need
    table: Table = field(repr=False)  # of a spec, without methods

    def spec(self, budget: Budget, device: str = "auto") -> Spec:
        """The runs of every method; methods are to be added."""
        rounds = self.table.get("rounds", Spec.rounds)
        known = {
            "name": self.name,
            "seeds": list(range(budget.seeds)),
            "device": device,
            # what is kept is tested once, after the last round
            "eval_every": rounds,
            "track_weights": False,
        }
        return Spec.from_table({**known, **self.table}, f"federation {self.name}")


@dataclass(frozen=True)
class Entry:
    """A method of the suite."""

    label: str
    name: str
    settings: Table = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    needs: str = ""
    source: str = ""  # of a user's own method: made anew when it changes

    @property
    def personal(self) -> bool:
        """Whether clients end with models of their own."""
        if self.name in ALGORITHMS:
            return self.label in PERSONAL
        return bool(getattr(imported(self.name), "personal", False))

    def rates(self, lr: float, budget: Budget) -> list[float]:
        """Step sizes to try: as many as bring the settings up to the budget, around ``lr``."""
        size = math.prod(len(values) for values in self.grid.values())
        count = budget.settings // size
        if count < 1:
            raise SpecError(
                f"the grid of {self.label} has {size} points, more than the {budget.settings}"
                " settings of every method; take fewer values"
            )
        factors = np.geomspace(FACTORS[0], FACTORS[-1], count) if count > 1 else [1.0]
        return [float(f"{lr * factor:.3g}") for factor in factors]


@dataclass(frozen=True)
class Unit:
    """A method on a federation."""

    bench: Bench
    entry: Entry
    budget: Budget

    @property
    def identity(self) -> str:
        """A short text that changes when a number of the record may."""
        entry = self.entry
        asked = {
            "federation": self.bench.table,
            "method": [entry.label, entry.name, entry.settings, entry.grid, entry.source],
            "budget": [self.budget.rule, self.budget.settings, self.budget.seeds],
        }
        text = json.dumps(asked, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def spec(self, device: str = "auto") -> Spec:
        """The comparison of the method's seeds, with the settings that are tried first."""
        entry, spec = self.entry, self.bench.spec(self.budget, device)
        lr = float({"lr": 0.1, **spec.local}["lr"])
        key = label_of(entry.name)
        # a setting that is given is not tried: one value of its own keeps it
        kept = {
            name: [value]
            for name, value in entry.settings.items()
            if name not in entry.grid and not isinstance(value, dict)
        }
        grid = {f"{key}.{name}": list(values) for name, values in {**kept, **entry.grid}.items()}
        grid |= {LR: entry.rates(lr, self.budget)}
        method = Method(entry.name, entry.label, dict(entry.settings))
        return replace(spec, methods=(method,), tune={"rule": self.budget.rule, "grid": grid})


@dataclass(frozen=True)
class Suite:
    """Federations and methods."""

    benches: Mapping[str, Bench]
    entries: Mapping[str, Entry]
    budget: Budget

    @classmethod
    def standard(cls) -> Suite:
        """The suite that comes with the package."""
        home = resources.files("evenhand.benchmarking")
        folder = home / "federations"
        tables = {
            path.name.removesuffix(".toml"): tomllib.loads(path.read_text(encoding="utf-8"))
            for path in sorted(folder.iterdir(), key=lambda path: path.name)
            if path.name.endswith(".toml")
        }
        methods = tomllib.loads((home / "methods.toml").read_text(encoding="utf-8"))
        return cls.of(tables, methods)

    @classmethod
    def of(cls, federations: Mapping[str, Table], methods: Table) -> Suite:
        """A suite from the tables of its files."""
        benches = {
            name: Bench(
                name,
                table.get("title", name),
                table.get("why", ""),
                bool(table.get("quick", True)),
                bool(table.get("groups", False)),
                {key: value for key, value in table.items() if key not in ABOUT},
            )
            for name, table in federations.items()
        }
        entries = {}
        for label, line in methods["methods"].items():
            settings = {k: v for k, v in line.items() if k not in ("name", "grid", "needs")}
            name = line.get("name", label)
            entries[label] = Entry(
                label, name, settings, line.get("grid", {}), line.get("needs", "")
            )
        budget = {key: value for key, value in methods.items() if key != "methods"}
        quick_first = sorted(benches.values(), key=lambda bench: not bench.quick)
        return cls({bench.name: bench for bench in quick_first}, entries, Budget(**budget))

    def unit(self, bench: Bench, entry: Entry) -> Unit | None:
        """A method on a federation; None where it does not apply."""
        if entry.needs == "groups" and not bench.groups:
            return None
        return Unit(bench, entry, self.budget)

    def chosen(self, names: Sequence[str], quick: bool) -> list[Bench]:
        """Federations by name; all, or all quick ones, where none is named."""
        for name in names:
            if name not in self.benches:
                raise SpecError(unknown("federation", name, self.benches))
        return [
            bench
            for bench in self.benches.values()
            if (bench.name in names if names else bench.quick or not quick)
        ]

    def methods(self, texts: Sequence[str], grids: Sequence[str] = ()) -> list[Entry]:
        """Methods as a command line has them: those of the suite by label, others with their
        settings; all where none is named. ``grids`` are of the others."""
        if not texts:
            if grids:
                raise SpecError(f"--grid {grids[0]} is for a method of your own; name it with -a")
            return list(self.entries.values())
        found = [self.entries.get(text) or own_entry(text, grids) for text in texts]
        if grids and all(text in self.entries for text in texts):
            raise SpecError(
                f"--grid {grids[0]} is for a method of your own; those of the suite have theirs"
            )
        return found


def own_entry(text: str, grids: Sequence[str] = ()) -> Entry:
    """A method that is not in the suite: ``mypackage:MyMethod:key=value``, or one of evenhand's
    with other settings."""
    table = parse_method(text)
    name = table.pop("name")
    if "local" in table:
        raise SpecError(f"step sizes are tuned; leave out local. in {text!r}")
    axes = [parse_axis(grid) for grid in grids]
    grid = {axis.key: list(axis.values) for axis in axes if axis.key != LR}
    Method(name, name, dict(table)).algorithm()  # raises if it cannot be made
    for key, values in grid.items():  # the same, for a key or a value of the grid
        for value in values if "." not in key else ():
            Method(name, name, {**table, key: value}).algorithm()
    given = [f"{key}={value}" for key, value in table.items() if not isinstance(value, dict)]
    label = " ".join([label_of(name), *given])
    if name in ALGORITHMS and not table and not grid:
        raise SpecError(f"{name} is no method of the suite; give it settings, such as {name}:...")
    if name in ALGORITHMS and label == name:
        label = f"{name} own"
    source = "" if name in ALGORITHMS else _source(name)
    return Entry(label, name, table, grid, source=source)


def _source(name: str) -> str:
    """The text of a user's own method."""
    try:
        return hashlib.sha256(inspect.getsource(imported(name)).encode()).hexdigest()
    except (OSError, TypeError):
        return ""
