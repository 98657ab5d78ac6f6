"""A user's own files in LEAF's JSON format, and data sets made by LEAF's scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.data.federation import Federation
from evenhand.data.leaf import leaf_files
from evenhand.data.pool import Partition
from evenhand.data.storage.file import folder_of
from evenhand.errors import DataError


def leaf(
    path: Path | str,
    kind: str = "auto",
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    least: int = 1,
    strangers: str = "error",
    dimensions: int = 100,
    most: int | None = None,
    length: int = 25,
) -> Federation:
    """Load a folder or file in LEAF's JSON format; every user is a client.

    The arguments are those of ``evenhand.deal`` and ``evenhand.data.leaf.read_leaf``.
    """
    return Federation.from_leaf(
        path,
        kind,
        partition,
        split,
        seed,
        clients,
        root=root,
        least=least,
        strangers=strangers,
        dimensions=dimensions,
        most=most,
        length=length,
    )


def leaf_folder(dataset: str, settings: str, root: Path | str | None) -> Path:
    """Return the folder of a data set made by LEAF's scripts, or raise a DataError that says how to
    make it."""
    folder = folder_of(dataset, root)
    try:
        leaf_files(folder)
    except DataError as error:
        origin = dataset.removeprefix("leaf_")
        raise DataError(
            f"{folder} has no {dataset} data; get github.com/TalwalkarLab/leaf, run ./preprocess.sh"
            f" {settings} in its data/{origin}, and copy train/ and test/ from data/{origin}/data"
            " there"
        ) from error
    return folder
