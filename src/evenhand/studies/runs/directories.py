"""Run directories: made, claimed for a run, and read again; :mod:`evenhand.training.directory` says
what is in them.

A run made of a spec also holds tables of its results, ``comparison.csv`` and others like it.
"""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evenhand import files
from evenhand.data.federation import Federation
from evenhand.engines import processes
from evenhand.errors import RunError
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import Columns
from evenhand.studies.runs.trial import Ints, Trial
from evenhand.studies.specs.measure import Measure, measure_of
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import NODES, Spec
from evenhand.training import directory as saved
from evenhand.training.checkpoints import CHECKPOINT, HISTORY
from evenhand.training.places import is_free, new_place
from evenhand.training.provenance import begun_at

TEXT = ("by", "name", "team", "left_out")  # columns whose cells are no numbers
TUNING = "tuning"  # in the directory of a comparison, how settings were chosen
IN_PYTHON = "go on with it in Python, by the same call with resume=True"


def new_directory(wanted: Path, numbered: bool) -> AbstractContextManager[Path]:
    """Work alone in a directory for a new run; see :func:`evenhand.training.places.new_place`."""
    resume = f"evenhand resume {shlex.quote(str(wanted))}"
    return new_place(wanted, numbered, f"give another --out, or continue it with: {resume}")


def load_spec(directory: Path) -> Spec:
    """The spec of an existing run."""
    path = directory / saved.SPEC
    if path.exists():
        return Spec.load(path)
    if (directory / CHECKPOINT).exists():
        raise RunError(f"{directory} holds a run that is not finished; {IN_PYTHON}")
    if directory.is_dir() and is_free(directory):
        raise RunError(
            f"{directory} holds no run: nothing was begun in it; run the command again with --out"
            f" {shlex.quote(str(directory))}"
        )
    raise RunError(f"{directory} holds no run: there is no spec.toml in it")


@processes.on_first
def is_finished(folder: Path) -> bool:
    """Whether a method is done; what a killed process left beside its files is removed."""
    files.clear_partial(folder)
    done = (folder / saved.SCORES).exists()
    if done:
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return done


@processes.on_first
def claim_run(
    directory: Path, spec: Spec, federation: Federation, about: Mapping[str, Any]
) -> None:
    """Write what a run is about; refuse a directory whose results belong to another spec or to
    other data. Where and with what it was begun stays as it was written first."""
    files.clear_partial(directory)
    path = directory / saved.ABOUT
    begun = _json(path) or {}
    if begun.get("spec", about["spec"]) != about["spec"]:
        raise RunError(
            f"{directory} was begun with other settings; run the changed spec.toml in a directory"
            " of its own"
        )
    if begun.get("data", about["data"]) != about["data"]:
        raise RunError(
            f"the data have changed since {directory} was begun; run them in a directory of"
            " their own"
        )
    files.write_atomic(directory / saved.SPEC, spec.to_toml().encode())
    files.write_json(path, {**about, **begun_at(directory)})
    if not (directory / saved.SAMPLES).exists():
        saved.write_samples(federation, directory)


@processes.on_first
def claim_comparison(spec: Spec, directory: Path) -> None:
    """Write what the comparison is about; refuse a directory that is about something else.

    The runs of the seeds refuse other settings themselves, so seeds can be added to spec.toml, and
    another rule to choose by.
    """
    path, text = directory / saved.SPEC, spec.to_toml()
    files.clear_partial(directory)
    if path.exists() and Spec.load(path) != spec:
        raise RunError(
            f"{directory} was begun with other settings; run the changed spec in a directory of"
            " its own"
        )
    files.write_atomic(path, text.encode())


def run_directories(path: Path) -> list[Path]:
    """The run directories that a directory stands for: itself, or one for each seed of a
    comparison."""
    spec = load_spec(path)
    return [path / f"seed-{seed}" for seed in spec.seeds] if spec.seeds else [path]


@dataclass(frozen=True)
class SavedRun:
    """A finished run directory, read."""

    directory: Path
    spec: Spec
    about: Mapping[str, Any]
    samples: Mapping[str, Ints]

    @classmethod
    def read(cls, directory: Path, begun: Path) -> SavedRun:
        """``begun``: what to resume where it is not finished."""
        resume = f"continue it with: evenhand resume {shlex.quote(str(begun))}"
        if load_spec(begun).data.get("name") == saved.PYTHON:
            resume = IN_PYTHON
        if begun != directory and not (directory / saved.SPEC).exists():
            raise RunError(f"{begun} is not finished: there is no {directory.name} yet; {resume}")
        spec = load_spec(directory)
        about = _json(directory / saved.ABOUT) or {}
        unfinished = [
            method.label
            for method in spec.methods
            if not (_folder(directory, method) / saved.SCORES).exists()
        ]
        if unfinished or "data" not in about:
            what = f": {', '.join(unfinished)}" if unfinished else ""
            if spec.data.get("name") == NODES:
                done = [_rounds_done(directory / label) for label in unfinished]
                what = f": it has done {done[0]} of {spec.rounds} rounds" if done else ""
                resume = "start its Flower app again with the same out, and it goes on from there"
            raise RunError(f"{directory} is not finished{what}; {resume}")
        return cls(directory, spec, about, _tensors(directory / saved.SAMPLES))

    @property
    def measure(self) -> Measure:
        """What the methods are compared by."""
        return measure_of(
            self.spec.loss,
            self.about.get("label_scale", 1.0),
            self.about.get("judged_on", "test") == "test",
            self.about.get("classifies"),
            self.about.get("label", ""),
        )

    @property
    def trials(self) -> list[Trial]:
        return [self._trial(method) for method in self.spec.methods]

    def like(self, other: SavedRun) -> bool:
        """Whether another run differs in its methods alone."""
        return replace(self.spec, methods=(), name="run") == replace(
            other.spec, methods=(), name="run"
        )

    def _trial(self, method: Method) -> Trial:
        folder = _folder(self.directory, method)
        scores = _columns(folder / saved.SCORES)
        validation = folder / saved.VALIDATION
        tally, weights = (_tensors(folder / name) for name in (saved.TALLY, saved.WEIGHT_HISTORY))
        outcomes = _tensors(folder / saved.VALUES)
        values, guess = outcomes.pop("value", None), self.samples.get("guess")
        if "label" in self.samples:
            outcomes["label"] = self.samples["label"]
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
            outcomes,
            None if guess is None else (float(guess[0]), float(guess[1])),
            weights.get("round"),
            weights.get("weight"),
            _json(folder / saved.WEIGHTS),
            _json(folder / saved.OVER_CLIENTS),
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


def _folder(directory: Path, method: Method) -> Path:
    """Where a method's files are: in a folder of its own, or in the directory of its one run."""
    folder = directory / method.label
    return folder if folder.is_dir() else directory


def _rounds_done(folder: Path) -> int:
    return len(files.read_rows(folder / HISTORY)) if (folder / HISTORY).exists() else 0


def _columns(path: Path) -> Columns:
    rows = files.read_rows(path, text=TEXT)
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
    return {
        name: (
            [row.get(name, "") for row in rows]
            if name in TEXT
            else np.array([row.get(name, np.nan) for row in rows])
        )
        for name in header
        if name in TEXT or any(name in row for row in rows)
    }


def _tensors(path: Path) -> dict[str, Any]:
    return (
        {name: tensor.numpy() for name, tensor in files.read_tensors(path)[0].items()}
        if path.exists()
        else {}
    )


def _json(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
