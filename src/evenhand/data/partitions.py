"""Partitions: ways to distribute samples over clients.

A partition is a plain function ``(pool, *, seed, ...) -> Deal``; a ``Deal`` says which client each
sample goes to. Most partitions sort samples into cells (by class or group), draw how many samples
of each cell a client gets, and distribute them. ``evenhand.deal`` takes a partition by name and
builds the federation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenhand.data.cells import (
    SHARES,
    balanced_subsets,
    cells_by,
    classes_of,
    count_of,
    deal_evenly,
    deal_sizes,
    generator,
    one_cell,
)
from evenhand.data.pool import Deal, Partition, Rows
from evenhand.data.skews import dirichlet, dirichlet_groups, log_normal, power_law, skew
from evenhand.errors import require, require_choice, require_known, require_whole

__all__ = [
    "PARTITIONS",
    "by_class",
    "class_teams",
    "classes_per_client",
    "dirichlet",
    "dirichlet_groups",
    "iid",
    "log_normal",
    "natural",
    "power_law",
    "psg",
    "skew",
    "ssg",
]


def natural(pool: Rows, *, seed: int, clients: int | None = None, least: int = 0) -> Deal:
    """Use the clients that the data come with.

    Args:
        clients: draw this many of them, all equally likely; None uses all.
        least: skip clients with fewer samples.
    """
    deal = pool.natural()
    require_whole("least", least, 0)
    names = deal.names or None  # a pool may have client codes without names
    owner = deal.owner.numpy()
    count = len(names) if names else int(owner.max()) + 1
    sizes = np.bincount(owner, minlength=count)
    if least == 0 and not sizes.all():
        empty = int(sizes.argmin())
        raise ValueError(
            f"client {names[empty] if names else empty} has no samples; set least = 1 to skip such"
            " clients"
        )
    kept = np.flatnonzero(sizes >= least)
    wanted = len(kept) if clients is None else clients
    require_whole("clients", wanted, 1)
    require(
        wanted <= len(kept),
        "cannot use {} clients: the data have only {} with at least {} samples",
        wanted,
        len(kept),
        least,
    )
    if wanted == count:
        return deal._replace(names=names)
    kept = np.sort(generator(seed).choice(kept, wanted, replace=False))
    number = np.full(count, -1)
    number[kept] = np.arange(wanted)
    teams = None if deal.teams is None else deal.teams[torch.from_numpy(kept)]
    chosen = tuple(names[k] if names else str(k) for k in kept)
    return Deal(torch.from_numpy(number[owner]), chosen, teams, deal.team_names)


def iid(pool: Rows, *, seed: int, clients: int) -> Deal:
    """Shuffle the samples and split them evenly, so that every client has a bit of everything.

    This is the equal-access scenario (ESG) of FedMinMax.
    """
    return deal_evenly(
        pool, one_cell(pool), np.ones((count_of(clients, pool), 1), dtype=bool), seed
    )


def by_class(pool: Rows, *, seed: int, classes: Sequence[int | str] | None = None) -> Deal:
    """Make one client per class, named after it.

    Args:
        classes: numbers or names of the classes that become clients, in this order; samples of
            other classes are not used. None uses all classes. Labels do not change.
    """
    label, names = classes_of(pool)
    if isinstance(classes, str) or not isinstance(classes, Sequence | None):
        raise ValueError(f"classes must be a list of classes such as [0, 2, 6], got {classes!r}")
    chosen = (
        list(range(len(names)))
        if classes is None
        else [_class_code(entry, names) for entry in classes]
    )
    require(len(chosen) > 0, "classes must name at least one class")
    require(len(set(chosen)) == len(chosen), "classes must differ, got {!r}", classes)
    client_of = np.full(len(names), -1)
    client_of[chosen] = np.arange(len(chosen))
    return Deal(torch.from_numpy(client_of[label]), tuple(names[c] for c in chosen))


def classes_per_client(
    pool: Rows,
    *,
    seed: int,
    clients: int,
    k: int = 2,
    samples: int | None = None,
    consecutive: bool = False,
    by: str = "label",
    share: str = "even",
    fit: bool = False,
) -> Deal:
    """Give every client ``k`` classes, and split each class evenly among the clients that hold it.

    Args:
        k: classes per client, drawn so that every class is on equally many clients, up to rounding.
        samples: samples per client; the rest is not used. None distributes all samples.
        consecutive: client i holds classes i, i + 1, ..., i + k - 1, wrapping around, as in the
            FedProx code.
        by: "label", or "group" to use groups in place of classes.
        share: how ``samples`` are spread over a client's classes. "even": as evenly as possible.
            "level": as evenly as rare classes allow; other classes make up for them. "available":
            proportional to what a class has per client that holds it.
        fit: lower ``samples`` to what the data have, with a warning.
    """
    cell, names = cells_by(pool, by)
    what = "classes" if by == "label" else "groups"
    require_whole("k", k, 1)
    require(
        isinstance(consecutive, bool), "consecutive must be true or false, got {!r}", consecutive
    )
    require(k <= len(names), "k must be at most the number of {}, {}, got {}", what, len(names), k)
    members = balanced_subsets(
        count_of(clients, pool), len(names), k, consecutive, generator(seed, 1)
    )
    unheld = np.flatnonzero(~members.any(0) & (np.bincount(cell, minlength=len(names)) > 0))
    if len(unheld):
        raise ValueError(
            f"{clients} clients with {k} {what} each leave {names[unheld[0]]!r} without a client;"
            " raise clients or k, or select samples first"
        )
    if samples is None:
        _need_no_samples(share, fit)
        return deal_evenly(pool, cell, members, seed)
    require_whole("samples", samples, 1)
    return deal_sizes(pool, cell, names, members, np.full(clients, samples), seed, share, fit)


def class_teams(
    pool: Rows,
    *,
    seed: int,
    teams: Mapping[str, Mapping[str, Any]],
    share: str = "even",
    fit: bool = False,
) -> Deal:
    """Make teams of clients that hold different classes, like GIFAIR's FEMNIST with three teams.

    Args:
        teams: for each team, its number of "clients", its "classes" (numbers or names) and,
            optionally, "samples" per client; give samples for all teams or for none. Without them,
            each class is split evenly among the clients that hold it. Samples of classes that no
            team holds are not used.
        share: as in ``classes_per_client``.
        fit: as in ``classes_per_client``; keeps the proportions between the teams' sizes.
    """
    label, names = classes_of(pool)
    require(
        isinstance(teams, Mapping) and len(teams) > 0,
        'teams must be a table such as {{"young": {{"clients": 5, "classes": [0, 1]}}}}',
    )
    members, samples, codes = [], [], []
    for code, (name, team) in enumerate(teams.items()):
        require(
            isinstance(team, Mapping),
            "team {} must be a table with clients and classes, got {!r}",
            name,
            team,
        )
        for key in team:
            require_known(f"entry of team {name}:", key, ("clients", "classes", "samples"))
        classes = team.get("classes")
        require(
            isinstance(classes, Sequence) and not isinstance(classes, str) and len(classes) > 0,
            "team {} needs a list of classes",
            name,
        )
        require_whole(f"clients of team {name}", team.get("clients"), 1)
        require_whole(f"samples of team {name}", team.get("samples"), 1, optional=True)
        held = np.isin(
            np.arange(len(names)), [_class_code(entry, names) for entry in classes or ()]
        )
        members += [held] * team["clients"]
        samples += [team.get("samples", 0)] * team["clients"]
        codes += [code] * team["clients"]
    holders, counts = np.array(members), np.array(samples)
    require(bool(counts.all()) or not counts.any(), "give samples for every team, or for none")
    if counts.all():
        deal = deal_sizes(pool, label, names, holders, counts, seed, share, fit)
    else:
        _need_no_samples(share, fit)
        deal = deal_evenly(pool, label, holders, seed)
    return deal._replace(teams=torch.tensor(codes), team_names=tuple(map(str, teams)))


def ssg(pool: Rows, *, seed: int, clients: int, by: str = "group") -> Deal:
    """Give every client a single group; each group is on equally many clients (SSG of FedMinMax).

    Args:
        by: "group", or "label" to use the classes as groups.
    """
    cell, names = cells_by(pool, by)
    require(
        count_of(clients, pool) >= len(names),
        "ssg needs a client for each of {} groups, got clients = {}",
        len(names),
        clients,
    )
    held = np.arange(clients) * len(names) // clients  # (clients,) the group of each client
    place = np.arange(clients) - np.searchsorted(held, held)
    members = held[:, None] == np.arange(len(names))
    return deal_evenly(pool, cell, members, seed)._replace(
        names=tuple(f"{names[a]} {i + 1}" for a, i in zip(held, place, strict=True))
    )


def psg(pool: Rows, *, seed: int, clients: int, k: int | None = None, by: str = "group") -> Deal:
    """Give every client some of the groups; each is on equally many clients (PSG of FedMinMax).

    Args:
        k: groups per client; None means half of them. A group's samples are split evenly among the
            clients that hold it.
        by: "group", or "label" to use the classes as groups.
    """
    groups = len(cells_by(pool, by)[1])
    require(groups >= 2, "psg needs at least two groups, the data have {}", groups)
    k = groups // 2 if k is None else k
    require_whole("k", k, 1)
    require(
        k < groups,
        "k must be less than the number of groups, {}, got {}; esg gives every client every group",
        groups,
        k,
    )
    return classes_per_client(pool, seed=seed, clients=clients, k=k, by=by)


PARTITIONS: dict[str, Partition] = {
    "natural": natural,
    "iid": iid,
    "by_class": by_class,
    "classes_per_client": classes_per_client,
    "class_teams": class_teams,
    "dirichlet": dirichlet,
    "dirichlet_groups": dirichlet_groups,
    "skew": skew,
    "power_law": power_law,
    "log_normal": log_normal,
    "esg": iid,
    "ssg": ssg,
    "psg": psg,
}


def _need_no_samples(share: str, fit: bool) -> None:
    """Raise a ValueError if ``share`` or ``fit`` is set although ``samples`` is not."""
    require_choice("share", share, SHARES)
    require(
        share == "even" and fit is False,
        "share and fit only apply together with samples; set samples too, or remove them",
    )


def _class_code(entry: int | str, names: tuple[str, ...]) -> int:
    if isinstance(entry, str):
        require_known("class", entry, names)
        return names.index(entry)
    require_whole("classes", entry, 0)
    require(
        entry < len(names),
        "there is no class {}; classes are numbered 0 to {}",
        entry,
        len(names) - 1,
    )
    return entry
