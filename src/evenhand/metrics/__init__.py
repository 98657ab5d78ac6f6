"""Fairness metrics from counts and sums."""

from evenhand.metrics import (
    across,
    calibration,
    group_rates,
    ledger,
    local_gaps,
    parity,
    rates,
    spread,
    teams,
    trials,
    uncertainty,
)
from evenhand.metrics.counts import Counts
from evenhand.metrics.outcomes import sample_outcomes, sample_values
from evenhand.metrics.scores import counts_of, score_columns, summary
from evenhand.metrics.tallies import tally
from evenhand.metrics.teams import between_teams, team_means

__all__ = [
    "Counts",
    "across",
    "between_teams",
    "calibration",
    "counts_of",
    "group_rates",
    "ledger",
    "local_gaps",
    "parity",
    "rates",
    "sample_outcomes",
    "sample_values",
    "score_columns",
    "spread",
    "summary",
    "tally",
    "team_means",
    "teams",
    "trials",
    "uncertainty",
]
