"""Intervals: against closed forms and SciPy, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.uncertainty import (
    client_means,
    gap_interval,
    holm,
    over_seeds,
    paired,
    resampled_sums,
    wilson,
)


@pytest.mark.parametrize(("right", "samples"), [(0, 5), (3, 10), (10, 10), (457, 500)])
def test_wilsons_interval_is_scipys(right: int, samples: int) -> None:
    expected = stats.binomtest(right, samples).proportion_ci(0.9, method="wilson")
    assert [float(end) for end in wilson(right, samples, 0.9)] == pytest.approx(
        [expected.low, expected.high], abs=1e-12
    )


def test_without_samples_there_is_no_interval() -> None:
    low, high = wilson([1, 0], [2, 0])
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True]


# three clients, one of them without samples
TABLE = np.array([[[8, 2], [0, 5]], [[1, 3], [0, 0]], [[0, 0], [0, 0]]])


def test_resampled_samples_keep_every_clients_size_and_have_the_moments_of_multinomials() -> None:
    sums = resampled_sums(TABLE, "samples", 20_000, seed=0)
    assert sums.shape == (20_000, 2, 2)
    assert (sums.sum((1, 2)) == 19).all()
    assert (sums[:, 1, 0] == 0).all()
    share = TABLE / np.maximum(TABLE.sum((1, 2)), 1)[:, None, None]
    variance = (TABLE.sum((1, 2))[:, None, None] * share * (1 - share)).sum(0)
    assert sums.mean(0) == pytest.approx(TABLE.sum(0), abs=0.08)  # four standard errors
    assert sums.var(0) == pytest.approx(variance, rel=0.05)


def test_resampled_clients_are_whole_clients_drawn_with_replacement() -> None:
    sums = resampled_sums(TABLE, "clients", 6000, seed=0)
    totals, times = np.unique(sums.sum((1, 2)), return_counts=True)
    assert set(totals) == {15 * a + 4 * b for a in range(4) for b in range(4 - a)}
    assert times[totals == 45] / 6000 == pytest.approx(1 / 27, abs=0.01)
    assert (
        sums[:, 0, 0] == 8 * sums[:, 1, 1] // 5 + (sums[:, 0, 1] - 2 * sums[:, 1, 1] // 5) // 3
    ).all()


def test_resampling_both_adds_the_variances_of_clients_and_samples() -> None:
    sums = resampled_sums(TABLE, "both", 20_000, seed=0)[:, 0, 0]
    between = 3 * np.array([8, 1, 0]).var()  # of three draws
    within = 15 * (8 / 15) * (7 / 15) + 4 * 0.25 * 0.75
    assert sums.mean() == pytest.approx(9, abs=0.2)
    assert sums.var() == pytest.approx(between + within, rel=0.05)


def test_one_seed_gives_one_resampling() -> None:
    first, second, other = (resampled_sums(TABLE, "samples", 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_drawn_clients_means_have_the_mean_and_the_variance_of_means() -> None:
    rng = np.random.default_rng(0)
    # in no order; client 2 has no samples
    client = rng.permutation(np.repeat([0, 1, 3], [6, 40, 1]))
    values = rng.normal(size=(47, 2)) + client[:, None]
    drawn = np.concatenate(list(client_means(values, client, 4, "samples", 8000, seed=0)))
    assert drawn.shape == (8000, 4, 2)
    assert np.isnan(drawn[:, 2]).all()
    for i in (0, 1):
        own = values[client == i]
        assert drawn[:, i].mean(0) == pytest.approx(own.mean(0), abs=0.02)
        assert drawn[:, i].std(0) == pytest.approx(
            own.std(0, ddof=1) / math.sqrt(len(own)), rel=0.04
        )
        # the same samples for both trials
        assert np.corrcoef(drawn[:, i].T)[0, 1] == pytest.approx(np.corrcoef(own.T)[0, 1], abs=0.05)
    assert (drawn[:, 3] == values[client == 3]).all()  # one sample tells nothing about others


def test_drawn_clients_are_those_there_are() -> None:
    values, client = np.array([[1.0], [3.0], [10.0]]), np.array([0, 0, 1])
    drawn = np.concatenate(list(client_means(values, client, 2, "clients", 300, seed=0)))[..., 0]
    assert set(np.unique(drawn)) == {2.0, 10.0}
    assert (drawn == 2).mean() == pytest.approx(0.5, abs=0.1)
    both = np.concatenate(list(client_means(values, client, 2, "both", 300, seed=0)))[..., 0]
    assert set(np.unique(both)) == {1.0, 3.0, 10.0}
    with pytest.raises(
        ValueError, match=r"values must be \(N, R\) and client \(N,\), got \(3,\) and \(3,\)"
    ):
        next(client_means(values[:, 0], client, 2, "samples", 1, seed=0))


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
    with pytest.raises(
        ValueError, match="paired values need one for each seed of both, got 2 and 1"
    ):
        paired([1.0, 2.0], [1.0])


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]).tolist() == [1.0, 1.0]
    adjusted = holm([0.02, math.nan, 0.03])
    assert adjusted[[0, 2]] == pytest.approx([0.04, 0.04])
    assert math.isnan(adjusted[1])


def test_gap_intervals_by_hand() -> None:
    rate = [0.8, 0.5]
    # differences move by 0, 0.1, 0.2 and 0.3
    drawn = [[0.8, 0.5], [0.9, 0.5], [0.8, 0.7], [0.5, 0.5]]
    found = gap_interval([rate], [drawn], level=2 / 3)
    assert found == pytest.approx((0.3, 0.1, 0.5))
    wide = gap_interval([rate], [drawn], level=1 - 1e-9)
    assert wide == pytest.approx((0.3, 0.0, 0.6), abs=1e-8)
    both = gap_interval([rate, [0.1, 0.6]], [drawn, [[0.1, 0.6]] * 4], level=2 / 3)
    assert both == pytest.approx((0.5, 0.3, 0.7))


def test_groups_without_a_rate_have_no_part_in_a_gap() -> None:
    found = gap_interval(
        [[0.8, math.nan, 0.5]], [[[0.8, 0.1, 0.5], [0.8, math.nan, 0.6]]], level=0.5
    )
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
