"""Fairness numbers from counts and sums."""

from evenhand.metrics.scores import change, score_columns, summary
from evenhand.metrics.tally import tally

__all__ = ["change", "score_columns", "summary", "tally"]
