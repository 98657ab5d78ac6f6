"""What a figure of the page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_METHODS = 8  # that the words about a figure name
MOST_ROWS = 40  # of the table of a figure


class Variant(NamedTuple):
    """One of the figures of a panel."""

    name: str  # what it is chosen by, where there are several
    figure: Any
    finding: str  # what is seen, in words
    table: str  # HTML


@dataclass(frozen=True)
class Panel:
    """A figure of the page, or several that take turns."""

    key: str
    caption: str  # HTML
    variants: tuple[Variant, ...]
    choice: str = ""  # what is chosen
    open: bool = False  # whether its numbers are seen at once


def listed(parts: Sequence[str]) -> str:
    """Words about each method, of many about the first."""
    more = f"; and {len(parts) - MOST_METHODS} more methods" if len(parts) > MOST_METHODS else ""
    return "; ".join(parts[:MOST_METHODS]) + more + "."
