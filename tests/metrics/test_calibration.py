"""Areas under curves and calibration from histograms of scores: by hand, against scikit-learn and
against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from evenhand.metrics import calibration
from evenhand.metrics.calibration import (
    BINS,
    EDGES,
    auc,
    auc_error,
    calibration_error,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def histogram(score: Floats, outcome: Ints) -> tuple[Floats, Floats]:
    """Counts and summed scores (2, BINS), sample by sample."""
    counts, sums = np.zeros((2, BINS)), np.zeros((2, BINS))
    for s, o in zip(score, outcome, strict=True):
        if not math.isnan(s):
            place = sum(s >= edge for edge in EDGES)
            counts[o, place] += 1
            sums[o, place] += s
    return counts, sums


def binned(score: Floats) -> Ints:
    return np.searchsorted(EDGES, score, side="right")


def samples(seed: int, n: int = 200) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(seed)
    score = rng.beta(0.5, 0.8, n)
    return score, (rng.random(n) < 0.2 + 0.6 * score).astype(np.int64)


def plain_error(score: Floats, outcome: Ints, bins: int) -> float:
    """Expected calibration error in one loop over bins of samples."""
    error = 0.0
    for b in range(bins):
        inside = [
            i
            for i, s in enumerate(score)
            if b / bins <= s and (s < (b + 1) / bins or b == bins - 1)
        ]
        if inside:
            confidence = sum(score[i] for i in inside) / len(inside)
            frequency = sum(int(outcome[i]) for i in inside) / len(inside)
            error += len(inside) / len(score) * abs(confidence - frequency)
    return error


def test_edges_are_hundredths_and_finer_at_both_ends() -> None:
    assert BINS == 118
    assert list(EDGES) == sorted(EDGES)
    assert {place / 100 for place in range(1, 100)} <= set(EDGES)
    assert EDGES[0] == 1e-5
    assert EDGES[-1] == 1 - 1e-5


def test_auc_by_hand() -> None:
    # outcome 0 at .1, .4, .4; outcome 1 at .4, .8: of six pairs four are in order and two are ties
    counts, _ = histogram(np.array([0.1, 0.4, 0.4, 0.4, 0.8]), np.array([0, 0, 0, 1, 1]))
    assert auc(counts) == pytest.approx((4 + 2 / 2) / 6, abs=1e-15)
    assert auc_error(counts) == pytest.approx(2 / 6 / 2, abs=1e-15)


def test_calibration_error_by_hand() -> None:
    # 0.0-0.1: scores .02 and .06, one of two is 1, |.04 - .5| = .46; 0.9-1.0: scores .9, 1, both
    # are 1, |.95 - 1| = .05
    score, outcome = np.array([0.02, 0.06, 0.9, 1.0]), np.array([0, 1, 1, 1])
    assert calibration_error(*histogram(score, outcome)) == pytest.approx(
        (2 * 0.46 + 2 * 0.05) / 4, abs=1e-12
    )
    assert calibration_error(*histogram(score, outcome), bins=1) == pytest.approx(
        abs(score.mean() - 0.75), abs=1e-12
    )


@given(st.integers(0, 10_000), st.integers(2, 60))
def test_auc_is_that_of_the_binned_scores(seed: int, n: int) -> None:
    score, outcome = samples(seed, n)
    counts, _ = histogram(score, outcome)
    if len(set(outcome.tolist())) < 2:
        assert math.isnan(auc(counts))
        assert math.isnan(auc_error(counts))
        return
    assert auc(counts) == pytest.approx(roc_auc_score(outcome, binned(score)), abs=1e-14)
    assert abs(auc(counts) - roc_auc_score(outcome, score)) <= auc_error(counts) + 1e-14


def test_the_bound_of_the_auc_is_reached_where_every_pair_of_a_bin_is_in_order() -> None:
    score, outcome = np.array([0.401, 0.402, 0.403, 0.404]), np.array([0, 0, 1, 1])
    counts, _ = histogram(score, outcome)
    assert roc_auc_score(outcome, score) - auc(counts) == auc_error(counts) == 0.5


def test_scores_of_a_rare_class_are_told_apart_near_zero() -> None:
    rng = np.random.default_rng(0)
    outcome = (rng.random(4000) < 0.01).astype(np.int64)
    score = 1e-3 * np.exp(rng.normal(size=4000) + 1.5 * outcome)
    counts, _ = histogram(score, outcome)
    assert roc_auc_score(outcome, score) > 0.8
    assert abs(auc(counts) - roc_auc_score(outcome, score)) < 0.03
    hundredths = np.floor(score * 100)  # equally wide bins alone would lose nearly everything
    assert abs(roc_auc_score(outcome, hundredths) - roc_auc_score(outcome, score)) > 0.2


@pytest.mark.parametrize("bins", [1, 2, 5, 10, 20, 50, 100])
def test_calibration_error_is_that_of_a_plain_loop(bins: int) -> None:
    for seed in range(5):
        score, outcome = samples(seed)
        assert calibration_error(*histogram(score, outcome), bins=bins) == pytest.approx(
            plain_error(score, outcome, bins), abs=1e-12
        )


def test_scores_on_an_edge_belong_to_the_bin_above_it() -> None:
    score, outcome = np.arange(11) / 10, np.arange(11) % 2
    assert calibration_error(*histogram(score, outcome)) == pytest.approx(
        plain_error(score, outcome, 10), abs=1e-12
    )


def test_a_number_of_bins_that_does_not_divide_a_hundred_is_refused() -> None:
    with pytest.raises(ValueError, match="bins must divide 100, got 15"):
        calibration_error(np.zeros((2, BINS)), np.zeros((2, BINS)), bins=15)
    with pytest.raises(ValueError, match="bins must be a whole number >= 1"):
        calibration_error(np.zeros((2, BINS)), np.zeros((2, BINS)), bins=0)


def test_histograms_add_and_leading_axes_stay() -> None:
    parts = [samples(seed, 50) for seed in range(4)]
    # (4, 2, BINS)
    counts, sums = (
        np.stack(tables) for tables in zip(*(histogram(*part) for part in parts), strict=True)
    )
    score, outcome = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    assert auc(counts.sum(0)) == pytest.approx(roc_auc_score(outcome, binned(score)), abs=1e-14)
    assert calibration_error(counts.sum(0), sums.sum(0)) == pytest.approx(
        plain_error(score, outcome, 10), abs=1e-12
    )
    shaped = counts.reshape(2, 2, 2, BINS), sums.reshape(2, 2, 2, BINS)
    assert auc(shaped[0]).tolist() == [
        [float(auc(counts[2 * i + j])) for j in range(2)] for i in range(2)
    ]
    assert calibration_error(*shaped)[1, 0] == calibration_error(counts[2], sums[2])


def test_an_empty_group_has_no_value() -> None:
    one, other = histogram(*samples(1)), histogram(*samples(2))
    empty = np.zeros((2, BINS))
    counts, sums = (np.stack([a, empty, b]) for a, b in zip(one, other, strict=True))
    errors = calibration_error(counts, sums)
    assert np.isnan(errors).tolist() == [False, True, False]
    assert np.isnan(auc(counts)).tolist() == [False, True, False]


def test_samples_without_a_score_are_left_out() -> None:
    score, outcome = samples(3)
    with_nan = histogram(np.append(score, [math.nan, math.nan]), np.append(outcome, [0, 1]))
    for table, expected in zip(with_nan, histogram(score, outcome), strict=True):
        assert np.array_equal(table, expected)


def test_perfect_and_reversed_scores_have_areas_one_and_zero() -> None:
    counts, sums = histogram(np.array([0.0, 0.0, 1.0]), np.array([0, 0, 1]))
    assert auc(counts) == 1
    assert calibration_error(counts, sums) == 0
    assert auc(counts[::-1]) == 0
    assert calibration.auc(np.ones((2, BINS))) == 0.5
