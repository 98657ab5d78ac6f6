"""The section of an audit's report about gaps within clients."""

from __future__ import annotations

import math

from evenhand.metrics.uncertainty import Interval
from evenhand.page.audit_figures import Mark, forest, told, top
from evenhand.page.markup import text
from evenhand.studies.analysis.local import local_scopes
from evenhand.studies.analysis.local_in_words import left_out
from evenhand.studies.audits import local
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.tables import number

MOST_CLIENTS = 30  # drawn; --out writes all


def local_gaps(audit: Audit) -> str:
    """Gaps over all clients, their mean within clients, and those of each client."""
    parts = []
    for kind, found in audit.local.items():
        if not found.clients or kind not in audit.gaps:
            continue
        scopes = local_scopes(audit.gaps, found)
        del scopes["largest within a client"]  # the first of the clients below
        marks = [_mark(scope, one, "") for scope, one in scopes.items()]
        marks += [
            _mark(one.client, one.interval, f"{one.low} lowest, {one.high} highest")
            for one in found.clients[:MOST_CLIENTS]
        ]
        end = top([mark.found.high for mark in marks])
        more = len(found.clients) - MOST_CLIENTS
        about = f"largest gap first{f'; --out writes {more} more clients' if more > 0 else ''}."
        about += left_out(found, audit.least)
        ends = (0.0, end), ("0", f"{100 * end:g} points")
        parts.append(forest(kind.capitalize(), about.rstrip("."), marks, *ends))
    if not parts:
        return ""
    said = "".join(f"<p>{text(line)}</p>" for line in (local.sentence(audit), local.NOTE) if line)
    return f'{said}<div class="rates">{"".join(parts)}</div>'


def _mark(name: str, found: Interval, names: str) -> Mark:
    if math.isnan(found.value):
        return Mark(name, found, "-")
    small = f'<small class="count">{text(names)}</small>' if names else ""
    return Mark(name, found, told(*map(number, found)) + small)
