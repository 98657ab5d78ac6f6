"""The answer of an audit in a few sentences: which group is treated how, compared with which."""

from __future__ import annotations

import math

from evenhand.metrics.group_rates import Gap
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.numbers import Numbers

MOST = 4  # sentences
BELOW = "below 0.8"  # the verdict of the four-fifths rule where it is certain


# words that begin a sentence; names of groups keep their capitals
BEGINNINGS = ("Of", "No", "Accuracy", "Predicted")


def sentences(audit: Numbers) -> list[str]:
    """The most important ones first; at most four."""
    if audit.parts:
        each = max(1, MOST // len(audit.parts))
        return [
            f"By {column}: {_inside(sentence)}"
            for column, part in audit.parts.items()
            for sentence in of_groups(part)[:each]
        ][:MOST] or [overall(audit)]
    found = of_groups(audit)
    clients = of_clients(audit)
    if clients:
        found = [*found[: MOST - 1], clients]
    return (found or [overall(audit)])[:MOST]


def _inside(sentence: str) -> str:
    """A sentence after a colon."""
    begins = sentence.split(" ", 1)[0] in BEGINNINGS
    return sentence[0].lower() + sentence[1:] if begins else sentence


def of_groups(audit: Numbers) -> list[str]:
    """About groups: errors, then accuracy beside base rates, then selection."""
    if not audit.gaps:
        return []
    if audit.code is None:
        return [_several_labels(audit)]
    return [
        *_errors(audit),
        *filter(None, (_accuracy(audit), selection(audit))),
    ]


def _errors(audit: Numbers) -> list[str]:
    """True-positive and false-positive rates; one sentence where neither differs."""
    found, hidden = [], []
    for kind in ("equal opportunity", "false-positive parity"):
        gap = audit.gaps[kind]
        pair = clearest(audit, gap)
        if pair is None:
            hidden.append(gap)
        else:
            found.append(_found(audit, gap, *pair))
    return [*found, _not_found(audit, hidden)] if hidden else found


def clearest(audit: Numbers, gap: Gap) -> tuple[str, str, Interval] | None:
    """The two groups that differ most among those that differ beyond chance, and by how much.

    The lower rate comes first. The groups with the smallest and the largest rate may be small ones
    whose difference is chance, while that of two larger groups is not.
    """
    if audit.over != "samples":  # the tests of pairs are over samples
        return (gap.low, gap.high, gap.interval) if clear(gap) else None
    rows = [row for row in significant(audit) if row["rate"] == gap.rate]
    if not rows:
        return None
    row = rows[0]
    names = (row["group"], row["against"])
    if row["difference"] > 0:
        return (*names[::-1], Interval(row["difference"], row["low"], row["high"]))
    return (*names, Interval(-row["difference"], -row["high"], -row["low"]))


def _found(audit: Numbers, gap: Gap, low: str, high: str, apart: Interval) -> str:
    right = gap.rate == "true-positive rate"
    first, second = (low, high) if right else (high, low)
    often = "less" if right else "more"
    extreme = gap.low if right else gap.high
    still = (
        f"; {extreme} have {percent(audit, gap.rate, extreme)}, which may be chance"
        if extreme != first and not audit.compared_with
        else ""
    )
    return (
        f"Of those {_with(audit, right)}, {first} are predicted as {audit.label} {often} often than"
        f" {second}: {share(audit, gap.rate, first)} against {share(audit, gap.rate, second)},"
        f" a gap of {points(apart)}{still}."
    )


def _with(audit: Numbers, positive: bool) -> str:
    if positive:
        return f"with label {audit.label}"
    others = [label for label in audit.counts.labels if label != audit.label]
    return f"with label {others[0]}" if len(others) == 1 else f"without label {audit.label}"


def _not_found(audit: Numbers, gaps: list[Gap]) -> str:
    parts = []
    for gap in gaps:
        if math.isnan(gap.interval.value):
            parts.append(f"fewer than two groups have {enough(audit)} for the {gap.rate}")
            continue
        one, other = _seen(audit, gap)
        wide = smallest_found(audit, gap.rate, one, other)
        parts.append(
            f"the {gap.rate} is {share(audit, gap.rate, one)} for {one} and"
            f" {share(audit, gap.rate, other)} for {other}, where a gap of about"
            f" {100 * wide:.0f} points would mostly have been found"
        )
    return f"No significant gap in the {' or '.join(gap.rate for gap in gaps)}: {'; '.join(parts)}."


def _seen(audit: Numbers, gap: Gap) -> tuple[str, str]:
    """The two groups that are farthest apart, of which one is the reference where there is one."""
    rows = [row for row in audit.pairs if row["rate"] == gap.rate]
    if not audit.compared_with or not rows:
        return gap.low, gap.high
    row = max(rows, key=lambda row: abs(row["difference"]))
    return row["group"], row["against"]


def smallest_found(audit: Numbers, rate: str, one: str, other: str) -> float:
    """The difference between two groups that would be found four times out of five."""
    for row in audit.pairs:
        if row["rate"] == rate and {row["group"], row["against"]} == {one, other}:
            return float(row["detectable"])
    return math.nan


def _accuracy(audit: Numbers) -> str:
    gap, base = audit.gaps["accuracy parity"], audit.base_rates
    if math.isnan(gap.interval.value):
        return ""
    seen = (
        f"Accuracy is lowest for {gap.low}, {percent(audit, 'accuracy', gap.low)}, and highest for"
        f" {gap.high}, {percent(audit, 'accuracy', gap.high)}"
    )
    unclear = "" if math.isnan(gap.interval.low) else ", not significant"
    tested = f"a gap of {points(gap.interval)}" + ("" if clear(gap) else unclear)
    if base is None or not clear(base):
        return f"{seen}: {tested}."
    return (
        f"{seen} ({tested}), but base rates differ:"
        f" {percent(audit, 'base rate', base.low)} of {base.low} and"
        f" {percent(audit, 'base rate', base.high)} of {base.high} have label {audit.label}, so"
        " accuracy alone does not say who is served worse."
    )


def selection(audit: Numbers) -> str:
    """How often groups are predicted to be positive, as a ratio."""
    rows = [row for row in audit.ratios if not math.isnan(row["ratio"])]
    if not rows:
        return ""
    sure = [row for row in rows if row["verdict"] == BELOW]
    worst = min(sure or rows, key=lambda row: row["ratio"])
    interval = f"{worst['ratio']:.2f} [{worst['low']:.2f}, {worst['high']:.2f}]"
    rule = {
        BELOW: "below 0.8, so the four-fifths rule is not met if that is the favourable prediction",
        "0.8 or more": "the four-fifths rule is met",
        "below 0.8, not certain": "below 0.8, but the interval reaches it",
        "above 0.8, not certain": "above 0.8, but the interval goes below it",
    }[worst["verdict"]]
    compared = audit.compared_with
    whom = f"the reference {worst['against']}" if compared else worst["against"]
    return (
        f"Predicted as {audit.label} are {share(audit, 'selection rate', worst['group'])} of"
        f" {worst['group']} and {share(audit, 'selection rate', worst['against'])} of {whom}: a"
        f" ratio of {interval}, {rule}."
    )


def _several_labels(audit: Numbers) -> str:
    gap = audit.gaps["accuracy parity"]
    seen = (
        f"Accuracy is lowest for {gap.low}, {share(audit, 'accuracy', gap.low)}, and highest for"
        f" {gap.high}, {share(audit, 'accuracy', gap.high)}"
    )
    if clear(gap):
        return f"{seen}: a gap of {points(gap.interval)}."
    wide = smallest_found(audit, "accuracy", gap.low, gap.high)
    return (
        f"No significant gap in accuracy: {seen[0].lower()}{seen[1:]}, and only a gap of about"
        f" {100 * wide:.0f} points would mostly have been found."
    )


def of_clients(audit: Numbers) -> str:
    """Whether clients differ by more than chance."""
    from scipy import stats

    found = audit.shares("client")["accuracy"]
    places = [
        place
        for place, samples in enumerate(audit.samples("client"))
        if samples >= max(1, audit.least) and found.size[place] > 0
    ]
    if len(places) < 2:
        return ""
    k, n = found.k[places], found.size[places]
    value = found.value[places]
    low, high = (places[int(where)] for where in (value.argmin(), value.argmax()))
    names = audit.counts.clients
    right = k.sum() / n.sum()
    spread = float(((k - n * right) ** 2 / (n * right * (1 - right))).sum()) if 0 < right < 1 else 0
    p = float(stats.chi2.sf(spread, len(places) - 1))
    chance = "more" if p < 1 - audit.level else "no more"
    few = len(names) - len(places)
    least = enough(audit)
    left = f" ({few} with fewer than {least} left out)" if few else ""
    return (
        f"Over {len(places)} clients{left} accuracy runs from"
        f" {share(audit, 'accuracy', names[low], 'client')} for client {names[low]} to"
        f" {share(audit, 'accuracy', names[high], 'client')} for client {names[high]}, {chance}"
        f" than chance would make of equal ones ({chances(p)}){_recall_of_clients(audit)}."
    )


def _recall_of_clients(audit: Numbers) -> str:
    """Accuracy alone does not compare clients with other base rates: the range of another rate."""
    if audit.code is None:
        return ""
    found, names = audit.shares("client")["true-positive rate"], audit.counts.clients
    places = [i for i, size in enumerate(found.size) if size >= max(1, audit.least)]
    if len(places) < 2:
        return ""
    value = found.value[places]
    low, high = (places[int(where)] for where in (value.argmin(), value.argmax()))
    return (
        f"; their true-positive rates run from {100 * found.value[low]:.1f} % ({names[low]}) to"
        f" {100 * found.value[high]:.1f} % ({names[high]})"
    )


def overall(audit: Numbers) -> str:
    """About all samples, where there is nothing to compare."""
    told = f"Accuracy is {share(audit, 'accuracy', 'everyone', 'everyone')}"
    if audit.code is None:
        return f"{told}."
    rates = (
        ("true-positive rate", "true-positive rate"),
        ("false-positive rate", "false-positive rate"),
    )
    more = " and a ".join(
        f"{name} of {share(audit, rate, 'everyone', 'everyone')}" for rate, name in rates
    )
    return f"{told}, with a {more} of label {audit.label}."


def significant(audit: Numbers) -> list[Row]:
    """Pairs that differ, by Holm's correction and by their interval, the largest difference
    first."""
    rows = [
        row
        for row in audit.pairs
        if row["p_holm"] < 1 - audit.level and not row["low"] <= 0 <= row["high"]
    ]
    return sorted(rows, key=lambda row: -abs(row["difference"]))


def clear(gap: Gap) -> bool:
    """Whether a gap is there, beyond chance."""
    return bool(gap.interval.low > 0)


def share(audit: Numbers, rate: str, name: str, by: str = "group") -> str:
    """A rate with its interval and counts: 42.1 % [33.1, 51.6] (45 of 107)."""
    found, place = audit.shares(by)[rate], audit.names(by).index(name)
    ends = found.intervals(audit.level)[place]
    count = (
        f"{found.size[place]:,.0f} effective samples"
        if audit.weighted
        else f"{found.hits[place]:,.0f} of {found.of[place]:,.0f}"
    )
    if math.isnan(ends.value):
        return "unknown"
    return f"{100 * ends.value:.1f} % [{100 * ends.low:.1f}, {100 * ends.high:.1f}] ({count})"


def percent(audit: Numbers, rate: str, name: str) -> str:
    """A rate of a group alone: 42.1 %."""
    found = audit.shares()[rate].value[audit.counts.groups.index(name)]
    return f"{100 * found:.1f} %"


def points(found: Interval) -> str:
    """A gap: 27.9 points [18.0, 37.1]; from one client there is no interval over clients."""
    if math.isnan(found.low):
        return f"{100 * found.value:.1f} points"
    return f"{100 * found.value:.1f} points [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def chances(p: float) -> str:
    """A p-value; none is 0."""
    if math.isnan(p):
        return "p unknown"
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2f}" if p >= 0.1 else f"p = {p:.4f}"


def counted(number: int, what: str) -> str:
    """1 client, 2 clients."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def enough(audit: Numbers) -> str:
    """How many samples a rate needs to be compared."""
    return counted(max(1, audit.least), "sample")
