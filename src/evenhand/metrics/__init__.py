"""Fairness numbers from counts and sums."""

from evenhand.metrics import parity, rates, spread, uncertainty
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import change, score_columns, summary
from evenhand.metrics.tally import tally

__all__ = ["Counts", "change", "parity", "rates", "score_columns", "spread", "summary", "tally", "uncertainty"]
