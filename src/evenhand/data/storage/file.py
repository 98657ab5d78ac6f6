"""A file of a data set: where it is stored, and how it is read."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from evenhand.errors import DataError, first_line
from evenhand.files import cache_home


@dataclass(frozen=True)
class File:
    """A file that a data set is read from."""

    name: str  # its path in the data set's folder
    # where it, or the archive that contains it, can be downloaded; None if nowhere
    url: str | None = None
    checksum: str | None = None  # "md5:..." or "sha256:..." of the file at url
    # the same of the file's own bytes, uncompressed if its name ends in .gz
    content: str | None = None
    member: str | None = None  # its name in the archive (tar or zip) at url
    # for a file without url: how to get it, such as "LEAF's preprocess.sh makes it"
    hint: str | None = None

    @property
    def archive(self) -> str | None:
        """The file name of the archive that contains it, or None."""
        return (
            None
            if self.member is None or self.url is None
            else unquote(urlsplit(self.url).path).rpartition("/")[2]
        )


def data_root() -> Path:
    """Return the folder of all data sets: $EVENHAND_DATA, or else the user's cache directory."""
    given = os.environ.get("EVENHAND_DATA")
    if given:
        return Path(given).expanduser()
    return cache_home()


def folder_of(dataset: str, root: Path | str | None = None) -> Path:
    """Return the folder of one data set in ``root``, by default ``data_root()``."""
    return Path(root or data_root()) / dataset


def find(file: File, folders: Sequence[Path]) -> Path | None:
    """Return the path of the file, compressed or not, in the first folder that has it, or None."""
    other = file.name.removesuffix(".gz") if file.name.endswith(".gz") else f"{file.name}.gz"
    for folder in folders:
        for name in (file.name, other):
            if (folder / name).is_file():
                return folder / name
    return None


def file_hash(path: Path, kind: str) -> str:
    """The checksum of a file's bytes, "md5" or "sha256"."""
    with path.open("rb") as content:
        return hashlib.file_digest(
            content, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()


def read(path: Path, file: File, compressed: bool | None = None) -> bytes:
    """Return the file's bytes, uncompressed if its name ends in .gz.

    Raises a DataError if they are truncated or damaged. ``compressed`` says whether they are gzip
    data, for a file that does not have its final name yet.
    """
    again = "delete it and download it again" if file.url else "put a good copy there"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    if path.suffix == ".gz" if compressed is None else compressed:
        try:
            if not content:
                raise EOFError  # gzip takes an empty file for empty data
            content = gzip.decompress(content)
        except EOFError as error:
            raise DataError(
                f"{path} is truncated: its compressed data end too early; {again}"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} is damaged: {first_line(error)}; {again}") from error
    if file.content is not None:
        kind, _, wanted = file.content.partition(":")
        got = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
        if got != wanted.lower():
            raise DataError(
                f"{path} is damaged or another version: the {kind} of its content is {got}, not"
                f" {wanted}; {again}"
            )
    return content


def verify(path: Path, file: File) -> bool:
    """Check an existing file: return False if no checksum is known, raise a DataError if it is
    damaged."""
    read(path, file)
    if file.content is not None:
        return True
    if file.checksum is None or file.member is not None or path.name != Path(file.name).name:
        # the checksum is that of the file at url, but this is a part of it, or packed differently
        return False
    kind, _, wanted = file.checksum.partition(":")
    got = file_hash(path, kind)
    if got != wanted.lower():
        raise DataError(
            f"{path} is damaged or another version: its {kind} is {got}, not {wanted}; delete it"
            " and download it again"
        )
    return True
