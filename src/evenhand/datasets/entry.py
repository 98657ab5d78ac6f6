"""An entry of the catalogue: a data set, the files that it needs, and whether they are present."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from evenhand.data.storage.file import File, find
from evenhand.data.storage.locate import locate

EMBEDDED, GENERATED = "embedded", "generated"  # comes with a package; generated from random numbers
# files are present; can be downloaded; must be put there by hand
PRESENT, FETCH, BY_HAND = "present", "fetch", "by hand"


@dataclass(frozen=True)
class Need:
    """The files in one folder that a data set needs."""

    folder: str
    files: tuple[File, ...]
    # where else they may be: a path, or the name of another folder of the root
    also: tuple[str, ...] = ()
    instead: tuple[tuple[File, ...], ...] = ()  # alternative files in the folder
    pattern: str = ""  # a pattern of names of other alternatives
    megabytes: float = 0  # to download

    def found(self, root: Path) -> list[tuple[File, Path]]:
        """Return the files with their paths, or the first complete alternative; empty if files
        are missing."""
        folder = root / self.folder
        for files in (self.files, *self.instead):
            places = (folder, *self._also(root)) if files is self.files else (folder,)
            paths = [(file, path) for file in files if (path := find(file, places))]
            if len(paths) == len(files):
                return paths
        matching = (
            sorted(path for path in folder.glob(self.pattern) if path.is_file())
            if self.pattern
            else []
        )
        return [(File(path.relative_to(folder).as_posix()), path) for path in matching]

    def missing(self, root: Path) -> list[File]:
        """Return the missing files, unless there is an alternative."""
        places = (root / self.folder, *self._also(root))
        return (
            [] if self.found(root) else [file for file in self.files if find(file, places) is None]
        )

    def fetch(self, root: Path) -> None:
        """Download what is missing; raises a DataError if that is impossible."""
        if not self.found(root):
            locate(self.folder, self.files, root, self._also(root))

    def _also(self, root: Path) -> tuple[Path, ...]:
        return tuple(root / place for place in self.also)


class State(NamedTuple):
    """Whether a data set can be used on this machine."""

    kind: str  # EMBEDDED, GENERATED, PRESENT, FETCH or BY_HAND
    folders: tuple[Path, ...] = ()  # where its files are, or would be
    missing: tuple[Path, ...] = ()
    megabytes: float = 0  # to download


def _nothing() -> tuple[Need, ...]:
    return ()


@dataclass(frozen=True)
class Entry:
    """A data set in the catalogue."""

    name: str
    about: str  # one line
    clients: str
    samples: str
    source: str  # who made it, and under which licence it may be used
    kind: str = ""  # EMBEDDED or GENERATED if it needs no files
    # a function, since files are declared in the data sets' modules, which need torch
    needs: Callable[[], tuple[Need, ...]] = _nothing

    def state(self, root: Path) -> State:
        """Check whether it can be used with the files in ``root``."""
        if self.kind:
            return State(self.kind)
        needs = self.needs()
        missing = {
            root / need.folder / file.name: file for need in needs for file in need.missing(root)
        }
        found = [path.parent for need in needs for _, path in need.found(root)]
        if not missing:
            return State(PRESENT, tuple(dict.fromkeys(found)))
        kind = FETCH if all(file.url for file in missing.values()) else BY_HAND
        folders = tuple(dict.fromkeys(root / need.folder for need in needs))
        return State(
            kind,
            folders,
            tuple(missing),
            sum(need.megabytes for need in needs if need.missing(root)),
        )
