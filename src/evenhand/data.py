"""Federated data, stored flat: one array of samples for all clients, and offsets.

A million tiny clients are then a few arrays, not a million Python objects.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.errors import require_kind, require_number, require_whole

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from evenhand.tables import Encoding

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class View:
    """Samples that are rows of a larger array, gathered and scaled when they are asked for.

    Every part of every partition then shares one array, bytes of images stay bytes, and windows of a text overlap in memory.
    """

    source: Tensor  # (M, ...); rows may overlap in memory
    rows: Tensor | None = None  # (N,) int64: which row of source each sample is; None takes all in order
    scale: Tensor | None = None  # features are source * scale + shift, both () or of a sample's shape;
    shift: Tensor | None = None  # None leaves the numbers as they are (tokens)

    def __post_init__(self) -> None:
        if (self.scale is None) != (self.shift is None):
            raise ValueError("give a View both scale and shift, or neither")

    def __len__(self) -> int:
        return len(self.source if self.rows is None else self.rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.source.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype if self.scale is None else self.scale.dtype

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def element_size(self) -> int:
        return self.dtype.itemsize

    def __getitem__(self, key: slice | Tensor) -> Tensor:
        """The samples themselves, as an array of their own."""
        rows = torch.arange(len(self))[key] if self.rows is None else self.rows[key]
        return self._scaled(self.source[rows.to(self.source.device)])

    def pick(self, rows: Tensor) -> View:
        """A view of some of the samples, in the order of ``rows``."""
        return View(self.source, rows if self.rows is None else self.rows[rows], self.scale, self.shift)

    def gather(self, index: Tensor) -> Tensor:
        """Samples ``index``, in a way that can be batched over clients."""
        return self._scaled(_rows(self.source, index if self.rows is None else _rows(self.rows[:, None], index).squeeze(-1)))

    def _scaled(self, values: Tensor) -> Tensor:
        return values if self.scale is None or self.shift is None else values.to(self.scale.dtype) * self.scale + self.shift

    def to(self, device: torch.device, dtype: torch.dtype) -> View:
        """The same view on ``device``, features as ``dtype``; overlapping rows go on overlapping."""
        span = 1 + sum((length - 1) * stride for length, stride in zip(self.source.shape, self.source.stride(), strict=True))
        flat = torch.as_strided(self.source, (span if self.source.numel() else 0,), (1,)).to(device)
        source = torch.as_strided(flat, self.source.shape, self.source.stride())
        rows = None if self.rows is None else self.rows.to(device)
        scale, shift = (None if value is None else value.to(device, dtype) for value in (self.scale, self.shift))
        return View(source.to(dtype) if source.is_floating_point() else source, rows, scale, shift)


class Samples(NamedTuple):
    """Flat arrays that batches are gathered from."""

    x: Tensor | View  # (N, ...)
    y: Tensor  # (N, ...)
    group: Tensor  # (N,) int64 codes; zeros where the data have no groups


class Batch:
    """Samples of one client, gathered when they are asked for. Padding has weight 0."""

    def __init__(self, samples: Samples, index: Tensor, weight: Tensor, whole: Batch | None = None) -> None:
        self._samples, self._index = samples, index  # index (B,)
        self.weight = weight  # (B,) 1 for a real sample, 0 for padding
        self._whole = whole

    @property
    def whole(self) -> Batch:
        """All of the client's data, for methods that set ``whole_data``."""
        if self._whole is None:
            raise ValueError("batch.whole is there for objectives of methods with whole_data = True")
        return self._whole

    @cached_property
    def x(self) -> Tensor:
        """(B, ...)"""
        values = self._samples.x
        return values.gather(self._index) if isinstance(values, View) else _rows(values, self._index)

    @cached_property
    def y(self) -> Tensor:
        """(B, ...)"""
        return _rows(self._samples.y, self._index)

    @cached_property
    def group(self) -> Tensor:
        """(B,) int64 codes"""
        return _rows(self._samples.group, self._index)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    # embedding, not values[index]: under vmap it stays one gather of whole rows, five to ten times faster on a CPU
    gathered = F.embedding(index, values.reshape(len(values), -1)).reshape(*index.shape, *values.shape[1:])
    return gathered if gathered.is_floating_point() else gathered.long()


