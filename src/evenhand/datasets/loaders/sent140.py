"""Sent140: tweets by account with their sentiment, as made by LEAF's scripts."""

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


def sent140(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    least: int = 1,
    dimensions: int = 100,
    most: int | None = None,
    length: int = 25,
) -> Federation:
    """Load Sent140: tweets as word codes, negative or positive; each account is a client.

    The codes are those of ``evenhand.data.text.glove(root, dimensions, most)``; a model needs its
    ``vectors``. q-FFL uses 300 dimensions.

    Args:
        split: None uses LEAF's own split if its scripts made one.
        least: skip accounts with fewer tweets.
        dimensions: the size of the word vectors.
        most: the number of word vectors.
        length: words used of each tweet.
    """
    return deal(read(root, least, dimensions, most, length), partition, split, seed, clients)


def read(
    root: Path | str | None = None,
    least: int = 1,
    dimensions: int = 100,
    most: int | None = None,
    length: int = 25,
) -> Pool:
    """Read all tweets in the folder "sent140" of the data root."""
    folder = leaf_folder("sent140", "-s niid --sf 0.4 -k 30 -t sample", root)
    return read_leaf(
        folder, "tweets", least=least, root=root, dimensions=dimensions, most=most, length=length
    )
