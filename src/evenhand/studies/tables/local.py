"""A table for a terminal: gaps between groups over all clients and within clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evenhand.studies.analysis.groups import GroupView
from evenhand.studies.analysis.local import Local, local_scopes
from evenhand.studies.analysis.local_in_words import FEW_LOOK_LARGER
from evenhand.studies.analysis.writing import client, listed
from evenhand.studies.tables.methods import SHORT, new_table, points, show_table

# compared within clients
LOCAL = {kind: SHORT[kind] for kind in SHORT if kind not in ("equalised odds", "predictive parity")}
MOST_LOCAL = 16  # rows of gaps within clients
ABOUT_LOCAL = f"{FEW_LOOK_LARGER} The interval of the largest holds for all clients at once."


def show_local(
    console: Console,
    views: Mapping[str, GroupView],
    local: Mapping[str, Local],
    bases: Sequence[str],
    least: int,
) -> None:
    """Print gaps between groups over all clients and within clients, and which clients are left
    out."""
    show_table(console, local_table(views, local, bases, MOST_LOCAL))
    for line in (ABOUT_LOCAL, *local_lines(next(iter(local.values())), least)):
        console.print(line, style="dim", highlight=False, markup=False)


def local_lines(local: Local, least: int) -> list[str]:
    """Which clients are left out of which rates because of too few samples."""
    few: dict[tuple[str, ...], list[str]] = {}
    for kind, short in LOCAL.items():
        if kind in local and local[kind].left_out:
            few.setdefault(local[kind].left_out, []).append(short)
    lines = []
    for names, rates in few.items():
        verb = "excludes" if len(rates) == 1 else "exclude"
        whom = listed([client(name) for name in names], 8)
        lines.append(
            f"Within clients, {listed(rates, 6)} {verb} {whom}: fewer than two groups have {least}"
            " samples there."
        )
    return lines


def local_table(
    views: Mapping[str, GroupView], local: Mapping[str, Local], bases: Sequence[str], most: int
) -> Table:
    """A row per method and rate: the gap between groups over all clients, and the mean and the
    largest gap within clients.

    ``bases``: the methods to show if all of them would need more than ``most`` rows.
    """
    first = next(iter(local.values()))
    kinds = [kind for kind in LOCAL if kind in first]
    known = [base for base in bases if base in local]
    shown = list(local) if len(local) * len(kinds) <= most or not known else known
    headings = ("over all clients", "mean within clients", "largest within a client", "clients")
    title = "Gaps between groups over all clients and within clients, points"
    table = new_table(title, ("method", "rate"), headings)
    for label in shown:
        for place, kind in enumerate(kinds):
            found = local[label][kind]
            apart = local_scopes(views[label].gaps, found).values()
            cells = ["-" if math.isnan(one.value) else points(one) for one in apart]
            if found.clients:
                cells[-1] += f"\n[dim]{escape(client(found.clients[0].client))}[/]"
            count = f"{len(found.clients)} of {len(found.clients) + len(found.left_out)}"
            name = escape(label) if place == 0 else ""
            table.add_row(name, LOCAL[kind], *cells, count)
    return table
