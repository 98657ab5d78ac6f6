"""Distributing samples by cell: how many samples of each cell every client gets, and which.

A cell is a set of samples that are treated alike: a class, a group, a class within a group, or all
samples.
"""

from __future__ import annotations

import warnings
from math import inf, isinf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.pool import Deal, Rows
from evenhand.data.transport import feasible, lowered, transport
from evenhand.errors import require, require_choice, require_whole

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SHARES = ("even", "level", "available")  # how a client's samples are spread over its cells


def one_cell(pool: Rows) -> Ints:
    """Return (N,) zeros: all samples in one cell."""
    return np.zeros(len(pool), dtype=np.int64)


def classes_of(pool: Rows) -> tuple[Ints, tuple[str, ...]]:
    """Return (N,) the class of each sample, and the names of the classes."""
    require(
        not pool.y.is_floating_point() and pool.y.ndim == 1,
        "these labels are not classes; use a partition that ignores labels, such as iid",
    )
    return _coded("label", pool.y, pool.label_names)


def groups_of(pool: Rows) -> tuple[Ints, tuple[str, ...]]:
    """Return (N,) the group of each sample, and the names of the groups.

    If samples have no groups, the teams of natural clients take their place.
    """
    if pool.group is not None:
        return _coded("group", pool.group, pool.group_names)
    if pool.team is not None and pool.client is not None:
        return _coded("team", pool.team[pool.client], pool.team_names)
    raise ValueError(
        'these data have no groups; use the classes instead (by = "label" in ssg and psg), or a'
        " partition without groups"
    )


def cells_by(pool: Rows, by: str) -> tuple[Ints, tuple[str, ...]]:
    """Return (N,) the class or group of each sample, and their names; ``by`` is "label" or
    "group"."""
    require_choice("by", by, ("label", "group"))
    return classes_of(pool) if by == "label" else groups_of(pool)


def _coded(what: str, codes: Tensor, names: tuple[str, ...]) -> tuple[Ints, tuple[str, ...]]:
    values: Ints = codes.numpy().astype(np.int64)
    low, high = int(values.min()), int(values.max())
    require(low >= 0, "{}s must be numbered from 0, got {}", what, low)
    require(
        not names or high < len(names),
        "{} {} has no name; there are {} names",
        what,
        high,
        len(names),
    )
    return values, names or tuple(str(code) for code in range(high + 1))


