"""Names and differences as sentences write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.runs.study import Study


def amount(study: Study, value: float) -> str:
    """A difference without its sign, with its unit."""
    points = f" {study.measure.points}" if study.measure.points else ""
    return f"{study.measure.show(value)}{points}"


def change(study: Study, interval: Interval) -> str:
    """A difference with its sign, unit and interval."""
    points = f" {study.measure.points}" if study.measure.points else ""
    return f"{signed(study, interval.value)}{points} {ends(study, interval)}"


def size(study: Study, interval: Interval) -> str:
    """A change without its sign, after a verb that gives the direction: "lowers it by 2.6 [1, 4]".

    The ends have signs where the interval includes 0.
    """
    if math.isnan(interval.low) or interval.low <= 0 <= interval.high:
        return f"{amount(study, interval.value)} {ends(study, interval)}"
    low, high = sorted((abs(interval.low), abs(interval.high)))
    shown = (_digits(study, value).lstrip("+-") for value in (low, high))
    return f"{amount(study, interval.value)} [{', '.join(shown)}]"


def signed(study: Study, value: float) -> str:
    """A gain with its sign; plus is better, for errors too."""
    # no minus before a zero
    written = round(study.measure.scale * value, study.measure.digits) + 0.0
    return f"{written:+.{study.measure.digits}f}"


def ends(study: Study, interval: Interval) -> str:
    """An interval in brackets."""
    if math.isnan(interval.low):
        return "[interval unknown]"
    return f"[{_digits(study, interval.low)}, {_digits(study, interval.high)}]"


def _digits(study: Study, value: float) -> str:
    """With its sign, and with one more digit where rounding would give 0, so that a reader can see
    whether an interval includes 0."""
    scaled, digits = study.measure.scale * value, study.measure.digits
    if scaled and not round(scaled, digits):
        digits += 1
        if not round(scaled, digits):
            scaled = math.copysign(10.0**-digits, scaled)
    return f"{scaled + 0.0:+.{digits}f}"


def named(study: Study, label: str) -> str:
    """A method in a sentence: its label, or FedAvg for the reference."""
    return "FedAvg" if label == study.reference else label


def client(name: str) -> str:
    """A client in a sentence.

    >>> client("6"), client("client 6"), client("va")
    ('client 6', 'client 6', 'client "va"')
    """
    if name.lower().startswith("client"):
        return name
    return f"client {name}" if name.isdigit() else f'client "{name}"'


def out_of(count: int, total: int, what: str) -> str:
    """How many of several.

    >>> out_of(3, 20, "clients"), out_of(20, 20, "clients"), out_of(2, 2, "groups")
    ('3 of the 20 clients', 'all 20 clients', 'both groups')
    """
    if count < total or total == 1:
        return f"{count} of the {total} {what}"
    return f"both {what}" if total == 2 else f"all {total} {what}"


def whose(entry: Entry) -> str:
    """The client, group or team of a line of the ledger: "client 6", "the south group"."""
    return client(entry.name) if entry.by == "client" else f"the {entry.name} {entry.by}"


def loss(study: Study, entry: Entry) -> str:
    """That somebody does worse: "lowers the accuracy of client 6 by 2.6 points [1.1, 4.1]"."""
    what, _, worse = study.measure.words
    return f"{worse} the {what} of {whose(entry)} by {size(study, entry.gain)}"


def gain(study: Study, entry: Entry) -> str:
    """That somebody does better, like :func:`loss`."""
    what, better, _ = study.measure.words
    return f"{better} the {what} of {whose(entry)} by {size(study, entry.gain)}"


def whole(count: float) -> str:
    """A count, or the mean of counts over seeds.

    >>> whole(1369), whole(43.6666)
    ('1,369', '43.7')
    """
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 else f"{count:,.1f}"


def count_of(count: int, what: str) -> str:
    """A count with its noun.

    >>> count_of(1, "client"), count_of(3, "client")
    ('1 client', '3 clients')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d"], 2)
    ('a', 'a and b', 'a, b and 2 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
