"""How a method treats groups, in a sentence: which two groups differ in what, and by how much."""

from __future__ import annotations

import math

from evenhand.metrics.group_rates import Gap, Rate
from evenhand.studies.analysis.groups import GroupView

# what is said of a gap; the first that is shown is spoken of
SPOKEN = ("equal opportunity", "false-positive parity", "accuracy parity")
ALPHA = 0.05


def groups_sentence(view: GroupView, label: str) -> str:
    """The gap that matters, without a full stop: true-positive rates, then false alarms, then
    accuracy, and that accuracy says otherwise where it does."""
    known = [
        gap
        for kind in SPOKEN
        if (gap := view.gaps.get(kind)) is not None and not math.isnan(gap.interval.value)
    ]
    if not known:
        return ""
    shown = [gap for gap in known if gap.p < ALPHA / len(known)]
    if not shown:
        largest = max(known, key=lambda gap: gap.interval.high)
        return (
            f"{label} shows no gap between groups (gaps of up to {100 * largest.interval.high:.0f}"
            " points would fit these data)"
        )
    if view.positive is None or shown[0].kind == "accuracy parity":
        gap = next((one for one in shown if one.kind == "accuracy parity"), None)
        return "" if gap is None else _of_accuracy(gap, label)
    text = _of_class(shown[0], view, label)
    accuracy = view.gaps["accuracy parity"]
    worse = shown[0].low if shown[0].kind == "equal opportunity" else shown[0].high
    if accuracy.low != worse and not math.isnan(accuracy.interval.value):
        text += f", though accuracy is lowest for {accuracy.low}"
    return text


def _of_class(gap: Gap, view: GroupView, label: str) -> str:
    low, high = (view.rates[gap.rate, group] for group in (gap.low, gap.high))
    size = f"{100 * gap.interval.value:.0f} points {interval_text(gap)}"
    if gap.kind == "equal opportunity":
        return (
            f"{label} finds {share(low)} of the {gap.label} cases in group {gap.low} and"
            f" {share(high)} in group {gap.high}: a gap of {size}"
        )
    return (
        f"{label} takes {share(high)} of the others for {gap.label} in group {gap.high} and"
        f" {share(low)} in group {gap.low}: a gap of {size}"
    )


def _of_accuracy(gap: Gap, label: str) -> str:
    return (
        f"{label} is right less often for group {gap.low} than for group {gap.high}:"
        f" {100 * gap.interval.value:.1f} points {interval_text(gap)}"
    )


def share(rate: Rate) -> str:
    """A rate with its counts."""
    return f"{100 * rate.interval.value:.0f} % ({rate.hits} of {rate.of})"


def interval_text(gap: Gap) -> str:
    """The interval of a gap, in points."""
    return f"[{100 * gap.interval.low:.0f}, {100 * gap.interval.high:.0f}]"
