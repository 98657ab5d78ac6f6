"""Verify that the files of runs are unchanged."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from evenhand.errors import RunError
from evenhand.reading import damaged, read_tensors
from evenhand.studies.runs.contents import find_again, read_about
from evenhand.studies.runs.directories import TUNING, check_seed, load_spec, read_spec
from evenhand.studies.specs.spec import NODES, Spec
from evenhand.training import directory as saved
from evenhand.training.about import PYTHON
from evenhand.training.checkpoints import CHECKPOINT, FROM_THE_START
from evenhand.training.manifest import MANIFEST, Manifest, Owner

COPY = "put a copy of it back"


@dataclass
class Verification:
    """The result of verifying a directory."""

    files: int = 0  # intact
    methods: int = 0  # finished, with all files intact
    damages: list[str] = field(default_factory=list)  # a line for each damaged file
    unfinished: list[Path] = field(default_factory=list)  # folders of methods and runs
    unchecked: list[Path] = field(default_factory=list)  # written by an earlier version

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damages

    def lines(self) -> Iterator[str]:
        """The result in words, a sentence per finding."""
        yield from self.damages
        for folder in self.unchecked:
            yield f"{folder} has no {MANIFEST}, so its files cannot be verified"
        for folder in self.unfinished:
            yield f"{folder} is not finished"
        if self.whole and self.files:
            methods = f"{self.methods} method{'s' * (self.methods != 1)}"
            yield f"all {self.files} files of {methods} are intact"


def verify(directory: str | Path) -> Verification:
    """Verify that every file of a run, comparison or sweep is unchanged.

    The result's ``damages`` has a line for each changed or missing file, with what to do about it.

    >>> import evenhand as eh, tempfile
    >>> fed, module = eh.datasets.digits(clients=4), eh.models.Linear(64, 10)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = eh.fit(module, fed, eh.FedAvg(), rounds=1, out=out)
    ...     eh.verify(out).whole
    True
    """
    found, path = Verification(), Path(directory)
    if not path.is_dir():
        raise RunError(f"{path} is not a directory; give the directory of a run")
    _look(path, path, found)
    if not (found.files or found.damages or found.unchecked or found.unfinished):
        load_spec(path)  # says why there is nothing
    return found


def _look(directory: Path, root: Path, found: Verification, seed: bool = False) -> None:
    """Verify a run, or a comparison and its runs. ``seed``: whether it is a run of a comparison."""
    try:
        path = directory / saved.SPEC
        spec = read_spec(path) if path.exists() else load_spec(directory)
        if seed:
            check_seed(directory, spec)
    except RunError as error:
        if (directory / saved.SPEC).exists() or (directory / MANIFEST).exists():
            found.damages.append(str(error))
        elif directory == root:
            _check_checkpoint(directory, found)
        spec = None
    again = _again(spec, root)
    known = _manifest(directory, root, again, found)
    if spec is None:
        for folder in _folders(directory):
            _look_at_what_is_there(folder, root, known is not None, found)
    elif spec.seeds:
        runs = [directory / f"seed-{seed}" for seed in spec.seeds]
        runs += [directory / TUNING] if (directory / TUNING).is_dir() else []
        sealed = any((run / MANIFEST).exists() for run in runs)
        if known is None and sealed and not (directory / MANIFEST).exists():
            found.damages.append(str(damaged(directory / MANIFEST, "it is missing", again)))
        for run in runs:
            if run.is_dir():
                _look(run, root, found, seed=run.name != TUNING)
            else:
                found.unfinished.append(run)
    else:
        _look_at_methods(directory, root, spec, known, found)


def _look_at_methods(
    directory: Path, root: Path, spec: Spec, known: Manifest | None, found: Verification
) -> None:
    again = _again(spec, root)
    try:
        about = read_about(directory / saved.ABOUT, COPY)
    except RunError as error:
        if known is None or saved.ABOUT not in known.entries:  # otherwise it is listed already
            found.damages.append(str(error))
        about = {}
    sealed = known is not None or bool(about.get("sealed"))
    if sealed and not (directory / MANIFEST).exists():
        found.damages.append(str(damaged(directory / MANIFEST, "it is missing", again)))
    for method in spec.methods:
        folder, owner = directory / method.label, Owner.of(about, method.label)
        if folder.is_dir():
            _look_at_method(folder, root, owner if about else None, again, sealed, found)
        elif (
            known is not None and known.owner.method
        ):  # a run of one method, whose files are in the run directory
            found.methods += not any(known.faults())
            _check_checkpoint(directory, found)
        elif not sealed and (directory / saved.SCORES).exists():
            found.unchecked.append(directory)
        else:
            found.unfinished.append(folder)


def _look_at_method(
    folder: Path, root: Path, owner: Owner | None, again: str, sealed: bool, found: Verification
) -> None:
    _check_checkpoint(folder, found)
    before = len(found.damages)
    known = _manifest(folder, root, again, found)
    if known is None and len(found.damages) == before:
        scored = (folder / saved.SCORES).exists()
        if scored and sealed:
            found.damages.append(str(damaged(folder / MANIFEST, "it is missing", again)))
        else:
            (found.unchecked if scored else found.unfinished).append(folder)
    if known is not None and owner is not None and (reason := known.misplaced(owner)):
        found.damages.append(str(damaged(folder / MANIFEST, reason, again)))
    found.methods += known is not None and len(found.damages) == before


def _look_at_what_is_there(folder: Path, root: Path, sealed: bool, found: Verification) -> None:
    """Verify a folder of a run whose spec cannot be read."""
    if (folder / saved.SPEC).exists():
        _look(folder, root, found)
    else:
        _look_at_method(folder, root, None, _again(None, root), sealed, found)


def _folders(directory: Path) -> list[Path]:
    names = (MANIFEST, saved.SPEC, saved.SCORES, CHECKPOINT)
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_dir() and any((path / name).exists() for name in names)
    )


def _manifest(folder: Path, root: Path, again: str, found: Verification) -> Manifest | None:
    """The manifest of a folder, after verifying its files."""
    try:
        known = Manifest.read(folder, again)
    except RunError as error:
        found.damages.append(str(error))
        return None
    if known is None:
        return None
    if (folder / saved.SPEC).exists() and saved.SPEC not in known.entries:
        reason = f"it does not list {saved.SPEC}"  # a method's, in place of the run's
        found.damages.append(str(damaged(folder / MANIFEST, reason, again)))
        return None
    faults = dict(known.faults())
    found.files += len(known.entries) - len(faults)
    for name, reason in faults.items():
        way_out = COPY if name in (saved.SPEC, saved.ABOUT) else again
        if name == saved.THRESHOLDS:
            way_out = f"{find_again(root)}, or remove them with --remove"
            reason += ", so predictions compare with 0.5" * (not (folder / name).exists())
        line = str(damaged(folder / name, reason, way_out))
        if not any(str(folder / name) in known for known in found.damages):
            found.damages.append(line)
    return known


def _check_checkpoint(folder: Path, found: Verification) -> None:
    path = folder / CHECKPOINT
    if not path.exists():
        return
    try:
        read_tensors(path, FROM_THE_START)
        found.files += 1
    except RunError as error:
        found.damages.append(str(error))


def _again(spec: Spec | None, root: Path) -> str:
    """How to make a damaged result file again."""
    name = spec.data.get("name") if spec else None
    if name == NODES:
        return "start the run's Flower app again with the same out"
    if name == PYTHON:
        return "make it again: repeat the call with resume=True"
    return f"make it again with: evenhand resume {shlex.quote(str(root))}"
