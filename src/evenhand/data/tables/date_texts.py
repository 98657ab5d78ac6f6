"""Dates in other forms than year-month-day, which are not read as dates."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from evenhand.data.tables.values import Floats, no_dates

MOST = 0.9  # the least share of distinct texts that are dates in a column of dates
FEWEST = 3  # distinct texts
_SAMPLE = 100  # texts that decide whether to check all of them
_YEAR_LAST = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})([T ,].*)?$")
_YEAR_FIRST = re.compile(r"\d{4}([./])(\d{1,2})\1(\d{1,2})([T ].*)?$")


def foreign_dates(names: Sequence[str]) -> str | None:
    """Describe a column's distinct texts if they are dates in another form, else return None.

    >>> foreign_dates(["13/02/2024", "01/03/2024", "02/03/2024"])
    "dates with the day first ('13/02/2024')"
    """
    if len(names) < FEWEST:
        return None
    for form, told in ((_YEAR_FIRST, _year_first), (_YEAR_LAST, _year_last)):
        if _share(form, names[:_SAMPLE]) >= MOST and _share(form, names) >= MOST:
            return told([match for match in map(form.match, names) if match])
    return None


def _year_first(found: Sequence[re.Match[str]]) -> str:
    return f"dates that are not written with hyphens ({found[0][0]!r})"


def _year_last(found: Sequence[re.Match[str]]) -> str | None:
    pairs = [(match[0], int(match[1]), int(match[3])) for match in found]
    fine = [pair for pair in pairs if 1 <= min(pair[1:]) <= 12 and max(pair[1:]) <= 31]
    if len(fine) < MOST * len(found):
        return None
    day = next((text for text, one, _ in fine if one > 12), None)
    month = next((text for text, _, two in fine if two > 12), None)
    if day and month:
        return f"dates with the day first ({day!r}) and with the month first ({month!r})"
    if day or month:
        return f"dates with the {'day' if day else 'month'} first ({day or month!r})"
    return f"dates that may begin with the day or with the month ({fine[0][0]!r})"


def almost_dates(names: Sequence[str]) -> list[str]:
    """Return the texts that are not dates, in a column where nearly all are year-month-day."""
    if len(names) < FEWEST or not _mostly_dates(names[:_SAMPLE]):
        return []
    return no_dates(names) if _mostly_dates(names) else []


def _mostly_dates(names: Sequence[str]) -> bool:
    return len(names) - len(no_dates(names)) >= MOST * len(names)


def compact_dates(numbers: Floats) -> int | None:
    """Return one of a column's numbers if all of them are dates such as 20240213."""
    present = numbers[~np.isnan(numbers)]
    if not len(present) or present.min() < 19_000_101 or present.max() > 20_991_231:
        return None
    month, day = present // 100 % 100, present % 100
    fine = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (day == np.round(day))
    return int(present[0]) if bool(fine.all()) else None


def _share(form: re.Pattern[str], names: Sequence[str]) -> float:
    return sum(bool(form.match(name)) for name in names) / len(names)
