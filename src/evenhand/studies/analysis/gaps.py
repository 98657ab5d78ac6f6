"""Gaps between groups, and between teams of clients, in the rates of a classifier."""

from __future__ import annotations

import numpy as np

from evenhand.errors import require_choice
from evenhand.metrics.calibration_gap import calibration_gap
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.groups import group_views
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

    ``positive``: the positive label of the rates; by default the second of two, or the one that
    differs most of several. Rates are means over seeds, see :func:`group_views`; the calibration
    gap and the ends of its interval are means over seeds, too.
    """
    require_choice("by", by, ("group", "team"))
    found: dict[str, dict[str, Interval]] = {}
    for label, view in group_views(study, by, level, least, positive).items():
        apart = [
            _calibration(study, study.trials[label, seed], by, level, least, draws)
            for seed in study.judged_seeds
        ]
        found[label] = {kind: gap.interval for kind, gap in view.gaps.items()} | {
            kind: Interval(*np.mean([np.array(one[kind]) for one in apart], 0).tolist())
            for kind in apart[0]
            if all(kind in one for one in apart)
        }
    return {label: kinds for label, kinds in found.items() if kinds}


def _calibration(
    study: Study, trial: Trial, by: str, level: float, least: int, draws: int
) -> dict[str, Interval]:
    """The gap in calibration error, for models that predict probabilities."""
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
