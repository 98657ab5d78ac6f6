"""Distributions that are computed without scipy.stats are those of scipy.stats."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.student import beyond, quantile
from evenhand.metrics.uncertainty import Interval
from evenhand.page.series import density
from evenhand.studies.analysis.collective import together


def test_quantiles_and_tails_are_those_of_scipy_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    freedom = np.concatenate([rng.integers(1, 40, 50), 10 ** rng.uniform(0, 8, 50), [math.inf] * 5])
    chance, value = rng.random(len(freedom)), 4 * rng.standard_normal(len(freedom))
    assert np.array_equal(quantile(chance, freedom), stats.t.ppf(chance, freedom))
    assert np.array_equal(beyond(value, freedom), stats.t.sf(value, freedom))


@pytest.mark.parametrize(("gain", "lose"), [(0, 1), (3, 3), (2, 9), (40, 7), (0, 0), (300, 500)])
def test_the_sign_test_is_the_exact_binomial_one(gain: int, lose: int) -> None:
    entries = [
        SimpleNamespace(gain=SimpleNamespace(value=value))
        for value in [1.0] * gain + [-1.0] * lose + [0.0] * 2
    ]
    found = together(entries, Interval(0.0, 0.0, 0.0))  # type: ignore[arg-type]
    expected = stats.binomtest(gain, gain + lose).pvalue if gain + lose else 1.0
    assert found.p == pytest.approx(expected, rel=1e-12)


def test_the_density_is_a_gaussian_kernel_density() -> None:
    values = np.random.default_rng(1).gamma(2.0, size=60)
    at, found = density(values)
    np.testing.assert_allclose(found, stats.gaussian_kde(values)(at), rtol=1e-10)
