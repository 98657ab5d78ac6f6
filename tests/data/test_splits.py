"""Training, validation and test parts: sizes by hand, strata, small clients, official splits."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.data.deal import deal
from evenhand.data.pool import TEST, TRAIN, VAL, Deal, Pool
from evenhand.data.splits import assign_parts, part_sizes


def pool_of(labels: Any, groups: Any = None, owners: Any = None, held_out: Any = None) -> Pool:
    y = torch.as_tensor(labels)
    group = None if groups is None else torch.as_tensor(groups)
    owner = torch.zeros(len(y), dtype=torch.int64) if owners is None else torch.as_tensor(owners)
    return Pool(
        torch.arange(len(y), dtype=torch.float64)[:, None],
        y,
        group=group,
        group_names=() if group is None else tuple(map(str, range(int(group.max()) + 1))),
        client=owner,
        held_out=None if held_out is None else torch.as_tensor(held_out),
    )


def parts(pool: Pool, split: Any, seed: int = 0) -> torch.Tensor:
    assert pool.client is not None
    return assign_parts(pool, Deal(pool.client), split, seed)


@pytest.mark.parametrize(
    ("samples", "val", "test", "expected"),
    [
        (10, 0.1, 0.1, (8, 1, 1)),
        (7000, 0.1, 0.1, (5600, 700, 700)),
        (100, 0.29, 0.29, (42, 29, 29)),  # 0.29 * 100 is a little less than 29 in binary
        # 2.5, 1.5 and 1: a tie, though 1 - 0.3 - 0.2 is a little less than 0.5
        (5, 0.3, 0.2, (3, 1, 1)),
        (4, 0.45, 0.4, (1, 2, 1)),  # 0.6, 1.8, 1.6: one more for .8, then a tie
        # wanted 4.9, 0.7, 1.4: floors 4, 0, 1 and the two left go to .9 and .7
        (7, 0.1, 0.2, (5, 1, 1)),
        (5, 0.0, 0.5, (3, 0, 2)),  # 2.5 and 2.5: training first
        (15, 0.1, 0.1, (12, 1, 2)),  # 1.5 and 1.5: test before validation
        (3, 0.0, 0.2, (2, 0, 1)),  # 0.6 rounds to 1
        (2, 0.0, 0.2, (1, 0, 1)),  # 0.4 rounds to 0, but no part stays empty
        (4, 0.0, 0.9, (1, 0, 3)),  # nor does training
        (4, 0.4, 0.4, (1, 1, 2)),  # 0.8, 1.6, 1.6
        (1, 0.1, 0.2, (1, 0, 0)),
        (2, 0.1, 0.2, (1, 0, 1)),
        (2, 0.2, 0.0, (1, 1, 0)),
        (3, 0.1, 0.2, (1, 1, 1)),
        (5, 0.1, 0.1, (3, 1, 1)),
        (1, 0.4, 0.5, (1, 0, 0)),
        (2, 0.45, 0.5, (1, 0, 1)),
        (3, 0.9, 0.05, (1, 1, 1)),
        (6, 0.0, 0.0, (6, 0, 0)),
    ],
)
def test_sizes_by_hand(
    samples: int, val: float, test: float, expected: tuple[int, int, int]
) -> None:
    assert part_sizes(samples, val, test) == expected


def test_sizes_are_those_of_exact_arithmetic() -> None:
    """The same rule with fractions, where ties are ties."""
    for samples, val, test in product(range(1, 40), range(0, 60, 5), range(0, 60, 5)):
        if val + test >= 100:
            continue
        # in order of priority
        quota = [Fraction(share * samples, 100) for share in (100 - val - test, test, val)]
        size = [int(part) for part in quota]
        for part in sorted(range(3), key=lambda each: size[each] - quota[each])[
            : samples - sum(size)
        ]:
            size[part] += 1
        for part in [part for part in range(3) if quota[part]][:samples]:
            if size[part] == 0:
                size[max((2, 1, 0), key=size.__getitem__)] -= 1
                size[part] = 1
        assert part_sizes(samples, val / 100, test / 100) == (size[0], size[2], size[1])


@given(samples=st.integers(1, 500), val=st.floats(0, 0.5), test=st.floats(0, 0.49))
def test_sizes_are_near_the_shares_and_nothing_wanted_is_empty(
    samples: int, val: float, test: float
) -> None:
    sizes = part_sizes(samples, val, test)
    assert sum(sizes) == samples
    wanted = (1 - val - test, val, test)
    needed = sum(share > 0 for share in wanted)
    for size, share in zip(sizes, wanted, strict=True):
        assert size >= 0
        assert abs(size - share * samples) < 3
        if samples >= needed and share > 0:
            assert size >= 1
    if all(share * samples >= 1 or share == 0 for share in wanted):  # nothing had to be given away
        assert all(
            abs(size - share * samples) <= 1 for size, share in zip(sizes, wanted, strict=True)
        )
    assert sizes[0] >= 1


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    val=st.sampled_from([0.0, 0.1, 0.25]),
    test=st.sampled_from([0.1, 0.2, 0.5]),
    seed=st.integers(0, 2**40),
    clients=st.integers(1, 4),
    stratify=st.booleans(),
)
def test_every_client_has_the_sizes_and_every_stratum_its_share(
    labels: list[int], val: float, test: float, seed: int, clients: int, stratify: bool
) -> None:
    number = torch.arange(len(labels))
    pool = pool_of(labels, number % 2, owners=(number * 7 + seed) % clients)
    assert pool.client is not None
    assert pool.group is not None
    part = parts(pool, {"val": val, "test": test, "stratify": stratify}, seed)
    assert torch.equal(part, parts(pool, {"val": val, "test": test, "stratify": stratify}, seed))
    for client in pool.client.unique():
        mine = pool.client == client
        sizes = part_sizes(int(mine.sum()), val, test)
        assert torch.bincount(part[mine], minlength=3).tolist() == list(sizes)
        if not stratify:
            continue
        for label in range(4):
            cells = [
                mine & (pool.y == label),
                *(mine & (pool.y == label) & (pool.group == group) for group in (0, 1)),
            ]
            for cell in cells:
                fair = sizes[TEST] * int(cell.sum()) / int(mine.sum())
                assert abs(int((part[cell] == TEST).sum()) - fair) < 1
                left = int((part[cell] != TEST).sum())
                fair = sizes[VAL] * left / max(1, int(mine.sum()) - sizes[TEST])
                assert abs(int((part[cell] == VAL).sum()) - fair) < 1


def test_strata_that_come_out_even_are_split_exactly() -> None:
    pool = pool_of([0] * 50 + [1] * 30 + [2] * 20, ([0] * 4 + [1]) * 20)
    part = parts(pool, {"val": 0.1, "test": 0.2})
    for label, size in enumerate((50, 30, 20)):
        assert torch.bincount(part[pool.y == label]).tolist() == [
            size * 7 // 10,
            size // 10,
            size // 5,
        ]
    assert pool.group is not None
    assert [int((part[pool.group == group] == TEST).sum()) for group in (0, 1)] == [16, 4]


def test_every_sample_has_the_same_chance_to_be_tested_on() -> None:
    pool = pool_of([0] * 5 + [1] * 2 + [0, 1, 1, 2], owners=[0] * 7 + [1] * 4)
    draws = torch.stack([parts(pool, {"val": 0.3, "test": 0.3}, seed) for seed in range(2000)])
    for code, shares in ((TEST, [2 / 7] * 7 + [1 / 4] * 4), (VAL, [2 / 7] * 7 + [1 / 4] * 4)):
        for sample, share in enumerate(shares):
            assert abs(float((draws[:, sample] == code).double().mean()) - share) < 4 * sqrt(
                share * (1 - share) / 2000
            )


def test_without_strata_labels_may_be_uneven() -> None:
    pool = pool_of([0, 1] * 50)
    uneven = [
        int((parts(pool, {"test": 0.2, "stratify": False}, seed)[::2] == TEST).sum())
        for seed in range(50)
    ]
    assert len(set(uneven)) > 3
    assert {int((parts(pool, {"test": 0.2}, seed)[::2] == TEST).sum()) for seed in range(50)} == {
        10
    }


def test_targets_that_are_no_classes_are_split_by_group_alone() -> None:
    pool = pool_of(torch.linspace(0, 1, 40), [0] * 30 + [1] * 10)
    for seed in range(5):
        part = parts(pool, {"test": 0.2}, seed)
        assert ((part[:30] == TEST).sum(), (part[30:] == TEST).sum()) == (6, 2)


def test_clients_with_one_two_and_three_samples() -> None:
    pool = pool_of([0] * 6, owners=[0, 1, 1, 2, 2, 2])
    federation = deal(pool, None, {"val": 0.1, "test": 0.1})
    assert federation.val is not None
    assert federation.test is not None
    assert federation.train.sizes.tolist() == [1, 1, 1]
    assert federation.test.sizes.tolist() == [0, 1, 1]
    assert federation.val.sizes.tolist() == [0, 0, 1]


def test_samples_that_are_left_out_count_for_nobody() -> None:
    pool = pool_of([0] * 20, owners=[0] * 20)
    federation = deal(pool, lambda pool, seed: np.where(np.arange(20) < 10, 0, -1), {"test": 0.2})
    assert federation.test is not None
    assert (len(federation.train.x), len(federation.test.x)) == (8, 2)


def test_official_test_samples_stay_test_samples() -> None:
    held_out = torch.arange(40) % 4 == 0
    pool = pool_of(torch.arange(40) % 2, owners=torch.arange(40) % 2, held_out=held_out)
    pool = pool_of(pool.y, owners=torch.arange(40) // 20, held_out=held_out)
    for split in (None, "official", {"official": True}):
        part = parts(pool, split)
        assert torch.equal(part == TEST, held_out)
        assert not (part == VAL).any()
    part = parts(pool, {"official": True, "val": 0.2})
    assert torch.equal(part == TEST, held_out)
    # of 15 training samples each
    assert [int((part[rows] == VAL).sum()) for rows in (slice(0, 20), slice(20, 40))] == [3, 3]
    shares = parts(pool, {"test": 0.5})  # shares do not care who was held out
    assert not torch.equal(shares == TEST, held_out)
    assert int((shares == TEST).sum()) == 20


def test_without_an_official_test_set_a_fifth_is_for_testing() -> None:
    assert torch.bincount(parts(pool_of([0] * 50), None), minlength=3).tolist() == [40, 0, 10]


def test_another_seed_splits_differently_and_a_seed_in_the_settings_wins() -> None:
    pool = pool_of([0] * 50)
    assert not torch.equal(parts(pool, {"test": 0.2}, 0), parts(pool, {"test": 0.2}, 1))
    assert torch.equal(parts(pool, {"test": 0.2, "seed": 3}, 0), parts(pool, {"test": 0.2}, 3))


def test_a_client_without_official_training_samples_is_named() -> None:
    pool = pool_of([0] * 4, owners=[0, 0, 1, 1], held_out=[False, True, True, True])
    with pytest.raises(
        ValueError,
        match=(
            "client 1 has no training samples: all are in the official test set; skip it, or split"
            " by shares"
        ),
    ):
        deal(pool, None, "official")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            "offical",
            """split must be "official" or shares such as {"val": 0.1, "test": 0.2}, got 'offical'""",
        ),
        (
            "official",
            'these data have no official test set; split by shares, such as {"test": 0.2}',
        ),
        ({"tset": 0.2}, "unknown entry of split: 'tset'; did you mean 'test'?"),
        (
            {"fraction": 0.2},
            "unknown entry of split: 'fraction'; choose from val, test, stratify, official, fold, seed",
        ),
        (
            {"test": 1.0},
            "test of split must be in [0, 1), got 1.0; it is a share of each client's samples",
        ),
        ({"val": "0.1"}, "val of split must be in [0, 1), got '0.1'"),
        (
            {"val": 0.5, "test": 0.5},
            "val and test of split must leave samples for training; they add up to 1",
        ),
        ({"test": 0.2, "stratify": "yes"}, "stratify of split must be true or false, got 'yes'"),
        ({"test": 0.2, "seed": -1}, "seed of split must be a whole number >= 0, got -1"),
    ],
)
def test_splits_that_make_no_sense_are_refused_in_one_line(split: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        parts(pool_of([0] * 10), split)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_official_split_takes_no_other_test_share() -> None:
    pool = pool_of([0] * 10, held_out=[False] * 9 + [True])
    with pytest.raises(
        ValueError,
        match=(
            r"takes its test samples from the official test set; remove test = 0.2, or official"
        ),
    ):
        parts(pool, {"official": True, "test": 0.2})
    with pytest.raises(TypeError, match="split must be a Mapping object such as"):
        parts(pool, 0.2)


def test_two_hundred_thousand_tiny_clients_are_split_in_no_time() -> None:
    clients = 200_000
    owners = torch.arange(clients).repeat_interleave(3)
    pool = pool_of(torch.arange(3 * clients) % 10, owners=owners)
    part = parts(pool, {"val": 0.1, "test": 0.1})
    for code in (TRAIN, VAL, TEST):
        assert torch.equal(
            torch.bincount(owners[part == code], minlength=clients),
            torch.ones(clients, dtype=torch.int64),
        )


def test_shares_of_the_official_training_samples_leave_the_official_test_set_out() -> None:
    held_out = torch.arange(40) % 4 == 0
    pool = Pool(torch.arange(40.0)[:, None], torch.zeros(40, dtype=torch.int64), held_out=held_out)
    federation = deal(pool, {"name": "iid", "clients": 3}, {"official": "train", "test": 0.5})
    assert federation.test is not None
    assert federation.train.sizes.tolist() == federation.test.sizes.tolist() == [5, 5, 5]
    used = torch.cat([federation.train.x[:], federation.test.x[:]]).flatten().long()
    assert not held_out[used].any()
    with pytest.raises(ValueError, match="have no official test set to ignore"):
        deal(
            Pool(pool.x, pool.y), {"name": "iid", "clients": 3}, {"official": "train", "test": 0.5}
        )


# ---- folds


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=60),
    count=st.integers(2, 7),
    seed=st.integers(0, 2**40),
    clients=st.integers(1, 4),
)
def test_every_sample_is_tested_in_exactly_one_fold(
    labels: list[int], count: int, seed: int, clients: int
) -> None:
    number = torch.arange(len(labels))
    pool = pool_of(labels, number % 2, owners=(number * 7 + seed) % clients)
    assert pool.client is not None
    all_folds = [parts(pool, {"fold": [k + 1, count]}, seed) for k in range(count)]
    tested = torch.stack([part == TEST for part in all_folds]).long().sum(0)
    for client in pool.client.unique():
        mine = pool.client == client
        m = int(mine.sum())
        assert tested[mine].tolist() == [int(m > 1)] * m  # a single sample is trained with
        sizes = [int((part[mine] == TEST).sum()) for part in all_folds]
        assert m == 1 or max(sizes) - min(sizes) <= 1
        assert all(int((part[mine] == TRAIN).sum()) >= 1 for part in all_folds)
        for label in range(4):  # stratified: of each label, to within one sample
            cell = mine & (pool.y == label)
            shares = [int((part[cell] == TEST).sum()) for part in all_folds]
            assert max(shares) - min(shares) <= 1
    again = [parts(pool, {"fold": [k + 1, count]}, seed) for k in range(count)]
    assert all(torch.equal(one, two) for one, two in zip(all_folds, again, strict=True))


def test_folds_depend_on_the_seed_and_validation_samples_are_a_share_of_the_others() -> None:
    pool = pool_of([0, 1] * 50)
    one, two = (parts(pool, {"fold": [1, 5]}, seed) for seed in (0, 1))
    assert not torch.equal(one, two)
    held = parts(pool, {"fold": [1, 5], "val": 0.25})
    assert torch.bincount(held, minlength=3).tolist() == [60, 20, 20]
    assert torch.equal(held == TEST, parts(pool, {"fold": [1, 5]}) == TEST)


def test_folds_are_of_all_samples_or_of_the_official_training_samples() -> None:
    pool = pool_of([0, 1] * 20, held_out=torch.arange(40) >= 30)
    whole = torch.stack([parts(pool, {"fold": [k, 4]}) == TEST for k in (1, 2, 3, 4)])
    assert whole.sum() == 40
    official = [deal(pool, None, {"official": "train", "fold": [k, 3]}, seed=0) for k in (1, 2, 3)]
    assert sum(len(one.test.x) for one in official if one.test is not None) == 30


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"fold": 3}, r"fold of split must be the fold and the number of folds, .*\[1, 5\], got 3"),
        ({"fold": [0, 5]}, r"got \[0, 5\]"),
        ({"fold": [6, 5]}, r"got \[6, 5\]"),
        ({"fold": [1, 1]}, r"got \[1, 1\]"),
        ({"fold": [True, 5]}, r"got \[True, 5\]"),
        ({"fold": [1, 5], "test": 0.2}, r"test samples from a fold; remove test = 0\.2"),
        ({"fold": [1, 5], "official": True}, r"remove official"),
    ],
)
def test_a_fold_that_makes_no_sense_is_refused(split: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parts(pool_of([0, 1] * 10), split)
