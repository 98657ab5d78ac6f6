"""How a method treats groups, in a sentence: which two groups differ in what, and by how much."""

from __future__ import annotations

import math

from evenhand.metrics.group_rates import Gap, Rate
from evenhand.studies.analysis.groups import GroupView, disadvantaged, known_gaps, spoken_of
from evenhand.studies.analysis.writing import whole


def groups_sentence(view: GroupView, name: str) -> str:
    """The gap that matters, without a full stop, and that accuracy says otherwise where it does."""
    known, gap = known_gaps(view), spoken_of(view)
    if not known:
        return ""
    if gap is None:
        most = max(one.interval.high for one in known)
        return (
            f"{name} shows no gap between groups (gaps of up to {100 * most:.0f} points would fit"
            " these data)"
        )
    if gap.kind == "accuracy parity":
        return (
            f"{name} is right less often for group {gap.low} than for group {gap.high}:"
            f" {100 * gap.interval.value:.0f} points {interval_text(gap)}"
        )
    text, accuracy = _of_class(gap, view, name), view.gaps["accuracy parity"]
    if accuracy.low != disadvantaged(gap) and not math.isnan(accuracy.interval.value):
        text += f", though accuracy is lowest for group {accuracy.low}"
    return text


def _of_class(gap: Gap, view: GroupView, name: str) -> str:
    low, high = (view.rates[gap.rate, group] for group in (gap.low, gap.high))
    size = f"{100 * gap.interval.value:.0f} points {interval_text(gap)}"
    if gap.kind == "equal opportunity":
        return (
            f'{name} finds {share(low)} of the "{gap.label}" cases in group {gap.low} and'
            f" {share(high)} in group {gap.high}: a gap of {size}"
        )
    return (
        f'{name} wrongly predicts "{gap.label}" for {share(high)} in group {gap.high} and'
        f" {share(low)} in group {gap.low}: a gap of {size}"
    )


def share(rate: Rate) -> str:
    """A rate with its counts."""
    return f"{100 * rate.interval.value:.0f} % ({whole(rate.hits)} of {whole(rate.of)})"


def interval_text(gap: Gap) -> str:
    """The interval of a gap, in points."""
    return f"[{100 * gap.interval.low:.0f}, {100 * gap.interval.high:.0f}]"
