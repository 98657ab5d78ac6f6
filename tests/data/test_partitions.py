"""Dealing samples to clients: nothing is lost, attributes stay attached, and draws follow their
laws."""

from __future__ import annotations

import inspect
import re
from functools import partial
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import polygamma

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.partitions import (
    PARTITIONS,
    classes_per_client,
    dirichlet,
    dirichlet_groups,
    iid,
    log_normal,
    natural,
    power_law,
    psg,
    skew,
    ssg,
)
from evenhand.data.pool import Deal, Pool

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "partitions.md").read_text()
CLASSES = ("shirt", "coat", "boot", "bag", "hat", "sock", "scarf", "glove", "belt", "tie")


def pool_of(labels: Any, groups: Any = None, held_out: Any = None, **more: Any) -> Pool:
    """A pool whose sample i has the features (i, -i), so that it can be recognised anywhere."""
    y = torch.as_tensor(labels)
    number = torch.arange(len(y), dtype=torch.float64)
    group = None if groups is None else torch.as_tensor(groups)
    names = () if group is None else tuple(f"group {a}" for a in range(int(group.max()) + 1))
    flags = None if held_out is None else torch.as_tensor(held_out)
    return Pool(
        torch.stack([number, -number], 1), y, group=group, group_names=names, held_out=flags, **more
    )


def balanced(samples: int, classes: int = 10, groups: int = 2, **more: Any) -> Pool:
    number = torch.arange(samples)
    return pool_of(
        number % classes, number // classes % groups, label_names=CLASSES[:classes], **more
    )


def counts(dealt: Deal, cell: torch.Tensor, cells: int | None = None) -> np.ndarray[Any, Any]:
    """(clients, cells) samples of each cell on each client."""
    kept, cells = dealt.owner >= 0, cells or int(cell.max()) + 1
    clients = int(dealt.owner.max()) + 1
    return (
        torch.bincount(dealt.owner[kept] * cells + cell[kept], minlength=clients * cells)
        .reshape(clients, cells)
        .numpy()
    )


def rows_of(federation: Federation) -> torch.Tensor:
    """Numbers of the samples that a federation holds, in all parts."""
    parts = [
        part for part in (federation.train, federation.val, federation.test) if part is not None
    ]
    return torch.cat([part.x[:, 0].long() for part in parts])


SETTINGS: dict[str, dict[str, Any]] = {
    "natural": {},
    "iid": {"clients": 4},
    "esg": {"clients": 4},
    "by_class": {},
    "classes_per_client": {"clients": 4, "k": 2},
    "dirichlet": {"clients": 4, "alpha": 1.0},
    "dirichlet_groups": {"clients": 4, "alpha": 1.0},
    "skew": {"clients": 4, "labels": 1.0, "groups": 1.0, "sizes": 2.0},
    "power_law": {"clients": 4},
    "log_normal": {"clients": 4},
    "ssg": {"clients": 4},
    "psg": {"clients": 4},
}


