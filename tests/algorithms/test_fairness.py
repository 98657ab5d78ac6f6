"""Rates, parities and spreads from counts: by hand, against scikit-learn and fairlearn, and their
sums."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance
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
    assert counts.rows()[-1] == {
        "client": "b",
        "group": "m",
        "label": "yes",
        "prediction": "",
        "count": 1,
    }


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_the_counts_of_a_union_are_the_sum_of_the_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, top, 60) for top in (3, 2, 4)] + [rng.integers(-1, 4, 60)]
    names = ("abc", "fm", "0123")
    first, second = (
        Counts.of(*(code[rows] for code in codes), *names)
        for rows in (slice(0, 25), slice(25, None))
    )
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
    assert all(
        np.isnan(function(empty)).all()
        for function in (rates.accuracy, rates.recall, rates.precision, rates.balanced_accuracy)
    )
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
    # of either class, the larger: 0.55 - 0.5 and 0.5 - 0.4
    assert parity.demographic_parity(both) == pytest.approx(0.1)


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
    assert (spread.worst(a), spread.best(a), spread.smallest(a), spread.largest(a)) == (
        0.5,
        1.0,
        0.5,
        1.0,
    )
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


@pytest.mark.parametrize(
    ("clients", "tenth"), [(1, 1), (2, 1), (9, 1), (10, 1), (20, 2), (23, 2), (50, 5), (1101, 110)]
)
def test_worst_and_best_are_means_over_a_tenth_of_the_clients_at_least_one(
    clients: int, tenth: int
) -> None:
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
    assert (spread.jain(winner), spread.entropy(winner), spread.gini(winner)) == pytest.approx(
        (0.25, 0.0, 0.75)
    )
    assert all(math.isnan(function([math.nan])) for function in spread.SPREAD.values())
    assert all(
        function([0.5, math.nan, 1.0]) == function([0.5, 1.0])
        for function in spread.SPREAD.values()
    )
    assert all(math.isnan(function([])) for function in spread.SPREAD.values())
    assert math.isnan(spread.pooled([math.nan], [3]))


def test_spreads_of_many_tables_at_once() -> None:
    values = np.random.default_rng(0).random((3, 2, 7))
    for function in spread.SPREAD.values():
        assert function(values).shape == (3, 2)
        assert function(values)[2, 1] == pytest.approx(float(function(values[2, 1])))


# ---- the same by other means: 1, 2 and 9 clients, ties, an empty group, missing predictions

CASES = {
    "one client": [0.7],
    "two clients": [0.25, 0.75],
    "two equal clients": [0.4, 0.4],
    "nine clients": [0.9, 0.1, 0.5, 0.5, 0.8, 0.3, 0.7, 0.2, 0.6],
    "nine with ties at both ends": [0.2, 0.2, 0.2, 0.5, 0.5, 0.9, 0.9, 0.9, 0.7],
    "twenty with ties": [0.3] * 5 + [0.6] * 10 + [1.0] * 5,
    "zeros": [0.0, 0.0, 0.5],
    "one missing": [0.5, math.nan, 1.0],
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_spreads_are_those_of_scipy_and_pandas(values: list[float]) -> None:
    there = pd.Series(values).dropna()
    n, tenth = len(there), max(1, len(there) // 10)
    expected = {
        "mean": statistics.fmean(there),
        "worst10": there.nsmallest(tenth).mean(),
        "best10": there.nlargest(tenth).mean(),
        "min": there.quantile(0),
        "max": there.quantile(1),
        "variance": statistics.pvariance(there),
        "std": statistics.pstdev(there),
        "variation": stats.variation(there),
        "cosine": 1 - distance.cosine(there, np.ones(n)),
        "jain": (1 - distance.cosine(there, np.ones(n))) ** 2,
        "gini": np.abs(np.subtract.outer(there.to_numpy(), there.to_numpy())).mean()
        / (2 * there.mean()),
        "entropy": stats.entropy(there) / math.log(n) if n > 1 else 1.0,
    }
    assert set(expected) == set(spread.SPREAD)
    for name, function in spread.SPREAD.items():
        assert function(values) == pytest.approx(expected[name], abs=1e-12), name
    assert spread.percentiles(values, [0, 10, 50, 100]) == pytest.approx(
        there.quantile([0, 0.1, 0.5, 1]).tolist()
    )
    weight = np.arange(1, len(values) + 1)
    kept = ~np.isnan(values)
    assert spread.pooled(values, weight) == pytest.approx(
        np.average(np.array(values)[kept], weights=weight[kept])
    )


def test_spreads_of_one_two_and_nine_clients_by_hand() -> None:
    by_hand = {
        "mean": (0.7, 0.5, 5 / 9),
        "worst10": (0.7, 0.25, 0.2),  # a tenth of nine clients is one of them
        "best10": (0.7, 0.75, 0.9),
        "min": (0.7, 0.25, 0.2),
        "max": (0.7, 0.75, 0.9),
        "variance": (0, 0.0625, 3.54 / 9 - (5 / 9) ** 2),
        "std": (0, 0.25, math.sqrt(3.54 / 9 - (5 / 9) ** 2)),
        "variation": (0, 0.5, math.sqrt(3.54 / 9 - (5 / 9) ** 2) * 9 / 5),
        "jain": (1, 1 / (2 * 0.625), 25 / (9 * 3.54)),
        "cosine": (1, 1 / math.sqrt(1.25), 5 / math.sqrt(9 * 3.54)),
        "gini": (0, 0.25, 2 * (0.2 * 6 + 0.5 * 9 + 0.7 * 6 + 0.9 * 24) / (9 * 5) - 10 / 9),
        "entropy": (1, (0.25 * math.log(4) + 0.75 * math.log(4 / 3)) / math.log(2), None),
    }
    nine = CASES["nine with ties at both ends"]
    for name, (one, two, many) in by_hand.items():
        assert spread.SPREAD[name]([0.7]) == pytest.approx(one), name
        assert spread.SPREAD[name]([0.25, 0.75]) == pytest.approx(two), name
        assert many is None or spread.SPREAD[name](nine) == pytest.approx(many), name


@pytest.mark.parametrize("classes", [2, 4])
def test_rates_with_missing_predictions_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    y, p = rng.integers(0, classes, 300), rng.integers(-1, classes, 300)  # -1: none
    table, labels = counted(y, p, classes=classes).table[0, 0], list(range(classes))
    assert rates.accuracy(table) == pytest.approx(sk.accuracy_score(y, p))
    assert rates.recall(table) == pytest.approx(sk.recall_score(y, p, labels=labels, average=None))
    assert rates.balanced_accuracy(table) == pytest.approx(
        sk.recall_score(y, p, labels=labels, average="macro")
    )
    assert rates.precision(table) == pytest.approx(
        sk.precision_score(y, p, labels=labels, average=None)
    )
    assert rates.f1(table) == pytest.approx(sk.f1_score(y, p, labels=labels, average=None))
    for label in labels:
        assert rates.selection_rate(table)[label] == pytest.approx((p == label).mean())
        assert rates.base_rate(table)[label] == pytest.approx((y == label).mean())
        assert rates.false_positive_rate(table)[label] == pytest.approx(
            (p[y != label] == label).mean()
        )
        assert rates.false_negative_rate(table)[label] == pytest.approx(
            (p[y == label] != label).mean()
        )
    assert rates.count(table) == len(y)


def test_missing_predictions_by_hand() -> None:
    table = counted([0, 0, 0, 1, 1], [0, -1, 1, 1, -1]).table[0, 0]
    assert table.tolist() == [[1, 1, 1], [0, 1, 1]]
    assert rates.accuracy(table) == pytest.approx(2 / 5)
    assert rates.recall(table) == pytest.approx([1 / 3, 1 / 2])
    assert rates.precision(table) == pytest.approx([1, 1 / 2])
    assert rates.selection_rate(table) == pytest.approx([1 / 5, 2 / 5])
    assert rates.false_positive_rate(table) == pytest.approx([0, 1 / 3])
    assert rates.false_negative_rate(table) == pytest.approx([2 / 3, 1 / 2])


@pytest.mark.parametrize("empty", [False, True], ids=["all groups", "an empty group"])
def test_parities_of_rates_are_those_of_fairlearns_metric_frame(empty: bool) -> None:
    fairlearn = pytest.importorskip("fairlearn.metrics", reason="compares with fairlearn")
    rng = np.random.default_rng(5)
    group = rng.choice([0, 2] if empty else [0, 1, 2], 500)  # group 1 may have nobody
    y = rng.integers(0, 2, 500)
    p = (rng.random(500) < 0.2 + 0.15 * group + 0.3 * y).astype(int)
    table = counted(y, p, group).by_group
    assert len(table) == 3
    for ours, theirs in (
        (parity.accuracy_parity, sk.accuracy_score),
        (lambda t, **k: parity.predictive_parity(t, 1, **k), sk.precision_score),
        (lambda t, **k: parity.false_positive_parity(t, 1, **k), fairlearn.false_positive_rate),
        (lambda t, **k: parity.demographic_parity(t, 1, **k), fairlearn.selection_rate),
        (lambda t, **k: parity.equal_opportunity(t, 1, **k), fairlearn.true_positive_rate),
    ):
        frame = fairlearn.MetricFrame(metrics=theirs, y_true=y, y_pred=p, sensitive_features=group)
        assert ours(table) == pytest.approx(frame.difference())
        assert ours(table, compare=parity.ratio) == pytest.approx(frame.ratio())
    frame = fairlearn.MetricFrame(
        metrics=sk.accuracy_score, y_true=y, y_pred=p, sensitive_features=group
    )
    assert parity.worst_group(rates.accuracy(table)) == pytest.approx(frame.group_min())


def test_groups_with_equal_rates_have_no_gap_and_a_ratio_of_one() -> None:
    both = np.stack([HAND, 3 * HAND, HAND])
    for function in (
        parity.demographic_parity,
        parity.equal_opportunity,
        parity.false_positive_parity,
        parity.equalised_odds,
        parity.predictive_parity,
    ):
        assert function(both) == pytest.approx(0, abs=1e-12)
        assert function(both, 1, parity.ratio) == pytest.approx(1)
    assert (parity.gap([0.3, 0.3, 0.1]), parity.ratio([0.3, 0.3, 0.1])) == pytest.approx(
        (0.2, 1 / 3)
    )


def test_without_a_positive_class_the_one_that_differs_most_counts() -> None:
    rng = np.random.default_rng(3)
    y, p, group = rng.integers(0, 4, 500), rng.integers(0, 4, 500), rng.integers(0, 3, 500)
    table = counted(y, p, group, classes=4).by_group
    by_class = [[(p[group == g] == c).mean() for g in range(3)] for c in range(4)]
    assert parity.demographic_parity(table) == pytest.approx(
        max(max(rate) - min(rate) for rate in by_class)
    )
    assert parity.demographic_parity(table, compare=parity.ratio) == pytest.approx(
        min(min(rate) / max(rate) for rate in by_class)
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_numbers_from_sums_of_counts_are_those_of_the_union(seed: int) -> None:
    """Rates, parities and spreads need nothing but sums: two halves of a federation's samples give
    what all of them give."""
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, top, 90) for top in (3, 2, 2)] + [rng.integers(-1, 2, 90)]
    names = ("abc", "fm", "01")
    halves = [
        Counts.of(*(code[rows] for code in codes), *names)
        for rows in (slice(0, 40), slice(40, None))
    ]
    summed, client, group = halves[0] + halves[1], codes[0], codes[1]
    right = codes[2] == codes[3]
    by_client = [right[client == i].mean() for i in range(3)]
    for function in spread.SPREAD.values():
        assert function(rates.accuracy(summed.by_client)) == pytest.approx(
            float(function(by_client))
        )
    sizes = summed.by_client.sum((-2, -1))
    assert spread.pooled(rates.accuracy(summed.by_client), sizes) == pytest.approx(right.mean())
    by_group = [right[group == a].mean() for a in range(2)]
    assert parity.accuracy_parity(summed.by_group) == pytest.approx(abs(by_group[0] - by_group[1]))


def test_teams_in_place_of_groups_hold_their_clients_counts() -> None:
    counts = counted([0, 1, 1, 0], [0, 1, 0, 1], group=[0, 1, 0, 1], client=[0, 1, 2, 2])
    teams = counts.with_groups(("north", "south"), np.array([1, 0, -1]))
    assert teams.groups == ("north", "south")
    assert teams.by_group[1].tolist() == counts.by_client[0].tolist()
    assert teams.by_group[0].tolist() == counts.by_client[1].tolist()
    assert teams.table[2].sum() == 0  # a client without a team
