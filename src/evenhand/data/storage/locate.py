"""Finding the files of a data set, and downloading those that are missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from evenhand.data.storage.file import File, find, folder_of
from evenhand.data.storage.supply import supply


def locate(
    dataset: str,
    files: Sequence[File],
    root: Path | str | None = None,
    also: Sequence[Path] = (),
    download: bool = True,
) -> list[Path]:
    """Return the paths of a data set's files; missing files are downloaded if possible.

    Files are looked for in the data set's folder of ``root`` (by default ``data_root()``), then in
    the folders ``also``, compressed (with .gz at the end of the name) or not. Nothing is downloaded
    if ``download`` is False or the environment variable EVENHAND_OFFLINE is set to 1. Raises a
    DataError that says what to download and where to put it.
    """
    folder = folder_of(dataset, root)
    folders = (folder, *also)
    missing = [file for file in files if find(file, folders) is None]
    if missing:
        supply(missing, folder, download and os.environ.get("EVENHAND_OFFLINE", "0") in ("", "0"))
    return [find(file, folders) or folder / file.name for file in files]
