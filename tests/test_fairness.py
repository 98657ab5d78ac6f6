"""Rates, parities and spreads from counts: by hand, against scikit-learn and fairlearn, and their sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from evenhand.metrics import parity, rates, spread
from evenhand.metrics.counts import Counts

# labels 0, 1 in rows; predictions 0, 1, none in columns
HAND = np.array([[50, 10, 0], [5, 30, 5]])


def counted(y: Any, p: Any, group: Any = None, client: Any = None, classes: int = 2) -> Counts:
    y, p = np.asarray(y), np.asarray(p)
    group = np.zeros_like(y) if group is None else np.asarray(group)
    client = np.zeros_like(y) if client is None else np.asarray(client)
    names = [tuple(map(str, range(int(codes.max()) + 1))) for codes in (client, group)]
    return Counts.of(client, group, y, p, *names, tuple(map(str, range(classes))))


# ---- counts


def test_counts_of_five_samples_by_hand() -> None:
    counts = Counts.of(
        np.array([0, 0, 1, 1, 1]),
        np.array([0, 1, 1, 1, 0]),
        np.array([0, 1, 1, 1, 0]),
        np.array([0, 0, 1, -1, 1]),
        "ab",
        "fm",
        ("no", "yes"),
    )
    assert counts.table.shape == (2, 2, 2, 3)
    assert counts.table[1, 1].tolist() == [[0, 0, 0], [0, 1, 1]]
    assert counts.by_client[0].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert counts.by_group[0].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert counts.rows()[-1] == {"client": "b", "group": "m", "label": "yes", "prediction": "", "count": 1}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_the_counts_of_a_union_are_the_sum_of_the_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, top, 60) for top in (3, 2, 4)] + [rng.integers(-1, 4, 60)]
    names = ("abc", "fm", "0123")
    first, second = (Counts.of(*(code[rows] for code in codes), *names) for rows in (slice(0, 25), slice(25, None)))
    assert np.array_equal((first + second).table, Counts.of(*codes, *names).table)


def test_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="counts must not be negative"):
        Counts(np.full((1, 1, 2, 3), -1), ("a",), ("",), ("0", "1"))
    with pytest.raises(ValueError, match=r"counts must have shape \(1, 1, 2, 3\)"):
        Counts(np.zeros((1, 1, 2, 2), np.int64), ("a",), ("",), ("0", "1"))
    with pytest.raises(ValueError, match="whole numbers"):
        Counts(np.zeros((1, 1, 2, 3)), ("a",), ("",), ("0", "1"))
    with pytest.raises(ValueError, match="same clients, groups and labels"):
        counted([0, 1], [0, 1]) + counted([0, 1], [0, 1], client=[0, 1])


# ---- rates


def test_rates_by_hand() -> None:
    assert rates.count(HAND) == 100
    assert rates.accuracy(HAND) == pytest.approx(0.8)
    assert rates.recall(HAND) == pytest.approx([50 / 60, 30 / 40])
    assert rates.precision(HAND) == pytest.approx([50 / 55, 30 / 40])
    assert rates.f1(HAND) == pytest.approx([100 / 115, 60 / 80])
    assert rates.balanced_accuracy(HAND) == pytest.approx((50 / 60 + 30 / 40) / 2)
    assert rates.selection_rate(HAND) == pytest.approx([0.55, 0.40])
    assert rates.base_rate(HAND) == pytest.approx([0.6, 0.4])
    assert rates.false_positive_rate(HAND) == pytest.approx([5 / 40, 10 / 60])
    assert rates.false_negative_rate(HAND) == pytest.approx([10 / 60, 10 / 40])


def test_a_rate_over_no_samples_is_nan() -> None:
    empty = np.zeros((2, 3), np.int64)
    assert all(np.isnan(function(empty)).all() for function in (rates.accuracy, rates.recall, rates.precision, rates.balanced_accuracy))
    only_zero = np.array([[3, 1, 0], [0, 0, 0]])
    assert rates.balanced_accuracy(only_zero) == pytest.approx(0.75)
    assert np.isnan(rates.recall(only_zero)).tolist() == [False, True]


@pytest.mark.parametrize("classes", [2, 5])
def test_rates_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    y, p = rng.integers(0, classes, (2, 400))
    table = counted(y, p, classes=classes).table[0, 0]
    assert rates.accuracy(table) == pytest.approx(sk.accuracy_score(y, p))
    assert rates.balanced_accuracy(table) == pytest.approx(sk.balanced_accuracy_score(y, p))
    assert rates.recall(table) == pytest.approx(sk.recall_score(y, p, average=None))
    assert rates.precision(table) == pytest.approx(sk.precision_score(y, p, average=None))
    assert rates.f1(table) == pytest.approx(sk.f1_score(y, p, average=None))
    assert np.array_equal(table[:, :-1], sk.confusion_matrix(y, p))


def test_leading_axes_stay() -> None:
    tables = np.random.default_rng(0).integers(0, 9, (4, 3, 2, 3))
    assert rates.accuracy(tables)[2, 1] == rates.accuracy(tables[2, 1])
    assert rates.precision(tables)[3, 0] == pytest.approx(rates.precision(tables[3, 0]))


# ---- parities


def test_parities_by_hand() -> None:
    other = np.array([[20, 20, 0], [10, 10, 0]])
    both = np.stack([HAND, other])
    assert parity.demographic_parity(both, 1) == pytest.approx(0.5 - 0.4)
    assert parity.equal_opportunity(both, 1) == pytest.approx(0.75 - 0.5)
    assert parity.false_positive_parity(both, 1) == pytest.approx(20 / 40 - 10 / 60)
    assert parity.equalised_odds(both, 1) == pytest.approx(1 / 3)
    assert parity.predictive_parity(both, 1) == pytest.approx(0.75 - 10 / 30)
    assert parity.accuracy_parity(both) == pytest.approx(0.8 - 0.5)
    assert parity.demographic_parity(both, 1, parity.ratio) == pytest.approx(0.8)
    assert parity.equalised_odds(both, 1, parity.ratio) == pytest.approx(1 / 3)
    assert parity.worst_group(rates.accuracy(both)) == pytest.approx(0.5)
    assert parity.demographic_parity(both) == pytest.approx(0.1)  # of either class, the larger: 0.55 - 0.5 and 0.5 - 0.4


def test_an_empty_group_is_left_out_and_one_group_alone_has_no_gap() -> None:
    empty = np.zeros_like(HAND)
    assert parity.accuracy_parity(np.stack([HAND, empty, HAND])) == 0
    assert math.isnan(parity.accuracy_parity(np.stack([HAND, empty])))
    assert math.isnan(parity.demographic_parity(np.stack([HAND, empty]), 1))
    assert parity.ratio([0.0, 0.0]) == 1
    assert math.isnan(parity.worst_group([np.nan, np.nan]))


@pytest.mark.parametrize("groups", [2, 4])
def test_parities_are_those_of_fairlearn(groups: int) -> None:
    fairlearn = pytest.importorskip("fairlearn.metrics", reason="compares with fairlearn")
    rng = np.random.default_rng(groups)
    group = rng.integers(0, groups, 600)
    y = rng.integers(0, 2, 600)
    p = (rng.random(600) < 0.2 + 0.15 * group + 0.2 * y).astype(int)
    table = counted(y, p, group).by_group
    for ours, theirs in (
        (parity.demographic_parity, "demographic_parity"),
        (parity.equal_opportunity, "equal_opportunity"),
        (parity.equalised_odds, "equalized_odds"),
    ):
        for compare, kind in ((parity.gap, "difference"), (parity.ratio, "ratio")):
            expected = getattr(fairlearn, f"{theirs}_{kind}")(y, p, sensitive_features=group)
            assert ours(table, 1, compare) == pytest.approx(expected), (theirs, kind)


# ---- spread over clients


def test_spreads_of_four_clients_by_hand() -> None:
    a = [0.5, 1.0, 0.75, 0.75]
    assert spread.mean(a) == 0.75
    assert spread.pooled(a, [10, 30, 0, 60]) == pytest.approx(0.1 * 0.5 + 0.3 + 0.6 * 0.75)
    assert (spread.worst(a), spread.best(a), spread.smallest(a), spread.largest(a)) == (0.5, 1.0, 0.5, 1.0)
    assert spread.worst(a, share=0.5) == pytest.approx(0.625)
    assert spread.variance(a) == pytest.approx(0.03125)
    assert spread.std(a) == pytest.approx(math.sqrt(0.03125))
    assert spread.variation(a) == pytest.approx(math.sqrt(0.03125) / 0.75)
    assert spread.jain(a) == pytest.approx(9 / (4 * 2.375))
    assert spread.cosine(a) == pytest.approx(3 / (2 * math.sqrt(2.375)))
    differences = sum(abs(x - y) for x in a for y in a)
    assert spread.gini(a) == pytest.approx(differences / (2 * 4 * 3))
    shares = np.array(a) / 3
    assert spread.entropy(a) == pytest.approx(-(shares * np.log(shares)).sum() / math.log(4))
    assert spread.percentiles(a, [0, 50, 100]).tolist() == [0.5, 0.75, 1.0]


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (2, 1), (9, 1), (10, 1), (20, 2), (23, 2), (50, 5), (1101, 110)])
def test_worst_and_best_are_means_over_a_tenth_of_the_clients_at_least_one(clients: int, tenth: int) -> None:
    values = np.random.default_rng(clients).permutation(clients) / clients
    assert spread.worst(values) == pytest.approx(np.arange(tenth).mean() / clients)
    assert spread.best(values) == pytest.approx((clients - 1 - np.arange(tenth)).mean() / clients)


def test_equal_clients_one_client_and_nobody() -> None:
    for a in ([0.4] * 9, [0.7], [0.0, 0.0]):
        assert spread.jain(a) == pytest.approx(1)
        assert spread.entropy(a) == pytest.approx(1)
        assert spread.gini(a) == pytest.approx(0)
        assert spread.variation(a) == pytest.approx(0)
    winner = [0.0, 0.0, 0.0, 1.0]
    assert (spread.jain(winner), spread.entropy(winner), spread.gini(winner)) == pytest.approx((0.25, 0.0, 0.75))
    assert all(math.isnan(function([math.nan])) for function in spread.SPREAD.values())
    assert all(function([0.5, math.nan, 1.0]) == function([0.5, 1.0]) for function in spread.SPREAD.values())
    assert all(math.isnan(function([])) for function in spread.SPREAD.values())
    assert math.isnan(spread.pooled([math.nan], [3]))


def test_spreads_of_many_tables_at_once() -> None:
    values = np.random.default_rng(0).random((3, 2, 7))
    for function in spread.SPREAD.values():
        assert function(values).shape == (3, 2)
        assert function(values)[2, 1] == pytest.approx(float(function(values[2, 1])))
