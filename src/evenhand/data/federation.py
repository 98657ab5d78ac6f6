"""Clients and the samples that they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.population import Extent, Form, Population, check_codes
from evenhand.data.samples import PARTS, Part, Samples, View
from evenhand.errors import require_number, require_whole

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from evenhand.data.tables import Encoding


@dataclass(frozen=True, repr=False)
class Federation(Population):
    """The data of all clients: train, and optionally val and test, parts; a group per sample; a
    team per client.

    Build it with :meth:`from_arrays`, or directly from flat :class:`Part` objects when there are
    very many clients.
    """

    train: Part
    test: Part | None = None
    val: Part | None = None
    teams: Tensor | None = None  # (n,) int64 codes into team_names
    team_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None  # of the clients; None means "0", "1", ...
    label_names: tuple[str, ...] = ()  # of the classes, where they have names
    encoding: Encoding | None = None  # how a table became numbers, where the data came as one

    def __post_init__(self) -> None:
        for name in PARTS:
            part = getattr(self, name)
            if part is None:
                continue
            if len(part.offsets) != len(self.train.offsets):
                raise ValueError(
                    f"{name} data are for {len(part.offsets) - 1} clients, training data for"
                    f" {self.clients}"
                )
            if part.x.shape[1:] != self.train.x.shape[1:]:
                raise ValueError(
                    f"{name} samples have shape {list(part.x.shape[1:])}, training samples"
                    f" {list(self.train.x.shape[1:])}"
                )
            self._check_values(name, part)
            if len(part.x) and (part.group is None) != (self.train.group is None):
                having, lacking = ("training", name) if part.group is None else (name, "training")
                raise ValueError(
                    f"{having} data have groups, {lacking} data have none; give every sample a"
                    " group, or none"
                )
        self._check_clients()

    def _check_values(self, name: str, part: Part) -> None:
        for field, array in (("x", part.x), ("y", part.y)):
            values = array.source if isinstance(array, View) else array
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                values = array[:]
                if bool(torch.isfinite(values).all()):
                    # the value is in a row of the source that belongs to none of these samples
                    continue
                sample = int(
                    torch.isfinite(values.reshape(len(values), -1))
                    .all(1)
                    .logical_not()
                    .nonzero()[0]
                )
                client = int(torch.searchsorted(part.offsets, sample, right=True)) - 1
                raise ValueError(
                    f"client {self.name(client)} has a value in {name} {field} that is not finite "
                    f"(row {sample - int(part.offsets[client])}); fill it or remove the row"
                )
        check_codes("group", part.group, self.group_names)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train.offsets) - 1

    @property
    def form(self) -> Form:
        """Shape and type of a sample."""
        x, y = self.train.x, self.train.y
        return Form(x.shape[1:], x.dtype, y.shape[1:], y.dtype)

    @property
    def judged(self) -> Part:
        """The part that models are judged on: the test data, or, where there are none, those
        trained with."""
        return self.test if self.test is not None and len(self.test.x) else self.train

    def counts(self, part: str) -> Tensor:
        """(n, A) samples of each client and group in "train", "val" or "test"; (n, 1) where samples
        have no groups."""
        return self._part(part).counts(self.groups)

    def sizes(self, part: str) -> Tensor:
        """(n,) samples of each client in "train", "val" or "test"; zeros where there is no such
        part."""
        return self._part(part).sizes

    def _part(self, name: str) -> Part:
        """A part of the data, one without samples where there is none."""
        part: Part | None = getattr(self, name)
        if part is not None:
            return part
        train = self.train
        return Part(train.x[:0], train.y[:0], torch.zeros_like(train.offsets))

    def _group_counts(self) -> Tensor | None:
        return None if self.train.group is None else self.counts("train")

    def probe(self, count: int) -> Samples:
        """The first training samples, at most ``count``."""
        return Samples(*(values[:count] for values in self.train.all()))

    def examples(self) -> Iterator[Samples]:
        """The samples of every part that has any."""
        for part in (self.train, self.val, self.test):
            if part is not None and len(part.x):
                yield part.all()

    def first(self, extent: Extent) -> Federation:
        """The federation as it was with fewer clients; itself where it had as many, or more, or
        cannot have been like that."""
        if extent.clients >= self.clients:
            return self
        try:
            return replace(
                self,
                train=self.train.first(extent.clients),
                val=_first(self.val, extent.clients),
                test=_first(self.test, extent.clients),
                teams=None if self.teams is None else self.teams[: extent.clients],
                team_names=self.team_names[: extent.teams],
                group_names=self.group_names[: extent.groups],
                names=None if self.names is None else self.names[: extent.clients],
            )
        except ValueError:  # its clients have more groups or teams
            return self

    def fingerprint(self) -> str:
        """A short text that changes when the data do: a hash of sums over samples in their
        order."""
        found: list[object] = [self.names, self.group_names, self.team_names, self.label_names]
        found.append(None if self.teams is None else self.teams.tolist())
        for part in (self.train, self.val, self.test):
            if part is None:
                continue
            source, rows = (
                (part.x.source, part.x.rows) if isinstance(part.x, View) else (part.x, None)
            )
            for column in (source, rows, part.y, part.group, part.offsets):
                if column is not None:
                    each = column.reshape(len(column), -1).sum(1, dtype=torch.float64)
                    place = torch.arange(1, len(column) + 1, dtype=torch.float64)
                    found.append((tuple(column.shape), float(each.sum()), float(each @ place)))
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def describe(self) -> pd.DataFrame:
        """A row per client: name, team, samples in each part, and the share of every label and
        group among them."""
        from evenhand.data.describe import describe

        return describe(self)

    def pooled(self) -> Federation:
        """All data in the hands of one client, for centralised baselines: FedMinMax on it is
        centralised minimax training."""

        def together(part: Part) -> Part:
            return Part(part.x, part.y, torch.tensor([0, len(part.x)]), part.group)

        test, val = (None if part is None else together(part) for part in (self.test, self.val))
        return replace(
            self,
            train=together(self.train),
            test=test,
            val=val,
            teams=None,
            team_names=(),
            names=("everyone",),
        )

    def with_validation(self, share: float, seed: int = 0) -> Federation:
        """The same data with a validation part: floor(share * m) of each client's m training
        samples, drawn at random.

        Data that have a validation part stay as they are, and test samples stay where they are.
        Features are not copied: both parts are views of the training samples.
        """
        require_number("share", share, "[0, 1)", "it is a share of each client's training samples")
        if share == 0 or (self.val is not None and len(self.val.x)):
            return self
        require_whole("seed", seed, 0)
        train, owner = self.train, self.train.owners
        drawn = torch.from_numpy(np.random.default_rng([seed, 9]).permutation(len(owner)))
        # client after client, each one's samples in random order
        in_turn = drawn[torch.argsort(owner[drawn], stable=True)]
        place = torch.arange(len(owner)) - train.offsets[:-1].repeat_interleave(train.sizes)
        wanted = (share * train.sizes.double() + 1e-9).long()  # 0.29 * 100 is not quite 29
        held_out = torch.zeros(len(owner), dtype=torch.bool)
        held_out[in_turn[place < wanted[owner]]] = True
        if not bool(held_out.any()):
            return self

        def part(chosen: Tensor) -> Part:
            rows = chosen.nonzero().flatten()
            sizes = torch.bincount(owner[rows], minlength=self.clients)
            x = train.x.pick(rows) if isinstance(train.x, View) else View(train.x, rows)
            group = None if train.group is None else train.group[rows]
            return Part(x, train.y[rows], F.pad(sizes.cumsum(0), (1, 0)), group)

        return replace(self, train=part(~held_out), val=part(held_out))

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Mapping[str, Any]],
        test: Sequence[Mapping[str, Any] | None] | None = None,
        val: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Federation:
        """A federation from one mapping per client, with NumPy or torch arrays.

        Args:
            clients: mappings with "x" and "y", optionally "group" (a label for every sample),
                "team" (a label for the client) and "name".
            test, val: one mapping per client with "x", "y" and, where training data have it,
                "group"; None or no samples for a client that has no such data. ``fit`` scores on
                test data; val is kept for choosing hyper-parameters.

        >>> import numpy as np
        >>> many, one = {"x": np.zeros((3, 2)), "y": [0, 1, 1]}, {"x": np.ones((1, 2)), "y": [0]}
        >>> fed = Federation.from_arrays([many, one])
        >>> fed.clients, fed.train.sizes.tolist()
        (2, [3, 1])
        """
        from evenhand.data.arrays import from_arrays

        return from_arrays(clients, test, val)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, **options: Any) -> Federation:
        """A federation from a pandas table with one row per sample; see
        :func:`evenhand.data.tables.from_frame` for the options.

        >>> import pandas as pd
        >>> sites, ages = ["A", "A", "B", "B"], [30, 50, 40, 60]
        >>> ages = pd.DataFrame({"site": sites, "age": ages, "ill": ["no", "yes", "no", "yes"]})
        >>> Federation.from_frame(ages, client="site", label="ill", split={"test": 0.5})
        <Federation: 2 clients, 2 training samples>
        """
        from evenhand.data.tables import from_frame

        return from_frame(frame, **options)

    @classmethod
    def from_torch(
        cls, dataset: torch.utils.data.Dataset[Any], client_ids: Sequence[Any], **options: Any
    ) -> Federation:
        """A federation from a map-style torch data set and each item's client; see
        :func:`evenhand.data.torch_data.from_torch`."""
        from evenhand.data.torch_data import from_torch

        return from_torch(dataset, client_ids, **options)

    @classmethod
    def from_leaf(cls, path: str | Path, **options: Any) -> Federation:
        """A federation from a directory in LEAF's JSON format; see
        :func:`evenhand.data.leaf.leaf`."""
        from evenhand.data.leaf import leaf

        return leaf(path, **options)


def _first(part: Part | None, clients: int) -> Part | None:
    """A part of the first clients; None where they have no samples in it."""
    few = None if part is None else part.first(clients)
    return few if few is not None and len(few.x) else None
