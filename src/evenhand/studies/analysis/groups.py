"""Rates of demographic groups, or of teams, by method: means over seeds, from counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evenhand.metrics.counts import Counts
from evenhand.metrics.group_rates import Gap, Rate, group_gaps, group_rates
from evenhand.studies.runs.study import Study

SPOKEN = ("equal opportunity", "false-positive parity", "accuracy parity")


class GroupView(NamedTuple):
    """How a method treats groups."""

    # by name of the rate, then group; of many labels, accuracy alone
    rates: Mapping[tuple[str, str], Rate]
    gaps: Mapping[str, Gap]  # by kind
    positive: str | None  # the label that rates are about
    level: float = 0.95  # at which a gap is shown


def group_views(
    study: Study, by: str, level: float = 0.95, least: int = 10, positive: str | None = None
) -> dict[str, GroupView]:
    """By method; {} with fewer than two groups, or where predictions were not counted.

    Counts are means over seeds, so that a rate is the mean over seeds and its interval that of one
    test set.
    """
    found: dict[str, GroupView] = {}
    for label in study.labels if len(study.names(by)) > 1 else ():
        counted = _counts(study, label, by)
        if not counted:
            return {}
        groups, labels = counted[0].groups, counted[0].labels
        # on average over the seeds, whose samples are the same or as many
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
    """The gap that matters most, of those that are shown: in true-positive rates, then in false
    alarms, then in accuracy; of many labels, in accuracy."""
    known = known_gaps(view)
    shown = (gap for gap in known if gap.p < (1 - view.level) / len(known))
    return next(shown, None)


def known_gaps(view: GroupView) -> list[Gap]:
    """Gaps that are spoken of, where there are samples enough."""
    found = (view.gaps.get(kind) for kind in (SPOKEN if view.positive is not None else SPOKEN[-1:]))
    return [gap for gap in found if gap is not None and not math.isnan(gap.interval.value)]


def disadvantaged(gap: Gap) -> str:
    """The group that a gap is to the disadvantage of: false alarms hit the one with most of
    them."""
    return gap.high if gap.kind == "false-positive parity" else gap.low


def labelled(counts: Counts, positive: str | None) -> int | None:
    """The code of the label that rates are about, by default the last of two."""
    if positive is not None:
        return counts.labels.index(positive)
    return 1 if len(counts.labels) == 2 else None


def _counts(study: Study, label: str, by: str) -> list[Counts]:
    """Counts of each seed, by group or by team; [] where predictions were not counted."""
    counted = [study.trials[label, seed].counts for seed in study.judged_seeds]
    kept = [counts for counts in counted if counts is not None]
    if len(kept) < len(counted):
        return []
    if by == "group":
        return kept
    return [counts.with_groups(study.names("team"), study.team_codes) for counts in kept]