class Census(NamedTuple):
    """What the server may know beforehand."""

    sizes: Tensor  # (n,) training samples of each client
    weight: Tensor  # (n,) base weights w_i, float64, sum 1: the data share p_i, or 1/n
    group_counts: Tensor | None  # (n, A) training samples of each group on each client
    teams: Tensor | None  # (n,) code of each client's team
    names: tuple[str, ...] | None = None  # of the clients; None means their numbers

    def name(self, client: int) -> str:
        """The name of a client, its number where it has none."""
        return str(client) if self.names is None else self.names[client]

    @property
    def clients(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Part:
    """Samples of all clients in one piece: client k owns rows ``offsets[k]:offsets[k + 1]``."""

    x: Tensor | View  # (N, ...)
    y: Tensor  # (N, ...)
    offsets: Tensor  # (n + 1,) int64
    group: Tensor | None = None  # (N,) int64 codes

    def __post_init__(self) -> None:
        for name in ("x", "y", "offsets"):
            if name != "x" or not isinstance(self.x, View):
                require_kind(f"{name} of a Part", getattr(self, name), Tensor, "torch.from_numpy(array)")
        offsets, count = self.offsets, len(self.x)
        if offsets.dtype != torch.int64 or offsets.ndim != 1 or len(offsets) < 2:
            raise ValueError("offsets must be an int64 vector with one entry more than there are clients")
        if offsets[0] != 0 or offsets[-1] != count or bool((offsets.diff() < 0).any()):
            raise ValueError(f"offsets must rise from 0 to the number of samples, {count}")
        if len(self.y) != count or (self.group is not None and self.group.shape != (count,)):
            raise ValueError(f"x has {count} samples; y and group must have as many")

    @cached_property
    def sizes(self) -> Tensor:
        """(n,) samples of each client."""
        return self.offsets.diff()

    @property
    def owners(self) -> Tensor:
        """(N,) the client that each sample belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)

    def samples(self, dtype: torch.dtype, device: torch.device) -> Samples:
        """The arrays on ``device``, floating-point ones as ``dtype``; no copy where nothing changes."""
        x = self.x.to(device, dtype if isinstance(self.x, View) or self.x.is_floating_point() else self.x.dtype)
        y = self.y.to(device, dtype if self.y.is_floating_point() else self.y.dtype)
        group = torch.zeros(len(x), dtype=torch.int64) if self.group is None else self.group
        return Samples(x, y, group.to(device))

    def client(self, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Views of one client's x, y and group."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.x[rows], self.y[rows], None if self.group is None else self.group[rows]


@dataclass(frozen=True)
class Federation:
    """The data of all clients: train, and optionally val and test, parts; a group per sample; a team per client.

    Build it with :meth:`from_arrays`, or directly from flat :class:`Part` objects when there are very many clients.
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
                raise ValueError(f"{name} data are for {len(part.offsets) - 1} clients, training data for {self.clients}")
            if part.x.shape[1:] != self.train.x.shape[1:]:
                raise ValueError(f"{name} samples have shape {list(part.x.shape[1:])}, training samples {list(self.train.x.shape[1:])}")
            self._check_values(name, part)
            if len(part.x) and (part.group is None) != (self.train.group is None):
                having, lacking = ("training", name) if part.group is None else (name, "training")
                raise ValueError(f"{having} data have groups, {lacking} data have none; give every sample a group, or none")
        empty = torch.nonzero(self.train.sizes == 0)
        if len(empty):
            raise ValueError(f"client {self.name(int(empty[0]))} has no training samples; leave it out of the federation")
        if self.teams is not None and self.teams.shape != (self.clients,):
            raise ValueError(f"teams must have one entry per client ({self.clients}), got {list(self.teams.shape)}")
        _check_codes("team", self.teams, self.team_names)
        if self.names is None:
            return
        if len(self.names) != self.clients:
            raise ValueError(f"names must have one entry per client ({self.clients}), got {len(self.names)}")
        name, uses = Counter(self.names).most_common(1)[0]
        if uses > 1:
            raise ValueError(f"client names must differ; {name!r} is used {uses} times")

    def _check_values(self, name: str, part: Part) -> None:
        for field, array in (("x", part.x), ("y", part.y)):
            values = array.source if isinstance(array, View) else array
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                values = array[:]
                if bool(torch.isfinite(values).all()):
                    continue  # the value is in a row of the source that belongs to none of these samples
                sample = int(torch.isfinite(values.reshape(len(values), -1)).all(1).logical_not().nonzero()[0])
                client = int(torch.searchsorted(part.offsets, sample, right=True)) - 1
                raise ValueError(
                    f"client {self.name(client)} has a value in {name} {field} that is not finite "
                    f"(row {sample - int(part.offsets[client])}); fill it or remove the row"
                )
        _check_codes("group", part.group, self.group_names)

    def __repr__(self) -> str:
        extra = [f"{len(self.group_names)} groups"] * bool(self.group_names) + [f"{len(self.team_names)} teams"] * bool(self.team_names)
        return f"<Federation: {', '.join([f'{self.clients} clients', f'{len(self.train.x)} training samples', *extra])}>"

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train.offsets) - 1

    @property
    def judged(self) -> Part:
        """The part that models are judged on: the test data, or, where there are none, those trained with."""
        return self.test if self.test is not None and len(self.test.x) else self.train

    @property
    def groups(self) -> int:
        """Number of sample groups; 0 where the data have none."""
        return len(self.group_names)

    def name(self, client: int) -> str:
        """The name of a client, its index where it has none."""
        return str(client) if self.names is None else self.names[client]

    def census(self, weights: str = "data") -> Census:
        """What the server may know beforehand. ``weights``: "data" for w_i = m_i / m, "uniform" for 1 / n."""
        if weights not in ("data", "uniform"):
            raise ValueError(f'weights must be "data" or "uniform", got {weights!r}')
        sizes = self.train.sizes
        base = sizes.double() if weights == "data" else torch.ones(len(sizes), dtype=torch.float64)
        counts = None
        if self.train.group is not None:
            cells = self.train.owners * self.groups + self.train.group
            counts = torch.bincount(cells, minlength=self.clients * self.groups).reshape(self.clients, self.groups)
        return Census(sizes=sizes, weight=base / base.sum(), group_counts=counts, teams=self.teams, names=self.names)

    def fingerprint(self) -> str:
        """A short text that changes when the data do: a hash of sums over samples in their order."""
        found: list[object] = [self.names, self.group_names, self.team_names, self.label_names]
        found.append(None if self.teams is None else self.teams.tolist())
        for part in (self.train, self.val, self.test):
            if part is None:
                continue
            source, rows = (part.x.source, part.x.rows) if isinstance(part.x, View) else (part.x, None)
            for column in (source, rows, part.y, part.group, part.offsets):
                if column is not None:
                    each = column.reshape(len(column), -1).sum(1, dtype=torch.float64)
                    place = torch.arange(1, len(column) + 1, dtype=torch.float64)
                    found.append((tuple(column.shape), float(each.sum()), float(each @ place)))
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def describe(self) -> pd.DataFrame:
        """A row per client: name, team, samples in each part, and the share of every label and group among them."""
        from evenhand.describe import describe

        return describe(self)

    def pooled(self) -> Federation:
        """All data in the hands of one client, for centralised baselines: FedMinMax on it is centralised minimax training."""

        def together(part: Part) -> Part:
            return Part(part.x, part.y, torch.tensor([0, len(part.x)]), part.group)

        test, val = (None if part is None else together(part) for part in (self.test, self.val))
        return replace(self, train=together(self.train), test=test, val=val, teams=None, team_names=(), names=("everyone",))

    def with_validation(self, share: float, seed: int = 0) -> Federation:
        """The same data with a validation part: floor(share * m) of each client's m training samples, drawn at random.

        Data that have a validation part stay as they are, and test samples stay where they are. Features are not copied: both parts
        are views of the training samples.
        """
        require_number("share", share, "[0, 1)", "it is a share of each client's training samples")
        if share == 0 or (self.val is not None and len(self.val.x)):
            return self
        require_whole("seed", seed, 0)
        train, owner = self.train, self.train.owners
        drawn = torch.from_numpy(np.random.default_rng([seed, 9]).permutation(len(owner)))
        in_turn = drawn[torch.argsort(owner[drawn], stable=True)]  # client after client, each one's samples in random order
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
            clients: mappings with "x" and "y", optionally "group" (a label for every sample), "team" (a label for the
                client) and "name".
            test, val: one mapping per client with "x", "y" and, where training data have it, "group"; None or no samples for
                a client that has no such data. ``fit`` scores on test data; val is kept for choosing hyper-parameters.

        >>> import numpy as np
        >>> fed = Federation.from_arrays([{"x": np.zeros((3, 2)), "y": [0, 1, 1]}, {"x": np.ones((1, 2)), "y": [0]}])
        >>> fed.clients, fed.train.sizes.tolist()
        (2, [3, 1])
        """
        from evenhand.arrays import from_arrays

        return from_arrays(clients, test, val)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, **options: Any) -> Federation:
        """A federation from a pandas table with one row per sample; see :func:`evenhand.tables.from_frame` for the options.

        >>> import pandas as pd
        >>> ages = pd.DataFrame({"site": ["A", "A", "B", "B"], "age": [30, 50, 40, 60], "ill": ["no", "yes", "no", "yes"]})
        >>> Federation.from_frame(ages, client="site", label="ill", split={"test": 0.5})
        <Federation: 2 clients, 2 training samples>
        """
        from evenhand.tables import from_frame

        return from_frame(frame, **options)

    @classmethod
    def from_torch(cls, dataset: torch.utils.data.Dataset[Any], client_ids: Sequence[Any], **options: Any) -> Federation:
        """A federation from a map-style torch data set and each item's client; see :func:`evenhand.torch_data.from_torch`."""
        from evenhand.torch_data import from_torch

        return from_torch(dataset, client_ids, **options)

    @classmethod
    def from_leaf(cls, path: str | Path, **options: Any) -> Federation:
        """A federation from a directory in LEAF's JSON format; see :func:`evenhand.datasets.loaders.leaf.leaf`."""
        from evenhand.datasets.loaders.leaf import leaf

        return leaf(path, **options)


def _check_codes(what: str, codes: Tensor | None, names: tuple[str, ...]) -> None:
    """Raise unless every code has a name."""
    if codes is None or not len(codes):
        return
    bad = int(codes.min()) if int(codes.min()) < 0 else int(codes.max())
    if not 0 <= bad < len(names):
        raise ValueError(f"{what} code {bad} has no name; there are {len(names)} {what} names")
