"""Manifests: SHA-256 and size of the files of a folder, so that any change is noticed.

A method's manifest is written after its other files, and names its run, data and method: it marks
the method as finished, and prevents mixing up the files of two methods. A run's manifest is updated
whenever the run's files are written. Folders of earlier versions have none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evenhand import files
from evenhand.errors import RunError
from evenhand.reading import RESTORE, damaged, read_json

MANIFEST = "manifest.json"
FORMAT = 1
CHANGED = "its content has changed"


class Owner(NamedTuple):
    """Whose files a manifest lists."""

    run: str = ""  # the identity of the run's spec
    data: str = ""  # the fingerprint of its data
    method: str = ""  # a label; "" for files of the whole run

    @classmethod
    def of(cls, about: Mapping[str, Any], method: str = "") -> Owner:
        """Return the owner, given the content of about.json."""
        return cls(str(about.get("spec", "")), str(about.get("data", "")), method)


class Entry(NamedTuple):
    """Checksum and size of a file."""

    sha256: str
    size: int

    @classmethod
    def read(cls, path: Path) -> Entry:
        """Compute the entry of a file."""
        with path.open("rb") as file:
            return cls(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


@dataclass(frozen=True)
class Manifest:
    """The files of a folder as they were written."""

    folder: Path
    owner: Owner
    entries: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, way_out: str = RESTORE) -> Manifest | None:
        """Read the manifest of a folder; None if it has none."""
        path = folder / MANIFEST
        if not path.exists():
            return None
        found = read_json(path, way_out)
        if found.pop("sha256", None) != _digest(found):
            raise damaged(path, CHANGED, way_out)
        if found["format"] != FORMAT:
            raise RunError(f"{path} was written by a later version; update evenhand to read it")
        entries = {name: Entry(**entry) for name, entry in found["files"].items()}
        return cls(folder, Owner(found["run"], found["data"], found["method"]), entries)

    def write(self) -> None:
        """Write it next to the files."""
        content = {
            "format": FORMAT,
            **self.owner._asdict(),
            "files": {name: entry._asdict() for name, entry in sorted(self.entries.items())},
        }
        files.write_json(self.folder / MANIFEST, {**content, "sha256": _digest(content)})

    def fault(self, name: str) -> str:
        """Say what is wrong with a file; "" if it is unchanged."""
        path, entry = self.folder / name, self.entries[name]
        try:
            if not path.is_file():
                return "it is a directory" if path.is_dir() else "it is missing"
            if path.stat().st_size != entry.size:
                return f"it has {path.stat().st_size} bytes instead of {entry.size}"
            return "" if Entry.read(path) == entry else CHANGED
        except OSError as error:
            return f"it cannot be read ({error.strerror})"

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield each changed file, and what is wrong with it."""
        for name in self.entries:
            if fault := self.fault(name):
                yield name, fault

    def misplaced(self, owner: Owner) -> str:
        """Say why this cannot be the manifest of ``owner``; "" if it is."""
        if self.owner.method != owner.method:
            return f"it belongs to {self.owner.method or 'a whole run'}"
        if self.owner.run != owner.run:
            return "it belongs to a run with other settings"
        return "it belongs to a run with other data" if self.owner.data != owner.data else ""


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def seal(folder: Path, names: Iterable[str], owner: Owner) -> None:
    """Write the manifest of the files ``names``, as far as they exist."""
    entries = {name: Entry.read(folder / name) for name in names if (folder / name).is_file()}
    Manifest(folder, owner, entries).write()


def renew(folder: Path, names: Iterable[str], owner: Owner | None = None) -> None:
    """Update the files ``names`` in the manifest, as far as they exist; other entries stay.

    ``owner`` is by default the present one.
    """
    try:
        known = Manifest.read(folder) or Manifest(folder, Owner())
    except RunError:  # it is about to be repaired
        known = Manifest(folder, Owner())
    if owner is not None and known.owner.method != owner.method:  # it belongs to another method
        known = Manifest(folder, owner)
    found = {name: Entry.read(folder / name) for name in names if (folder / name).is_file()}
    Manifest(folder, owner or known.owner, {**known.entries, **found}).write()


def drop(folder: Path, names: Iterable[str]) -> None:
    """Delete the files ``names``, and their entries in the manifest if there is one."""
    known, gone = Manifest.read(folder), {*names}
    for name in gone:
        (folder / name).unlink(missing_ok=True)
    if known is not None:
        kept = {name: entry for name, entry in known.entries.items() if name not in gone}
        Manifest(folder, known.owner, kept).write()


class Sealed:
    """A folder whose files are checked before they are read, if it has a manifest.

    Args:
        folder: the folder.
        way_out: what to do if a file is damaged, for the error message.
        owner: whose files they must be.
    """

    def __init__(self, folder: Path, way_out: str = RESTORE, owner: Owner | None = None) -> None:
        self.folder, self.way_out = folder, way_out
        self.manifest = Manifest.read(folder, way_out)
        if self.manifest and owner and (reason := self.manifest.misplaced(owner)):
            raise damaged(folder / MANIFEST, reason, way_out)

    def has(self, name: str) -> bool:
        """Whether a file belongs to the folder."""
        if self.manifest is None:
            return (self.folder / name).exists()
        return name in self.manifest.entries

    def path(self, name: str) -> Path:
        """Return the path of an unchanged file; raise if it has changed."""
        if self.manifest is not None:
            if not self.has(name):
                raise damaged(self.folder / MANIFEST, f"it does not list {name}", self.way_out)
            if fault := self.manifest.fault(name):
                raise damaged(self.folder / name, fault, self.way_out)
        return self.folder / name
