"""Other seeds, splits and samples at once: by hand, against SciPy, and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.ledger import Gains
from evenhand.metrics.together import (
    Estimate,
    gains_over_splits,
    over_seeds,
    over_seeds_and_samples,
    over_splits,
)


def test_an_interval_excludes_0_exactly_where_p_is_small_enough():
    for freedom in (1.0, 3.7, 1e9):
        for middle in (-0.4, 0.1, 0.3):
            one = Estimate(0.2, middle, 0.1, freedom)
            at = 1 - one.p
            inside, outside = one.interval(at + 1e-6), one.interval(at - 1e-6)
            assert inside.low < 0 < inside.high
            assert outside.low > 0 or outside.high < 0
            assert inside.value == 0.2
    assert Estimate(0.2, 0.3, 0.1, 4.0).p == pytest.approx(2 * stats.t.sf(3, 4))


def test_p_is_never_0_and_unknown_where_the_error_is():
    assert 0 < Estimate(1.0, 1.0, 1e-3).p < 1e-300
    assert 0 < Estimate(1.0, 1.0, 0.0).p < 1e-300
    assert Estimate(0.0, 0.0, 0.0).p == 1
    assert math.isnan(Estimate(1.0, math.nan, math.nan).p)


def test_an_error_can_have_a_floor():
    assert Estimate(1.0, 1.0, 0.1).at_least(0.2).error == 0.2
    assert Estimate(1.0, 1.0, 0.1).at_least(0.05).error == 0.1
    assert math.isnan(Estimate(1.0, 1.0, math.nan).at_least(0.05).error)


def test_seeds_are_students():
    values = [0.71, 0.78, 0.74, 0.70]
    expected = stats.ttest_1samp(values, 0.0)
    found = over_seeds(values)
    assert found.interval(0.9)[1:] == pytest.approx([*expected.confidence_interval(0.9)])
    assert found.p == pytest.approx(expected.pvalue)
    assert math.isnan(over_seeds([0.5]).error)


def test_seeds_and_samples_by_hand():
    # seeds 0.70 and 0.80: variance 0.005, of their mean 0.0025; samples: 0.02 squared is 0.0004
    found = over_seeds_and_samples(Estimate(0.75, 0.74, 0.02), [0.70, 0.80])
    assert found.value == 0.75
    assert found.middle == 0.74
    assert found.error == pytest.approx(math.sqrt(0.0029))
    # one degree over the seeds' share of the variance, 25 / 29
    assert found.freedom == pytest.approx(29 / 25)
    half = stats.t.ppf(0.975, 29 / 25) * math.sqrt(0.0029)
    assert found.interval(0.95).high == pytest.approx(0.74 + half)


def test_of_seeds_that_agree_samples_are_left_and_one_seed_is_about_its_training():
    of_samples = Estimate(0.75, 0.74, 0.02)
    assert over_seeds_and_samples(of_samples, [0.75] * 3) == pytest.approx(of_samples)
    assert over_seeds_and_samples(of_samples, [0.75]) == of_samples
    assert over_seeds_and_samples(Estimate(0.5, 0.5, 0.0), [0.5, 0.5]).error == 0


def test_splits_by_hand():
    # a variance of 0.01 over 3 splits, test sets a quarter of the training sets
    splits = [Estimate(value, value + 0.01, 0.05) for value in (0.6, 0.7, 0.8)]
    found = over_splits(splits, 0.25)
    assert found.value == pytest.approx(0.7)
    assert found.middle == pytest.approx(0.71)
    assert found.error == pytest.approx(math.sqrt(0.01 * (1 / 3 + 0.25)))
    assert found.freedom == 2
    alike = over_splits([Estimate(0.7, 0.7, 0.06), Estimate(0.7, 0.7, 0.08)], 0.25)
    assert alike.error == pytest.approx(math.sqrt((0.06**2 + 0.08**2) / 2 / 2))


def test_gains_over_splits_by_hand():
    # one client: splits of 4 samples that gain (1, 0, 0, 1), (0, 0, 0, 1) and (1, 0, 1, 1)
    gains = [np.array(one, float) for one in ((1, 0, 0, 1), (0, 0, 0, 1), (1, 0, 1, 1))]
    cells = [np.zeros(4, np.int64)] * 3
    found = gains_over_splits(gains, cells, np.array([0.25]), bounded=False)
    half = stats.t.ppf(0.975, 2) * 0.25 * math.sqrt(1 / 3 + 0.25)
    assert found.gain[0] == pytest.approx(0.5)
    assert found.low[0] == pytest.approx(0.5 - half)
    assert found.high[0] == pytest.approx(0.5 + half)
    # with one more that gains and one more that loses in each split, the middle is 2 / 6
    added = gains_over_splits(gains, cells, np.array([0.25]))
    assert added.gain[0] == pytest.approx(0.5)
    assert added.high[0] == pytest.approx(min(1, 1 / 3 + half))
    assert added.low[0] == pytest.approx(1 / 3 - half)


def test_gains_over_splits_that_agree_have_the_width_of_their_samples():
    gain, cell = np.array([1.0, 0, 0, -1, 0, 0, 0, 0, 0, 0]), np.zeros(10, np.int64)
    found = gains_over_splits([gain] * 4, [cell] * 4, np.array([0.25]))
    one = Gains.of(gain[:, None], cell, 1).judged()
    error = (one.high[0] - one.low[0]) / 2 / stats.norm.ppf(0.975)
    assert found.high[0] == pytest.approx(stats.t.ppf(0.975, 3) * error / 2, rel=1e-6)


def test_cells_without_samples_have_no_gain():
    gain, cell = np.array([1.0, 0.0]), np.zeros(2, np.int64)
    found = gains_over_splits([gain, gain], [cell, cell], np.array([0.25, 0.25]))
    assert math.isnan(found.gain[1])
    assert math.isnan(found.p[1])
    with pytest.raises(ValueError, match="need at least two, got 1"):
        gains_over_splits([gain], [cell], np.array([0.25]))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_degrees_of_freedom_keep_the_level_whatever_the_seeds_share_is(share, seeds):
    """A normal error whose part of samples is known, and whose part of seeds is estimated."""
    rng, held, draws = np.random.default_rng(1), 0, 4000
    for _ in range(draws):
        values = rng.normal(0, math.sqrt(share * seeds), seeds)
        luck = rng.normal(0, math.sqrt(1 - share))
        middle = float(values.mean()) + luck
        of_samples = Estimate(middle, middle, math.sqrt(1 - share))
        one = over_seeds_and_samples(of_samples, values.tolist())
        held += one.p >= 0.05  # the truth, 0, is inside
    assert 0.935 <= held / draws <= 0.97


def test_intervals_over_seeds_and_samples_hold_the_truth():
    """A method's accuracy varies by training, and is seen on one test set."""
    rng, samples, seeds, held = np.random.default_rng(0), 150, 4, 0
    for _ in range(400):
        ease = rng.random(samples)  # the same test samples for all trainings
        level = 0.75 + rng.normal(0, 0.03, seeds)
        right = ease[:, None] < level
        seen = right.mean(0)
        p = seen.mean()
        error = math.sqrt(right.mean(1).var(ddof=1) / samples)
        found = over_seeds_and_samples(Estimate(p, p, error), seen.tolist()).interval(0.95)
        held += found.low <= 0.75 <= found.high
    assert 0.93 <= held / 400 <= 0.995
