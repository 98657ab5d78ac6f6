"""Shakespeare's plays by role, as made by LEAF's scripts: windows of 80 characters and the next
one."""

from __future__ import annotations

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


def leaf_shakespeare(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    least: int = 1,
) -> Federation:
    """Load next-character prediction from LEAF's files; each role is a client.

    A client's team is its play, if the files name it. The data set "shakespeare" is the same task
    from a smaller file, with the sex of the roles.

    Args:
        split: None uses LEAF's own split if its scripts made one.
        least: skip roles with fewer windows; q-FFL uses 64.
    """
    return deal(read(root, least), partition, split, seed, clients)


def read(root: Path | str | None = None, least: int = 1) -> Pool:
    """Read all windows in the folder "leaf_shakespeare" of the data root."""
    return read_leaf(
        leaf_folder("leaf_shakespeare", "-s niid --sf 1.0 -k 0 -t sample", root),
        "characters",
        least=least,
    )
