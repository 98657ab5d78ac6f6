"""Federated data, stored flat: one array of samples for all clients, and offsets.

A million tiny clients are then a few arrays, not a million Python objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.errors import require_kind

PARTS = ("train", "val", "test")
ALLOWED = {"x", "y", "group", "team", "name"}


class Samples(NamedTuple):
    """Flat arrays that batches are gathered from."""

    x: Tensor  # (N, ...)
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
        return _rows(self._samples.x, self._index)

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

    x: Tensor  # (N, ...)
    y: Tensor  # (N, ...)
    offsets: Tensor  # (n + 1,) int64
    group: Tensor | None = None  # (N,) int64 codes

    def __post_init__(self) -> None:
        for name in ("x", "y", "offsets"):
            require_kind(f"{name} of a Part", getattr(self, name), Tensor, "torch.from_numpy(array)")
        offsets, count = self.offsets, len(self.x)
        if offsets.dtype != torch.int64 or offsets.ndim != 1 or len(offsets) < 2:
            raise ValueError("offsets must be an int64 vector with one entry more than there are clients")
        if offsets[0] != 0 or offsets[-1] != count or bool((offsets.diff() < 0).any()):
            raise ValueError(f"offsets must rise from 0 to the number of samples, {count}")
        if len(self.y) != count or (self.group is not None and self.group.shape != (count,)):
            raise ValueError(f"x has {count} samples; y and group must have as many")

    @property
    def sizes(self) -> Tensor:
        """(n,) samples of each client."""
        return self.offsets.diff()

    def samples(self, dtype: torch.dtype, device: torch.device) -> Samples:
        """The arrays on ``device``, floating-point ones as ``dtype``; no copy where nothing changes."""
        x, y = (v.to(device, dtype if v.is_floating_point() else v.dtype) for v in (self.x, self.y))
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
        for field, values in (("x", part.x), ("y", part.y)):
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
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
            client_of = torch.repeat_interleave(torch.arange(self.clients), sizes)
            cells = client_of * self.groups + self.train.group
            counts = torch.bincount(cells, minlength=self.clients * self.groups).reshape(self.clients, self.groups)
        return Census(sizes=sizes, weight=base / base.sum(), group_counts=counts, teams=self.teams, names=self.names)

    def pooled(self) -> Federation:
        """All data in the hands of one client, for centralised baselines: FedMinMax on it is centralised minimax training."""

        def together(part: Part) -> Part:
            return Part(part.x, part.y, torch.tensor([0, len(part.x)]), part.group)

        test, val = (None if part is None else together(part) for part in (self.test, self.val))
        return Federation(together(self.train), test, val, group_names=self.group_names, names=("everyone",))

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
        if not isinstance(clients, Sequence):
            raise TypeError(f"clients must be a list with a mapping for each client, got {type(clients).__name__}")
        if not clients:
            raise ValueError("a federation needs at least one client")
        for index, client in enumerate(clients):
            if not isinstance(client, Mapping):
                raise TypeError(f'client {index} must be a mapping such as {{"x": ..., "y": ...}}, got {type(client).__name__}')
        names = [str(client.get("name", index)) for index, client in enumerate(clients)]
        raw: dict[str, list[dict[str, Any]]] = {}
        for part, rows in (("train", clients), ("val", val), ("test", test)):
            if rows is None:
                continue
            if len(rows) != len(clients):
                raise ValueError(f"{part} has {len(rows)} entries for {len(clients)} clients; give one per client (None for no data)")
            raw[part] = [_arrays(part, name, row) for name, row in zip(names, rows, strict=True)]

        for name, client in zip(names, raw["train"], strict=True):
            if client["x"] is None or len(client["x"]) == 0:
                raise ValueError(f"client {name} has no training samples; leave it out of the federation")
        group_names, codes = _code_groups(raw, names)
        reference = raw["train"][0]
        flat = {part: _join(part, names, rows, codes[part], reference) for part, rows in raw.items()}

        teams: Tensor | None = None
        team_names: tuple[str, ...] = ()
        if any("team" in client for client in clients):
            missing = [name for name, client in zip(names, clients, strict=True) if "team" not in client]
            if missing:
                raise ValueError(f"client {missing[0]} has no team, others have one; give all clients a team or none")
            teams, team_names = _encode([client["team"] for client in clients])
        return cls(
            train=flat["train"],
            test=flat.get("test"),
            val=flat.get("val"),
            teams=teams,
            team_names=team_names,
            group_names=group_names,
            names=tuple(names) if any("name" in client for client in clients) else None,
        )


def _check_codes(what: str, codes: Tensor | None, names: tuple[str, ...]) -> None:
    """Raise unless every code has a name."""
    if codes is None or not len(codes):
        return
    bad = int(codes.min()) if int(codes.min()) < 0 else int(codes.max())
    if not 0 <= bad < len(names):
        raise ValueError(f"{what} code {bad} has no name; there are {len(names)} {what} names")


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        array = np.ascontiguousarray(values)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())  # torch warns of read-only arrays
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def _arrays(part: str, name: str, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """One client's arrays as tensors, checked on their own; x is None for a client without such data."""
    if row is None:
        return {"x": None}
    unknown = sorted(set(row) - ALLOWED)
    if unknown:
        raise ValueError(f"client {name} has an unknown key {unknown[0]!r}; allowed: {', '.join(sorted(ALLOWED))}")
    for key in ("x", "y"):
        if key not in row:
            raise ValueError(f"client {name} has no {key!r} in its {part} data")
    try:
        x, y = _tensor(row["x"]), _tensor(row["y"])
    except (TypeError, ValueError) as error:
        raise TypeError(f"client {name}: {part} x and y must be arrays of numbers ({error})") from error
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise ValueError(f"client {name}: {part} x has shape {list(x.shape)} and y {list(y.shape)}; they need equally many rows")
    if not y.is_floating_point():
        y = y.long().squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y.long()  # a column of labels: one per sample
    arrays: dict[str, Any] = {"x": x, "y": y}
    if row.get("group") is not None:
        group = row["group"].tolist() if hasattr(row["group"], "tolist") else row["group"]
        if not isinstance(group, Iterable) or isinstance(group, str):
            raise TypeError(f"client {name}: {part} group must have a label for every sample, got {group!r}")
        group = list(group)
        if len(group) != len(x):
            raise ValueError(f"client {name}: {part} group has {len(group)} entries for {len(x)} samples")
        arrays["group"] = group
    return arrays


