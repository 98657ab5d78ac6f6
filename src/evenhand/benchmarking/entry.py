"""The benchmark from Python and from the command line: run what is missing, and look at all of
it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.benchmarking import store, tables
from evenhand.benchmarking.record import Record
from evenhand.benchmarking.running import read_data, run_unit
from evenhand.benchmarking.standing import Standing, standing
from evenhand.benchmarking.suite import Bench, Entry, Suite, Unit
from evenhand.benchmarking.summary import Score, answer, scores
from evenhand.data.federation import Federation
from evenhand.errors import DataError, first_line, is_expected, require_known
from evenhand.studies.analysis.writing import listed
from evenhand.studies.specs.building import build_device

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

OUT = Path("runs/benchmark")
REFERENCES = ("fedavg", "localonly")
# called after every round with the units done, the units in all, and what is being trained
Counter = Callable[[float, int, str], None]


@dataclass(frozen=True, repr=False)
class Benchmark:
    """The benchmark's records, and the conclusions drawn from them."""

    suite: Suite
    records: Mapping[str, Sequence[Record]]  # by federation
    notes: tuple[str, ...] = ()  # what was skipped, repeated or excluded, in words
    failed: tuple[str, ...] = ()  # units that could not be run, in words
    missing: tuple[str, ...] = field(default=(), repr=False)  # units that were not run yet

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """The ranking of methods on each federation that has a FedAvg record."""
        return tuple(
            standing(found)
            for found in self.records.values()
            if any(record.name == "fedavg" for record in found)
        )

    @cached_property
    def scores(self) -> list[Score]:
        """Every method over all federations."""
        return scores(self.standings)

    @cached_property
    def sentences(self) -> list[str]:
        """Which methods to prefer, and which do not beat FedAvg."""
        return answer(self.standings)

    @property
    def titles(self) -> dict[str, str]:
        """The title of each federation, by its name."""
        return {name: bench.title for name, bench in self.suite.benches.items()}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table: "results", "methods" or "clients"."""
        known: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "results": lambda: tables.result_rows(self.standings),
            "methods": lambda: tables.score_rows(self.scores),
            "clients": lambda: tables.client_rows(self.standings),
        }
        require_known("table", name, tuple(known))
        return known[name]()

    def table(self, name: str) -> pd.DataFrame:
        """A table: "results", a row per federation and method; "methods", a row per method;
        "clients", a row per federation, method, seed and client."""
        import pandas as pd

        return pd.DataFrame(self.rows(name))

    def show(self, console: Console) -> None:
        """Print the answer and the tables."""
        console.print(
            tables.Shown(self.standings, self.scores, self.sentences, self.titles), highlight=False
        )

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=130, no_color=True, highlight=False, force_jupyter=False)
        with console.capture() as captured:
            self.show(console)
        return captured.get()

    def __repr__(self) -> str:
        return f"<Benchmark: {sum(map(len, self.records.values()))} records>"


def benchmark(
    methods: str | Sequence[str] = (),
    *,
    federations: str | Sequence[str] = (),
    quick: bool = False,
    grid: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    out: str | Path = OUT,
    device: str = "auto",
    run: bool = True,
    merge: Sequence[str | Path] = (),
    progress: Counter | None = None,
    suite: Suite | None = None,
) -> Benchmark:
    """Compare every method on a fixed suite of federations, and say which ones beat FedAvg.

    Each method gets the same number of settings to try on validation data, is trained with five
    seeds and tested once on each federation. Units that have a record, in the package or in
    ``out``, are not run again.

    Args:
        methods: labels of the suite, or your own methods as on the command line
            ("mypackage:MyMethod", "qffl:q=2"), which are ranked among the others; default: all.
        federations: names of federations; default: all.
        quick: only federations that one CPU core finishes in minutes.
        grid: hyper-parameter values to try for your own method, ``{"q": [0.1, 1]}``.
        out: directory for records, and for runs while they are trained.
        run: False reads existing records and trains nothing.
        merge: directories from other machines whose records to import.
        progress: called after every round with the number of finished units, the number of all
            units, and a description of the current one.
    """
    suite = suite or Suite.standard()
    place = Path(out)
    texts = [methods] if isinstance(methods, str) else list(methods)
    names = [federations] if isinstance(federations, str) else list(federations)
    grids = (
        [f"{key}={','.join(map(str, values))}" for key, values in grid.items()]
        if isinstance(grid, Mapping)
        else list(grid)
    )
    entries = suite.methods(texts, grids)
    benches = suite.chosen(names, quick)
    work = _Work(suite, place, device, progress)
    for other in merge:
        work.merge(Path(other))
    # nothing is a gain without them
    references = [suite.entries[name] for name in REFERENCES if name in suite.entries]
    if run:
        at_hand = [bench for bench in benches if bench.quick or bench.name in names or work.fast]
        work.leave([bench for bench in benches if bench not in at_hand])
        work.run(at_hand, [*references, *(one for one in entries if one not in references)])
    return work.benchmark(benches, entries)


class _Work:
    """The work of one call, and its notes."""

    def __init__(self, suite: Suite, place: Path, device: str, progress: Counter | None) -> None:
        self.suite, self.place, self.device = suite, place, device
        self.progress = progress or (lambda done, total, text: None)
        self.notes: list[str] = []
        self.failed: list[str] = []

    @property
    def fast(self) -> bool:
        """Whether there is a GPU."""
        return build_device(self.device) != "cpu"

    def leave(self, benches: Sequence[Bench]) -> None:
        """Note which federations are not run, unless they have records."""
        units = {
            one.name: [self.suite.unit(one, entry) for entry in self.suite.entries.values()]
            for one in benches
        }
        names = [
            name
            for name, found in units.items()
            if any(unit and store.known(self.place, unit) is None for unit in found)
        ]
        if names:
            self.notes.append(
                f"skipped {listed(names, 99)}: they take hours without a GPU; name them as"
                " federations to run them anyway"
            )

    def merge(self, other: Path) -> None:
        merged = store.merge(self.place, other)
        self.notes.append(
            f"{other}: {len(merged.taken)} records imported, {len(merged.known)} already known"
        )
        self.notes += merged.conflicts

    def run(self, benches: Sequence[Bench], entries: Sequence[Entry]) -> None:
        """Run the units that have no record."""
        units = {bench.name: self._left(bench, entries) for bench in benches}
        total, done = sum(map(len, units.values())), 0
        for bench in benches:
            if not units[bench.name]:
                continue
            try:
                federation = read_data(bench, self.suite.budget)
            except DataError as error:
                self.notes.append(f"skipped {bench.name}: {first_line(error)}")
                total -= len(units[bench.name])
                continue
            for unit in units[bench.name]:
                self._run(unit, federation, done, total)
                done += 1

    def _left(self, bench: Bench, entries: Sequence[Entry]) -> list[Unit]:
        units = [self.suite.unit(bench, entry) for entry in entries]
        left = [unit for unit in units if unit and store.known(self.place, unit) is None]
        for unit in left:
            if store.is_outdated(self.place, unit):
                self.notes.append(
                    f"{bench.name}, {unit.entry.label}: the spec has changed since this record"
                    " was made; running it again"
                )
        return left

    def _run(self, unit: Unit, federation: Federation, done: int, total: int) -> None:
        if store.known(self.place, unit) is not None:  # another process was faster
            return
        directory = self.place / unit.bench.name / unit.entry.label
        text = f"{unit.bench.name}: {unit.entry.label}"
        self.progress(done, total, text)
        try:
            record = run_unit(
                unit,
                federation,
                directory,
                self.device,
                lambda share: self.progress(done + share, total, text),
            )
        except Exception as error:
            if isinstance(error, OSError) or not is_expected(error):
                raise  # a full disk would fail the next one, too
            self.failed.append(f"{unit.bench.name}, {unit.entry.label}: {first_line(error)}")
            return
        store.keep(self.place, record)
        shutil.rmtree(directory)
        self.progress(done + 1, total, text)

    def benchmark(self, benches: Sequence[Bench], entries: Sequence[Entry]) -> Benchmark:
        """All records of these federations, of the suite's methods and of those asked for."""
        every = {entry.label: entry for entry in (*self.suite.entries.values(), *entries)}
        records: dict[str, list[Record]] = {}
        missing = []
        for bench in benches:
            found = []
            for entry in every.values():
                unit = self.suite.unit(bench, entry)
                record = store.known(self.place, unit) if unit else None
                if record is not None:
                    found.append(record)
                elif unit is not None:
                    missing.append(f"{bench.name}, {entry.label}")
            records[bench.name] = self._of_same_data(found)
        return Benchmark(
            self.suite,
            {name: found for name, found in records.items() if found},
            tuple(self.notes),
            tuple(self.failed),
            tuple(missing),
        )

    def _of_same_data(self, found: Sequence[Record]) -> list[Record]:
        """Exclude records that were tested on other data than FedAvg's."""
        first = next((one for one in found if one.name == "fedavg"), None)
        if first is None:
            return list(found)
        same = [one for one in found if (one.data, one.cells) == (first.data, first.cells)]
        self.notes += [
            f"excluded {one.federation}, {one.method}: tested on other data than FedAvg"
            f" ({one.machine}, {first.machine})"
            for one in found
            if one not in same
        ]
        return same
