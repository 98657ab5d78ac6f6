"""Create, claim and read run directories; :mod:`evenhand.training.directory` describes their files.

The run of a spec also holds tables of its results, such as ``comparison.csv``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evenhand import files
from evenhand.data.federation import Federation
from evenhand.engines import processes
from evenhand.errors import RunError, SpecError, first_line
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import Columns
from evenhand.reading import RESTORE, damaged, read_json
from evenhand.studies.runs.contents import (
    kind_of,
    privacy_in,
    read_about,
    read_arrays,
    read_columns,
    read_scores,
    refuse_method,
    rounds_done,
    target_of,
)
from evenhand.studies.runs.sealing import (
    REWRITE,
    begun_with,
    is_whole,
    keep_samples,
    note_changed_spec,
    renew_run,
)
from evenhand.studies.runs.trial import Ints, Source, Trial
from evenhand.studies.specs.measure import Measure, measure_of
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import NODES, Spec
from evenhand.training import directory as saved
from evenhand.training.about import PYTHON
from evenhand.training.checkpoints import CHECKPOINT, HISTORY
from evenhand.training.ending import read_ending
from evenhand.training.manifest import MANIFEST, Owner, Sealed, renew
from evenhand.training.places import is_free, new_place
from evenhand.training.provenance import begun_at

TUNING = "tuning"  # the tuning runs in the directory of a comparison
IN_PYTHON = "resume it in Python: repeat the call with resume=True"


def new_directory(wanted: Path, numbered: bool) -> AbstractContextManager[Path]:
    """Lock a directory for a new run; see :func:`evenhand.training.places.new_place`."""
    resume = f"evenhand resume {shlex.quote(str(wanted))}"
    return new_place(wanted, numbered, f"give another --out, or continue it with: {resume}")


def load_spec(directory: Path) -> Spec:
    """The spec of an existing run."""
    path = directory / saved.SPEC
    if path.exists():
        note_changed_spec(directory)
        return read_spec(path)
    if (directory / CHECKPOINT).exists():
        raise RunError(f"{directory} holds a run that is not finished; {IN_PYTHON}")
    if directory.is_dir() and is_free(directory):
        raise RunError(
            f"{directory} holds no run: nothing was started in it; run the command again with"
            f" --out {shlex.quote(str(directory))}"
        )
    raise RunError(f"{directory} holds no run: there is no spec.toml in it")


@processes.on_first
def is_finished(folder: Path) -> bool:
    """Whether a method is finished and intact; removes what a killed process left behind."""
    files.clear_partial(folder)
    done = is_whole(folder)
    if done:
        saved.forget_checkpoint(folder)
    return done


@processes.on_first
def claim_run(
    directory: Path, spec: Spec, federation: Federation, about: Mapping[str, Any]
) -> None:
    """Write a run's spec and metadata; refuse a directory whose results belong to another spec or
    other data. The machine and versions it was started with stay as first written."""
    files.clear_partial(directory)
    path = directory / saved.ABOUT
    begun = begun_with(directory, federation, about)
    if begun.get("spec", about["spec"]) != about["spec"]:
        raise RunError(
            f"{directory} was begun with other settings; run the changed spec.toml in another"
            " directory"
        )
    if begun.get("data", about["data"]) != about["data"]:
        raise RunError(
            f"the data have changed since {directory} was begun; use another directory for the"
            " new data"
        )
    files.write_atomic(directory / saved.SPEC, spec.to_toml().encode())
    files.write_json(path, {**about, **begun_at(directory)})
    keep_samples(directory, federation)
    renew_run(directory)


@processes.on_first
def claim_comparison(spec: Spec, directory: Path) -> None:
    """Write a comparison's spec; refuse a directory that holds another one.

    Each seed's run refuses other settings by itself, so that you can add seeds to spec.toml or
    change the rule.
    """
    path, text = directory / saved.SPEC, spec.to_toml()
    files.clear_partial(directory)
    if path.exists() and read_spec(path) != spec:
        raise RunError(
            f"{directory} was begun with other settings; run the changed spec in another directory"
        )
    files.write_atomic(path, text.encode())
    renew(directory, [saved.SPEC])


def run_directories(path: Path) -> list[Path]:
    """The run directories in a directory: itself, or one per seed of a comparison."""
    changed = (
        "" if (path / saved.ABOUT).exists() else f", or: evenhand resume {shlex.quote(str(path))}"
    )
    held = Sealed(path, f"put a copy of it back{changed}")  # seeds may be added to a comparison's
    refuse_method(path, held.manifest)
    # an unfinished eh.fit has none yet
    if held.manifest is not None and (held.has(saved.SPEC) or not (path / CHECKPOINT).exists()):
        held.path(saved.SPEC)
    spec = load_spec(path)
    return [path / f"seed-{seed}" for seed in spec.seeds] if spec.seeds else [path]


@dataclass(frozen=True)
class SavedRun:
    """A finished run directory, read."""

    directory: Path
    spec: Spec
    about: Mapping[str, Any]
    samples: Mapping[str, Ints]
    begun: Path  # what a user calls the run: it, or the comparison that it is part of
    way_out: str = RESTORE  # where a file of a method is damaged

    @classmethod
    def read(cls, directory: Path, begun: Path) -> SavedRun:
        """Read a run. ``begun``: the directory to resume if it is not finished."""
        resume = f"continue it with: evenhand resume {shlex.quote(str(begun))}"
        if load_spec(begun).data.get("name") == PYTHON:
            resume = IN_PYTHON
        if begun != directory and not (directory / saved.SPEC).exists():
            raise RunError(f"{begun} is not finished: there is no {directory.name} yet; {resume}")
        run = Sealed(directory, resume)
        if run.manifest is not None:
            run.path(saved.SPEC)
        spec = load_spec(directory)
        if begun != directory:
            check_seed(directory, spec)
        again = (
            f"train it again with: evenhand resume {shlex.quote(str(begun))}"
            if spec.data.get("name") not in (PYTHON, NODES)
            else RESTORE
        )
        run.way_out = REWRITE
        about = read_about(run.path(saved.ABOUT)) if run.has(saved.ABOUT) else {}
        if run.manifest is None and about.get("sealed"):
            raise damaged(directory / MANIFEST, "it is missing", resume)
        unfinished = [
            method.label + reason
            for method in spec.methods
            if (reason := _unfinished(directory, method, bool(run.manifest))) is not None
        ]
        if unfinished or "data" not in about:
            what = f": {', '.join(unfinished)}" if unfinished else ""
            if spec.data.get("name") == NODES:
                done = [rounds_done(directory / method.label) for method in spec.methods]
                what = f": it has done {done[0]} of {spec.rounds} rounds" if done else ""
                resume = "start its Flower app again with the same out to resume it"
            raise RunError(f"{directory} is not finished{what}; {resume}")
        run.way_out = again
        samples = read_arrays(run.path(saved.SAMPLES), again) if run.has(saved.SAMPLES) else {}
        return cls(directory, spec, about, samples, begun, again)

    @property
    def measure(self) -> Measure:
        """The default measure of the run."""
        own = "classifies" in self.about  # a user's loss, which may have the name of one of ours
        return measure_of(
            "" if own else self.spec.loss,
            self.about.get("label_scale", 1.0),
            self.about.get("judged_on", "test") == "test",
            kind_of(self.about),
            self.about.get("label", ""),
        )

    @property
    def trials(self) -> list[Trial]:
        return [self._trial(method) for method in self.spec.methods]

    def like(self, other: SavedRun) -> bool:
        """Whether another run differs only in its methods."""
        return replace(self.spec, methods=(), name="run") == replace(
            other.spec, methods=(), name="run"
        )

    def _trial(self, method: Method) -> Trial:
        folder = _folder(self.directory, method)
        held = Sealed(folder, self.way_out, Owner.of(self.about, method.label))

        def found(name: str, read: Callable[[Path, str], Any]) -> Any:
            return read(held.path(name), self.way_out) if held.has(name) else None

        scores = found(saved.SCORES, read_scores)
        tally, weights, outcomes = (
            found(name, read_arrays) or {}
            for name in (saved.TALLY, saved.WEIGHT_HISTORY, saved.VALUES)
        )
        values, guess = outcomes.pop("value", None), self.samples.get("guess")
        if "label" in self.samples:
            outcomes["label"] = self.samples["label"]
        self._check_lengths(folder, outcomes, values)
        return Trial(
            method,
            self.spec.seed,
            folder,
            scores,
            found(HISTORY, read_columns),
            found(saved.VALIDATION, read_scores),
            self._counts(scores, tally.get("confusion")),
            tally,
            None if values is None else values.astype(np.float64),
            self.samples.get("client"),
            self.samples.get("group"),
            outcomes,
            None if guess is None else (float(guess[0]), float(guess[1])),
            weights.get("round"),
            weights.get("weight"),
            found(saved.WEIGHTS, read_json),
            found(saved.OVER_CLIENTS, read_json),
            self.about.get("judged_on", "test"),
            found(saved.SCORED, read_arrays) or {},
            *read_ending(found(saved.ENDING, read_json) or {}),
            run=self.begun,
            source=Source(self.directory, self.spec, self.about, self.way_out),
            privacy=privacy_in(found(saved.PRIVACY, read_json)),
            target=target_of(self.about),
        )

    def _check_lengths(self, folder: Path, outcomes: Mapping[str, Any], values: Any) -> None:
        """Raise if a method was evaluated on other samples than the run's."""
        client = self.samples.get("client")
        lengths = {len(array) for array in outcomes.values()}
        lengths |= set() if values is None else {len(values)}
        if client is not None and lengths - {len(client)}:
            reason = f"it has {max(lengths)} samples, but the run has {len(client)}"
            raise damaged(folder / saved.VALUES, reason, self.way_out)

    def _counts(self, scores: Columns, table: Any) -> Counts | None:
        # with very many clients, counts are kept by group only
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
    """Where a method's files are: in its own folder, or in the directory of a run of one method."""
    folder = directory / method.label
    return folder if folder.is_dir() else directory


def check_seed(directory: Path, spec: Spec) -> None:
    """Raise if the directory of one seed holds the run of another."""
    if directory.name != f"seed-{spec.seed}":
        raise damaged(
            directory / saved.SPEC,
            f"it belongs to seed {spec.seed}",
            "rename the directories back",
        )


def _unfinished(directory: Path, method: Method, sealed: bool) -> str | None:
    """What to add about an unfinished method; None if it is finished. ``sealed``: whether a
    finished method must have a manifest."""
    folder = _folder(directory, method)
    if (folder / MANIFEST).exists():
        return None
    if not (folder / saved.SCORES).exists():
        return ""
    return f" (it has no {MANIFEST})" if sealed else None


def read_spec(path: Path) -> Spec:
    """The spec in a run directory."""
    try:
        return Spec.load(path)
    except (SpecError, TypeError) as error:
        reason = first_line(error).replace(f"{path} is", "it is").removeprefix(f"{path}: ")
        raise damaged(path, reason, "correct it, or put a copy of it back") from error
