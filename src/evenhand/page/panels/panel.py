"""The parts of a figure of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_METHODS = 8  # named in the description of a figure
MOST_ROWS = 40  # of a figure's table


class Variant(NamedTuple):
    """One figure of a panel."""

    name: str  # its option in the panel's menu, if there are several
    figure: Any
    finding: str  # a description for screen readers
    table: str  # HTML


@dataclass(frozen=True)
class Panel:
    """A figure of the report, or several to choose from."""

    key: str
    caption: str  # HTML
    variants: tuple[Variant, ...]
    choice: str = ""  # the label of the menu
    open: bool = False  # whether its data are unfolded


def listed(parts: Sequence[str]) -> str:
    """Descriptions of the methods, at most the first few."""
    more = f"; and {len(parts) - MOST_METHODS} more methods" if len(parts) > MOST_METHODS else ""
    return "; ".join(parts[:MOST_METHODS]) + more + "."
