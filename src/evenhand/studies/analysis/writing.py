"""Differences between methods, as sentences write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evenhand.metrics.uncertainty import Interval
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
    """How large a change is, for a verb that says its direction: "lowers it by 2.6 [1.1, 4.1]".

    The interval has signs where it holds both directions.
    """
    if math.isnan(interval.low) or interval.low <= 0 <= interval.high:
        return f"{amount(study, interval.value)} {ends(study, interval)}"
    low, high = sorted((abs(interval.low), abs(interval.high)))
    shown = (_digits(study, value).lstrip("+-") for value in (low, high))
    return f"{amount(study, interval.value)} [{', '.join(shown)}]"


def signed(study: Study, value: float) -> str:
    """A gain with its sign; plus is better, also where an error is measured."""
    # no minus before a zero
    written = round(study.measure.scale * value, study.measure.digits) + 0.0
    return f"{written:+.{study.measure.digits}f}"


def ends(study: Study, interval: Interval) -> str:
    """An interval in brackets."""
    if math.isnan(interval.low):
        return "[interval unknown]"
    return f"[{_digits(study, interval.low)}, {_digits(study, interval.high)}]"


def _digits(study: Study, value: float) -> str:
    """With its sign, and one digit more where it would look like 0 and is not quite: whether an
    interval holds 0 can then be read from it."""
    scaled, digits = study.measure.scale * value, study.measure.digits
    if scaled and not round(scaled, digits):
        digits += 1
        if not round(scaled, digits):
            scaled = math.copysign(10.0**-digits, scaled)
    return f"{scaled + 0.0:+.{digits}f}"


def named(study: Study, label: str) -> str:
    """A method in a sentence; the reference by its name, whatever its label."""
    return "FedAvg" if label == study.reference else label


def whole(count: float) -> str:
    """A count, or the mean of counts over seeds.

    >>> whole(1369), whole(43.6666)
    ('1,369', '43.7')
    """
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 else f"{count:,.1f}"


def count_of(count: int, what: str) -> str:
    """A number of things.

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
