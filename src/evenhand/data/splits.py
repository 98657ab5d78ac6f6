"""Splitting each client's samples into training, validation and test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand.data.pool import TEST, TRAIN, VAL, Deal, Rows
from evenhand.errors import require, require_kind, require_known, require_number, require_whole

Ints = NDArray[np.int64]

KEYS = ("val", "test", "stratify", "official", "fold", "seed")


def assign_parts(
    pool: Rows, deal: Deal, split: str | Mapping[str, Any] | None = None, seed: int = 0
) -> Tensor:
    """Return (N,) the split that each sample goes to: TRAIN, VAL or TEST.

    No client has an empty split if that can be avoided; a client with too few samples gets training
    data first, then test data, then validation data.

    Args:
        split: one of these:

            - "official" tests on the test set that the data set's authors held out.
            - ``{"val": 0.1, "test": 0.2}`` takes these shares of every client's samples, stratified
            by
              label and group unless ``"stratify": False``.
            - ``{"official": True, "val": 0.1}`` takes validation samples from the official training
              set.
            - ``{"fold": [2, 5]}`` tests on the second of five folds (see ``folds``); "val" is then
            a
              share of the other samples.
            - None means "official" if there is an official test set, else ``{"test": 0.2}``.

            An entry "seed" overrides ``seed``.
    """
    val, test, stratify, official, fold, seed = _settings(pool, split, seed)
    owner = deal.owner.numpy()
    part = np.full(len(owner), TRAIN, dtype=np.int64)
    dealt = owner >= 0
    if official and pool.held_out is not None:
        held_out = pool.held_out.numpy()
        part[held_out] = TEST
        dealt &= ~held_out
        _check_training(deal, owner[dealt])
    if val or test or fold is not None:
        rng = np.random.default_rng([seed, 5])
        rows = np.flatnonzero(dealt)
        stratum = _strata(pool)[rows] if stratify else np.zeros(len(rows), dtype=np.int64)
        if fold is not None:
            number, count = fold
            tested = folds(owner[rows], stratum, count, rng) == number - 1
            part[rows[tested]] = TEST
            rows, stratum = rows[~tested], stratum[~tested]
        part[rows] = _divide(owner[rows], stratum, val, test, rng)
    return torch.from_numpy(part)


def folds(owner: Ints, stratum: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return (N,) the fold of each sample, 0 to count - 1.

    Folds have the same size up to one sample, for each client and within each of its strata. A
    client with a single sample is in no fold (-1), because it needs the sample for training.
    """
    row = _in_strata(owner, stratum, rng)
    samples = np.bincount(owner, minlength=int(owner.max(initial=-1)) + 1)
    first = np.cumsum(samples) - samples
    start = rng.integers(0, count, len(samples))
    place = np.arange(len(row)) - first[owner[row]] + start[owner[row]]
    fold = np.empty(len(row), dtype=np.int64)
    fold[row] = place % count
    return np.where(samples[owner] > 1, fold, -1)


def part_sizes(samples: int, val: float, test: float) -> tuple[int, int, int]:
    """Return how many of a client's samples are for training, validation and testing.

    The numbers are the integers closest to the shares (largest remainders; ties go to training,
    then test, then validation). Each split then gets at least one sample, in the same order, as
    long as there are samples.

    >>> [part_sizes(count, val=0.1, test=0.2) for count in (10, 2, 1)]
    [(7, 1, 2), (1, 0, 1), (1, 0, 0)]
    """
    order = (TRAIN, TEST, VAL)
    quota = {TRAIN: (1 - val - test) * samples, VAL: val * samples, TEST: test * samples}
    size = {part: floor(quota[part]) for part in order}
    # rounded, so that ties are ties: 0.29 * 100 is not quite 29
    remainder = {part: round(quota[part] - size[part], 9) for part in order}
    for part in sorted(order, key=remainder.__getitem__, reverse=True)[
        : samples - sum(size.values())
    ]:
        size[part] += 1
    wanted = [part for part in order if quota[part] > 0][:samples]
    for part in wanted:
        if size[part] == 0:
            # the largest split gives one away; on ties validation first, training last
            size[max(reversed(order), key=size.__getitem__)] -= 1
            size[part] = 1
    return size[TRAIN], size[VAL], size[TEST]


def shares_in_order(
    split: Mapping[str, Any] | None, order: str, of: str, otherwise: str = ""
) -> tuple[float, float]:
    """Return val and test of a split that takes them from the end, ``{"test": 0.2}`` by default.

    ``of`` says what they are shares of, such as "each role's windows"; ``otherwise`` is a second
    remedy for the error message.
    """
    split = {"test": 0.2} if split is None else split
    if not isinstance(split, Mapping) or set(split) - {"val", "test"}:
        raise ValueError(
            f"split in {order} order has only val and test, got {split!r}; give shares such as"
            f' {{"val": 0.1, "test": 0.2}}{otherwise}'
        )
    val, test = (split.get(key, 0.0) for key in ("val", "test"))
    for name, share in (("val", val), ("test", test)):
        require_number(f"{name} of split", share, "[0, 1)", f"it is a share of {of}")
    require(
        val + test < 1,
        "val and test of split must leave {} for training; they add up to {:g}",
        of.split()[-1],
        val + test,
    )
    return float(val), float(test)


