"""Rates of demographic groups, or of teams, by method: means over seeds, from counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evenhand.errors import require_known
from evenhand.metrics.counts import Counts
from evenhand.metrics.group_rates import Gap, Rate, group_gaps, group_rates
from evenhand.studies.runs.study import Study

SPOKEN = ("equal opportunity", "false-positive parity", "accuracy parity")


class GroupView(NamedTuple):
    """How a method treats groups."""

    # by name of the rate, then group; with several labels, only accuracy
    rates: Mapping[tuple[str, str], Rate]
    gaps: Mapping[str, Gap]  # by kind
    positive: str | None  # the positive label of the rates
    level: float = 0.95  # of the test for a gap


def group_views(
    study: Study, by: str, level: float = 0.95, least: int = 10, positive: str | None = None
) -> dict[str, GroupView]:
    """Rates and gaps by method; {} with fewer than two groups or without counts of predictions.

    Counts are averaged over seeds, so a rate is the mean over seeds and its interval has the width
    that one test set gives.
    """
    found: dict[str, GroupView] = {}
    for label in study.labels if len(study.names(by)) > 1 else ():
        counted = _counts(study, label, by)
        if not counted:
            return {}
        groups, labels = counted[0].groups, counted[0].labels
        # the mean over seeds: their samples are the same, or equally many
        table = np.mean([counts.by_group for counts in counted], 0)
        code = labelled(counted[0], positive)
        rates = group_rates(table, groups, labels, code or 0, level)
        found[label] = GroupView(
            {
                (rate.name, rate.group): rate
                for rate in rates
                if code is not None or rate.name == "accuracy"
            },
            group_gaps(table, groups, labels, code, level, least),
            None if code is None else labels[code],
            level,
        )
    return found


def spoken_of(view: GroupView) -> Gap | None:
    """The significant gap that matters most: in true-positive rates, else in false-positive rates,
    else in accuracy; with several labels, in accuracy."""
    known = known_gaps(view)
    shown = (gap for gap in known if gap.p < (1 - view.level) / len(known))
    return next(shown, None)


def known_gaps(view: GroupView) -> list[Gap]:
    """The gaps that sentences mention, if there are enough samples for them."""
    found = (view.gaps.get(kind) for kind in (SPOKEN if view.positive is not None else SPOKEN[-1:]))
    return [gap for gap in found if gap is not None and not math.isnan(gap.interval.value)]


def disadvantaged(gap: Gap) -> str:
    """The group that a gap disadvantages: the one with the lower rate, or with more false
    positives."""
    return gap.high if gap.kind == "false-positive parity" else gap.low


def labelled(counts: Counts, positive: str | None) -> int | None:
    """The code of the positive label, by default the second of two."""
    if positive is not None:
        require_known("positive label", positive, counts.labels)
        return counts.labels.index(positive)
    return 1 if len(counts.labels) == 2 else None


def _counts(study: Study, label: str, by: str) -> list[Counts]:
    """Counts of each seed, by group or by team; [] without counts of predictions."""
    counted = [study.trials[label, seed].counts for seed in study.judged_seeds]
    kept = [counts for counts in counted if counts is not None]
    if len(kept) < len(counted):
        return []
    if by == "group":
        return kept
    return [counts.with_groups(study.names("team"), study.team_codes) for counts in kept]
