"""FEMNIST: handwritten digits and letters by writer, as made by LEAF's scripts."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.leaf import read_leaf
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File
from evenhand.datasets.loaders.leaf import leaf_folder

FILES: tuple[File, ...] = ()  # LEAF's scripts write any number of files
LABELS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


def femnist(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    least: int = 1,
) -> Federation:
    """Load FEMNIST: images of 62 digits and letters, 28 x 28 pixels; each writer is a client.

    LEAF has about 3,550 writers.

    Args:
        split: None uses LEAF's own split if its scripts made one.
        least: skip writers with fewer images.
    """
    return deal(read(root, least), partition, split, seed, clients)


def read(root: Path | str | None = None, least: int = 1) -> Pool:
    """Read all images in the folder "femnist" of the data root."""
    folder = leaf_folder("femnist", "-s niid --sf 1.0 -k 0 -t sample", root)
    return read_leaf(folder, "images", classes=LABELS, least=least)
