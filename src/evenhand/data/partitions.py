"""Ways to deal samples to clients.

A partition is a plain function ``(pool, *, seed, ...) -> Deal``. Most of them sort samples into
cells (a class, a group), draw how many of each cell every client gets, and hand them out.
:func:`deal` finds a partition by name and makes a federation.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import torch

from evenhand.data.cells import (
    Bools,
    Floats,
    Ints,
    balanced_subsets,
    cells_by,
    classes_of,
    evenly,
    groups_of,
    hand_out,
    log_gamma,
    one_cell,
    rounded,
    shuffled,
)
from evenhand.data.federation import Federation
from evenhand.data.pool import Deal, Partition, Pool
from evenhand.data.splits import assign_parts
from evenhand.errors import require, require_known, require_number, require_whole

SHORT = "{} clients with at least {} samples each need {}, there are {}; lower clients or least"


def deal(
    pool: Pool,
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
) -> Federation:
    """Deal the samples of a pool to clients, and split each client's into training, validation and
    test data.

    Args:
        partition: a name from ``PARTITIONS``; a mapping with its "name" and settings; a function
            ``(pool, seed=...)`` that returns a Deal or the client of each sample (-1 leaves a
            sample out); None for the clients that the data come with.
        split: see :func:`evenhand.data.splits.assign_parts`. ``{"official": "train", ...}`` takes
            shares of the official training samples and leaves the official test set out.
        seed: the same seed gives the same federation.
        clients: how many; takes the place of the partition's own number.

    >>> pool = Pool(torch.randn(12, 2), torch.arange(12) % 3, label_names=("red", "green", "blue"))
    >>> federation = deal(pool, "by_class", {"test": 0.25})
    >>> federation.names, federation.train.sizes.tolist(), federation.test.sizes.tolist()
    (('red', 'green', 'blue'), [3, 3, 3], [1, 1, 1])
    >>> deal(pool, {"name": "dirichlet", "clients": 4, "alpha": 0.5}).clients
    4
    """
    require_whole("seed", seed, 0)
    require_whole("clients", clients, 1, optional=True)
    if isinstance(split, Mapping) and split.get("official") == "train":
        require(
            pool.held_out is not None,
            'these data have no official test set to leave out; drop official = "train" from split',
        )
        pool = (
            replace(pool.select(~pool.held_out), held_out=None)
            if pool.held_out is not None
            else pool
        )
        split = {key: value for key, value in split.items() if key != "official"}
    require(len(pool) > 0, "there are no samples to deal to clients")
    name, function, settings = _resolve(partition, clients)
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])  # without the pool
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "seed" in parameters or takes_any:
        settings = {"seed": seed, **settings}
    for key in settings:
        if key not in parameters and not takes_any:
            if key == "clients":
                raise ValueError(
                    f"{name} finds its number of clients itself; leave out clients ="
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
            "clients, how many to make" if key == "clients" else key,
        )
    dealt = _checked(name, function(pool, **settings), pool, settings.get("clients"))
    return pool.federation(dealt, assign_parts(pool, dealt, split, seed))


def natural(pool: Pool, *, seed: int, clients: int | None = None, least: int = 0) -> Deal:
    """The clients that the data come with.

    Args:
        clients: draw so many of them, each equally likely; None takes all.
        least: leave out clients with fewer samples.
    """
    deal = pool.natural()
    require_whole("least", least, 0)
    names = deal.names or None  # a pool may have codes without names
    owner = deal.owner.numpy()
    count = len(names) if names else int(owner.max()) + 1
    sizes = np.bincount(owner, minlength=count)
    if least == 0 and not sizes.all():
        empty = int(sizes.argmin())
        raise ValueError(
            f"client {names[empty] if names else empty} has no samples; least = 1 leaves such"
            " clients out"
        )
    kept = np.flatnonzero(sizes >= least)
    wanted = len(kept) if clients is None else clients
    require_whole("clients", wanted, 1)
    require(
        wanted <= len(kept),
        "{} clients are wanted; the data have {} with at least {} samples",
        wanted,
        len(kept),
        least,
    )
    if wanted == count:
        return deal._replace(names=names)
    kept = np.sort(_rng(seed).choice(kept, wanted, replace=False))
    number = np.full(count, -1)
    number[kept] = np.arange(wanted)
    teams = None if deal.teams is None else deal.teams[torch.from_numpy(kept)]
    chosen = tuple(names[k] if names else str(k) for k in kept)
    return Deal(torch.from_numpy(number[owner]), chosen, teams, deal.team_names)


def iid(pool: Pool, *, seed: int, clients: int) -> Deal:
    """Shuffle the samples and deal them evenly: every client holds a bit of everything.

    This is the equal-access scenario (ESG) of FedMinMax.
    """
    return _shared_out(pool, one_cell(pool), np.ones((_count(clients), 1), dtype=bool), seed)


def by_class(pool: Pool, *, seed: int, classes: Sequence[int | str] | None = None) -> Deal:
    """One client for each class, named after it.

    Args:
        classes: numbers or names of the classes that become clients, in this order; samples of
            other classes are left out. None takes all. Labels stay as they are.
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
    pool: Pool,
    *,
    seed: int,
    clients: int,
    k: int = 2,
    samples: int | None = None,
    consecutive: bool = False,
    by: str = "label",
) -> Deal:
    """Every client holds ``k`` classes, and the samples of a class are dealt evenly to those who
    hold it.

    Args:
        k: classes on each client. They are drawn at random so that every class is on equally many
            clients (or as near as whole numbers allow).
        samples: so many for each client, as evenly as possible over its classes; the rest is left
            out. None deals all.
        consecutive: client i holds classes i, i + 1, ..., i + k - 1, counted round, as in the
            FedProx code.
        by: "label", or "group" to take groups in place of classes.
    """
    cell, names = cells_by(pool, by)
    what = "classes" if by == "label" else "groups"
    require_whole("k", k, 1)
    require(
        isinstance(consecutive, bool), "consecutive must be true or false, got {!r}", consecutive
    )
    require(k <= len(names), "k must be at most the number of {}, {}, got {}", what, len(names), k)
    members = balanced_subsets(_count(clients), len(names), k, consecutive, _rng(seed, 1))
    unheld = np.flatnonzero(~members.any(0) & (np.bincount(cell, minlength=len(names)) > 0))
    if len(unheld):
        raise ValueError(
            f"{clients} clients with {k} {what} each leave {names[unheld[0]]!r} to nobody; raise"
            " clients or k, or select samples first"
        )
    if samples is None:
        return _shared_out(pool, cell, members, seed)
    require_whole("samples", samples, 1)
    return _so_many(pool, cell, names, members, np.full(clients, samples), seed)


