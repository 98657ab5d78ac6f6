"""Files that changed since a run wrote them: a resumed run reports them and rewrites what it
can."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.data.earlier import WEAKER, earlier_fingerprint, is_earlier
from evenhand.data.federation import Federation
from evenhand.errors import RunError
from evenhand.files import write_json
from evenhand.reading import damaged, read_json
from evenhand.training import directory as saved
from evenhand.training.manifest import CHANGED, MANIFEST, Manifest, Owner, renew, seal

log = logging.getLogger(__name__)

REWRITE = "put a copy of it back, or delete it: it is then rewritten with today's versions"
REMOVE = "remove it and resume the run"


def begun_with(directory: Path, federation: Federation, about: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that a run was started with; {} for a new run.

    Raises if the file is damaged. If it is missing, it is rewritten from ``about``, with the
    settings and data that the manifest names. A fingerprint of an earlier version is updated if it
    matches the data.
    """
    known, path = _known(directory), directory / saved.ABOUT
    listed = known is not None and saved.ABOUT in known.entries
    if not path.exists():
        if known is None or not listed:
            return {}
        log.warning("%s is missing; it is rewritten with today's versions", path)
        return _rewritten(path, {**about, "spec": known.owner.run, "data": known.owner.data})
    begun = read_json(path, REWRITE)
    if known is not None and listed and (reason := known.fault(saved.ABOUT)):
        raise damaged(path, reason, REWRITE)
    data = str(begun.get("data", ""))
    if data and is_earlier(data) and data == earlier_fingerprint(federation):
        log.warning("%s %s", directory, WEAKER)
        begun = _rewritten(path, {**begun, "data": federation.fingerprint()})
    if known is None and begun.get("sealed"):
        log.warning("%s is missing or damaged; it is rewritten", directory / MANIFEST)
    elif known is None:
        _adopt(directory, begun)
    return begun


def _rewritten(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    write_json(path, about)
    if (path.parent / MANIFEST).exists():
        renew(path.parent, [path.name])
    return about


def _known(directory: Path) -> Manifest | None:
    """The manifest of a run, if it is intact and not a method's."""
    try:
        found = Manifest.read(directory)
    except RunError:
        return None
    return None if found is None or found.owner.method else found


def _adopt(directory: Path, about: dict[str, Any]) -> None:
    """Write manifests for methods finished by an earlier version."""
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        if (folder / saved.SCORES).is_file() and not (folder / MANIFEST).exists():
            seal(folder, saved.METHOD_FILES, Owner.of(about, folder.name))


def keep_samples(directory: Path, federation: Federation) -> None:
    """Write the data about samples, unless they are there and intact."""
    known = _known(directory)
    names = (saved.ENCODING, saved.SAMPLES)
    listed = [name for name in names if known is not None and name in known.entries]
    faults = {name: fault for name in listed if known and (fault := known.fault(name))}
    for name, fault in faults.items():
        log.warning("%s was damaged (%s); it is rewritten", directory / name, fault)
    if faults or not (directory / saved.SAMPLES).exists():
        saved.write_samples(federation, directory)


def note_changed_spec(directory: Path) -> None:
    """Warn if a spec has changed; that may be on purpose."""
    known = _known(directory)
    if known is not None and saved.SPEC in known.entries and known.fault(saved.SPEC):
        path = directory / saved.SPEC
        log.warning("%s has changed since it was written; its present content is used", path)


def is_whole(folder: Path) -> bool:
    """Whether a method is finished and its files are intact.

    If they are not, its manifest is removed, so that it is trained again. Damaged thresholds are
    only reported: the model does not depend on them.
    """
    path = folder / MANIFEST
    if not path.exists():
        return False
    owner = Owner.of(read_json(folder.parent / saved.ABOUT), folder.name)
    try:
        found = Manifest.read(folder)
        reasons = dict(found.faults()) if found else {}
        if reason := reasons.pop(saved.THRESHOLDS, ""):
            thresholds = folder / saved.THRESHOLDS
            log.warning("%s is damaged: %s; find thresholds again", thresholds, reason)
        if found and (misplaced := found.misplaced(owner)):
            reasons = {MANIFEST: misplaced}
    except RunError:
        reasons = {MANIFEST: CHANGED}
    for name, reason in reasons.items():
        if (folder / name).is_dir():
            raise damaged(folder / name, reason, REMOVE)
        log.warning("%s is damaged: %s; %s is trained again", folder / name, reason, folder.name)
    if reasons:
        path.unlink()
    return not reasons


def renew_run(directory: Path) -> None:
    """Update the manifest of a run."""
    about = read_json(directory / saved.ABOUT)
    renew(directory, saved.RUN_FILES, Owner.of(about))
