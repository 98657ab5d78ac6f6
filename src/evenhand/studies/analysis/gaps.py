"""Gaps between groups, and between teams of clients, in the rates of a classifier."""

from __future__ import annotations

import numpy as np

from evenhand.errors import require_choice
from evenhand.metrics.calibration_gap import calibration_gap
from evenhand.metrics.counts import Counts
from evenhand.metrics.group_rates import group_gaps
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Trial


def gaps(
    study: Study,
    by: str = "group",
    level: float = 0.95,
    least: int = 10,
    positive: str | None = None,
    draws: int = 400,
) -> dict[str, dict[str, Interval]]:
    """Gaps between groups (or teams), by method, then by kind ("accuracy parity", "demographic
    parity", ...); {} without groups.

    ``positive``: the label that rates are about, by default the last of two, and of more the one
    that differs most. The mean over seeds of the gap and of the ends of its interval under
    resampling of test samples: the interval of a single training.
    """
    require_choice("by", by, ("group", "team"))
    if len(study.names(by)) < 2:
        return {}
    found: dict[str, dict[str, Interval]] = {}
    for label in study.labels:
        trials = [study.trials[label, seed] for seed in study.seeds]
        counted = [trial.counts for trial in trials if trial.counts is not None]
        if len(counted) < len(trials):
            continue
        if by == "team":
            counted = [
                counts.with_groups(study.names("team"), study.team_codes) for counts in counted
            ]
        judged = [
            _rates(counts, positive, level, least)
            | _calibration(study, trial, by, level, least, draws)
            for counts, trial in zip(counted, trials, strict=True)
        ]
        found[label] = {
            kind: Interval(*np.mean([np.array(one[kind]) for one in judged], 0).tolist())
            for kind in judged[0]
        }
    return {label: kinds for label, kinds in found.items() if kinds}


def _rates(counts: Counts, positive: str | None, level: float, least: int) -> dict[str, Interval]:
    """The gaps in rates of one label, by default the last of two."""
    default = 1 if len(counts.labels) == 2 else None
    code = default if positive is None else counts.labels.index(positive)
    found = group_gaps(counts.by_group, counts.groups, counts.labels, code, level, least)
    return {kind: gap.interval for kind, gap in found.items()}


def _calibration(
    study: Study, trial: Trial, by: str, level: float, least: int, draws: int
) -> dict[str, Interval]:
    """The gap in calibration errors, for models whose scores are probabilities."""
    if "brier" not in trial.tally:
        return {}
    scored, score = (trial.tally[name] for name in ("scored", "score"))  # (n, A, 2, BINS)
    if by == "group":
        scored, score = scored.sum(0), score.sum(0)
    else:
        members = [study.team_codes == code for code in range(len(study.names("team")))]
        scored, score = (
            np.stack([table[member].sum((0, 1)) for member in members]) for table in (scored, score)
        )
    gap = calibration_gap(scored, score, study.names(by), level, least, draws)
    return {} if gap is None else {"calibration": gap.interval}