def class_teams(pool: Pool, *, seed: int, teams: Mapping[str, Mapping[str, Any]]) -> Deal:
    """Teams of clients that hold different classes: GIFAIR's FEMNIST with three groups of writers.

    Args:
        teams: for each team its number of "clients", its "classes" (numbers or names) and
            optionally "samples" for each of its clients, taken as evenly as possible from its
            classes. Without samples, each class is dealt evenly to all who hold it; give them for
            all teams or for none. Samples of classes that no team holds are left out.
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
            "team {} needs classes, a list",
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
    deal = (
        _so_many(pool, label, names, holders, counts, seed)
        if counts.all()
        else _shared_out(pool, label, holders, seed)
    )
    return deal._replace(teams=torch.tensor(codes), team_names=tuple(map(str, teams)))


def dirichlet(
    pool: Pool, *, seed: int, clients: int, alpha: float = 0.5, least: int = 1, redraws: int = 100
) -> Deal:
    """Label skew: each class is dealt to the clients in proportions that are one Dirichlet(alpha,
    ..., alpha) draw.

    Args:
        alpha: small values leave every class to few clients, large ones give everyone an even
            share; inf gives it exactly.
        least: draw anew until every client has so many samples (not counting those of an official
            test set).
        redraws: how often at most.
    """
    return _tilted(pool, seed, clients, {"label": alpha}, least, redraws)


def dirichlet_groups(
    pool: Pool, *, seed: int, clients: int, alpha: float = 0.5, least: int = 1, redraws: int = 100
) -> Deal:
    """Group skew: as :func:`dirichlet`, with demographic groups in place of classes."""
    return _tilted(pool, seed, clients, {"group": alpha}, least, redraws)


def skew(
    pool: Pool,
    *,
    seed: int,
    clients: int,
    labels: float = 0.5,
    groups: float = 0.5,
    sizes: float = inf,
    least: int = 1,
    redraws: int = 100,
) -> Deal:
    """Skew of labels, groups and sizes at once: client k gets of the samples with label c and group
    a the share

        S(k) U_c(k) V_a(k) / sum_j S(j) U_c(j) V_a(j),

    where S, every U_c and every V_a are Dirichlet draws over the clients, with concentrations
    ``sizes``, ``labels`` and ``groups``.

    A concentration of inf is no skew of that kind: ``groups=inf`` gives :func:`dirichlet`,
    ``labels=inf`` :func:`dirichlet_groups`.
    """
    return _tilted(
        pool, seed, clients, {"label": labels, "group": groups, "size": sizes}, least, redraws
    )


def power_law(
    pool: Pool, *, seed: int, clients: int, exponent: float = 1.0, least: int = 1
) -> Deal:
    """Sizes by a power law, samples at random: the r-th largest client has a share proportional to
    r^-exponent.

    Args:
        exponent: 0 gives equal sizes.
        least: everyone gets so many samples first; the law deals the rest.
    """
    require_number("exponent", exponent, "[0, inf)", "0 gives equal sizes")
    rank = 1 + _rng(seed, 1).permutation(_count(clients))
    return _by_size(pool, seed, np.power(1.0 * rank, -exponent), least)


def log_normal(pool: Pool, *, seed: int, clients: int, sigma: float = 1.0, least: int = 1) -> Deal:
    """Log-normal sizes, samples at random: client k has a share proportional to exp(sigma z_k), z_k
    a standard normal draw.

    The mean of the logarithm plays no part, as all samples are dealt. q-FFL's synthetic data have
    sigma = 2 and least = 50.

    Args:
        sigma: 0 gives equal sizes.
        least: everyone gets so many samples first; the law deals the rest.
    """
    require_number("sigma", sigma, "[0, inf)", "0 gives equal sizes")
    return _by_size(
        pool, seed, np.exp(sigma * _rng(seed, 1).standard_normal(_count(clients))), least
    )


def ssg(pool: Pool, *, seed: int, clients: int, by: str = "group") -> Deal:
    """Every client holds a single group, each group is on equally many clients, its samples dealt
    evenly (SSG of FedMinMax).

    Args:
        by: "group", or "label" to take the classes as groups.
    """
    cell, names = cells_by(pool, by)
    require(
        _count(clients) >= len(names),
        "ssg needs a client for each of {} groups, got clients = {}",
        len(names),
        clients,
    )
    held = np.arange(clients) * len(names) // clients  # (clients,) the group of each client
    place = np.arange(clients) - np.searchsorted(held, held)
    members = held[:, None] == np.arange(len(names))
    return _shared_out(pool, cell, members, seed)._replace(
        names=tuple(f"{names[a]} {i + 1}" for a, i in zip(held, place, strict=True))
    )


def psg(pool: Pool, *, seed: int, clients: int, k: int | None = None, by: str = "group") -> Deal:
    """Every client holds a proper subset of the groups, drawn so that each is on equally many
    clients (PSG of FedMinMax).

    Args:
        k: groups on each client; None takes half of them. A group's samples are dealt evenly to
            those who hold it.
        by: "group", or "label" to take the classes as groups.
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


