"""Two shares compared: Newcombe's examples, defining equations, SciPy, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.pairwise import (
    SMALLEST_P,
    detectable,
    difference,
    difference_p,
    kish,
    ratio,
)
from evenhand.metrics.uncertainty import wilson


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [  # Newcombe (1998), table II, method 10
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((5, 56, 0, 29), -0.0381, 0.1926),
        ((0, 10, 0, 10), -0.2775, 0.2775),
        ((10, 10, 0, 10), 0.6075, 1.0),
    ],
)
def test_differences_have_newcombes_intervals(
    counts: tuple[int, int, int, int], low: float, high: float
) -> None:
    found = difference(*counts)
    assert found.value == pytest.approx(counts[0] / counts[1] - counts[2] / counts[3])
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    "counts", [(10, 100, 30, 100), (1, 20, 1, 20), (3, 10, 1, 50), (20, 20, 19, 20)]
)
def test_ends_of_ratios_solve_the_equations_that_define_them(
    counts: tuple[int, int, int, int],
) -> None:
    found, (p1, p2) = ratio(*counts), (counts[0] / counts[1], counts[2] / counts[3])
    (l1, u1), (l2, u2) = (wilson(k, n) for k, n in (counts[:2], counts[2:]))
    assert found.value == pytest.approx(p1 / p2)
    assert p1 - found.low * p2 == pytest.approx(math.hypot(p1 - l1, found.low * (u2 - p2)))
    assert found.high * p2 - p1 == pytest.approx(math.hypot(u1 - p1, found.high * (p2 - l2)))
    other = ratio(*counts[2:], *counts[:2])
    assert (other.low, other.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_ratios_of_many_samples_have_the_interval_of_their_logarithm() -> None:
    k1, n1, k2, n2 = 3000, 10_000, 4000, 10_000
    error = math.sqrt(1 / k1 - 1 / n1 + 1 / k2 - 1 / n2)
    expected = [0.75 * math.exp(sign * 1.959964 * error) for sign in (-1, 1)]
    assert ratio(k1, n1, k2, n2)[1:] == pytest.approx(expected, rel=1e-3)


def test_ratios_with_zeros_have_ends_that_can_be() -> None:
    assert ratio(0, 20, 5, 20)[:2] == (0.0, 0.0)
    assert 0 < ratio(0, 20, 5, 20).high < 1
    unknown = ratio(5, 20, 0, 20)
    assert math.isnan(unknown.value)
    assert unknown.low > 1
    assert unknown.high == math.inf
    assert all(math.isnan(end) for end in (*ratio(0, 0, 1, 2), *difference(0, 0, 1, 2)))


def test_ratios_hold_the_truth_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(0), 0
    for k1, k2 in zip(rng.binomial(60, 0.2, 600), rng.binomial(40, 0.4, 600), strict=True):
        found = ratio(k1, 60, k2, 40)
        held += found.low <= 0.5 <= found.high
    assert 0.93 <= held / 600 <= 0.985


def test_whole_counts_are_compared_by_fishers_test_and_others_by_the_score_test() -> None:
    assert difference_p(8, 10, 1, 10) == pytest.approx(stats.fisher_exact([[8, 2], [1, 9]])[1])
    table = [[8.5, 2.5], [1.5, 9.0]]
    expected = stats.chi2_contingency(table, correction=False)[1]
    assert difference_p(8.5, 11, 1.5, 10.5) == pytest.approx(expected)
    assert math.isnan(difference_p(0, 0, 1, 2))


def test_very_large_counts_take_the_score_test_which_is_the_same_there():
    # below the limit both are at hand
    n = 4_000_000
    k1, k2 = 2_000_000, 2_002_500
    z = abs(k1 - k2) / n / np.sqrt(2 * (p := (k1 + k2) / 2 / n) * (1 - p) / n)
    assert difference_p(k1, n, k2, n) == pytest.approx(2 * stats.norm.sf(z), rel=2e-3)
    z = 1e6 / 1e12 / np.sqrt(2 * 0.25 / 1e12)
    assert difference_p(5e11, 1e12, 5e11 + 1e6, 1e12) == pytest.approx(
        2 * stats.norm.sf(z), rel=1e-3
    )


def test_no_p_value_is_zero_or_more_than_one() -> None:
    assert difference_p(100_000, 100_000, 0, 100_000) == SMALLEST_P
    assert difference_p(1e5 + 0.5, 1e5 + 0.5, 0, 1e5) == SMALLEST_P
    assert difference_p(5, 5, 7, 7) == 1.0
    assert difference_p(2.5, 2.5, 7, 7) == 1.0


def test_a_detectable_difference_is_found_four_times_out_of_five() -> None:
    rng, wide = np.random.default_rng(0), detectable(300, 150, 0.3)
    # around the pooled share
    first, second = 0.3 + wide / 3, 0.3 - 2 * wide / 3
    draws = zip(rng.binomial(300, first, 1500), rng.binomial(150, second, 1500), strict=True)
    found = []
    for k1, k2 in draws:
        pooled = (k1 + k2) / 450
        z = (k1 / 300 - k2 / 150) / math.sqrt(pooled * (1 - pooled) * (1 / 300 + 1 / 150))
        found.append(abs(z) > 1.96)
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)
    assert detectable(100, 100, 0.5) == pytest.approx(
        (1.959964 + 0.841621) * math.sqrt(0.005), abs=1e-4
    )


def test_a_difference_is_detectable_with_shares_of_zero_and_one_and_is_at_most_one() -> None:
    assert 0 < detectable(20, 20, 0.0) == pytest.approx(detectable(20, 20, 1.0))
    assert detectable(1, 1, 0.5) == 1.0
    assert math.isnan(detectable(0, 5, 0.5))


def test_kishs_size_is_that_of_as_many_equal_weights() -> None:
    weights = np.array([1.0, 1.0, 2.0])
    assert float(kish(weights.sum(), (weights**2).sum())) == pytest.approx(16 / 6)
    assert float(kish(7 * 3.0, 7 * 9.0)) == pytest.approx(7)
    assert float(kish(0.0, 0.0)) == 0.0