def test_every_partition_is_tried_here() -> None:
    # whose settings depend on the classes: it has tests of its own
    assert set(SETTINGS) | {"class_teams"} == set(PARTITIONS)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Pools of all shapes with four natural clients, at least four classes and two groups,
    sometimes an official test set."""
    samples = draw(st.integers(24, 80))
    shuffled = np.random.default_rng(draw(st.integers(0, 2**32))).permutation(samples)
    classes, groups = draw(st.integers(4, 6)), draw(st.integers(2, 3))
    held_out = (shuffled * 7 % 5 == 0).astype(bool) if draw(st.booleans()) else None
    return pool_of(
        shuffled % classes,
        shuffled // 2 % groups,
        held_out,
        client=torch.from_numpy(shuffled % 4),
        client_names=("north", "east", "south", "west"),
        team=torch.tensor([0, 1, 0, 1]),
        team_names=("pole", "line"),
    )


@settings(max_examples=25, deadline=None)
@given(pool=pools(), seed=st.integers(0, 2**40), name=st.sampled_from(sorted(SETTINGS)))
def test_every_sample_is_in_exactly_one_client_and_part_with_its_label_and_group(
    pool: Pool, seed: int, name: str
) -> None:
    federation = deal(pool, {"name": name, **SETTINGS[name]}, {"val": 0.2, "test": 0.2}, seed)
    rows = rows_of(federation)
    assert sorted(rows.tolist()) == list(range(len(pool)))
    assert pool.group is not None
    for part in (federation.train, federation.val, federation.test):
        if part is not None:
            mine = part.x[:, 0].long()
            assert torch.equal(part.y, pool.y[mine])
            assert torch.equal(part.group, pool.group[mine])
    assert federation.group_names == pool.group_names


@settings(max_examples=25, deadline=None)
@given(pool=pools(), seed=st.integers(0, 2**40), name=st.sampled_from(sorted(SETTINGS)))
def test_the_same_seed_gives_the_same_federation(pool: Pool, seed: int, name: str) -> None:
    first, second = (
        deal(pool, {"name": name, **SETTINGS[name]}, {"test": 0.2}, seed) for _ in range(2)
    )
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.train.offsets, second.train.offsets)
    assert first.names == second.names


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_another_seed_gives_another_federation(name: str) -> None:
    pool = balanced(200, classes=5, client=torch.arange(200) % 5)
    first, second = (
        deal(pool, {"name": name, **SETTINGS[name]}, {"test": 0.2}, seed) for seed in (0, 1)
    )
    assert not (
        len(first.train.x) == len(second.train.x) and torch.equal(first.train.x, second.train.x)
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**40), samples=st.integers(1, 8), consecutive=st.booleans())
def test_what_classes_per_client_leaves_out_is_in_no_part(
    seed: int, samples: int, consecutive: bool
) -> None:
    pool = balanced(120, classes=6)
    how = {
        "name": "classes_per_client",
        "clients": 9,
        "k": 3,
        "samples": samples,
        "consecutive": consecutive,
    }
    rows = rows_of(deal(pool, how, {"test": 0.25}, seed))
    assert len(rows) == 9 * samples == len(set(rows.tolist()))


def test_a_seed_in_the_settings_fixes_the_deal_while_the_split_follows_the_run() -> None:
    pool = balanced(100)
    first, second = (
        deal(pool, {"name": "iid", "clients": 5, "seed": 3}, {"test": 0.2}, seed) for seed in (0, 1)
    )
    assert first.test is not None
    assert second.test is not None
    assert not torch.equal(first.test.x, second.test.x)
    for client in range(5):
        both = [
            torch.cat([fed.train.client(client)[0], fed.test.client(client)[0]])[:, 0].sort().values
            for fed in (first, second)
        ]
        assert torch.equal(*both)


# natural clients


def test_natural_clients_keep_names_and_teams_and_some_of_them_can_be_drawn() -> None:
    client = torch.tensor([0] * 5 + [1] * 2 + [2] * 6 + [3] * 5)
    names, teams = ("a", "b", "c", "d"), torch.tensor([0, 1, 1, 0])
    pool = pool_of(
        torch.zeros(18, dtype=torch.int64),
        client=client,
        client_names=names,
        team=teams,
        team_names=("m", "f"),
    )
    everyone = deal(pool)
    assert everyone.names == names
    assert torch.equal(everyone.teams, teams)
    large = deal(pool, {"name": "natural", "least": 5})
    assert large.names == ("a", "c", "d")
    assert large.teams.tolist() == [0, 1, 0]
    assert large.census().sizes.tolist() == [4, 5, 4]
    for seed in range(10):
        two = deal(pool, {"name": "natural", "least": 5}, seed=seed, clients=2)
        assert set(two.names) < {"a", "c", "d"}
        for name, team in zip(two.names, two.teams.tolist(), strict=True):
            assert team == teams[names.index(name)]
            rows = two.train.client(two.names.index(name))[0][:, 0].long()
            assert (client[rows] == names.index(name)).all()


def test_each_natural_client_is_drawn_equally_often() -> None:
    pool = pool_of(torch.zeros(6, dtype=torch.int64), client=torch.arange(6))
    drawn = [natural(pool, seed=seed, clients=3).names for seed in range(600)]
    often = [sum(str(client) in names for names in drawn) for client in range(6)]
    # binomial(600, 1/2), four standard errors
    assert max(abs(count - 300) for count in often) < 4 * sqrt(600 / 4)


def test_natural_clients_without_samples_are_named_or_left_out() -> None:
    pool = pool_of([0, 0, 0], client=torch.tensor([0, 0, 2]), client_names=("a", "b", "c"))
    with pytest.raises(
        ValueError, match="client b has no samples; set least = 1 to skip such clients"
    ):
        deal(pool)
    assert deal(pool, {"name": "natural", "least": 1}).names == ("a", "c")
    with pytest.raises(
        ValueError, match="cannot use 3 clients: the data have only 2 with at least 1 samples"
    ):
        deal(pool, {"name": "natural", "least": 1}, clients=3)
    with pytest.raises(ValueError, match="come without clients; choose a partition"):
        deal(pool_of([0, 1]))


def test_teams_of_natural_clients_become_groups_where_a_partition_mixes_them() -> None:
    number = torch.arange(40)
    pool = pool_of(
        number % 2,
        client=number % 4,
        client_names=("a", "b", "c", "d"),
        team=torch.tensor([0, 0, 1, 1]),
        team_names=("m", "f"),
    )
    mixed = deal(pool, "iid", clients=3)
    assert mixed.group_names == ("m", "f")
    assert torch.equal(mixed.train.group, mixed.train.x[:, 0].long() % 4 // 2)
    single = deal(pool, "ssg", clients=4)
    assert single.names == ("m 1", "m 2", "f 1", "f 2")
    assert single.teams.tolist() == [0, 0, 1, 1]


# classes


def test_afl_has_one_client_for_each_of_three_classes() -> None:
    pool = balanced(200)
    federation = deal(pool, {"name": "by_class", "classes": [0, 2, 6]}, {"test": 0.1})
    assert federation.names == ("shirt", "boot", "scarf")
    assert federation.train.sizes.tolist() == [18, 18, 18]
    for client, label in enumerate((0, 2, 6)):
        assert set(federation.train.client(client)[1].tolist()) == {label}
    by_name = deal(pool, {"name": "by_class", "classes": ["scarf", "boot"]}, {"test": 0.1})
    assert by_name.names == ("scarf", "boot")
    assert set(by_name.train.client(0)[1].tolist()) == {6}
    assert deal(pool, "by_class").names == CLASSES


@pytest.mark.parametrize("consecutive", [False, True])
def test_a_hundred_devices_hold_five_of_ten_classes_and_each_class_is_on_fifty(
    consecutive: bool,
) -> None:
    pool = balanced(20_000)
    held = counts(
        classes_per_client(pool, seed=1, clients=100, k=5, consecutive=consecutive), pool.y
    )
    assert ((held > 0).sum(1) == 5).all()
    assert ((held > 0).sum(0) == 50).all()
    assert set(held[held > 0].tolist()) == {40}  # 2000 of a class on 50 devices
    if consecutive:
        assert [np.flatnonzero(row).tolist() for row in held[[0, 8]]] == [
            [0, 1, 2, 3, 4],
            [0, 1, 2, 8, 9],
        ]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**40), clients=st.integers(1, 30), cells=st.integers(2, 9), data=st.data()
)
def test_each_client_holds_k_classes_and_classes_differ_by_at_most_one_client(
    seed: int, clients: int, cells: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(max(1, -(-cells // clients)), cells))
    pool = balanced(cells * clients * 2, classes=cells) if cells <= 10 else None
    held = counts(classes_per_client(pool, seed=seed, clients=clients, k=k), pool.y) > 0
    assert (held.sum(1) == k).all()
    assert held.sum(0).max() - held.sum(0).min() <= 1


def test_what_does_not_come_out_even_goes_to_a_class_and_a_client_by_chance() -> None:
    pool = pool_of([0, 1, 2] * 5)
    made = [classes_per_client(pool, seed=seed, clients=4, k=1) for seed in range(30)]
    # the class that two clients hold
    assert {int((counts(deal, pool.y) > 0).sum(0).argmax()) for deal in made} == {0, 1, 2}
    assert {
        tuple(torch.bincount(iid(pool, seed=seed, clients=2).owner).tolist()) for seed in range(30)
    } == {(7, 8), (8, 7)}


def test_classes_of_two_clients_overlap_as_in_a_random_table_with_these_sums() -> None:
    """Rows of a random table are exchangeable, so two clients share sum_c h(h-1) / (n(n-1)) classes
    on average."""
    pool = balanced(400)
    shared = []
    for seed in range(400):
        held = counts(psg(pool, seed=seed, clients=40, by="label"), pool.y) > 0
        shared.append(int((held[0] & held[1]).sum()))
    expected = 10 * 20 * 19 / (40 * 39)
    assert abs(np.mean(shared) - expected) < 4 * np.std(shared) / sqrt(400)
    assert 0.7 < np.var(shared) / (5 * 0.5 * 0.5 * 5 / 9) < 1.3  # hypergeometric, about


def test_samples_for_each_client_are_spread_over_its_classes() -> None:
    pool = balanced(20_000)
    held = counts(classes_per_client(pool, seed=0, clients=100, k=3, samples=50), pool.y)
    assert (held.sum(1) == 50).all()
    assert sorted(set(held[held > 0].tolist())) == [16, 17]
    every = counts(classes_per_client(pool, seed=0, clients=20, k=10, samples=15), pool.y)
    assert (every.sum(0) == 30).all()  # no class is asked for more than others
    with pytest.raises(
        ValueError,
        match=(
            "1010 samples per client need 2020 of 'shirt', but there are only 2000; lower samples or"
            " clients"
        ),
    ):
        classes_per_client(pool, seed=0, clients=20, k=10, samples=1010)
    with pytest.raises(
        ValueError,
        match=r"3 clients with 2 classes each leave '\w+' without a client; raise clients or k",
    ):
        classes_per_client(pool, seed=0, clients=3, k=2)


# GIFAIR's numbers of images, from the counts that by-class EMNIST has of a to j
LETTERS = 7 * np.array([1644, 853, 432, 1683, 4092, 400, 589, 1479, 427, 317])


def letters(counts: Any) -> Pool:
    return pool_of(np.repeat(np.arange(len(counts)), counts), label_names=tuple("abcdefghij"))


@pytest.mark.parametrize("share", ["level", "available"])
@pytest.mark.parametrize("seed", [0, 1])
def test_gifairs_skewed_devices_have_500_images_of_five_letters(share: str, seed: int) -> None:
    pool = letters(LETTERS)
    dealt = classes_per_client(pool, seed=seed, clients=100, k=5, samples=500, share=share)
    held = counts(dealt, pool.y)
    assert (held.sum(1) == 500).all()
    assert ((held > 0).sum(1) == 5).all()
    assert ((held > 0).sum(0) == 50).all()
    if share == "level":  # scarce letters are used up but for rounding and a few odd devices
        assert (held.sum(0)[[1, 6, 9]] >= 0.99 * LETTERS[[1, 6, 9]]).all()
    else:  # a device's letters are in the proportion of all, which each is on 50 devices
        for row in held:
            mine = row > 0
            assert np.abs(row[mine] - 500 * LETTERS[mine] / LETTERS[mine].sum()).max() < 1


def test_even_shares_of_scarce_letters_name_the_ways_out() -> None:
    with pytest.raises(
        ValueError,
        match=(
            "500 samples per client need 5000 of 'c', but there are only 3024; lower samples or"
            ' clients, or set fit = true for 222, or share = "available" to take more of other'
            " classes"
        ),
    ):
        classes_per_client(letters(LETTERS), seed=0, clients=100, k=5, samples=500)


@pytest.mark.parametrize(("share", "size"), [("even", 31), ("level", 119), ("available", 119)])
def test_sizes_can_be_lowered_to_what_is_there(share: str, size: int) -> None:
    pool = letters(LETTERS // 7)
    how = {"seed": 0, "clients": 100, "k": 5, "samples": 500, "share": share}
    with pytest.raises(ValueError, match=f"set fit = true for {size}"):
        classes_per_client(pool, **how)
    with pytest.warns(UserWarning, match=f"lowered samples per client from 500 to {size},"):
        held = counts(classes_per_client(pool, **how, fit=True), pool.y)
    assert (held.sum(1) == size).all()
    assert ((held > 0).sum(1) == 5).all()
    small = {**how, "samples": size}
    assert torch.equal(  # no warning where nothing is lowered, and the same deal
        classes_per_client(pool, **small, fit=True).owner, classes_per_client(pool, **small).owner
    )


def test_gifairs_three_groups_of_devices_have_their_sizes_exactly() -> None:
    rare = [2200, 2500, 3000, 4100]  # as EMNIST has letters, fewer of them
    pool = pool_of(np.repeat(np.arange(18), [40_000] * 10 + [9000, 8000, 7000, 3000] + rare))
    digits, capitals, small = list(range(10)), list(range(10, 14)), list(range(14, 18))
    teams = {
        "capitals": {"clients": 60, "classes": digits + capitals, "samples": 800},
        "lower": {"clients": 100, "classes": digits + small, "samples": 1000},
        "both": {"clients": 40, "classes": digits + capitals + small, "samples": 600},
    }
    for share in ("level", "available"):
        dealt = PARTITIONS["class_teams"](pool, seed=0, teams=teams, share=share)
        assert isinstance(dealt, Deal)
        held = counts(dealt, pool.y)
        assert held.sum(1).tolist() == [800] * 60 + [1000] * 100 + [600] * 40
        assert not held[:60, small].any()
        assert not held[60:160, capitals].any()
        assert (held[160:] > 0).all()
    # evenly: 60 * 800 / 14 and 40 * 600 / 18
    with pytest.raises(ValueError, match="need 4762 of '13', but there are only 3000"):
        PARTITIONS["class_teams"](pool, seed=0, teams=teams)


def test_teams_keep_their_proportions_where_sizes_are_lowered() -> None:
    pool = pool_of(np.repeat(np.arange(3), [50, 10, 50]))
    teams = {
        "a": {"clients": 2, "classes": [0, 1], "samples": 80},
        "b": {"clients": 2, "classes": [1, 2], "samples": 40},
    }
    how = {"name": "class_teams", "teams": teams, "share": "available"}
    with pytest.raises(
        ValueError,
        match=(
            r"cannot give each client 80, 40 samples \(240 in total\): their classes have 110,"
            " and a client uses only its own; lower samples or clients, or set fit = true for"
            " 30, 15"
        ),
    ):
        deal(pool, how)
    with pytest.warns(UserWarning, match="lowered samples per client from 80, 40 to 30, 15"):
        federation = deal(pool, {**how, "fit": True}, {"test": 0.0})
    assert federation.train.sizes.tolist() == [30, 30, 15, 15]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": "all", "samples": 2}, 'share must be "even", "level" or "available"'),
        ({"fit": 1, "samples": 2}, "fit must be true or false, got 1"),
        (
            {"fit": True},
            "share and fit only apply together with samples; set samples too, or remove them",
        ),
        ({"share": "level"}, "set samples too, or remove them"),
    ],
)
def test_shares_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classes_per_client(balanced(100), seed=0, clients=5, **settings)
    if "samples" not in settings:
        teams = {"a": {"clients": 1, "classes": [0]}}
        with pytest.raises(ValueError, match=message):
            PARTITIONS["class_teams"](balanced(100), seed=0, teams=teams, **settings)


# Dirichlet


@pytest.mark.parametrize(("by", "alpha"), [("label", 0.3), ("group", 2.0)])
def test_shares_of_a_class_have_the_moments_and_margins_of_a_dirichlet_draw(
    by: str, alpha: float
) -> None:
    clients, draws, cells = 5, 400, 3
    pool = pool_of(torch.arange(6000) % 3, torch.arange(6000) % 3)
    make = dirichlet if by == "label" else dirichlet_groups
    share = np.stack(
        [
            counts(make(pool, seed=s, clients=clients, alpha=alpha, least=0), pool.y) / 2000
            for s in range(draws)
        ]
    )
    # one row for each of draws x cells independent draws
    values = share.transpose(0, 2, 1).reshape(-1, clients)
    independent = draws * cells
    mean, variance = 1 / clients, (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.abs(values.mean(0) - mean).max() < 4 * sqrt(variance / independent)
    beta = stats.beta(alpha, alpha * (clients - 1))
    # standard error of a variance, from the fourth moment
    error = sqrt((beta.stats("k") + 2) * variance**2 / independent)
    assert np.abs(values.var(0) - variance).max() < 4 * error
    covariance = np.cov(values.T)[np.triu_indices(clients, 1)]
    assert np.abs(covariance + variance / (clients - 1)).max() < 4 * error
    for client in (0, clients - 1):
        # undo the rounding to samples
        jittered = (
            values[:, client] + (np.random.default_rng(client).random(independent) - 0.5) / 2000
        )
        assert (
            stats.kstest(jittered.clip(1e-9, 1), beta.cdf).statistic
            < 1.95 / sqrt(independent) + 0.01
        )
    between = np.corrcoef(share[:, 0, 0], share[:, 0, 1])[0, 1]  # of one client, two classes
    assert abs(between) < 4 / sqrt(draws)


def test_a_class_with_one_sample_goes_to_every_client_equally_often() -> None:
    pool = pool_of([0] + [1] * 20)
    owners = torch.stack(
        [dirichlet(pool, seed=s, clients=4, alpha=0.5, least=0).owner[0] for s in range(800)]
    )
    assert (torch.bincount(owners, minlength=4) - 200).abs().max() < 4 * sqrt(800 * 3 / 16)


def test_samples_are_shuffled_within_a_class() -> None:
    pool = pool_of(torch.zeros(1000, dtype=torch.int64))
    for made in (
        dirichlet(pool, seed=0, clients=2, alpha=5.0),
        iid(pool, seed=0, clients=2),
        log_normal(pool, seed=0, clients=2),
    ):
        mean = torch.nonzero(made.owner == 0).double().mean()
        share = float((made.owner == 0).double().mean())
        assert abs(mean - 499.5) < 4 * sqrt(1000**2 / 12 * (1 - share) / (share * 1000))


def test_extreme_concentrations_give_one_owner_or_even_shares() -> None:
    pool = balanced(2000)
    assert (
        counts(dirichlet(pool, seed=0, clients=8, alpha=1e-5, least=0), pool.y).max(0) == 200
    ).all()
    even = counts(dirichlet(pool, seed=0, clients=8, alpha=inf), pool.y)
    assert set(even.flatten().tolist()) == {25}


def test_draws_are_repeated_until_everyone_has_enough() -> None:
    pool = balanced(1000)
    sizes = [
        counts(dirichlet(pool, seed=s, clients=10, alpha=0.3, least=0), pool.y).sum(1).min()
        for s in range(40)
    ]
    assert min(sizes) < 20 <= max(sizes)  # some draws have to be repeated, some do not
    for seed in range(40):
        assert (
            counts(dirichlet(pool, seed=seed, clients=10, alpha=0.3, least=20), pool.y).sum(1).min()
            >= 20
        )
    kept = int(np.argmax(sizes))
    assert torch.equal(
        dirichlet(pool, seed=kept, clients=10, alpha=0.3, least=20).owner,
        dirichlet(pool, seed=kept, clients=10, alpha=0.3).owner,
    )
    with pytest.raises(
        ValueError,
        match=(
            r"none of 6 draws gave every one of 10 clients at least 95 samples \(the best gave"
            r" \d+\); lower least"
        ),
    ):
        dirichlet(pool, seed=0, clients=10, alpha=0.3, least=95, redraws=5)
    with pytest.raises(
        ValueError,
        match=(
            "10 clients with at least 101 samples need 1010, but there are only 1000; lower clients or"
            " least"
        ),
    ):
        dirichlet(pool, seed=0, clients=10, least=101)


def test_least_counts_training_samples_where_there_is_an_official_test_set() -> None:
    pool = balanced(600, held_out=torch.arange(600) % 2 == 0)
    for seed in range(10):
        assert (
            deal(
                pool, {"name": "dirichlet", "alpha": 0.3, "least": 10}, seed=seed, clients=8
            ).train.sizes.min()
            >= 10
        )


# labels x groups x sizes


def test_skew_without_one_kind_is_dirichlet_in_the_other() -> None:
    pool = balanced(4000)
    for one, plain, cell in (
        ("groups", dirichlet, pool.y),
        ("labels", dirichlet_groups, pool.group),
    ):
        other = {"groups": "labels", "labels": "groups"}[one]
        mixed = counts(skew(pool, seed=3, clients=5, **{one: inf, other: 0.7}), cell)
        # rounded in each of up to ten cells
        assert np.abs(mixed - counts(plain(pool, seed=3, clients=5, alpha=0.7), cell)).max() <= 10


def test_skew_is_a_product_of_a_label_a_group_and_a_size_factor() -> None:
    """log s(k|c,a) - log s(j|c,a) must be additive in c and a, with variance 2 (psi'(labels) +
    psi'(groups) + psi'(sizes))."""
    pool = pool_of(torch.arange(60_000) % 2, torch.arange(60_000) // 2 % 2)
    contrasts = []
    for seed in range(150):
        held = counts(
            skew(pool, seed=seed, clients=3, labels=4.0, groups=6.0, sizes=1.0),
            pool.y * 2 + pool.group,
        ).reshape(3, 2, 2)
        contrast = np.log(held[0] / held[1])
        assert (
            abs(contrast[0, 0] - contrast[0, 1] - contrast[1, 0] + contrast[1, 1]) < 8 / held.min()
        )
        contrasts.append(contrast)
    variance = 2 * sum(float(polygamma(1, alpha)) for alpha in (4, 6, 1))
    found = np.array(contrasts)
    assert abs(found[:, 0, 0].var() / variance - 1) < 4 * sqrt(2 / 150) * 1.2
    # group and size factors cancel: two label factors on each of two clients
    labels = (found[:, 0, 0] - found[:, 1, 0]).var()
    assert abs(labels / (4 * polygamma(1, 4)) - 1) < 4 * sqrt(2 / 150) * 1.2
    groups = (found[:, 0, 0] - found[:, 0, 1]).var()
    assert abs(groups / (4 * polygamma(1, 6)) - 1) < 4 * sqrt(2 / 150) * 1.2


# sizes


def test_power_law_sizes_fall_with_the_rank() -> None:
    pool = balanced(10_000)
    sizes = np.sort(
        counts(power_law(pool, seed=0, clients=20, exponent=1.5, least=10), pool.y).sum(1)
    )[::-1]
    law = np.arange(1, 21) ** -1.5
    assert np.abs(sizes - (10 + 9800 * law / law.sum())).max() < 1
    assert sizes.sum() == 10_000
    ranks = [
        int(counts(power_law(pool, seed=s, clients=20), pool.y).sum(1).argmax()) for s in range(20)
    ]
    assert len(set(ranks)) > 8  # who is largest is drawn
    even = counts(power_law(pool, seed=0, clients=20, exponent=0), pool.y).sum(1)
    assert set(even.tolist()) == {500}


def test_logarithms_of_log_normal_sizes_are_normal_with_spread_sigma() -> None:
    pool = pool_of(torch.zeros(2_000_000, dtype=torch.int8).long())
    sizes = torch.bincount(log_normal(pool, seed=0, clients=500, sigma=0.8, least=0).owner).double()
    z = (sizes.log() - sizes.log().mean()) / 0.8
    assert abs(float(z.var()) - 1) < 4 * sqrt(2 / 500)
    assert stats.kstest(z.numpy(), "norm").statistic < 1.95 / sqrt(500)
    assert set(
        torch.bincount(log_normal(balanced(100), seed=0, clients=10, sigma=0).owner).tolist()
    ) == {10}
    assert (
        torch.bincount(
            log_normal(balanced(1000), seed=0, clients=10, sigma=5, least=50).owner
        ).min()
        >= 50
    )


# ESG, SSG, PSG


def test_esg_deals_evenly_and_every_client_holds_every_group() -> None:
    pool = balanced(4000)
    federation = deal(pool, "esg", {"test": 0.2}, clients=40)
    held = federation.census()
    assert held.sizes.tolist() == [80] * 40
    assert (held.group_counts > 0).all()
    # 40 clients x 2 groups, one degree of freedom each
    chi = ((held.group_counts - 40) ** 2 / 40).sum()
    assert float(chi) < 39 + 4 * sqrt(2 * 39)


def test_ssg_puts_twenty_clients_on_each_of_two_groups_and_four_on_each_of_ten_classes() -> None:
    pool = balanced(4000)
    held = counts(ssg(pool, seed=0, clients=40), pool.group)
    assert ((held > 0).sum(1) == 1).all()
    assert ((held > 0).sum(0) == 20).all()
    assert set(held[held > 0].tolist()) == {100}
    made = ssg(pool, seed=0, clients=40, by="label")
    held = counts(made, pool.y)
    assert ((held > 0).sum(1) == 1).all()
    assert ((held > 0).sum(0) == 4).all()
    assert made.names[:5] == ("shirt 1", "shirt 2", "shirt 3", "shirt 4", "coat 1")
    uneven = counts(ssg(pool, seed=0, clients=15, by="label"), pool.y)
    assert sorted((uneven > 0).sum(0).tolist()) == [1] * 5 + [2] * 5


def test_psg_gives_half_of_the_groups_to_each_client_and_each_group_to_half_of_the_clients() -> (
    None
):
    pool = balanced(4000)
    for seed in range(5):
        held = counts(psg(pool, seed=seed, clients=40, by="label"), pool.y)
        assert ((held > 0).sum(1) == 5).all()
        assert ((held > 0).sum(0) == 20).all()
        assert set(held[held > 0].tolist()) == {20}
    few = counts(psg(pool, seed=0, clients=40, k=3, by="label"), pool.y) > 0
    assert (few.sum(1) == 3).all()
    assert (few.sum(0) == 12).all()
    single = counts(psg(pool, seed=0, clients=40), pool.group) > 0  # half of two groups is one
    assert (single.sum(0) == 20).all()


def test_official_training_and_test_samples_are_dealt_in_the_same_proportion() -> None:
    pool = balanced(7000, held_out=torch.arange(7000) >= 6000)
    federation = deal(pool, "esg", clients=40)
    assert federation.train.sizes.min() >= 149
    assert federation.train.sizes.max() <= 151
    assert federation.test.sizes.sum() == 1000
    assert (federation.test.x[:, 0] >= 6000).all()
    single = deal(pool, {"name": "ssg", "by": "label", "clients": 40})
    assert set(single.train.sizes.tolist()) <= {149, 150, 151}
    assert set(single.test.sizes.tolist()) <= {24, 25, 26}


# users' own


def test_a_function_may_return_owners_or_a_deal() -> None:
    pool = balanced(20)
    for make in (
        lambda pool, seed: [i % 2 for i in range(len(pool))],
        lambda pool, seed: np.arange(len(pool), dtype=np.int32) % 2,
        lambda pool: torch.arange(len(pool)) % 2,
        lambda pool, **settings: Deal(torch.arange(len(pool)) % 2),
    ):
        assert deal(pool, make, {"test": 0.2}).train.sizes.tolist() == [8, 8]
    named = deal(
        pool,
        lambda pool, seed: Deal(
            torch.arange(20) % 2, ("odd", "even"), torch.tensor([0, 0]), ("all",)
        ),
        {"test": 0.2},
    )
    assert (named.names, named.team_names) == (("odd", "even"), ("all",))
    some = deal(pool, lambda pool, seed: np.where(np.arange(20) < 10, 0, -1), {"test": 0.2})
    assert sorted(rows_of(some).tolist()) == list(range(10))
    assert deal(pool, partial(iid, clients=5)).clients == 5
    assert deal(pool, lambda pool, clients, seed: np.arange(20) % clients, clients=3).clients == 3


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([0, 1], r"must return one client for each of 4 samples, got shape \[2\]"),
        ([0.0, 1.0, 1.0, 0.0], "must return clients as integers, got float64"),
        ([True, False, True, True], "must return clients as integers, got bool"),
        (
            [0, -2, 0, 0],
            "assigns a sample to client -2; number clients 0, 1, ..., and use -1 for no client",
        ),
        ([-1, -1, -1, -1], "assigns no sample to any client"),
        ([0, 2, 0, 3], "assigns no samples to client 1; leave it out"),
        ([1, 2, 1, 2], "assigns no samples to client 0"),
        ([0, 0, 0, 10**15], "assigns no samples to client 1"),
        (
            Deal(torch.tensor([0, 0, 1, 2]), ("a", "b")),
            "assigns a sample to client 2, but names only 2",
        ),
        (Deal(torch.tensor([0, 0, 1, 1]), ("a", "b", "c")), "assigns no samples to client c"),
        (
            Deal(torch.tensor([0, 0, 1, 1]), None, torch.tensor([0]), ("x",)),
            "must return one team for each of 2 clients",
        ),
    ],
)
def test_owners_that_make_no_sense_are_refused(owners: Any, message: str) -> None:
    def mine(pool: Pool, seed: int) -> Any:
        return owners

    with pytest.raises(ValueError, match="^mine " + message):
        deal(pool_of([0, 1, 0, 1]), mine)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("dirichlett", "unknown partition 'dirichlett'; did you mean 'dirichlet'?"),
        ("zzz", "unknown partition 'zzz'; choose from natural, iid, by_class"),
        ({"alpha": 1}, 'a partition needs a name, such as {"name": "dirichlet"}; it has alpha'),
        ("iid", "iid needs clients, the number of clients"),
        (
            {"name": "dirichlet", "alhpa": 1, "clients": 3},
            "unknown setting of dirichlet: 'alhpa'; did you mean 'alpha'?",
        ),
        ({"name": "iid", "pool": 1, "clients": 3}, "unknown setting of iid: 'pool'"),
        (
            {"name": "by_class", "clients": 3},
            "by_class determines the number of clients itself; remove clients = 3",
        ),
        (
            {"name": "by_class", "classes": 3},
            "classes must be a list of classes such as [0, 2, 6], got 3",
        ),
        ({"name": "by_class", "classes": []}, "classes must name at least one class"),
        ({"name": "by_class", "classes": [1, 1]}, "classes must differ, got [1, 1]"),
        (
            {"name": "by_class", "classes": [11]},
            "there is no class 11; classes are numbered 0 to 9",
        ),
        (
            {"name": "by_class", "classes": ["shrit"]},
            "unknown class 'shrit'; did you mean 'shirt'?",
        ),
        (
            {"name": "dirichlet", "clients": 3, "alpha": 0},
            "alpha must be a finite number > 0, got 0; inf is no skew",
        ),
        (
            {"name": "skew", "clients": 3, "groups": -1.0},
            "groups must be a finite number > 0, got -1.0; inf is no skew",
        ),
        (
            {"name": "dirichlet", "clients": 3, "least": 0.5},
            "least must be a whole number >= 0, got 0.5",
        ),
        ({"name": "iid", "clients": 0}, "clients must be a whole number >= 1, got 0"),
        ({"name": "iid", "clients": 101}, "101 clients need a sample each, but there are only 100"),
        ({"name": "iid", "clients": 3, "seed": -1}, "seed must be a whole number >= 0, got -1"),
        (
            {"name": "classes_per_client", "clients": 5, "k": 11},
            "k must be at most the number of classes, 10, got 11",
        ),
        (
            {"name": "classes_per_client", "clients": 5, "by": "colour"},
            'by must be "label" or "group", got \'colour\'',
        ),
        (
            {"name": "classes_per_client", "clients": 5, "consecutive": "no"},
            "consecutive must be true or false, got 'no'",
        ),
        ({"name": "ssg", "clients": 1}, "ssg needs a client for each of 2 groups, got clients = 1"),
        (
            {"name": "psg", "clients": 4, "k": 2},
            (
                "k must be less than the number of groups, 2, got 2; esg gives every client every"
                " group"
            ),
        ),
        (
            {"name": "power_law", "clients": 4, "exponent": -1},
            "exponent must be a finite number >= 0, got -1; 0 gives equal sizes",
        ),
        (
            {"name": "log_normal", "clients": 4, "least": 26},
            "4 clients with at least 26 samples need 104, but there are only 100",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(how: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        deal(balanced(100), how)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_data_that_a_partition_cannot_deal_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=("these labels are not classes; use a partition that ignores labels, such as iid"),
    ):
        deal(pool_of([0.5, 1.5]), "dirichlet", clients=2)
    with pytest.raises(
        ValueError, match='these data have no groups; use the classes instead \\(by = "label"'
    ):
        deal(pool_of([0, 1]), "ssg", clients=2)
    with pytest.raises(ValueError, match="labels must be numbered from 0, got -1"):
        deal(pool_of([0, -1]), "by_class")
    with pytest.raises(ValueError, match="there are no samples to distribute"):
        deal(pool_of(torch.zeros(0, dtype=torch.int64)), "iid", clients=1)

    def my_function(pool: Pool, seed: int, clients: int) -> Any:
        return [0, 1, 0]

    with pytest.raises(ValueError, match="my_function made 2 clients, not 3"):
        deal(pool_of([0, 0, 0]), my_function, clients=3)
    with pytest.raises(
        TypeError, match="partition must be a name, a mapping with one, or a function"
    ):
        deal(pool_of([0, 0]), 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how",
    [
        {"name": "dirichlet", "alpha": 5.0, "least": 0},
        {"name": "psg", "by": "label"},
        {"name": "skew", "labels": 5.0, "groups": 5.0},
        {"name": "log_normal", "sigma": 0.5},
        {"name": "ssg"},
    ],
    ids=lambda how: how["name"],
)
def test_twenty_thousand_clients_take_no_time(how: dict[str, Any]) -> None:
    assert deal(balanced(400_000), how, clients=20_000).clients == 20_000


# the page


def test_the_page_lists_every_partition_with_its_settings_and_defaults() -> None:
    rows = re.findall(r"^\| (`[\w`, ]+`) \| .* \| (.*) \|$", PAGE, re.M)
    listed = {name: shown for names, shown in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(listed) == set(PARTITIONS)
    for name, entry in listed.items():
        own = listed["dirichlet"] if entry == "as `dirichlet`" else entry
        parameters = {
            key: p.default
            for key, p in inspect.signature(PARTITIONS[name]).parameters.items()
            if key not in ("pool", "seed")
        }
        outside = re.sub(r"\([^)]*\)", "", own)
        assert re.findall(r"`(\w+)`", outside) == list(parameters)
        for key, default in parameters.items():
            shown = re.search(rf"`{key}` \(([^);:]*)", own)
            assert (shown is None) == (default is inspect.Parameter.empty)
            if shown is not None and default is not None:
                assert shown[1] == (
                    str(default).lower()
                    if isinstance(default, bool)
                    else f'"{default}"'
                    if isinstance(default, str)
                    else f"{default:g}"
                )


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly", reason="the page's figures need plotly")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S)), names)
    assert names["single"].clients == names["partial"].clients == 40
    assert (names["partial"].census().sizes > 0).all()
    assert names["femnist_skewed"].train.sizes.tolist() == [40] * 100
    assert names["by_light"].clients == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["groups.html", "labels.html"]


def test_class_teams_hold_their_classes_and_become_the_clients_teams() -> None:
    pool = pool_of([label for label in range(4) for _ in range(30)])
    teams = {"low": {"clients": 3, "classes": [0, 1]}, "high": {"clients": 2, "classes": [1, 2]}}
    federation = deal(pool, {"name": "class_teams", "teams": teams}, {"test": 0.0})
    assert federation.teams is not None
    assert (federation.teams.tolist(), federation.team_names) == ([0, 0, 0, 1, 1], ("low", "high"))
    counts = [
        torch.bincount(federation.train.client(client)[1], minlength=4).tolist()
        for client in range(5)
    ]
    # class 1 is shared by all five, class 3 is nobody's
    assert counts == [[10, 6, 0, 0]] * 3 + [[0, 6, 15, 0]] * 2


def test_class_teams_with_samples_for_each_client() -> None:
    pool = pool_of([label for label in range(3) for _ in range(30)])
    teams = {
        "a": {"clients": 2, "classes": [0, 1], "samples": 7},
        "b": {"clients": 3, "classes": [1, 2], "samples": 4},
    }
    federation = deal(pool, {"name": "class_teams", "teams": teams}, {"test": 0.0})
    counts = [
        torch.bincount(federation.train.client(client)[1], minlength=3).tolist()
        for client in range(5)
    ]
    assert [sum(row) for row in counts] == [7, 7, 4, 4, 4]
    assert counts[2:] == [[0, 2, 2]] * 3
    assert sorted(map(tuple, counts[:2])) == [(3, 4, 0), (4, 3, 0)]


@pytest.mark.parametrize(
    ("teams", "message"),
    [
        ({}, "teams must be a table"),
        ({"a": 3}, "team a must be a table with clients and classes, got 3"),
        ({"a": {"clients": 2}}, "team a needs a list of classes"),
        ({"a": {"classes": [0]}}, "clients of team a must be a whole number >= 1, got None"),
        ({"a": {"clients": 1, "classes": [9]}}, "there is no class 9"),
        (
            {"a": {"clients": 1, "clases": [0]}},
            "unknown entry of team a: 'clases'; did you mean 'classes'?",
        ),
        (
            {
                "a": {"clients": 1, "classes": [0], "samples": 3},
                "b": {"clients": 1, "classes": [1]},
            },
            "give samples for every team, or for none",
        ),
        (
            {"a": {"clients": 4, "classes": [0], "samples": 3}},
            "3 samples per client need 12 of '0', but there are only 10",
        ),
    ],
)
def test_class_teams_that_make_no_sense_are_refused(teams: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        deal(pool_of([0] * 10 + [1] * 10), {"name": "class_teams", "teams": teams})
    assert message in str(error.value)
