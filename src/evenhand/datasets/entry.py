"""An entry of the catalogue: a data set, the files that it needs, and whether they are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from evenhand.data.storage.file import File, find
from evenhand.data.storage.locate import locate

EMBEDDED, GENERATED = "embedded", "generated"  # comes with a package; made from random numbers
# files are there; can be downloaded; somebody has to put them there
PRESENT, FETCH, BY_HAND = "present", "fetch", "by hand"


@dataclass(frozen=True)
class Need:
    """Files of one folder that a data set is read from."""

    folder: str
    files: tuple[File, ...]
    # where else they may lie: a path, or the name of another folder of the root
    also: tuple[str, ...] = ()
    instead: tuple[tuple[File, ...], ...] = ()  # others in the folder that will do as well
    pattern: str = ""  # files of any such name in the folder will do, too
    megabytes: float = 0  # to download

    def found(self, root: Path) -> list[tuple[File, Path]]:
        """The files with their paths, or those of the first alternative that is whole; empty where
        something is missing."""
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
        """Files that are not there, where no others will do."""
        places = (root / self.folder, *self._also(root))
        return (
            [] if self.found(root) else [file for file in self.files if find(file, places) is None]
        )

    def fetch(self, root: Path) -> None:
        """Download what is missing; raises a DataError where that cannot be done."""
        if not self.found(root):
            locate(self.folder, self.files, root, self._also(root))

    def _also(self, root: Path) -> tuple[Path, ...]:
        return tuple(root / place for place in self.also)


class State(NamedTuple):
    """Whether a data set can be used here."""

    kind: str  # EMBEDDED, GENERATED, PRESENT, FETCH or BY_HAND
    folders: tuple[Path, ...] = ()  # in which its files lie, or would
    missing: tuple[Path, ...] = ()
    megabytes: float = 0  # to download


def _nothing() -> tuple[Need, ...]:
    return ()


@dataclass(frozen=True)
class Entry:
    """A data set."""

    name: str
    about: str  # in a line
    clients: str
    samples: str
    source: str  # who made it, and under which licence it may be used
    kind: str = ""  # EMBEDDED or GENERATED, where it needs no files
    # a function, since files are declared in the data sets' modules, which need torch
    needs: Callable[[], tuple[Need, ...]] = _nothing

    def state(self, root: Path) -> State:
        """Whether it can be used with the files in ``root``."""
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
