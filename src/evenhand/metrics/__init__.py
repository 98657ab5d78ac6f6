"""Fairness numbers from counts and sums."""

from evenhand.metrics import calibration, parity, rates, spread, uncertainty
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import change, counts_of, score_columns, summary
from evenhand.metrics.tally import sample_values, tally

__all__ = [
    "Counts",
    "calibration",
    "change",
    "counts_of",
    "parity",
    "rates",
    "sample_values",
    "score_columns",
    "spread",
    "summary",
    "tally",
    "uncertainty",
]
