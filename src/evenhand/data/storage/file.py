"""A file of a data set: where it lies, and reading it whole."""

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


@dataclass(frozen=True)
class File:
    """A file that a data set is read from."""

    name: str  # its path in the data set's folder
    # its public home, or that of the archive it is in; None where there is none to download from
    url: str | None = None
    checksum: str | None = None  # "md5:..." or "sha256:..." of what lies at url
    # the same of the file's own bytes, uncompressed where its name ends in .gz
    content: str | None = None
    member: str | None = None  # its name in the archive (tar or zip) at url
    # for a file without url: where it can be had, a phrase such as "LEAF's preprocess.sh makes it"
    hint: str | None = None

    @property
    def archive(self) -> str | None:
        """The file name of the archive it comes in, None where it comes as it is."""
        return (
            None
            if self.member is None or self.url is None
            else unquote(urlsplit(self.url).path).rpartition("/")[2]
        )


def data_root() -> Path:
    """The folder of all data sets: $EVENHAND_DATA, else the user's cache directory."""
    given = os.environ.get("EVENHAND_DATA")
    if given:
        return Path(given).expanduser()
    from pooch import os_cache

    return Path(os_cache("evenhand"))


def folder_of(dataset: str, root: Path | str | None = None) -> Path:
    """The folder of one data set in ``root``, by default ``data_root``."""
    return Path(root or data_root()) / dataset


def find(file: File, folders: Sequence[Path]) -> Path | None:
    """The first of ``folders`` that has the file, compressed or not, gives its path; None where
    none has it."""
    other = file.name.removesuffix(".gz") if file.name.endswith(".gz") else f"{file.name}.gz"
    for folder in folders:
        for name in (file.name, other):
            if (folder / name).is_file():
                return folder / name
    return None


def read(path: Path, file: File, compressed: bool | None = None) -> bytes:
    """The file's bytes, uncompressed where its name ends in .gz; raises a DataError where they are
    cut short or damaged.

    ``compressed`` says whether they are gzip data, for a file that has not got its name yet.
    """
    again = "remove it and fetch it again" if file.url else "put a good copy there"
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
                f"{path} is cut short: its compressed data end too early; {again}"
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
    """Check a file that is there, as far as that can be done: False where no checksum is known, a
    DataError where it is damaged."""
    read(path, file)
    if file.content is not None:
        return True
    if file.checksum is None or file.member is not None or path.name != Path(file.name).name:
        # what lies at url has a checksum, but this is a part of it, or packed in another way
        return False
    from pooch import file_hash

    kind, _, wanted = file.checksum.partition(":")
    got = file_hash(str(path), kind)
    if got != wanted.lower():
        raise DataError(
            f"{path} is damaged or another version: its {kind} is {got}, not {wanted}; remove it"
            " and fetch it again"
        )
    return True
