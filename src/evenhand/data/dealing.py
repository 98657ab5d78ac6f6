"""Assigning rows to clients, and each client's rows to training, validation and test data."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenhand.data.contents import Contents
from evenhand.data.partitions import PARTITIONS
from evenhand.data.pool import TEST, TRAIN, VAL, Deal, Partition, Pool, Rows
from evenhand.data.samples import Part
from evenhand.data.splits import assign_parts
from evenhand.errors import require, require_known, require_whole


class Share(NamedTuple):
    """The rows of one split, client by client."""

    rows: Tensor  # (M,) int64
    offsets: Tensor  # (n + 1,) int64: client k has rows[offsets[k]:offsets[k + 1]]
    group: Tensor | None  # (M,) int64 codes


class Assignment(NamedTuple):
    """The rows of every client in each split, and the names of clients and groups."""

    train: Share
    val: Share | None
    test: Share | None
    teams: Tensor | None  # (n,) int64 codes into team_names
    team_names: tuple[str, ...]
    group_names: tuple[str, ...]
    names: tuple[str, ...] | None  # of the clients

    @classmethod
    def of(cls, rows: Rows, deal: Deal, part: Tensor) -> Assignment:
        """Assign row i to client ``deal.owner[i]`` and split ``part[i]`` (TRAIN, VAL or TEST).

        Within a client, rows keep their order. If a partition mixes the teams of natural clients,
        the teams become the samples' groups, unless samples have groups already.
        """
        clients = len(deal.names) if deal.names is not None else int(deal.owner.max()) + 1
        teams, team_names = deal.teams, deal.team_names
        group, group_names = rows.group, rows.group_names
        if teams is None and rows.team is not None and rows.client is not None:
            of_sample = rows.team[rows.client]
            teams, team_names = _common(of_sample, deal.owner, clients), rows.team_names
            if teams is None:
                team_names = ()
                if group is None:
                    group, group_names = of_sample, rows.team_names
        # NumPy sorts whole numbers on one core faster than torch on several
        owners, codes = deal.owner.numpy(), part.numpy()

        def share(code: int) -> Share:
            chosen = np.flatnonzero((codes == code) & (owners >= 0))
            whose = owners[chosen]
            # natural clients are often in order already: millions of windows need no sorting
            if (np.diff(whose) < 0).any():
                chosen = chosen[np.argsort(whose, kind="stable")]
            offsets = np.concatenate([[0], np.bincount(whose, minlength=clients).cumsum()])
            index = torch.from_numpy(chosen)
            return Share(index, torch.from_numpy(offsets), None if group is None else group[index])

        val, test = (share(code) if code in codes[owners >= 0] else None for code in (VAL, TEST))
        return cls(share(TRAIN), val, test, teams, team_names, group_names, deal.names)

    def renumbered(self, kept: Tensor) -> Assignment:
        """Return the same assignment with the row numbers of a larger set, ``kept``."""
        train, val, test = (
            share and share._replace(rows=kept[share.rows])
            for share in (self.train, self.val, self.test)
        )
        assert train is not None
        return self._replace(train=train, val=val, test=test)

    def contents(self, pool: Pool, numbers: Tensor | None = None) -> Contents:
        """Return the samples of a pool as they are assigned here.

        ``numbers`` (N,): the row of each sample in its table, if the pool leaves some out.
        """

        def part(share: Share) -> Part:
            rows = share.rows if numbers is None else numbers[share.rows]
            x, y = pool.pick(share.rows), pool.y[share.rows]
            return Part(x, y, share.offsets, share.group, rows)

        train, val, test = (share and part(share) for share in (self.train, self.val, self.test))
        assert train is not None
        return Contents(
            train=train,
            test=test,
            val=val,
            teams=self.teams,
            team_names=self.team_names,
            group_names=self.group_names,
            names=self.names,
            label_names=pool.label_names,
        )


def assign(
    rows: Rows,
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
) -> Assignment:
    """Assign rows to clients and split each client's rows; see ``evenhand.deal``."""
    require_whole("seed", seed, 0)
    require_whole("clients", clients, 1, optional=True)
    if isinstance(split, Mapping) and split.get("official") == "train":
        if rows.held_out is None:
            raise ValueError(
                'these data have no official test set to ignore; remove official = "train" from'
                " split"
            )
        kept = torch.nonzero(~rows.held_out).flatten()
        shares = {key: value for key, value in split.items() if key != "official"}
        official = replace(rows.select(kept), held_out=None)
        return assign(official, partition, shares, seed, clients).renumbered(kept)
    require(len(rows) > 0, "there are no samples to distribute over clients")
    name, function, settings = _resolve(partition, clients)
    made = function(rows, **_arguments(name, function, settings, seed))
    dealt = _checked(name, made, rows, settings.get("clients"))
    return Assignment.of(rows, dealt, assign_parts(rows, dealt, split, seed))