def balanced_subsets(
    clients: int, cells: int, k: int, consecutive: bool, rng: np.random.Generator
) -> Bools:
    """Return (clients, cells) which cells each client holds: ``k`` each, every cell equally
    often."""
    # cycling through the cells k at a time uses every cell equally often
    first = np.arange(clients) if consecutive else np.arange(clients) * k
    members = np.zeros((clients, cells), dtype=bool)
    members[np.arange(clients)[:, None], (first[:, None] + np.arange(k)) % cells] = True
    if consecutive:
        return members
    members = members[:, rng.permutation(cells)]
    # random pairs of clients swap cells that only one of them holds: row and column sums stay, the
    # rest is mixed
    for _ in range(20):
        pair = rng.permutation(clients)[: clients // 2 * 2].reshape(2, -1)
        one, other = members[pair]
        both, either = one & other, one ^ other
        luck = np.where(either, rng.random(one.shape), inf)
        lucky = luck.argsort(1).argsort(1) < (one & ~other).sum(1, keepdims=True)
        members[pair[0]], members[pair[1]] = both | lucky, both | (either & ~lucky)
    return members


def log_gamma(rng: np.random.Generator, alpha: float, shape: tuple[int, int]) -> Floats:
    """Draw logarithms of Gamma(alpha) variables, which do not underflow for small alpha.

    Normalised, they are a Dirichlet draw.
    """
    if isinf(alpha):
        return np.zeros(shape)
    return np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / alpha


def rounded(share: Floats, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Return (clients, cells) integers that add up to ``sizes``.

    Each is share * size, rounded up or down so that its mean is right.
    """
    cuts = np.floor(np.cumsum(share, 0) * sizes + rng.random(len(sizes))).astype(np.int64)
    cuts = np.minimum(cuts, sizes)
    cuts[-1] = sizes
    return np.diff(cuts, axis=0, prepend=0)


def evenly(members: Bools, sizes: Ints, rng: np.random.Generator) -> Ints:
    """Return (clients, cells) integers that split each cell evenly among the clients that hold
    it."""
    holders = np.maximum(members.sum(0), 1)
    first = rng.integers(0, holders)  # who gets the extra sample if a cell does not divide evenly
    cuts: Ints = (np.cumsum(members, 0) * sizes + first) // holders
    return np.diff(cuts, axis=0, prepend=0)


def shuffled(pool: Rows, cell: Ints, rng: np.random.Generator) -> list[Ints]:
    """Return the samples of each cell in random order, official test samples evenly spread among
    them.

    Any stretch of such a list then has training and test samples in the overall proportion.
    """
    row = rng.permutation(len(cell))
    if pool.held_out is None:
        row = row[np.argsort(cell[row], kind="stable")]
    else:
        stratum = cell * 2 + pool.held_out.numpy()
        row = row[np.argsort(stratum[row], kind="stable")]
        sizes = np.bincount(stratum)
        place = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        row = row[
            np.lexsort(
                (
                    (place + np.repeat(rng.random(len(sizes)), sizes)) / np.repeat(sizes, sizes),
                    cell[row],
                )
            )
        ]
    return np.split(row, np.cumsum(np.bincount(cell))[:-1])


def hand_out(order: list[Ints], counts: Ints) -> Ints:
    """Return (N,) the client of each sample, -1 for samples left over.

    Client k gets the next ``counts[k, c]`` samples of cell c.
    """
    owner = np.full(sum(map(len, order)), -1, dtype=np.int64)
    # cells after the last one with samples have no rows
    for rows, column in zip(order, counts.T, strict=False):
        owner[rows[: column.sum()]] = np.repeat(np.arange(len(counts)), column)
    return owner


def deal_evenly(pool: Rows, cell: Ints, members: Bools, seed: int) -> Deal:
    """Split the samples of each cell evenly among the clients that hold it; members (clients,
    cells)."""
    return deal_counts(
        pool,
        cell,
        evenly(members, np.bincount(cell, minlength=members.shape[1]), generator(seed, 2)),
        seed,
    )


def deal_sizes(
    pool: Rows,
    cell: Ints,
    names: tuple[str, ...],
    members: Bools,
    samples: Ints,
    seed: int,
    share: str = "even",
    fit: bool = False,
) -> Deal:
    """Give each client ``samples`` (clients,) samples from the cells it holds; the rest is not
    used.

    Args:
        share: "even" takes equally many from each of a client's cells; "level" is as even as scarce
            cells allow; "available" is proportional to what a cell has for each of its clients.
        fit: lower all sizes proportionally if the cells have too few samples, with a warning.
    """
    require_choice("share", share, SHARES)
    require(isinstance(fit, bool), "fit must be true or false, got {!r}", fit)
    there = np.bincount(cell, minlength=len(names))

    def possible(sizes: Ints) -> bool:
        if share == "even":
            return bool((_even_shares(members, sizes).sum(0) <= there).all())
        return feasible(sizes, there, members)

    if not possible(samples):
        had = lowered(samples, possible)
        if not fit or had is None:
            raise ValueError(_too_many(names, members, samples, there, share, had))
        warnings.warn(
            f"lowered samples per client from {_listed(samples)} to {_listed(had)}, because the"
            " data have no more in these proportions",
            stacklevel=2,
        )
        samples = had
    if share == "even":
        return deal_counts(pool, cell, _even_shares(members, samples), seed)
    holders = np.maximum(members.sum(0), 1)
    leaning = members * (there / holders if share == "available" else 1.0)
    counts = transport(samples, there, leaning, generator(seed, 3))
    assert counts is not None
    return deal_counts(pool, cell, counts, seed)


def _even_shares(members: Bools, samples: Ints) -> Ints:
    """Return (clients, cells) a client's samples, as evenly as possible over the cells it holds."""
    held = members.sum(1)
    # counts a client's cells, from a different start for each client
    place = np.cumsum(members, 1) + np.arange(len(members))[:, None]
    counts: Ints = members * (
        (samples // held)[:, None] + (place % held[:, None] < (samples % held)[:, None])
    )
    return counts


def _too_many(
    names: tuple[str, ...],
    members: Bools,
    samples: Ints,
    there: Ints,
    share: str,
    had: Ints | None,
) -> str:
    way_out = "lower samples or clients"
    if had is not None:
        way_out += f", or set fit = true for {_listed(had)}"
    if share != "even":
        return (
            f"cannot give each client {_listed(samples)} samples ({samples.sum()} in total): their"
            f" classes have {there[members.any(0)].sum()}, and a client uses only its own;"
            f" {way_out}"
        )
    counts = _even_shares(members, samples).sum(0)
    short = int(np.flatnonzero(counts > there)[0])
    if feasible(samples, there, members):
        way_out += ', or share = "available" to take more of other classes'
    return (
        f"{samples.max()} samples per client need {counts[short]} of {names[short]!r}, but there"
        f" are only {there[short]}; {way_out}"
    )


def _listed(samples: Ints) -> str:
    return ", ".join(map(str, dict.fromkeys(samples.tolist())))


def deal_counts(pool: Rows, cell: Ints, counts: Ints, seed: int) -> Deal:
    """Distribute ``counts`` (clients, cells) samples of each cell, at random."""
    return Deal(torch.from_numpy(hand_out(shuffled(pool, cell, generator(seed)), counts)))


def count_of(clients: int, pool: Rows) -> int:
    """Return the number of clients; raise a ValueError unless each can have a sample."""
    require_whole("clients", clients, 1)
    require(
        clients <= len(pool),
        "{} clients need a sample each, but there are only {}; lower clients",
        clients,
        len(pool),
    )
    return int(clients)


def generator(seed: int, stream: int = 0) -> np.random.Generator:
    """Return a random generator for each seed and each purpose of a partition."""
    require_whole("seed", seed, 0)
    return np.random.default_rng([seed, 4, stream])
