"""How a method treats groups, in a sentence: which two groups differ most, in which rate."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evenhand.metrics.group_rates import Gap, Rate
from evenhand.metrics.threshold_words import NEARLY
from evenhand.studies.analysis.groups import GroupView, disadvantaged, known_gaps, spoken_of
from evenhand.studies.analysis.writing import whole

MOST = 3  # other methods that are named


def groups_sentence(
    view: GroupView, name: str, others: Mapping[str, GroupView] | None = None
) -> str:
    """The gap that matters most, without a full stop, which other methods have a smaller one, and
    whether accuracy points the other way."""
    known, gap = known_gaps(view), spoken_of(view)
    if not known:
        return ""
    if gap is None:
        most = max(one.interval.high for one in known)
        return (
            f"{name} shows no significant gap between groups (gaps of up to {100 * most:.0f} points"
            " cannot be ruled out)"
        )
    if gap.kind == "accuracy parity":
        return (
            f"{name} is less accurate for the {gap.low} group than for the {gap.high} group, by"
            f" {100 * gap.interval.value:.0f} points {interval_text(gap)}{_smaller(gap, others)}"
        )
    text = _of_class(gap, view, name) + _smaller(gap, others)
    accuracy = view.gaps["accuracy parity"]
    if accuracy.low != disadvantaged(gap) and not math.isnan(accuracy.interval.value):
        text += f", although accuracy is lowest for the {accuracy.low} group"
    return text


def _of_class(gap: Gap, view: GroupView, name: str) -> str:
    low, high = (view.rates[gap.rate, group] for group in (gap.low, gap.high))
    size = f"{100 * gap.interval.value:.0f} points {interval_text(gap)}"
    if gap.kind == "equal opportunity":
        return (
            f'{name} finds {share(low)} of the "{gap.label}" cases in the {gap.low} group but'
            f" {share(high)} in the {gap.high} group, a gap of {size}"
        )
    return (
        f'{name} wrongly predicts "{gap.label}" for {share(high)} of the other cases in the'
        f" {gap.high} group but only {share(low)} in the {gap.low} group, a gap of {size}"
    )


def _smaller(gap: Gap, others: Mapping[str, GroupView] | None) -> str:
    """The methods whose gap in the same rate lies below the interval of this one; not those that
    give nearly everybody the same answer, which closes any gap."""
    views = (others or {}).items()
    same = {
        label: view.gaps[gap.kind]
        for label, view in views
        if gap.kind in view.gaps and not _constant(view)
    }
    below = {label: one for label, one in same.items() if one.interval.value < gap.interval.low}
    smallest = sorted(below, key=lambda label: below[label].interval.value)[:MOST]
    told = (
        f"{100 * below[label].interval.value:.0f} {interval_text(below[label])} with {label}"
        for label in smallest
    )
    return f" ({', '.join(told)})" if smallest else ""


def _constant(view: GroupView) -> bool:
    """Whether nearly everybody is predicted to have the label, or nearly nobody."""
    found = [rate for (name, _), rate in view.rates.items() if name == "selection rate"]
    whole = sum(rate.of for rate in found)
    chosen = sum(rate.hits for rate in found) / whole if whole else 0.5
    return min(chosen, 1 - chosen) < NEARLY


def share(rate: Rate) -> str:
    """A rate with its counts."""
    return f"{100 * rate.interval.value:.0f} % ({whole(rate.hits)} of {whole(rate.of)})"


def interval_text(gap: Gap) -> str:
    """The interval of a gap, in points."""
    return f"[{100 * gap.interval.low:.0f}, {100 * gap.interval.high:.0f}]"
