"""Differences between methods, as sentences write them."""

from __future__ import annotations

import math

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


def signed(study: Study, value: float) -> str:
    """A gain with its sign; plus is better, also where an error is measured."""
    # no minus before a zero
    written = round(study.measure.scale * value, study.measure.digits) + 0.0
    return f"{written:+.{study.measure.digits}f}"


def ends(study: Study, interval: Interval) -> str:
    """An interval in brackets."""
    if math.isnan(interval.low):
        return "[interval unknown]"
    return f"[{signed(study, interval.low)}, {signed(study, interval.high)}]"
