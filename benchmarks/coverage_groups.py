"""Simulated groups whose gaps are known, for :mod:`benchmarks.coverage`."""

from __future__ import annotations

import math

import numpy as np

from evenhand.metrics.calibration import BINS, EDGES, TENTHS
from evenhand.metrics.calibration_gap import calibration_gap
from evenhand.metrics.group_rates import PARITIES, fractions, group_gaps
from evenhand.metrics.uncertainty import Interval

LEAST = 10  # samples of a rate
GROUPS = {2: (40, 145), 4: (600, 200, 40, 15)}  # sizes, by number of groups
BASE = {"30 %": 0.3, "5 %": 0.05}  # share of positive samples
# true-positive and false-positive rates of the first, second, ... group
RATES = {
    "no gap": ((0.8, 0.1),) * 4,
    "small groups worse": ((0.9, 0.05), (0.8, 0.1), (0.7, 0.15), (0.6, 0.2)),
    "large groups worse": ((0.6, 0.2), (0.7, 0.15), (0.8, 0.1), (0.9, 0.05)),
    "near 100 %": ((0.97, 0.01),) * 4,
}
# shift and slope of log-odds: (0, 1) is calibrated
MISCALIBRATION = {
    "calibrated": ((0.0, 1.0),) * 4,
    "first off": ((1.0, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
    "second off": ((0.0, 1.0), (1.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
    "equally off": ((0.0, 0.5),) * 4,
}
SCORES = {"30 %": (0.9, 2.1), "5 %": (1.0, 19.0)}  # beta distributions with these means


def true_tables(situation: str, groups: int, base: float) -> np.ndarray:
    """(A, 2, 3) chances of label and prediction."""
    tables = np.zeros((groups, 2, 3))
    for table, (found, false) in zip(tables, RATES[situation], strict=False):
        table[0, :2] = (1 - base) * np.array([1 - false, false])
        table[1, :2] = base * np.array([1 - found, found])
    return tables


def rate_gaps(
    situation: str, groups: int, base: str, rng: np.random.Generator
) -> tuple[dict[str, Interval], dict[str, float]]:
    """Gaps as found, and the true gaps between the groups that have enough samples for a rate."""
    chances = true_tables(situation, groups, BASE[base])
    table = np.stack(
        [
            rng.multinomial(size, chance.ravel()).reshape(2, 3)
            for size, chance in zip(GROUPS[groups], chances, strict=True)
        ]
    )
    found = group_gaps(table, "abcd"[:groups], ("no", "yes"), 1, least=LEAST)
    truth = {}
    for kind, rates in PARITIES.items():
        truth[kind] = 0.0
        for rate in rates:
            hits, of = fractions(chances, 1, rate)
            kept = fractions(table, 1, rate)[1] >= LEAST
            if kept.any():
                truth[kind] = max(truth[kind], float(np.ptp((hits / of)[kept])))
    return {kind: gap.interval for kind, gap in found.items()}, truth


def calibration(
    situation: str, groups: int, base: str, rng: np.random.Generator, seed: int
) -> tuple[dict[str, Interval], dict[str, float]]:
    """The gap in calibration errors, and the true one."""
    tables, sums, truth = [], [], []
    for size, off in zip(GROUPS[groups], MISCALIBRATION[situation], strict=False):
        score, chance = scores(base, off, size, rng)
        outcome = (rng.random(size) < chance).astype(np.int64)
        place = outcome * BINS + np.searchsorted(EDGES, score, side="right")
        tables.append(np.bincount(place, minlength=2 * BINS).reshape(2, BINS))
        sums.append(np.bincount(place, score, 2 * BINS).reshape(2, BINS))
        truth.append(true_error(base, off))
    gap = calibration_gap(
        np.stack(tables), np.stack(sums), "abcd"[:groups], least=LEAST, draws=200, seed=seed
    )
    found = Interval(math.nan, math.nan, math.nan) if gap is None else gap.interval
    return {"calibration": found}, {"calibration": max(truth) - min(truth)}


def scores(
    base: str, off: tuple[float, float], size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and the true chances behind them."""
    score = np.clip(rng.beta(*SCORES[base], size), 1e-9, 1 - 1e-9)
    return score, 1 / (1 + np.exp(-(off[0] + off[1] * np.log(score / (1 - score)))))


def true_error(base: str, off: tuple[float, float]) -> float:
    """The calibration error of very many samples."""
    if (base, off) not in _known:
        score, chance = scores(base, off, 400_000, np.random.default_rng(1))
        tenth = np.minimum(score * TENTHS, TENTHS - 1).astype(np.int64)
        apart = np.bincount(tenth, score - chance, TENTHS)
        _known[base, off] = float(np.abs(apart).sum() / len(score))
    return _known[base, off]


_known: dict[tuple[str, tuple[float, float]], float] = {}
