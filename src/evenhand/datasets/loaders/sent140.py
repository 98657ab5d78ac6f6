"""Sent140: tweets by account with their sentiment, as LEAF's scripts make it."""

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

FILES: tuple[File, ...] = ()  # LEAF's scripts write as many files as they like


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
    """Tweets as codes of words, negative or positive; a client is an account.

    Codes are those of ``text.glove(root, dimensions, most)``, whose ``vectors`` a model needs.
    q-FFL takes 300 dimensions.

    Args:
        split: LEAF's own where its scripts made one.
        least: leave out accounts with fewer tweets.
        dimensions, most: the size and number of the word vectors.
        length: words kept of a tweet.
    """
    return deal(read(root, least, dimensions, most, length), partition, split, seed, clients)


def read(
    root: Path | str | None = None,
    least: int = 1,
    dimensions: int = 100,
    most: int | None = None,
    length: int = 25,
) -> Pool:
    """All tweets in the folder "sent140" of the data root."""
    folder = leaf_folder("sent140", "-s niid --sf 0.4 -k 30 -t sample", root)
    return read_leaf(
        folder, "tweets", least=least, root=root, dimensions=dimensions, most=most, length=length
    )
