"""What many small clients show together, and the smallest harm that could be detected."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.ledger import Entry

POWER = 0.8  # of the test at which a difference counts as detectable


class Together(NamedTuple):
    """How many clients gain and lose with a method, significantly or not."""

    gain: int
    lose: int
    same: int
    mean: Interval  # change of the mean over clients
    p: float  # of the sign test

    @property
    def changed(self) -> int:
        return self.gain + self.lose


def together(entries: Sequence[Entry], mean: Interval) -> Together:
    """Count gains and losses of clients; ``mean``: the change of their mean."""
    from scipy.special import bdtr

    gains = np.array([entry.gain.value for entry in entries])
    gain, lose = int((gains > 0).sum()), int((gains < 0).sum())
    p = min(1.0, 2 * float(bdtr(min(gain, lose), gain + lose, 0.5)))
    return Together(gain, lose, int((gains == 0).sum()), mean, p)


def detectable(entries: Sequence[Entry], level: float) -> float:
    """The loss that would be detected with 80 % power at a typical client or group when all are
    tested at once: the median over those with enough samples; NaN without any.

    With a standard error s and K tests at once, it is s (z(1 - (1 - level) / 2K) + z(0.8)).
    """
    judged = [entry for entry in entries if entry.verdict != "few"]
    widths = np.array([entry.gain.high - entry.gain.low for entry in judged])
    widths = widths[np.isfinite(widths)]
    if not len(widths):
        return float("nan")
    normal = NormalDist()
    errors = widths / 2 / normal.inv_cdf((1 + level) / 2)
    all_at_once = normal.inv_cdf(1 - (1 - level) / 2 / len(widths))
    return float(np.median(errors) * (all_at_once + normal.inv_cdf(POWER)))
