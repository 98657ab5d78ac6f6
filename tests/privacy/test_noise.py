"""The noise: its moments and law, its grid, and that only the secret tells it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from evenhand.privacy.noise import gaussians, grid, released

SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))


@pytest.mark.parametrize("std", [0.3, 1.0, 17.0])
def test_a_million_draws_have_the_moments_of_the_noise(std: float) -> None:
    drawn = released(np.zeros(1_000_000), std, SECRET, "round 0")
    assert abs(drawn.mean()) < 0.01 * std
    assert abs(drawn.var() / std**2 - 1) < 0.02
    assert abs(stats.skew(drawn)) < 0.01
    assert abs(stats.kurtosis(drawn)) < 0.02
    assert stats.kstest(drawn[:100_000] / std, "norm").pvalue > 1e-3
    # neighbours, and the two numbers that are made of the same pair
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.005
    half = 1 << 17
    assert abs(np.corrcoef(drawn[:half] ** 2, drawn[half : 2 * half] ** 2)[0, 1]) < 0.015


@pytest.mark.parametrize("std", [1e-3, 1.0, 13.9])
def test_only_multiples_of_the_grid_are_released(std: float) -> None:
    values = np.random.default_rng(0).normal(size=10_000) * 3
    cell = grid(std)
    assert std * 2.0**-41 < cell <= std * 2.0**-40
    cells = released(values, std, SECRET, "a") / cell
    assert (cells == np.rint(cells)).all()


def test_what_is_released_is_the_rounded_value_and_noise_that_does_not_depend_on_it() -> None:
    values = np.random.default_rng(0).normal(size=1000) * 100
    cell = grid(2.0)
    noise = released(np.zeros(1000), 2.0, SECRET, "a")
    assert np.array_equal(released(values, 2.0, SECRET, "a"), np.rint(values / cell) * cell + noise)


def test_the_secret_and_the_label_tell_the_noise_and_nothing_else_does() -> None:
    first = gaussians(SECRET, "round 0", 50_000)
    assert np.array_equal(first, gaussians(SECRET, "round 0", 50_000))
    np.random.seed(0)
    for other in (gaussians(SECRET, "round 1", 50_000), gaussians(OTHER, "round 0", 50_000)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.02
    # an odd number of draws, and more than one piece
    assert len(gaussians(SECRET, "a", 3)) == 3
    assert len(gaussians(SECRET, "a", (1 << 18) + 1)) == (1 << 18) + 1


def test_a_sum_that_would_overflow_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="a sum is too large for noise 1; is it finite"):
        released(np.array([1e30]), 1.0, SECRET, "a")
    with pytest.raises(ValueError, match="a sum is too large"):
        released(np.array([np.nan]), 1.0, SECRET, "a")