def _tilted(
    pool: Pool, seed: int, clients: int, alphas: Mapping[str, float], least: int, redraws: int
) -> Deal:
    """Deal each cell in proportion to products of Dirichlet draws over the clients; draw anew until
    everyone has ``least``."""
    _count(clients)
    for name, alpha in alphas.items():
        require_number(
            "alpha" if len(alphas) == 1 else f"{name}s", alpha, "(0, inf]", "inf is no skew"
        )
    require_whole("least", least, 0)
    require_whole("redraws", redraws, 0)
    training = np.ones(len(pool), dtype=bool) if pool.held_out is None else ~pool.held_out.numpy()
    require(
        clients * least <= training.sum(), SHORT, clients, least, clients * least, training.sum()
    )
    label, label_names = classes_of(pool) if "label" in alphas else (one_cell(pool), ("",))
    group, group_names = groups_of(pool) if "group" in alphas else (one_cell(pool), ("",))
    rng, cell = _rng(seed, 1), label * len(group_names) + group
    sizes = np.bincount(cell, minlength=len(label_names) * len(group_names))
    order = shuffled(pool, cell, _rng(seed))
    best = -1
    for _ in range(1 + redraws):
        tilt = log_gamma(rng, alphas.get("label", inf), (clients, len(label_names)))[:, :, None]
        tilt = (
            tilt + log_gamma(rng, alphas.get("group", inf), (clients, len(group_names)))[:, None, :]
        )
        tilt = (tilt + log_gamma(rng, alphas.get("size", inf), (clients, 1))[:, :, None]).reshape(
            clients, -1
        )
        share = np.exp(tilt - tilt.max(0))
        counts = rounded(share / share.sum(0), sizes, rng)
        smallest = int(counts.sum(1).min())
        if smallest >= least:
            owner = hand_out(order, counts)
            smallest = int(np.bincount(owner[training], minlength=clients).min())
            if smallest >= least:
                return Deal(torch.from_numpy(owner))
        best = max(best, smallest)
    raise ValueError(
        f"none of {1 + redraws} draws gave every one of {clients} clients at least {least} samples"
        f" (the best gave {best}); lower least or clients, or raise redraws or the concentration"
    )


