"""Putting the missing files of a data set into their folder: downloaded, or taken from an
archive."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import IO

from evenhand.data.storage.download import CHUNK, Partial, bring, digest, progress_bar
from evenhand.data.storage.file import File, find, read
from evenhand.errors import DataError, first_line


def supply(files: Sequence[File], folder: Path, download: bool = True) -> None:
    """Put missing files into ``folder``: from archives that are there or, if ``download``, from the
    web.

    Raises a DataError, before anything is downloaded, if a file is available in neither way.
    Several processes may do this at once: one downloads, the others wait and then find the files.
    """
    for file in files:
        if _archive_by_hand(file, folder) is None and not (download and file.url):
            raise DataError(_missing(file, folder))
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            missing = [file for file in files if find(file, (folder,)) is None]
            for file in missing:
                if file.archive is None:
                    _fetch(file, folder)
            for archive in dict.fromkeys(file.archive for file in missing if file.archive):
                _fetch_members([file for file in missing if file.archive == archive], folder)


def _missing(file: File, folder: Path) -> str:
    path = folder / file.name
    if file.url is None:
        return (
            f"{path} is missing and cannot be downloaded automatically;"
            f" {file.hint or 'put your copy there'}"
        )
    return (
        f"{path} is missing; download {file.url} and put it"
        f" {'there' if file.archive is None else f'at {folder / file.archive}'}"
    )


def _archive_by_hand(file: File, folder: Path) -> Path | None:
    """Return the archive of a file, if somebody put it into the folder."""
    return (
        folder / file.archive
        if file.archive is not None and (folder / file.archive).is_file()
        else None
    )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or first_line(error)
        way_out = (
            "make room"
            if error.errno in (ENOSPC, EDQUOT)
            else "set EVENHAND_DATA to a folder that can be written to"
        )
        raise DataError(f"cannot write to {folder}: {reason}; {way_out}, then try again") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from downloading into the folder; a dead process releases its lock."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if sys.stderr.isatty():
            print(f"waiting for another process that is downloading to {folder}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(file: File, folder: Path) -> None:
    """Download a file that is not in an archive."""
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Partial(target, str(file.url), file.checksum)
    with progress_bar(target.name) as watch:
        bring(partial, watch)
    if file.checksum is None:
        try:
            read(partial.path, file, compressed=target.suffix == ".gz")
        except DataError as error:
            partial.remove()
            raise DataError(
                f"{file.url} is not the published file and was not kept: {error}"
            ) from error
    _place(partial.path, target)
    partial.remove()


def _fetch_members(files: Sequence[File], folder: Path) -> None:
    """Extract files from their archive, downloading it unless it is already in the folder."""
    first = files[0]
    archive = _archive_by_hand(first, folder)
    if archive is not None:
        got = digest(archive, first.checksum)
        if got != first.checksum:
            raise DataError(
                f"{archive} is not the published file: expected {first.checksum}, got {got};"
                " replace or remove it"
            )
        _extract(archive, files, folder)
        return
    partial = Partial(folder / str(first.archive), str(first.url), first.checksum)
    with progress_bar(partial.target.name) as watch:
        bring(partial, watch)
    _extract(partial.path, files, folder)
    partial.remove()


def _extract(archive: Path, files: Sequence[File], folder: Path) -> None:
    """Copy members of an archive to the files' own names, never to a path named in the archive."""
    wanted = {str(file.member): file for file in files}
    try:
        for member, source in _members(archive, wanted):
            target = folder / wanted[member].name
            target.parent.mkdir(parents=True, exist_ok=True)
            unpacked = target.with_name(f"{target.name}.unpacked")
            try:
                with unpacked.open("wb") as copy:
                    shutil.copyfileobj(source, copy, CHUNK)
                if wanted[member].content is not None:
                    read(unpacked, wanted[member], compressed=target.suffix == ".gz")
                _place(unpacked, target)
            finally:
                unpacked.unlink(missing_ok=True)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        gzip.BadGzipFile,
        EOFError,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise DataError(
            f"{archive} is damaged: {first_line(error)}; delete it and download it again"
        ) from error
    for member, file in wanted.items():
        if not (folder / file.name).is_file():
            raise DataError(
                f"{archive} does not contain {member!r}; make sure it is the version at {file.url}"
            )


def _members(archive: Path, names: Container[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield some members of a tar or zip archive in storage order, to read a compressed tar only
    once."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                if name in names:
                    with packed.open(name) as member:
                        yield name, member
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            name = entry.name.removeprefix("./")
            # a link could lead anywhere
            stream = tar.extractfile(entry) if name in names and entry.isreg() else None
            if stream is not None:
                yield name, stream


def _place(path: Path, target: Path) -> None:
    """Give a complete file its name, once its bytes are on disk."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    os.replace(path, target)
