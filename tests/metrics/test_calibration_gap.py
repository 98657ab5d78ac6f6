"""The gap in calibration errors: by hand, without what chance adds, and as often right as it says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from evenhand.metrics.calibration import BINS, EDGES, calibration_error
from evenhand.metrics.calibration_gap import calibration_errors, calibration_gap

Floats = NDArray[np.float64]


def histogram(score: Floats, outcome: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Counts and summed scores (2, BINS)."""
    place = outcome * BINS + np.searchsorted(EDGES, score, side="right")
    counts, sums = (np.bincount(place, weight, 2 * BINS) for weight in (None, score))
    return counts.reshape(2, BINS), sums.reshape(2, BINS)


def groups(
    sizes: tuple[int, ...], off: tuple[float, ...], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Scores from 0.3 to 0.7, whose outcomes are more frequent by ``off`` than they say."""
    found = []
    for size, more in zip(sizes, off, strict=True):
        score = rng.uniform(0.3, 0.7, size)
        found.append(histogram(score, (rng.random(size) < score + more).astype(np.int64)))
    counts, sums = zip(*found, strict=True)
    return np.stack(counts), np.stack(sums)


def test_what_perfect_scores_show_is_the_mean_over_what_may_come() -> None:
    """Two samples with a score of 0.35 and one with 0.85: outcomes are enumerated."""
    counts, sums = histogram(np.array([0.35, 0.35, 0.85]), np.array([0, 1, 1]))
    found = calibration_errors(counts[None], sums[None], draws=40_000, seed=0)
    assert found.seen[0] == pytest.approx((abs(0.7 - 1) + abs(0.85 - 1)) / 3)
    assert found.seen[0] == pytest.approx(float(calibration_error(counts, sums)))
    low = sum(stats.binom.pmf(k, 2, 0.35) * abs(k - 0.7) for k in range(3))
    high = 0.85 * 0.15 + 0.15 * 0.85
    assert found.chance[0] == pytest.approx((low + high) / 3, abs=0.003)
    # what is seen is no more than chance explains
    assert found.value[0] == max(0.0, found.seen[0] - found.chance[0])


def test_of_scores_that_are_far_off_little_is_subtracted() -> None:
    rng = np.random.default_rng(0)
    counts, sums = groups((400,), (0.3,), rng)
    found = calibration_errors(counts, sums, draws=2000, seed=0)
    assert found.value[0] == pytest.approx(found.seen[0], abs=0.002)
    assert found.seen[0] - found.chance[0] < found.value[0] - 0.02
    assert found.value[0] == pytest.approx(0.3, abs=0.06)


def test_the_ends_take_all_or_nothing_of_what_is_seen_for_chance() -> None:
    counts, sums = groups((400,), (0.2,), np.random.default_rng(1))
    found = calibration_errors(counts, sums, draws=500, seed=0)
    low, high = found.bounds(np.array([[1.5]]))
    assert low[0, 0] == pytest.approx(found.seen[0] - found.chance[0] - 1.5 * found.error[0])
    assert high[0, 0] == pytest.approx(found.seen[0] + 1.5 * found.error[0])
    # 400 samples of which about half have outcome 1
    assert found.error[0] == pytest.approx(0.5 / 20, rel=0.15)


def test_a_gap_names_its_groups_and_leaves_small_ones_out() -> None:
    rng = np.random.default_rng(0)
    counts, sums = groups((400, 9, 300), (0.0, 0.0, 0.25), rng)
    gap = calibration_gap(counts, sums, "abc")
    assert gap is not None
    assert (gap.kind, gap.low, gap.high, gap.left_out) == ("calibration", "a", "c", ("b",))
    assert gap.interval.value == pytest.approx(0.25, abs=0.06)
    assert 0 < gap.interval.low < gap.interval.value < gap.interval.high
    assert 0 < gap.p < 0.01
    assert calibration_gap(counts[:2], sums[:2], "ab") is None
    assert calibration_gap(counts, sums, "abc", least=1).left_out == ()  # type: ignore[union-attr]


def test_scores_without_an_error_have_an_interval() -> None:
    counts, sums = histogram(np.repeat([0.0, 1.0], 20), np.repeat([0, 1], 20))
    gap = calibration_gap(np.stack([counts] * 2), np.stack([sums] * 2), "ab")
    assert gap is not None
    assert gap.interval.value == gap.interval.low == 0 < gap.interval.high
    assert gap.p == pytest.approx(1)
    assert gap.interval.high > 0.03  # 20 samples of a bin without a mistake
    with pytest.raises(ValueError, match=r"histogram and scores must be \(A, 2, "):
        calibration_errors(counts, sums, 10, 0)


def test_between_calibrated_groups_there_is_hardly_a_gap() -> None:
    """Errors that are seen differ by 8 points on average, for no other reason than sizes."""
    rng, seen, found = np.random.default_rng(0), [], []
    for seed in range(150):
        counts, sums = groups((40, 145), (0.0, 0.0), rng)
        gap = calibration_gap(counts, sums, "ab", draws=100, seed=seed)
        assert gap is not None
        seen.append(float(np.ptp(calibration_error(counts, sums))))
        found.append(gap.interval.value)
    assert np.mean(seen) > 0.06
    assert np.mean(found) < 0.03


@pytest.mark.parametrize("off", [(0.0, 0.0), (0.2, 0.0), (0.0, 0.2), (0.2, -0.2)])
def test_the_gap_of_unequal_groups_is_held_as_often_as_it_says(off: tuple[float, float]) -> None:
    rng, hits = np.random.default_rng(0), 0
    truth = abs(abs(off[0]) - abs(off[1]))
    for seed in range(200):
        gap = calibration_gap(*groups((40, 145), off, rng), "ab", draws=100, seed=seed)
        assert gap is not None
        hits += gap.interval.low <= truth <= gap.interval.high
    assert hits >= 184  # 92 %
