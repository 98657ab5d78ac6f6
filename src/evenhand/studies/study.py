"""Runs that are looked at together: several methods, each trained with several seeds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenhand import files
from evenhand.errors import RunError
from evenhand.metrics.counts import Counts
from evenhand.studies import directories
from evenhand.studies.measure import Measure
from evenhand.studies.spec import NODES, Method, Spec
from evenhand.training.checkpoints import HISTORY

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Columns = dict[str, Any]  # equally long arrays or lists, by name

TEXT = ("by", "name", "team", "left_out")


@dataclass(frozen=True)
class Trial:
    """One method, trained with one seed."""

    method: Method
    seed: int
    folder: Path
    # a row per client, or one for everyone, then one per group: by, name, team, count, accuracy,
    # ...
    scores: Columns = field(repr=False)
    history: Columns = field(repr=False)  # a row per round; NaN where a round was not evaluated
    validation: Columns | None = field(default=None, repr=False)  # as scores, on validation data
    # confusion counts by client and group on test data
    counts: Counts | None = field(default=None, repr=False)
    # (n, A, ...) what scores are made of, see metrics.tally
    tally: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # (N,) of each test sample: 1 or 0 for right or wrong, or its squared error
    values: Floats | None = field(default=None, repr=False)
    sample_client: Ints | None = field(default=None, repr=False)  # (N,) whose each test sample is
    sample_group: Ints | None = field(default=None, repr=False)  # (N,)
    weight_rounds: Ints | None = field(default=None, repr=False)  # (T,)
    # (T, n) each client's effective weight, summing to one
    weights: Floats | None = field(default=None, repr=False)
    # at the end: objective, gap, and a row per client
    certificate: Mapping[str, Any] | None = field(default=None, repr=False)
    # numbers over clients, where sums are all that there is
    over_clients: Mapping[str, float] | None = field(default=None, repr=False)

    @property
    def by_client(self) -> bool:
        """Whether there is a row per client."""
        return "client" in self.scores["by"]


@dataclass(frozen=True)
class Study:
    """Methods x seeds on one federation, and what they are compared by."""

    name: str
    measure: Measure
    trials: Mapping[tuple[str, int], Trial]  # by label and seed
    specs: tuple[Spec, ...]  # of the runs
    about: tuple[Mapping[str, Any], ...]  # versions, machine, seed of the runs
    directories: tuple[Path, ...]
    same_data: bool  # whether all seeds have the same clients and samples

    @classmethod
    def load(cls, paths: Iterable[Path | str]) -> Study:
        """Read run directories and directories of comparisons and sweeps."""
        given = [Path(path) for path in paths]
        runs = [_Run.read(directory, path) for path in given for directory in run_directories(path)]
        if not runs:
            raise RunError("there is no run to look at; give the directory of one")
        _refuse_mixed(runs)
        same_data = len({run.about["data"] for run in runs}) == 1
        trials: dict[tuple[str, int], Trial] = {}
        origin: dict[tuple[str, int], _Run] = {}
        for run in runs:
            for trial in run.trials:
                key = (trial.method.label, trial.seed)
                if key in trials:
                    if trials[key].method == trial.method and origin[key].like(run):
                        continue  # FedAvg, say, of two runs of one spec
                    key = (f"{trial.method.label} ({run.directory.name})", trial.seed)
                trials[key] = replace(trial, method=replace(trial.method, label=key[0]))
                origin[key] = run
        return cls(
            given[0].resolve().name,
            runs[0].measure,
            trials,
            tuple(run.spec for run in runs),
            tuple(run.about for run in runs),
            tuple(run.directory for run in runs),
            same_data,
        )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The methods, in the order of the specs."""
        return tuple(dict.fromkeys(label for label, _ in self.trials))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that every method was trained with, ascending."""
        found = [{seed for label, seed in self.trials if label == known} for known in self.labels]
        return tuple(sorted(set.intersection(*found))) if found else ()

    @cached_property
    def reference(self) -> str | None:
        """The label of FedAvg, where it took part."""
        return self._named("fedavg")

    @cached_property
    def alone(self) -> str | None:
        """The label of training without others, where it took part."""
        return self._named("localonly")

    @cached_property
    def sums_only(self) -> tuple[str, ...]:
        """Methods of which single clients did not share how they fare."""
        return tuple(
            dict.fromkeys(label for (label, _), trial in self.trials.items() if not trial.by_client)
        )

    @property
    def clients(self) -> int:
        """How many clients there are; of those who shared nothing but sums it is known, too."""
        return max(
            len(self.names("client")),
            *(len(run["federation"]["clients"]) for run in self.about if "federation" in run),
            0,
        )

    @property
    def samples(self) -> int:
        """How many samples methods are judged on."""
        return int(
            _column(
                self.first.scores, "count", "client" if self.first.by_client else "everyone"
            ).sum()
        )

    @property
    def judged_seeds(self) -> tuple[int, ...]:
        """Seeds whose clients are the same: all, or, where data were dealt anew with each, the
        first."""
        return self.seeds if self.same_data else self.seeds[:1]

    def in_order(self) -> Study:
        """The same study with the reference first and training alone last."""
        rank = {self.reference: -1, self.alone: 1}
        # else in the order that they had
        keys = sorted(self.trials, key=lambda key: rank.get(key[0], 0))
        return replace(self, trials={key: self.trials[key] for key in keys})

    def _named(self, name: str) -> str | None:
        return next(
            (label for (label, _), trial in self.trials.items() if trial.method.name == name), None
        )

    @property
    def first(self) -> Trial:
        """Any trial: names of clients, groups and teams are those of all of them."""
        return self.trials[self.labels[0], self.seeds[0]]

    @cached_property
    def teams(self) -> tuple[str, ...]:
        """(n,) the team of each client; "" where there are none; () where some method has no rows
        of clients."""
        if self.sums_only:
            return ()
        scores = self.first.scores
        return tuple(
            team for team, by in zip(scores["team"], scores["by"], strict=True) if by == "client"
        )

    @cached_property
    def team_codes(self) -> Ints:
        """(n,) the place of each client's team in ``names("team")``."""
        place = {name: code for code, name in enumerate(self.names("team"))}
        return np.array([place.get(team, -1) for team in self.teams], np.int64)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of "client", "group" and "team" those to speak of: not teams where each of them is the
        clients of one group."""
        sizes = [
            dict(zip(self.names(by), self.sizes(by).tolist(), strict=True))
            for by in ("group", "team")
        ]
        return ("client", "group") if sizes[0] == sizes[1] else ("client", "group", "team")

    def names(self, by: str) -> tuple[str, ...]:
        """Names of the clients, groups or teams (by = "client", "group" or "team"); of those that
        every method has rows of."""
        if by == "team":
            return tuple(sorted({team for team in self.teams if team}))
        if by == "client" and self.sums_only:
            return ()
        scores = self.first.scores
        return tuple(
            name for name, kind in zip(scores["name"], scores["by"], strict=True) if kind == by
        )

    def sizes(self, by: str = "client", seed: int | None = None) -> Ints:
        """Test samples of each client, group or team; of the first seed where data were dealt anew
        and none is given."""
        if by == "team":
            return self._summed(self.sizes("client", seed).astype(np.float64)).astype(np.int64)
        trial = self.first if seed is None else self.trials[self.labels[0], seed]
        return _column(trial.scores, "count", by).astype(np.int64)

    def merits(self, label: str, seed: int, by: str = "client", part: str = "test") -> Floats:
        """How well each client, group or team is served, larger is better; NaN for one without
        samples.

        An accuracy in 0..1, or minus the root of the mean squared error. part: "test" or
        "validation".
        """
        trial = self.trials[label, seed]
        scores = trial.scores if part == "test" else trial.validation
        if scores is None:
            raise RunError(
                f"{trial.folder} has no validation scores; the data had no validation part"
            )
        values = _column(scores, self.measure.column, "client" if by == "team" else by)
        if by == "team":
            counts = _column(scores, "count", "client")
            with np.errstate(invalid="ignore"):
                values = self._summed(np.where(counts > 0, values, 0.0) * counts) / self._summed(
                    counts
                )
        return values if self.measure.column == "accuracy" else -np.sqrt(values)

    def column(self, label: str, seed: int, name: str, by: str = "client") -> Floats:
        """A column of the test scores of clients or groups: "accuracy", "loss", "auc", "brier",
        ..."""
        return _column(self.trials[label, seed].scores, name, by)

    def _summed(self, values: Floats) -> Floats:
        """Sums over the clients of each team."""
        member = self.team_codes >= 0
        return np.bincount(
            self.team_codes[member], weights=values[member], minlength=len(self.names("team"))
        ).astype(np.float64)


@dataclass(frozen=True)
class _Run:
    """A finished run directory, read."""

    directory: Path
    spec: Spec
    about: Mapping[str, Any]
    samples: Mapping[str, Ints]

    @classmethod
    def read(cls, directory: Path, begun: Path) -> _Run:
        """``begun``: what to resume where it is not finished."""
        resume = f"continue it with: evenhand resume {shlex.quote(str(begun))}"
        if begun != directory and not (directory / "spec.toml").exists():
            raise RunError(f"{begun} is not finished: there is no {directory.name} yet; {resume}")
        spec = directories.load_spec(directory)
        about = _json(directory / directories.ABOUT) or {}
        unfinished = [
            method.label
            for method in spec.methods
            if not (directory / method.label / directories.SCORES).exists()
        ]
        if unfinished or "data" not in about:
            what = f": {', '.join(unfinished)}" if unfinished else ""
            if spec.data.get("name") == NODES:
                done = [_rounds_done(directory / label) for label in unfinished]
                what = f": it has done {done[0]} of {spec.rounds} rounds" if done else ""
                resume = "start its Flower app again with the same out, and it goes on from there"
            raise RunError(f"{directory} is not finished{what}; {resume}")
        return cls(directory, spec, about, _tensors(directory / directories.SAMPLES))

    @property
    def measure(self) -> Measure:
        return directories.read_measure(self.about, self.spec)

    @property
    def trials(self) -> list[Trial]:
        return [self._trial(method) for method in self.spec.methods]

    def like(self, other: _Run) -> bool:
        """Whether another run differs in its methods alone."""
        return replace(self.spec, methods=(), name="run") == replace(
            other.spec, methods=(), name="run"
        )

    def _trial(self, method: Method) -> Trial:
        folder = self.directory / method.label
        scores = _columns(folder / directories.SCORES)
        validation = folder / directories.VALIDATION
        tally, weights = (
            _tensors(folder / name) for name in (directories.TALLY, directories.WEIGHT_HISTORY)
        )
        values = _tensors(folder / directories.VALUES).get("value")
        return Trial(
            method,
            self.spec.seed,
            folder,
            scores,
            _columns(folder / HISTORY),
            _columns(validation) if validation.exists() else None,
            self._counts(scores, tally.get("confusion")),
            tally,
            None if values is None else values.astype(np.float64),
            self.samples.get("client"),
            self.samples.get("group"),
            weights.get("round"),
            weights.get("weight"),
            _json(folder / directories.WEIGHTS),
            _json(folder / directories.OVER_CLIENTS),
        )

    def _counts(self, scores: Columns, table: Any) -> Counts | None:
        # of very many clients, counts are kept by group alone
        if table is None or len(table) < list(scores["by"]).count("client"):
            return None
        named = {
            by: tuple(
                name for name, kind in zip(scores["name"], scores["by"], strict=True) if kind == by
            )
            for by in ("client", "everyone", "group")
        }
        known = dict(enumerate(self.about["labels"]))
        labels = tuple(known.get(code, str(code)) for code in range(table.shape[2]))
        return Counts(table, named["client"] or named["everyone"], named["group"] or ("",), labels)


def run_directories(path: Path) -> list[Path]:
    """The run directories that a directory stands for: itself, or one for each seed of a
    comparison."""
    spec = directories.load_spec(path)
    return [path / f"seed-{seed}" for seed in spec.seeds] if spec.seeds else [path]


def _refuse_mixed(runs: list[_Run]) -> None:
    """Raise where runs cannot be looked at together."""
    first = runs[0]
    by_seed: dict[int, _Run] = {}
    for run in runs:
        if run.measure != first.measure:
            raise RunError(
                f"{first.directory} and {run.directory} are judged by different measures; look at"
                " them one by one"
            )
        other = by_seed.setdefault(run.spec.seed, run)
        if other.about["data"] != run.about["data"]:
            raise RunError(
                f"{other.directory} and {run.directory} have different data; look at them one"
                " by one"
            )


def _rounds_done(folder: Path) -> int:
    return len(files.read_rows(folder / HISTORY)) if (folder / HISTORY).exists() else 0


def _columns(path: Path) -> Columns:
    rows = files.read_rows(path, text=TEXT)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {
        name: (
            [row.get(name, "") for row in rows]
            if name in TEXT
            else np.array([row.get(name, np.nan) for row in rows])
        )
        for name in ("by", "name", "team", *names)
        if name in names or name == "team"
    }


def _column(scores: Columns, name: str, by: str) -> Floats:
    values: Floats = np.asarray(scores[name], np.float64)[
        np.array([kind == by for kind in scores["by"]], bool)
    ]
    return values


def _tensors(path: Path) -> dict[str, Any]:
    return (
        {name: tensor.numpy() for name, tensor in files.read_tensors(path)[0].items()}
        if path.exists()
        else {}
    )


def _json(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None