def _settings(
    pool: Rows, split: str | Mapping[str, Any] | None, seed: int
) -> tuple[float, float, bool, bool, tuple[int, int] | None, int]:
    """Return val, test, stratify, official, fold and seed."""
    if split is None:
        split = {"test": 0.2} if pool.held_out is None else "official"
    if isinstance(split, str):
        require(
            split == "official",
            'split must be "official" or shares such as {{"val": 0.1, "test": 0.2}}, got {!r}',
            split,
        )
        split = {"official": True}
    require_kind("split", split, Mapping, '{"val": 0.1, "test": 0.2}')
    for key in split:
        require_known("entry of split:", key, KEYS)
    val, test, stratify, official, fold = (
        split.get(key, default)
        for key, default in zip(KEYS, (0.0, 0.0, True, False, None), strict=False)
    )
    _check_fold(fold, test, official)
    seed = split.get("seed", seed)
    require_whole("seed of split", seed, 0)
    require_number("val of split", val, "[0, 1)", "it is a share of each client's samples")
    require_number("test of split", test, "[0, 1)", "it is a share of each client's samples")
    require(
        val + test < 1,
        "val and test of split must leave samples for training; they add up to {:g}",
        val + test,
    )
    require(
        isinstance(stratify, bool), "stratify of split must be true or false, got {!r}", stratify
    )
    require(
        isinstance(official, bool),
        'official of split must be true, false or "train", got {!r}',
        official,
    )
    if official:
        require(
            pool.held_out is not None,
            'these data have no official test set; split by shares, such as {{"test": 0.2}}',
        )
        require(
            test == 0,
            "split takes its test samples from the official test set; remove test = {:g}, or"
            " official",
            test,
        )
    fold = None if fold is None else (int(fold[0]), int(fold[1]))
    return float(val), float(test), stratify, official, fold, int(seed)


def _check_fold(fold: Any, test: Any, official: Any) -> None:
    if fold is None:
        return
    whole = (
        isinstance(fold, Sequence)
        and len(fold) == 2
        and all(isinstance(each, int) and not isinstance(each, bool) for each in fold)
    )
    require(
        whole and fold[1] >= 2 and 1 <= fold[0] <= fold[1],
        "fold of split must be the fold and the number of folds, such as [1, 5], got {!r}",
        fold,
    )
    require(
        test == 0 and official is False,
        "split takes its test samples from a fold; remove {}",
        "official" if official else f"test = {test}",
    )


def _check_training(deal: Deal, owner_of_training: Ints) -> None:
    clients = int(deal.owner.max()) + 1 if deal.names is None else len(deal.names)
    empty = np.flatnonzero(np.bincount(owner_of_training, minlength=clients) == 0)
    if len(empty):
        name = str(empty[0]) if deal.names is None else deal.names[empty[0]]
        raise ValueError(
            f"client {name} has no training samples: all are in the official test set; skip it, or"
            ' split by shares ({"test": 0.2})'
        )


def _strata(pool: Rows) -> Ints:
    """Return (N,) codes that rise with the label and, within a label, with the group.

    Targets that are not classes count as one label.
    """
    zero = np.zeros(len(pool), dtype=np.int64)
    label: Ints = (
        zero if pool.y.is_floating_point() or pool.y.ndim != 1 else (pool.y - pool.y.min()).numpy()
    )
    group: Ints = zero if pool.group is None else pool.group.numpy()
    last = int(group.max(initial=0))
    # groups descend within every other label, so that a group's samples are adjacent and its
    # rounding errors do not add up
    return label * (last + 1) + np.where(label % 2 == 0, group, last - group)


def _divide(owner: Ints, stratum: Ints, val: float, test: float, rng: np.random.Generator) -> Ints:
    """Return (N,) splits of the sizes that ``part_sizes`` gives, spread evenly over the strata.

    A client's samples are lined up stratum by stratum, in random order within each. Test samples
    are taken at equal distances along the line, from a random start, and validation samples
    likewise from the rest. So every stratum gives its share, rounded up or down, and every sample
    has the same chance.
    """
    row = _in_strata(owner, stratum, rng)
    clients = int(owner.max(initial=-1)) + 1
    samples = np.bincount(owner, minlength=clients)
    kinds, kind = np.unique(samples, return_inverse=True)
    # (clients, 3)
    sizes = np.array(
        [part_sizes(int(count), val, test) for count in kinds], dtype=np.int64
    ).reshape(-1, 3)[kind]
    part = np.full(len(owner), TRAIN, dtype=np.int64)
    for code in (TEST, VAL):
        taken = _evenly_spaced(owner[row], sizes[:, code], rng)
        part[row[taken]] = code
        row = row[~taken]
    return part


def _in_strata(owner: Ints, stratum: Ints, rng: np.random.Generator) -> Ints:
    """Return (N,) samples ordered by client and stratum, in random order within each."""
    row = rng.permutation(len(owner))
    return np.asarray(row[np.lexsort((stratum[row], owner[row]))])  # stable: random within each


def _evenly_spaced(owner: Ints, wanted: Ints, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return (N,) True for ``wanted[k]`` of client k's samples, equally spaced from a random
    start."""
    samples = np.bincount(owner, minlength=len(wanted))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(samples) - samples, samples)
    start = rng.integers(0, np.maximum(samples, 1))
    # in units of 1 / samples: whole numbers, so that counts are exact
    reached = place * wanted[owner] + start[owner]
    return np.asarray((reached + wanted[owner]) // samples[owner] > reached // samples[owner])


def drawn_for_validation(owner: Tensor, sizes: Tensor, share: float, seed: int) -> Tensor:
    """Return (N,) True for floor(share * m) of each client's m samples, drawn at random.

    ``owner`` (N,) is ascending: samples are stored client by client.
    """
    drawn = torch.from_numpy(np.random.default_rng([seed, 9]).permutation(len(owner)))
    # client by client, each client's samples in random order
    in_turn = drawn[torch.argsort(owner[drawn], stable=True)]
    place = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    wanted = (share * sizes.double() + 1e-9).long()  # 0.29 * 100 is not quite 29
    chosen = torch.zeros(len(owner), dtype=torch.bool)
    chosen[in_turn[place < wanted[owner]]] = True
    return chosen
