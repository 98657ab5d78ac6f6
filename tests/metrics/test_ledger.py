"""Gains of samples: by hand, against the published interval and against SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.ledger import Gains

Z = stats.norm.ppf(0.975)


def gains(*by_cell, seeds=1):
    """Sums for cells with these gains; each entry one sample, a tuple for several seeds."""
    values = [np.atleast_1d(np.array(sample, float)) for cell in by_cell for sample in cell]
    cell = [place for place, cell in enumerate(by_cell) for _ in cell]
    return Gains.of(
        np.stack(values) if values else np.zeros((0, seeds)), np.array(cell, np.int64), len(by_cell)
    )


def test_mean_and_interval_by_hand():
    # gains 1, 0, -1, 1: mean 1/4; with one sample more that gains and one that loses: centre 1/6,
    # squares 5, variance 5/6 - 1/36 = 29/36
    judged = gains([1, 0, -1, 1]).judged()
    half = Z * math.sqrt(29 / 36 / 6)
    assert judged.gain[0] == 0.25
    assert judged.low[0] == pytest.approx(1 / 6 - half, abs=1e-8)
    assert judged.high[0] == pytest.approx(1 / 6 + half, abs=1e-8)
    assert judged.p[0] == pytest.approx(2 * stats.norm.sf((1 / 6) / math.sqrt(29 / 216)), abs=1e-8)


@pytest.mark.parametrize(
    ("gained", "lost", "samples"), [(0, 0, 5), (3, 1, 10), (7, 0, 40), (1, 12, 30), (30, 20, 500)]
)
def test_one_seed_gives_the_interval_of_bonett_and_price(gained, lost, samples):
    up, down = (gained + 1) / (samples + 2), (lost + 1) / (samples + 2)
    half = Z * math.sqrt((up + down - (up - down) ** 2) / (samples + 2))
    judged = gains([1] * gained + [-1] * lost + [0] * (samples - gained - lost)).judged()
    assert judged.gain[0] == pytest.approx((gained - lost) / samples)
    assert judged.low[0] == pytest.approx(max(-1, min(up - down - half, judged.gain[0])), abs=1e-8)
    assert judged.high[0] == pytest.approx(min(1, max(up - down + half, judged.gain[0])), abs=1e-8)


def test_unbounded_gains_of_one_seed_give_students_test():
    values = np.random.default_rng(0).normal(0.3, 2.0, 25)
    judged = gains(values.tolist()).judged(0.9, bounded=False)
    expected = stats.ttest_1samp(values, 0.0)
    low, high = expected.confidence_interval(0.9)
    assert [judged.low[0], judged.high[0], judged.p[0]] == pytest.approx(
        [low, high, expected.pvalue], rel=1e-9
    )


def test_seeds_add_their_variance_by_hand():
    # eight samples, two seeds: with the first seed four of them gain, with the second none does
    judged = gains([(1, 0)] * 4 + [(0, 0)] * 4).judged(level=0.5)
    centre = 4 / (2 * 10)  # two samples are added in thought
    # mean gains 1/2 and 0; the means of the added ones are +-1/sqrt(2)
    of_samples = ((4 * 0.25 + 2 / 2) / 10 - centre**2) / 10
    of_seeds = 0.125 / 2  # the seeds' mean gains are 1/2 and 0, their variance 1/8
    error = math.sqrt(of_samples + of_seeds)
    half = stats.t.ppf(0.75, error**4 / of_seeds**2) * error
    assert judged.gain[0] == 0.25
    assert judged.low[0] == pytest.approx(centre - half)
    assert judged.high[0] == pytest.approx(centre + half)
    assert judged.p[0] == pytest.approx(2 * stats.t.sf(centre / error, error**4 / of_seeds**2))


def test_many_samples_leave_the_interval_of_seeds():
    rng = np.random.default_rng(1)
    by_seed = np.array([0.02, 0.05, 0.03])
    values = rng.normal(0, 0.01, (200_000, 3)) + by_seed
    judged = gains(values.tolist(), seeds=3).judged(bounded=False)
    half = stats.t.ppf(0.975, 2) * by_seed.std(ddof=1) / math.sqrt(3)
    assert judged.low[0] == pytest.approx(by_seed.mean() - half, abs=1e-3)


def test_sums_of_parts_are_sums_of_the_whole():
    rng = np.random.default_rng(2)
    values, cell = rng.integers(-1, 2, (60, 3)).astype(float), rng.integers(0, 4, 60)
    whole, one, two = (
        Gains.of(values[part], cell[part], 4)
        for part in (slice(None), slice(0, 25), slice(25, None))
    )
    together = one + two
    for name in ("count", "total", "square"):
        np.testing.assert_allclose(getattr(together, name), getattr(whole, name))
    with pytest.raises(ValueError, match="same cells and seeds"):
        one + Gains.of(values[:, :2], cell, 4)


def test_cells_without_samples_have_no_gain_and_one_sample_has_a_wide_interval():
    judged = gains([], [1], [0]).judged()
    assert np.isnan([values[0] for values in judged]).all()
    assert judged.gain[1] == 1
    assert judged.low[1] < 0
    assert (judged.gain[2], judged.p[2]) == (0, 1)
    assert judged.low[2] < -0.5 < 0.5 < judged.high[2]


def test_one_sample_of_an_unbounded_gain_has_no_interval():
    judged = gains([0.7], [0.2, 0.2]).judged(bounded=False)
    assert judged.gain[0] == pytest.approx(0.7)
    assert math.isnan(judged.low[0])
    assert judged.p[1] == 0  # two samples that agree exactly leave no doubt


def test_intervals_hold_the_truth():
    rng = np.random.default_rng(3)
    cells, samples, seeds = 2000, 60, 3
    hard = rng.normal(size=(cells, samples, 1))
    right = [
        0.7 * hard
        + rng.normal(size=(cells, samples, seeds))
        + rng.normal(0, 0.2, (cells, 1, seeds))
        < cut
        for cut in (0.9, 0.7)
    ]
    scale = math.sqrt(1 + 0.49 + 0.04)
    truth = stats.norm.cdf(0.9 / scale) - stats.norm.cdf(0.7 / scale)
    gain = (right[0].astype(float) - right[1]).reshape(-1, seeds)
    judged = Gains.of(gain, np.repeat(np.arange(cells), samples), cells).judged()
    assert 0.93 < ((judged.low <= truth) & (truth <= judged.high)).mean() < 0.995
