"""Intervals: against closed forms and SciPy, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics import rates, spread
from evenhand.metrics.counts import Counts
from evenhand.metrics.uncertainty import gap_interval, holm, intervals, over_seeds, paired, resampled, wilson


def counts_of(right: list[int], sizes: list[int]) -> Counts:
    table = np.array([[[[k, n - k, 0], [0, 0, 0]]] for k, n in zip(right, sizes, strict=True)])
    return Counts(table, tuple(map(str, range(len(right)))), ("",), ("0", "1"))


@pytest.mark.parametrize(("right", "samples"), [(0, 5), (3, 10), (10, 10), (457, 500)])
def test_wilsons_interval_is_scipys(right: int, samples: int) -> None:
    expected = stats.binomtest(right, samples).proportion_ci(0.9, method="wilson")
    assert [float(end) for end in wilson(right, samples, 0.9)] == pytest.approx([expected.low, expected.high], abs=1e-12)


def test_without_samples_there_is_no_interval() -> None:
    low, high = wilson([1, 0], [2, 0])
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True]


def test_resampled_samples_keep_every_clients_size_and_have_binomial_moments() -> None:
    counts = counts_of([8, 1], [10, 4])
    tables = resampled(counts.table, "samples", 20_000, np.random.default_rng(0))
    assert (tables.sum((-3, -2, -1)) == [10, 4]).all()
    right = tables[:, 0, 0, 0, 0]
    assert right.mean() == pytest.approx(8, abs=5 * math.sqrt(1.6 / 20_000))
    assert right.var() == pytest.approx(10 * 0.8 * 0.2, rel=0.05)


def test_resampled_clients_are_whole_clients_drawn_with_replacement() -> None:
    counts = counts_of([8, 1, 0], [10, 4, 0])
    tables = resampled(counts.table, "clients", 3000, np.random.default_rng(0))
    sizes = tables.sum((-3, -2, -1))
    assert set(np.unique(sizes)) == {0, 4, 10}
    assert (sizes == 10).mean() == pytest.approx(1 / 3, abs=0.03)
    both = resampled(counts.table, "both", 3000, np.random.default_rng(0))
    assert set(np.unique(both.sum((-3, -2, -1)))) == {0, 4, 10}
    assert len(np.unique(both[..., 0, 0, 0])) > 3


def test_one_seed_gives_one_interval_and_all_statistics_see_the_same_tables() -> None:
    counts = counts_of([30, 20, 45], [50, 40, 50])
    by_client = {"mean": lambda t: spread.mean(rates.accuracy(t.sum(-3))), "again": lambda t: spread.mean(rates.accuracy(t.sum(-3)))}
    first, second, other = (intervals(counts, by_client, draws=200, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first["mean"] == first["again"]
    assert first["mean"] != other["mean"]
    assert first["mean"].value == pytest.approx((0.6 + 0.5 + 0.9) / 3)


def test_the_interval_of_a_pooled_accuracy_is_near_the_normal_one() -> None:
    found = intervals(counts_of([400], [500]), {"accuracy": lambda t: rates.accuracy(t.sum((-4, -3)))}, draws=4000)["accuracy"]
    half = 1.96 * math.sqrt(0.8 * 0.2 / 500)
    assert (found.low, found.high) == pytest.approx((0.8 - half, 0.8 + half), abs=0.004)


def test_a_statistic_must_give_a_number_for_each_table() -> None:
    with pytest.raises(ValueError, match=r"accuracy must give one number for each table, got shape \(10, 1\)"):
        intervals(counts_of([4], [5]), {"accuracy": lambda t: rates.accuracy(t.sum(-3))}, draws=10)


def test_over_seeds_is_students_interval() -> None:
    values = [0.81, 0.79, 0.84, 0.80, 0.78]
    expected = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    found = over_seeds(values)
    assert (found.low, found.high) == pytest.approx(expected)
    assert math.isnan(over_seeds([0.5]).low)


def test_paired_differences_are_scipys_paired_test() -> None:
    a, b = [0.81, 0.79, 0.84, 0.80], [0.78, 0.80, 0.79, 0.77]
    found, p = paired(a, b)
    expected = stats.ttest_rel(a, b)
    assert p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert paired([1.0, 2.0], [1.0, 2.0])[1] == 1
    assert paired([1.0, 2.0], [0.5, 1.5])[1] == 0
    with pytest.raises(ValueError, match="paired values need one for each seed of both, got 2 and 1"):
        paired([1.0, 2.0], [1.0])


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]).tolist() == [1.0, 1.0]
    adjusted = holm([0.02, math.nan, 0.03])
    assert adjusted[[0, 2]] == pytest.approx([0.04, 0.04])
    assert math.isnan(adjusted[1])


def test_intervals_of_the_mean_accuracy_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    truth, size = rng.uniform(0.6, 0.95, 20), 60
    hits = 0
    for trial in range(200):
        counts = counts_of(rng.binomial(size, truth).tolist(), [size] * 20)
        found = intervals(counts, {"mean": lambda t: spread.mean(rates.accuracy(t.sum(-3)))}, draws=300, seed=trial)["mean"]
        hits += found.low <= truth.mean() <= found.high
    assert 0.90 <= hits / 200 <= 0.99  # 95 % within three standard errors


def test_the_interval_of_a_statistic_is_the_quantiles_turned_round_its_value() -> None:
    counts = counts_of([9, 5, 7], [10, 10, 10])
    worst = {"min": lambda t: spread.smallest(rates.accuracy(t.sum(-3)))}
    found = intervals(counts, worst, draws=500, seed=3)["min"]
    tables = resampled(counts.table, "samples", 500, np.random.default_rng([3, 11]))
    low, high = np.quantile(rates.accuracy(tables.sum(2)).min(1), [0.025, 0.975])
    assert found == pytest.approx((0.5, 2 * 0.5 - high, 2 * 0.5 - low))


def test_gap_intervals_by_hand() -> None:
    rate = [0.8, 0.5]
    drawn = [[0.8, 0.5], [0.9, 0.5], [0.8, 0.7], [0.5, 0.5]]  # differences move by 0, 0.1, 0.2 and 0.3
    found = gap_interval([rate], [drawn], level=2 / 3)
    assert found == pytest.approx((0.3, 0.1, 0.5))
    wide = gap_interval([rate], [drawn], level=1 - 1e-9)
    assert wide == pytest.approx((0.3, 0.0, 0.6), abs=1e-8)
    both = gap_interval([rate, [0.1, 0.6]], [drawn, [[0.1, 0.6]] * 4], level=2 / 3)
    assert both == pytest.approx((0.5, 0.3, 0.7))


def test_groups_without_a_rate_have_no_part_in_a_gap() -> None:
    found = gap_interval([[0.8, math.nan, 0.5]], [[[0.8, 0.1, 0.5], [0.8, math.nan, 0.6]]], level=0.5)
    assert found.value == pytest.approx(0.3)
    assert math.isnan(gap_interval([[0.8, math.nan]], [[[0.8, 0.1]]]).value)


def test_an_interval_of_no_gap_holds_zero() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        rate = rng.binomial(400, 0.7, 2) / 400
        drawn = rng.binomial(400, rate, (300, 2)) / 400
        hits += gap_interval([rate], [drawn]).low == 0
    assert 0.90 <= hits / 200 <= 0.99
