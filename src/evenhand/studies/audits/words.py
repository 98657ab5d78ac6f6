"""The answer of an audit in a few sentences: which groups are treated differently, and how."""

from __future__ import annotations

import math

from evenhand.metrics.group_rates import Gap
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.audits import local
from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.numbers import Numbers

MOST = 4  # sentences
BELOW = "below 0.8"  # the verdict of the four-fifths rule where it is certain

# first words to write in lower case after a colon; names of groups keep their capitals
BEGINNINGS = ("Samples", "No", "Accuracy")


def sentences(audit: Numbers) -> list[str]:
    """At most four sentences, most important first."""
    if audit.parts:
        each = max(1, MOST // len(audit.parts))
        return [
            f"By {column}: {_inside(sentence)}"
            for column, part in audit.parts.items()
            for sentence in of_groups(part)[:each]
        ][:MOST] or [overall(audit)]
    found = of_groups(audit)
    last = [one for one in (of_clients(audit), local.sentence(audit, striking=True)) if one]
    found = [*found[: MOST - len(last)], *last]
    return (found or [overall(audit)])[:MOST]


def _inside(sentence: str) -> str:
    """A sentence after a colon."""
    begins = sentence.split(" ", 1)[0] in BEGINNINGS
    return sentence[0].lower() + sentence[1:] if begins else sentence


def of_groups(audit: Numbers) -> list[str]:
    """About groups: errors, then accuracy with base rates, then selection rates."""
    if not audit.gaps:
        return []
    if audit.code is None:
        return [_several_labels(audit)]
    return [
        *_errors(audit),
        *filter(None, (_accuracy(audit), selection(audit))),
    ]


def _errors(audit: Numbers) -> list[str]:
    """About true-positive and false-positive rates; one sentence if neither differs."""
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
    """The two groups with the largest significant gap, the lower rate first, and the gap.

    The groups with the smallest and the largest rate may be so small that their difference is not
    significant, while that of two larger groups is.
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
    how = "predicted correctly" if right else f'wrongly predicted as "{audit.label}"'
    extreme = gap.low if right else gap.high
    still = (
        f"; the rate is even {'lower' if right else 'higher'} for {extreme}"
        f" ({percent(audit, gap.rate, extreme)}), but not significantly"
        if extreme != first and not audit.compared_with
        else ""
    )
    return (
        f"Samples {_with(audit, right)} are {how} {often} often for {first} than for {second}:"
        f" {share(audit, gap.rate, first)} compared with {share(audit, gap.rate, second)}, a gap of"
        f" {points(apart)}{still}."
    )


def _with(audit: Numbers, positive: bool) -> str:
    if positive:
        return f'with label "{audit.label}"'
    others = [label for label in audit.counts.labels if label != audit.label]
    return f'with label "{others[0]}"' if len(others) == 1 else f'without label "{audit.label}"'


def _not_found(audit: Numbers, gaps: list[Gap]) -> str:
    parts = []
    for gap in gaps:
        if math.isnan(gap.interval.value):
            parts.append(f"fewer than two groups have the {enough(audit)} a {gap.rate} needs")
            continue
        one, other = _seen(audit, gap)
        wide = smallest_found(audit, gap.rate, one, other)
        parts.append(
            f"the {gap.rate} is {share(audit, gap.rate, one)} for {one} and"
            f" {share(audit, gap.rate, other)} for {other} (a gap of about {100 * wide:.0f} points"
            " would have been detected with 80 % power)"
        )
    return f"No significant gap in the {' or '.join(gap.rate for gap in gaps)}: {'; '.join(parts)}."


def _seen(audit: Numbers, gap: Gap) -> tuple[str, str]:
    """The two groups that are farthest apart; one is the reference, if there is one."""
    rows = [row for row in audit.pairs if row["rate"] == gap.rate]
    if not audit.compared_with or not rows:
        return gap.low, gap.high
    row = max(rows, key=lambda row: abs(row["difference"]))
    return row["group"], row["against"]


def smallest_found(audit: Numbers, rate: str, one: str, other: str) -> float:
    """The difference between two groups that would be detected with 80 % power."""
    for row in audit.pairs:
        if row["rate"] == rate and {row["group"], row["against"]} == {one, other}:
            return float(row["detectable"])
    return math.nan


def _accuracy(audit: Numbers) -> str:
    gap, base = audit.gaps["accuracy parity"], audit.base_rates
    if math.isnan(gap.interval.value):
        return ""
    seen = (
        f"Accuracy is lowest for {gap.low} ({percent(audit, 'accuracy', gap.low)}) and highest for"
        f" {gap.high} ({percent(audit, 'accuracy', gap.high)})"
    )
    unclear = "" if math.isnan(gap.interval.low) else ", which is not significant"
    tested = f"a gap of {points(gap.interval)}" + ("" if clear(gap) else unclear)
    if base is None or not clear(base):
        return f"{seen}, {tested}."
    return (
        f"{seen}, {tested}; but base rates differ"
        f" ({percent(audit, 'base rate', base.low)} of {base.low} and"
        f" {percent(audit, 'base rate', base.high)} of {base.high} have label"
        f' "{audit.label}"), so accuracy alone does not show who is served worse.'
    )


def selection(audit: Numbers) -> str:
    """How often the positive label is predicted for groups, as a ratio."""
    rows = [row for row in audit.ratios if not math.isnan(row["ratio"])]
    if not rows:
        return ""
    sure = [row for row in rows if row["verdict"] == BELOW]
    worst = min(sure or rows, key=lambda row: row["ratio"])
    interval = f"{worst['ratio']:.2f} [{worst['low']:.2f}, {worst['high']:.2f}]"
    rule = {
        BELOW: "below 0.8, which fails the four-fifths rule if this is the favourable prediction",
        "0.8 or more": "which meets the four-fifths rule",
        "below 0.8, not certain": "below 0.8, but not significantly",
        "above 0.8, not certain": "above 0.8, but not significantly",
    }[worst["verdict"]]
    compared = audit.compared_with
    whom = f"the reference {worst['against']}" if compared else worst["against"]
    return (
        f'"{audit.label}" is predicted for {share(audit, "selection rate", worst["group"])} of'
        f" {worst['group']} and {share(audit, 'selection rate', worst['against'])} of {whom}, a"
        f" ratio of {interval}, {rule}."
    )


def _several_labels(audit: Numbers) -> str:
    gap = audit.gaps["accuracy parity"]
    seen = (
        f"Accuracy is lowest for {gap.low}, {share(audit, 'accuracy', gap.low)}, and highest for"
        f" {gap.high}, {share(audit, 'accuracy', gap.high)}"
    )
    if clear(gap):
        return f"{seen}, a gap of {points(gap.interval)}."
    wide = smallest_found(audit, "accuracy", gap.low, gap.high)
    return (
        f"No significant gap in accuracy: {seen[0].lower()}{seen[1:]} (a gap of about"
        f" {100 * wide:.0f} points would have been detected with 80 % power)."
    )


def of_clients(audit: Numbers) -> str:
    """Whether clients differ by more than chance explains."""
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
    left = f" ({few} with fewer than {least} excluded)" if few else ""
    return (
        f"Across {len(places)} clients{left}, accuracy ranges from"
        f" {share(audit, 'accuracy', names[low], 'client')} for client {names[low]} to"
        f" {share(audit, 'accuracy', names[high], 'client')} for client {names[high]}, {chance}"
        f" than chance explains ({chances(p)}){_recall_of_clients(audit)}."
    )


def _recall_of_clients(audit: Numbers) -> str:
    """The range of true-positive rates, since accuracy depends on base rates."""
    if audit.code is None:
        return ""
    found, names = audit.shares("client")["true-positive rate"], audit.counts.clients
    places = [i for i, size in enumerate(found.size) if size >= max(1, audit.least)]
    if len(places) < 2:
        return ""
    value = found.value[places]
    low, high = (places[int(where)] for where in (value.argmin(), value.argmax()))
    return (
        f"; their true-positive rates range from {100 * found.value[low]:.1f} % ({names[low]}) to"
        f" {100 * found.value[high]:.1f} % ({names[high]})"
    )


def overall(audit: Numbers) -> str:
    """About all samples, if there is nothing to compare."""
    told = f"Accuracy is {share(audit, 'accuracy', 'everyone', 'everyone')}"
    if audit.code is None:
        return f"{told}."
    true, false = (
        share(audit, rate, "everyone", "everyone")
        for rate in ("true-positive rate", "false-positive rate")
    )
    return (
        f'{told}; for label "{audit.label}", the true-positive rate is {true} and the'
        f" false-positive rate is {false}."
    )


def significant(audit: Numbers) -> list[Row]:
    """Pairs that differ significantly, by Holm's correction and by their interval, largest
    difference first."""
    rows = [
        row
        for row in audit.pairs
        if row["p_holm"] < 1 - audit.level and not row["low"] <= 0 <= row["high"]
    ]
    return sorted(rows, key=lambda row: -abs(row["difference"]))


def clear(gap: Gap) -> bool:
    """Whether a gap is significant."""
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
    """The rate of a group without its interval: 42.1 %."""
    found = audit.shares()[rate].value[audit.counts.groups.index(name)]
    return f"{100 * found:.1f} %"


def points(found: Interval) -> str:
    """A gap with its interval, if it has one: 27.9 points [18.0, 37.1]."""
    if math.isnan(found.low):
        return f"{100 * found.value:.1f} points"
    return f"{100 * found.value:.1f} points [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def chances(p: float) -> str:
    """A p-value, never shown as 0."""
    if math.isnan(p):
        return "p unknown"
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2f}" if p >= 0.1 else f"p = {p:.4f}"


def counted(number: int, what: str) -> str:
    """1 client, 2 clients."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def enough(audit: Numbers) -> str:
    """How many samples a rate needs for a comparison."""
    return counted(max(1, audit.least), "sample")
