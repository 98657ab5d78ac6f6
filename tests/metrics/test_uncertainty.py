"""Intervals: against closed forms and SciPy, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from evenhand.metrics.uncertainty import (
    client_means,
    holm,
    over_seeds,
    paired,
    reached,
    wilson,
)

Floats = NDArray[np.float64]


@pytest.mark.parametrize(("right", "samples"), [(0, 5), (3, 10), (10, 10), (457, 500)])
def test_wilsons_interval_is_scipys(right: int, samples: int) -> None:
    expected = stats.binomtest(right, samples).proportion_ci(0.9, method="wilson")
    assert [float(end) for end in wilson(right, samples, 0.9)] == pytest.approx(
        [expected.low, expected.high], abs=1e-12
    )


def test_without_samples_there_is_no_interval() -> None:
    low, high = wilson([1, 0], [2, 0])
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True]


def test_drawn_clients_means_have_the_mean_and_the_variance_of_means() -> None:
    rng = np.random.default_rng(0)
    # in no order; client 2 has no samples
    client = rng.permutation(np.repeat([0, 1, 3], [6, 40, 1]))
    values = rng.normal(size=(47, 2)) + client[:, None]
    means, held = zip(*client_means(values, client, 4, "samples", 8000, seed=0), strict=True)
    drawn = np.concatenate(means)
    assert (np.concatenate(held) == [6, 40, 0, 1]).all()
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
    (means, held), *none = client_means(values, client, 2, "clients", 300, seed=0)
    drawn = means[..., 0]
    assert not none
    assert (held == np.where(drawn == 2, 2, 1)).all()
    assert set(np.unique(drawn)) == {2.0, 10.0}
    assert (drawn == 2).mean() == pytest.approx(0.5, abs=0.1)
    both = next(client_means(values, client, 2, "both", 300, seed=0))[0][..., 0]
    assert set(np.unique(both)) == {1.0, 3.0, 10.0}
    with pytest.raises(
        ValueError, match=r"values must be \(N, R\) and client \(N,\), got \(3,\) and \(3,\)"
    ):
        next(client_means(values[:, 0], client, 2, "samples", 1, seed=0))


@pytest.mark.parametrize("size", [300, 2**16])
def test_means_of_right_samples_are_exact_for_clients_of_every_size(size: int) -> None:
    """They are summed in two bytes where these are enough."""
    values = np.ones((size + 5, 2))
    values[:size, 1] = 0
    client = np.repeat([0, 1], [size, 5])
    for over in ("samples", "clients"):
        found, held = next(client_means(values, client, 2, over, 4, seed=0))
        assert (found[..., 0] == 1).all()
        assert (found[..., 1] == (held == 5)).all()
    halves = next(client_means(values / 2, client, 2, "samples", 4, seed=0))[0]
    assert (halves[..., 0] == 0.5).all()


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


def test_seeds_that_agree_have_no_interval_unless_there_is_a_floor() -> None:
    """Two seeds with one result do not make it certain."""
    assert np.isnan(over_seeds([0.7, 0.7, 0.7])[1:]).all()
    assert np.isnan(over_seeds([0.1 + 0.2, 0.3])[1:]).all()  # equal but for rounding
    found = over_seeds([0.7, 0.7, 0.7], floor=0.01)
    half = stats.t.ppf(0.975, 2) * 0.01
    assert found == pytest.approx((0.7, 0.7 - half, 0.7 + half))
    # a larger spread than the floor counts alone
    assert over_seeds([0.7, 0.8], floor=0.001) == over_seeds([0.7, 0.8])
    with pytest.raises(ValueError, match="floor must be a finite number >= 0, got -1"):
        over_seeds([0.7, 0.8], floor=-1)


def test_a_paired_difference_is_never_certain() -> None:
    interval, p = paired([1.0, 2.0], [0.5, 1.5])
    assert interval.value == 0.5
    assert np.isnan((*interval[1:], p)).all()
    interval, p = paired([1.0, 2.0, 3.0], [0.5, 1.5, 2.5], floor=0.1)
    half = stats.t.ppf(0.975, 2) * 0.1
    assert interval == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert p == pytest.approx(2 * stats.t.sf(5.0, 2))
    many = np.arange(400) * 1e-9
    assert 0 < paired((many + 1).tolist(), [0.0] * 400)[1] < 1e-200


@pytest.mark.parametrize("miss", [0.0005, 0.025, 0.2])
def test_a_number_is_reached_as_often_as_all_draws_say(miss: float) -> None:
    for place in range(60):
        seen, rng = -1 + place / 10, np.random.default_rng(place)
        all_draws = np.random.default_rng(place).standard_normal(1000)
        drawn: list[int] = []

        def draw(count: int, rng: np.random.Generator = rng, drawn: list[int] = drawn) -> Floats:
            drawn.append(count)
            return rng.standard_normal(count)

        assert reached(seen, draw, miss) == ((all_draws >= seen).mean() >= miss), (place, miss)
        assert sum(drawn) <= 1000


def test_few_draws_tell_that_a_number_is_out_of_reach_only_if_it_is_rare_enough() -> None:
    drawn: list[int] = []

    def draw(count: int) -> Floats:
        drawn.append(count)
        return np.random.default_rng(len(drawn)).standard_normal(count)

    assert not reached(50.0, draw, 0.025)
    assert sum(drawn) == 50  # one of 51 is below 0.025
    drawn.clear()
    assert not reached(50.0, draw, 0.005)
    assert sum(drawn) == 200  # one of 201 is below 0.005, one of 151 is not
    drawn.clear()
    assert reached(-50.0, draw, 0.05)
    assert sum(drawn) == 50
    drawn.clear()
    assert not reached(5.0, draw, 0.025)  # not so far above 50 draws that these are enough
    assert sum(drawn) > 50
