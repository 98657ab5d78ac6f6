"""The table of an audit with gaps over all clients and within clients."""

from __future__ import annotations

import math

from rich.console import Group
from rich.markup import escape

from evenhand.studies.analysis.local import local_scopes
from evenhand.studies.audits.numbers import Numbers
from evenhand.studies.audits.tables import brackets, made, name_of, number


def local_table(audit: Numbers) -> Group:
    """A row per kind: the gap over all clients, and the mean and the largest within clients."""
    cells = []
    for kind, found in audit.local.items():
        scopes = local_scopes(audit.gaps, found).values()
        numbers = [
            "-" if math.isnan(one.value) else f"{number(one.value)} {brackets(one)}"
            for one in scopes
        ]
        where = name_of(found.clients[0].client, 12) if found.clients else "-"
        count = f"{len(found.clients)} of {len(found.clients) + len(found.left_out)}"
        cells.append([kind, *numbers, where, count])
    headings = ("", "all clients", "mean within", "largest within", "at", "clients")
    title = f"Gaps by {escape(audit.by)} over all clients and within clients, points"
    return made(title, headings, cells)