def _resolve(
    partition: str | Mapping[str, Any] | Partition | None, clients: int | None
) -> tuple[str, Partition, dict[str, Any]]:
    """Return the partition's name, function and settings."""
    settings: dict[str, Any] = {}
    if isinstance(partition, Mapping):
        settings = dict(partition)
        require(
            "name" in settings,
            'a partition needs a name, such as {{"name": "dirichlet"}}; it has {}',
            ", ".join(settings) or "none",
        )
        partition = settings.pop("name")
    if clients is not None:
        settings["clients"] = clients
    if partition is None:
        partition = "natural"
    if isinstance(partition, str):
        require_known("partition", partition, list(PARTITIONS))
        return partition, PARTITIONS[partition], settings
    if not callable(partition):
        raise TypeError(
            "partition must be a name, a mapping with one, or a function (pool, seed=...), got"
            f" {type(partition).__name__}"
        )
    return getattr(partition, "__name__", "the partition"), partition, settings


def _arguments(
    name: str, function: Partition, settings: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Return the settings of a partition, with the seed if it takes one.

    Raises a ValueError if settings are unknown or missing.
    """
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])  # without the pool
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "seed" in parameters or takes_any:
        settings = {"seed": seed, **settings}
    for key in settings:
        if key not in parameters and not takes_any:
            if key == "clients":
                raise ValueError(
                    f"{name} determines the number of clients itself; remove clients ="
                    f" {settings[key]!r}"
                )
            require_known(f"setting of {name}:", key, list(parameters))
    for key, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind in (
            parameter.KEYWORD_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        )
        require(
            not required or key in settings,
            "{} needs {}",
            name,
            "clients, the number of clients" if key == "clients" else key,
        )
    return settings


def _checked(name: str, made: Any, rows: Rows, clients: int | None) -> Deal:
    """Return what a partition made as a valid ``Deal``."""
    given = made if isinstance(made, Deal) else Deal(made)
    owner = np.asarray(given.owner)
    require(
        owner.shape == (len(rows),),
        "{} must return one client for each of {} samples, got shape {}",
        name,
        len(rows),
        list(owner.shape),
    )
    require(
        owner.dtype.kind in "iu", "{} must return clients as integers, got {}", name, owner.dtype
    )
    low, high = int(owner.min()), int(owner.max())
    require(
        low >= -1,
        "{} assigns a sample to client {}; number clients 0, 1, ..., and use -1 for no client",
        name,
        low,
    )
    require(high >= 0, "{} assigns no sample to any client", name)
    count = high + 1 if given.names is None else len(given.names)
    require(high < count, "{} assigns a sample to client {}, but names only {}", name, high, count)
    if count > len(rows) or not np.bincount(owner[owner >= 0], minlength=count).all():
        seen = np.unique(owner[owner >= 0])
        empty = int(np.flatnonzero(np.append(seen, -1) != np.arange(len(seen) + 1))[0])
        shown = str(empty) if given.names is None else given.names[empty]
        raise ValueError(
            f"{name} assigns no samples to client {shown}; "
            + ("use fewer clients" if clients else "leave it out")
        )
    require(clients is None or count == clients, "{} made {} clients, not {}", name, count, clients)
    teams = None if given.teams is None else torch.as_tensor(given.teams)
    require(
        teams is None or teams.shape == (count,),
        "{} must return one team for each of {} clients",
        name,
        count,
    )
    return Deal(torch.as_tensor(owner.astype(np.int64)), given.names, teams, given.team_names)


def _common(values: Tensor, owner: Tensor, clients: int) -> Tensor | None:
    """Return (n,) the value that all samples of a client share; None if some client's samples
    differ."""
    kept = owner >= 0
    values, owner = values[kept], owner[kept]
    first = torch.zeros(clients, dtype=torch.int64)
    first[owner] = values  # some sample's
    return first if bool((first[owner] == values).all()) else None
