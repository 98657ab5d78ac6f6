"""Federations from samples in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenhand.data.dealing import assign
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool


def deal(
    pool: Pool,
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
) -> Federation:
    """Distribute the samples of a pool over clients, and split each client's samples.

    Args:
        pool: samples in one place, with labels and, optionally, groups and natural clients.
        partition: a name from ``evenhand.partitions.PARTITIONS``; a mapping with its "name" and
            settings; a function ``(pool, seed=...)`` that returns a ``Deal`` or the client of each
            sample (-1 for none); or None for the clients that the data come with.
        split: how to choose validation and test samples: "official" uses the data set's own test
            set, ``{"val": 0.1, "test": 0.2}`` takes shares of every client's samples;
            ``evenhand.data.splits.assign_parts`` lists all options. ``{"official": "train", ...}``
            takes shares of the official training samples and ignores the official test set.
        seed: the same seed gives the same federation.
        clients: the number of clients; overrides the partition's own setting.

    >>> import torch
    >>> pool = Pool(torch.randn(12, 2), torch.arange(12) % 3, label_names=("red", "green", "blue"))
    >>> federation = deal(pool, "by_class", {"test": 0.25})
    >>> federation.names, federation.train.sizes.tolist(), federation.test.sizes.tolist()
    (('red', 'green', 'blue'), [3, 3, 3], [1, 1, 1])
    >>> deal(pool, {"name": "dirichlet", "clients": 4, "alpha": 0.5}).clients
    4
    """
    return Federation(*assign(pool, partition, split, seed, clients).contents(pool))
