"""AUC and calibration from scores: scikit-learn, by hand, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evenhand.metrics.ranking import auc, auc_interval, bias, calibration_error, reliability


def scores(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    score = rng.random(samples).round(2)
    return score, rng.random(samples) < score, rng.gamma(2, 1, samples)


def test_auc_is_that_of_scikit_learn_with_ties_and_weights() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    score, positive, weight = scores(500)
    assert auc(score, positive) == pytest.approx(metrics.roc_auc_score(positive, score))
    assert auc(score, positive, weight) == pytest.approx(
        metrics.roc_auc_score(positive, score, sample_weight=weight)
    )


def test_auc_leaves_out_samples_without_a_score_and_needs_both_outcomes() -> None:
    assert auc([0.2, math.nan, 0.7], [0, 0, 1]) == 1.0
    assert math.isnan(auc([0.2, 0.7], [1, 1]))


def test_the_interval_of_an_auc_inverts_its_variance() -> None:
    value, m, n = 0.8, 30, 50
    found = auc_interval(value, m, n)
    for end in found[1:]:
        more = (m + n) / 2 - 1
        variance = (
            end * (1 - end) * (1 + more * ((1 - end) / (2 - end) + end / (1 + end))) / (m * n)
        )
        assert abs(value - end) == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-5)


def test_the_interval_of_a_perfect_auc_has_a_width() -> None:
    found = auc_interval(1.0, 10, 10)
    assert found.high == 1.0
    assert 0.5 < found.low < 0.95
    low = auc_interval(0.0, 10, 10)
    assert low.low == 0.0
    assert low.high == pytest.approx(1 - found.low)
    assert all(math.isnan(end) for end in auc_interval(math.nan, 0, 10))


def test_intervals_of_aucs_hold_the_truth_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(0), 0
    truth = stats.norm.cdf(1 / math.sqrt(2))
    for _ in range(400):
        score = np.concatenate([rng.normal(1, 1, 40), rng.normal(0, 1, 60)])
        found = auc_interval(auc(score, np.arange(100) < 40), 40, 60)
        held += found.low <= truth <= found.high
    assert 0.92 <= held / 400 <= 0.99


def test_bias_has_students_interval() -> None:
    score, positive, _ = scores(80)
    apart = score - positive
    expected = stats.ttest_1samp(apart, 0).confidence_interval(0.95)
    found = bias(score, positive)
    assert found.value == pytest.approx(apart.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    doubled = bias(score, positive, np.full(80, 2.0))
    assert doubled == pytest.approx(found)


def test_scores_without_an_error_still_have_an_interval() -> None:
    found = bias([0.0, 1.0, 1.0], [0, 1, 1])
    assert found.low < 0 == found.value < found.high
    assert all(math.isnan(end) for end in bias([], []))


def test_bins_hold_equally_many_samples_and_equal_scores_stay_together() -> None:
    score, positive, _ = scores(1000)
    bins = reliability(score, positive)
    assert len(bins) == 10
    assert sum(one.samples for one in bins) == 1000
    assert all(80 <= one.samples <= 120 for one in bins)
    inside = score >= np.quantile(score, 0.9, method="higher")
    assert bins[-1].score == pytest.approx(score[inside].mean())
    assert bins[-1].share.value == pytest.approx(positive[inside].mean())
    assert [one.samples for one in reliability([0.3] * 5 + [0.6] * 5, [0, 1] * 5)] == [5, 5]
    assert reliability([], []) == []


def test_calibration_error_by_hand() -> None:
    """Two bins: scores of 0.2 with 1 of 4 positive, of 0.9 with 2 of 4."""
    score, positive = [0.2] * 4 + [0.9] * 4, [1, 0, 0, 0, 1, 1, 0, 0]
    squares = ((0.2 - 0.25) ** 2 - 0.25 * 0.75 / 3 + (0.9 - 0.5) ** 2 - 0.5 * 0.5 / 3) / 2
    assert calibration_error(score, positive) == pytest.approx(math.sqrt(squares))
    assert math.isnan(calibration_error([0.5], [1]))


def test_calibrated_scores_have_no_error_on_average_whatever_their_number() -> None:
    """The mean square without chance's part is 0; with it, that of 60 samples is about 0.013."""
    rng, squares = np.random.default_rng(0), []
    for _ in range(400):
        score = rng.random(60)
        positive = rng.random(60) < score
        squares.append(
            sum(
                one.size
                * (
                    (one.score - one.share.value) ** 2
                    - one.share.value * (1 - one.share.value) / (one.size - 1)
                )
                for one in reliability(score, positive)
            )
            / 60
        )
        assert calibration_error(score, positive) == pytest.approx(math.sqrt(max(0, squares[-1])))
    assert abs(np.mean(squares)) < 0.002


def test_weights_count_as_often_as_they_say() -> None:
    score, positive, _ = scores(200)
    weight = np.where(np.arange(200) < 50, 3.0, 1.0)
    again = np.repeat(np.arange(200), weight.astype(int))
    assert auc(score, positive, weight) == pytest.approx(auc(score[again], positive[again]))
    assert bias(score, positive, weight).value == pytest.approx(
        bias(score[again], positive[again]).value
    )
