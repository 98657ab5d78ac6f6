"""Whether a model treats groups alike within clients and over all clients, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evenhand.metrics.group_rates import PARITIES, Gap
from evenhand.metrics.local_gaps import ClientGap, LocalGaps
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.writing import client, count_of, listed, out_of

MOST_NAMED = 3  # clients that are left out
FEW_LOOK_LARGER = (
    "With few samples, gaps within clients look larger than they are: an interval that begins at 0"
    " includes no gap at all."
)


def local_sentence(
    everyone: Mapping[str, Gap],
    local: Mapping[str, LocalGaps],
    kind: str,
    name: str,
    least: int,
) -> str:
    """The gap of one kind over all clients and within clients; "" if either is unknown.

    ``name``: of the method, or "the model".
    """
    if kind not in local or kind not in everyone:
        return ""
    whole, found = everyone[kind].interval, local[kind]
    if math.isnan(whole.value) or math.isnan(found.mean.value):
        return ""
    rate = PARITIES[kind][0]
    beyond, inside = whole.low > 0, found.mean.low > 0 or bool(found.clear)
    if beyond:
        text = _beyond(whole, found, rate, name, inside)
    elif inside:
        text = _inside(whole, found, rate, name)
    else:
        within = f"within any of {count_of(len(found.clients), 'client')}"
        if len(found.clients) == 1:
            within = f"within {client(found.clients[0].client)}"
        text = (
            f"{name} shows no significant gap between groups in the {rate}, either over all clients"
            f" ({points(whole)}) or {within} (mean {points(found.mean)})"
        )
    return f"{text[0].upper()}{text[1:]}.{left_out(found, least)}"


def disagree(everyone: Mapping[str, Gap], local: Mapping[str, LocalGaps], kind: str) -> bool:
    """Whether a gap over all clients is larger than within them, or a gap within clients does not
    show over all of them: then one side alone misleads."""
    if kind not in local or kind not in everyone or not local[kind].clients:
        return False
    whole, found = everyone[kind].interval, local[kind]
    if math.isnan(whole.value):
        return False
    inside = found.mean.low > 0 or bool(found.clear)
    return found.mean.high < whole.low or (inside and whole.low <= 0)


def _beyond(whole: Interval, found: LocalGaps, rate: str, name: str, inside: bool) -> str:
    """A significant gap over all clients."""
    begin = f"{name} has a gap between groups in the {rate} of {points(whole)} over all clients"
    mean = f"{points(found.mean)} on average"
    between = found.mean.high < whole.low
    why = (
        f": groups are spread unevenly over clients that {name} serves differently"
        if between
        else ""
    )
    if not inside:
        less = "the gap is smaller and not significant" if between else "it is not significant"
        return f"{begin}, but within clients {less} ({mean}){why}"
    smaller = "only " if between else ""
    return f"{begin} and {smaller}of {mean} within clients{_where(found.clear)}{why}"


def _inside(whole: Interval, found: LocalGaps, rate: str, name: str) -> str:
    """A significant gap within clients alone."""
    begin = (
        f"Over all clients, {name} shows no significant gap between groups in the {rate}"
        f" ({points(whole)})"
    )
    sides = {(one.low, one.high) for one in found.clear}
    cancel = ", which cancel because they point in different directions" if len(sides) > 1 else ""
    if not found.clear:
        return f"{begin}, but within clients the gap is {points(found.mean)} on average"
    several = out_of(len(found.clear), len(found.clients), "clients")
    if len(found.clients) == 1:
        several = "the only client with enough samples"
    gaps = "significant gaps" if len(found.clear) > 1 else "a significant gap"
    return f"{begin}, but {several} {_have(found)} {gaps}{_where(found.clear)}{cancel}"


def _have(found: LocalGaps) -> str:
    return "has" if len(found.clear) == 1 else "have"


def _where(clear: tuple[ClientGap, ...]) -> str:
    """The client with the largest significant gap."""
    if not clear:
        return ""
    first = clear[0]
    most = "most of all " if len(clear) > 1 else ""
    return f" ({most}{client(first.client)}: {points(first.interval)})"


def left_out(found: LocalGaps, least: int) -> str:
    """Which clients are left out, as a sentence after another; "" if none is."""
    if not found.left_out:
        return ""
    some = list(found.left_out)
    names = f" ({listed([client(name) for name in some])})" if len(some) <= MOST_NAMED else ""
    needed = f"{max(1, least)} samples" if least > 1 else "a sample"
    verb = "is" if len(some) == 1 else "are"
    return (
        f" {count_of(len(some), 'client')}{names} {verb} left out: fewer than two groups have"
        f" {needed} for this rate there."
    )


def points(found: Interval) -> str:
    """A gap with its interval: 27.9 points [18.0, 37.1]."""
    value, low, high = (100 * end for end in found)
    return f"{value:.1f} points [{low:.1f}, {high:.1f}]"