def _encode(labels: list[Any]) -> tuple[Tensor, tuple[str, ...]]:
    """Codes and names of labels, names in sorted order (numbers by value)."""
    if any(label is None or label != label for label in labels):
        raise ValueError("a group or team label is missing (None or NaN); give it a name, such as 'unknown'")
    distinct = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    position = {label: code for code, label in enumerate(distinct)}
    return torch.tensor([position[label] for label in labels]), tuple(str(label) for label in distinct)


def _code_groups(raw: dict[str, list[dict[str, Any]]], names: list[str]) -> tuple[tuple[str, ...], dict[str, Tensor | None]]:
    """Names of all groups in all parts, and each part's codes (None for a part without groups)."""
    labels: list[Any] = []
    spans: dict[str, tuple[int, int] | None] = {}
    for part, rows in raw.items():
        filled = [(name, row) for name, row in zip(names, rows, strict=True) if row["x"] is not None and len(row["x"])]
        having = [row for _, row in filled if "group" in row]
        if not having:
            spans[part] = None
            continue
        if len(having) < len(filled):
            name = next(name for name, row in filled if "group" not in row)
            raise ValueError(f"client {name} has no group in its {part} data, others have one; give all samples a group or none")
        spans[part] = (len(labels), len(labels) + sum(len(row["group"]) for row in having))
        labels.extend(label for row in having for label in row["group"])
    if not labels:
        return (), dict.fromkeys(raw)
    codes, group_names = _encode(labels)
    return group_names, {part: None if span is None else codes[slice(*span)] for part, span in spans.items()}


def _join(part: str, names: list[str], rows: list[dict[str, Any]], group: Tensor | None, reference: dict[str, Any]) -> Part:
    """Concatenate clients, after checking that their samples look like those of the first client."""
    kept_x, kept_y = [], []
    sizes = [0 if row["x"] is None else len(row["x"]) for row in rows]
    for name, row, size in zip(names, rows, sizes, strict=True):
        if not size:
            continue
        x, y = row["x"], row["y"]
        for field, values, first in (("x", x, reference["x"]), ("y", y, reference["y"])):
            if values.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"client {name}: {part} {field} has samples of shape {list(values.shape[1:])}, "
                    f"client {names[0]} of shape {list(first.shape[1:])}; all clients need the same"
                )
            if values.is_floating_point() != first.is_floating_point():
                raise ValueError(f"client {name}: {part} {field} is {values.dtype}, client {names[0]} has {first.dtype}; use one kind")
        kept_x.append(x)
        kept_y.append(y)
    offsets = torch.tensor([0, *np.cumsum(sizes).tolist()])
    x = torch.cat(kept_x) if kept_x else reference["x"][:0]
    y = torch.cat(kept_y) if kept_y else reference["y"][:0]
    return Part(x=x, y=y, offsets=offsets, group=group if kept_x else None)
