"""Fairness numbers from counts and sums."""

from evenhand.metrics import (
    across,
    calibration,
    group_rates,
    ledger,
    parity,
    rates,
    spread,
    trials,
    uncertainty,
)
from evenhand.metrics.counts import Counts
from evenhand.metrics.outcomes import sample_outcomes, sample_values
from evenhand.metrics.scores import counts_of, score_columns, summary
from evenhand.metrics.tallies import tally

__all__ = [
    "Counts",
    "across",
    "calibration",
    "counts_of",
    "group_rates",
    "ledger",
    "parity",
    "rates",
    "sample_outcomes",
    "sample_values",
    "score_columns",
    "spread",
    "summary",
    "tally",
    "trials",
    "uncertainty",
]
