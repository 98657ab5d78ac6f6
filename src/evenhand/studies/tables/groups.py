"""Tables for a terminal: rates of groups or teams, and gaps between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.groups import GroupView
from evenhand.studies.analysis.writing import listed
from evenhand.studies.tables.methods import gap_table, rate_table, show_table

MOST_RATES = 14  # rows of rates, of two lines each


def show_groups(
    console: Console,
    views: Mapping[str, GroupView],
    gaps: Mapping[str, Mapping[str, Interval]],
    by: str,
    bases: Sequence[str],
    least: int,
) -> None:
    """Print rates by "group" or "team", the gaps between them, and who is excluded from gaps.

    ``bases``: the methods to show if all of them would need too many rows.
    """
    rates = rate_table(views, by, bases, MOST_RATES)
    if rates is not None:
        show_table(console, rates)
    apart = {label: kinds["calibration"] for label, kinds in gaps.items() if "calibration" in kinds}
    show_table(console, gap_table(views, apart, by))
    for line in excluded_lines(views, least):
        console.print(line, style="dim", highlight=False, markup=False)


def excluded_lines(views: Mapping[str, GroupView], least: int) -> list[str]:
    """Which groups or teams are excluded from gaps because they have too few samples."""
    first = next(iter(views.values()))
    few: dict[tuple[str, ...], list[str]] = {}
    for gap in first.gaps.values():
        if gap.left_out:
            few.setdefault(gap.left_out, []).append(gap.kind)
    return [
        f"{listed(kinds, 6).capitalize()} exclude{'s' * (len(kinds) == 1)} {listed(names, 8)}:"
        f" fewer than {least} samples."
        for names, kinds in few.items()
    ]
