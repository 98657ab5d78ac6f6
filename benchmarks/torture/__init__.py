"""Harnesses that try to lose results or to fool people: kills, damage, fuzz, lies, faults.

Each part is a module with a function ``figures(seconds, seed)`` that gives a list of
:class:`Figure`.
"""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """What was tried, how often, and how often it held."""

    what: str
    tried: int
    held: int
    note: str = ""