def _by_size(pool: Pool, seed: int, weight: Floats, least: int) -> Deal:
    """Samples at random: ``least`` for everyone, the rest in proportion to ``weight``
    (clients,)."""
    require_whole("least", least, 0)
    clients, rest = len(weight), len(pool) - len(weight) * least
    require(rest >= 0, SHORT, clients, least, clients * least, len(pool))
    counts = least + rounded((weight / weight.sum())[:, None], np.array([rest]), _rng(seed, 2))
    return _dealt(pool, one_cell(pool), counts, seed)


def _shared_out(pool: Pool, cell: Ints, members: Bools, seed: int) -> Deal:
    """Deal the samples of each cell evenly to the clients that hold it; members (clients,
    cells)."""
    return _dealt(
        pool,
        cell,
        evenly(members, np.bincount(cell, minlength=members.shape[1]), _rng(seed, 2)),
        seed,
    )


def _so_many(
    pool: Pool, cell: Ints, names: tuple[str, ...], members: Bools, samples: Ints, seed: int
) -> Deal:
    """Deal ``samples`` (clients,) to every client, as evenly as possible over the cells it holds;
    the rest is left out."""
    held = members.sum(1)
    # counts a client's cells, from somewhere else for each client
    place = np.cumsum(members, 1) + np.arange(len(members))[:, None]
    counts = members * (
        (samples // held)[:, None] + (place % held[:, None] < (samples % held)[:, None])
    )
    there = np.bincount(cell, minlength=len(names))
    short = np.flatnonzero(counts.sum(0) > there)
    if len(short):
        name, wanted = names[short[0]], counts[:, short[0]].sum()
        raise ValueError(
            f"{samples.max()} samples for each client take {wanted} of {name!r}, there are"
            f" {there[short[0]]}; lower samples or clients"
        )
    return _dealt(pool, cell, counts, seed)


def _dealt(pool: Pool, cell: Ints, counts: Ints, seed: int) -> Deal:
    """Deal ``counts`` (clients, cells) samples of each cell, at random."""
    return Deal(torch.from_numpy(hand_out(shuffled(pool, cell, _rng(seed)), counts)))


def _resolve(
    partition: str | Mapping[str, Any] | Partition | None, clients: int | None
) -> tuple[str, Partition, dict[str, Any]]:
    """The partition's name, function and settings."""
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


def _checked(name: str, made: Any, pool: Pool, clients: int | None) -> Deal:
    """What a partition made, as a Deal that makes sense."""
    given = made if isinstance(made, Deal) else Deal(made)
    owner = np.asarray(given.owner)
    require(
        owner.shape == (len(pool),),
        "{} must give one client for each of {} samples, got shape {}",
        name,
        len(pool),
        list(owner.shape),
    )
    require(
        owner.dtype.kind in "iu", "{} must give clients as whole numbers, got {}", name, owner.dtype
    )
    low, high = int(owner.min()), int(owner.max())
    require(
        low >= -1,
        "{} gives a sample to client {}; clients are 0, 1, ..., and -1 leaves a sample out",
        name,
        low,
    )
    require(high >= 0, "{} leaves every sample out", name)
    count = high + 1 if given.names is None else len(given.names)
    require(high < count, "{} gives a sample to client {}, but names only {}", name, high, count)
    if count > len(pool) or not np.bincount(owner[owner >= 0], minlength=count).all():
        seen = np.unique(owner[owner >= 0])
        empty = int(np.flatnonzero(np.append(seen, -1) != np.arange(len(seen) + 1))[0])
        shown = str(empty) if given.names is None else given.names[empty]
        raise ValueError(
            f"{name} gives client {shown} no samples; "
            + ("ask for fewer clients" if clients else "leave it out")
        )
    require(clients is None or count == clients, "{} made {} clients, not {}", name, count, clients)
    teams = None if given.teams is None else torch.as_tensor(given.teams)
    require(
        teams is None or teams.shape == (count,),
        "{} must give one team for each of {} clients",
        name,
        count,
    )
    return Deal(torch.as_tensor(owner.astype(np.int64)), given.names, teams, given.team_names)


def _count(clients: int) -> int:
    require_whole("clients", clients, 1)
    return int(clients)


def _class_code(entry: int | str, names: tuple[str, ...]) -> int:
    if isinstance(entry, str):
        require_known("class", entry, names)
        return names.index(entry)
    require_whole("classes", entry, 0)
    require(
        entry < len(names),
        "class {} is not there; classes are numbered 0 to {}",
        entry,
        len(names) - 1,
    )
    return entry


def _rng(seed: int, stream: int = 0) -> np.random.Generator:
    require_whole("seed", seed, 0)
    return np.random.default_rng([seed, 4, stream])
