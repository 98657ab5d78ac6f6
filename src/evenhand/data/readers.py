"""The ways to build a federation from data of other forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from evenhand.data.arrays import from_arrays

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import torch
    from torch import Tensor

    from evenhand.data.pool import Deal, Partition, Pool
    from evenhand.data.torch_items import MapStyle


# Readers are imported on use, because a Flower node starts a process for each message.
class Readers:
    """Class methods of a federation, each named after the form of the data it reads."""

    if TYPE_CHECKING:

        def __init__(self, *contents: Any) -> None: ...

    @classmethod
    def from_pool(cls, pool: Pool, deal: Deal, part: Tensor) -> Self:
        """Assign sample i to client ``deal.owner[i]`` and split ``part[i]``: 0 train, 1 val, 2
        test.

        ``evenhand.deal`` takes a partition and a split by name instead.
        """
        from evenhand.data.dealing import Assignment

        return cls(*Assignment.of(pool, deal, part).contents(pool))

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Mapping[str, Any]],
        test: Sequence[Mapping[str, Any] | None] | None = None,
        val: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Self:
        """Build a federation from NumPy or torch arrays, one mapping per client.

        Args:
            clients: training data, mappings with "x" and "y" and, optionally, "group" (a label per
                sample), "team" (a label for the client) and "name".
            test: test data, one mapping per client with "x", "y" and, if training data have it,
                "group"; None for a client without test data. ``fit`` evaluates on test data.
            val: validation data in the same form, for choosing hyper-parameters.

        >>> import numpy as np
        >>> from evenhand import Federation
        >>> many, one = {"x": np.zeros((3, 2)), "y": [0, 1, 1]}, {"x": np.ones((1, 2)), "y": [0]}
        >>> fed = Federation.from_arrays([many, one])
        >>> fed.clients, fed.train.sizes.tolist()
        (2, [3, 1])
        """
        return cls(*from_arrays(clients, test, val))

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, **options: Any) -> Self:
        """Build a federation from a pandas table with one row per sample.

        ``client`` and ``label`` name columns; ``group``, ``team``, ``drop``, ``split`` and others
        are optional: see ``evenhand.data.tables.frame.from_frame``. ``evenhand.read_table`` reads a
        file.

        >>> import pandas as pd
        >>> from evenhand import Federation
        >>> sites, ages = ["A", "A", "B", "B"], [30, 50, 40, 60]
        >>> ages = pd.DataFrame({"site": sites, "age": ages, "ill": ["no", "yes", "no", "yes"]})
        >>> Federation.from_frame(ages, client="site", label="ill", split={"test": 0.5})
        <Federation: 2 clients, 2 training samples>
        """
        from evenhand.data.tables.frame import from_frame

        return cls(*from_frame(frame, **options))

    @classmethod
    def from_torch(
        cls,
        dataset: torch.utils.data.Dataset[Any] | MapStyle,
        client_ids: Iterable[Any],
        split: str | Mapping[str, Any] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Self:
        """Build a federation from a map-style torch dataset and the client of each item.

        ``options`` are those of ``evenhand.data.torch_data.from_torch``: groups, teams, test items.
        """
        from evenhand.data.torch_data import from_torch

        return cls(*from_torch(dataset, client_ids, split, seed, **options))

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        client: str,
        label: str,
        group: str | None = None,
        *,
        inputs: str | Sequence[str] | None = None,
        split: str | Mapping[str, Any] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Self:
        """Build a federation from a dataset of Hugging Face, with columns for client and label.

        Args:
            dataset: a ``datasets.Dataset``, or a ``DatasetDict`` with "train" and, optionally,
                "validation" and "test", which is then the split.
            client: the column with the client of each row.
            label: the column with the label.
            group: the column with the group.
            inputs: the columns that the module takes: a name for one tensor, a list for a dict. By
                default all other columns with numbers, lists of numbers, or images.
            split: as in ``evenhand.deal``, for a dataset without splits; by default 20 % test.
            seed: of the split.
            **options: ``team`` (a column) and ``pad`` (the value that fills shorter sequences, by
                default 0, or a value by column): see ``evenhand.data.hugging_face.from_hf``.
        """
        from evenhand.data.hugging_face import from_hf

        return cls(*from_hf(dataset, client, label, group, inputs, split, seed, **options))

    @classmethod
    def from_leaf(
        cls,
        path: str | Path,
        kind: str = "auto",
        partition: str | Mapping[str, Any] | Partition | None = None,
        split: str | Mapping[str, Any] | None = None,
        seed: int = 0,
        clients: int | None = None,
        **options: Any,
    ) -> Self:
        """Build a federation from a folder or file in LEAF's JSON format; every user is a client.

        ``partition``, ``split``, ``seed`` and ``clients`` are those of ``evenhand.deal``; by
        default, the split is LEAF's own (train/, test/). ``options`` are those of
        ``evenhand.data.leaf.read_leaf``.
        """
        from evenhand.data.dealing import assign
        from evenhand.data.leaf import read_leaf

        pool = read_leaf(path, kind, **options)
        return cls(*assign(pool, partition, split, seed, clients).contents(pool))
