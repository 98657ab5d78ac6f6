"""The report on an audit: one HTML file that opens offline."""

from __future__ import annotations

import re
from pathlib import Path

from evenhand.files import write_atomic
from evenhand.page import audit_sections as sections
from evenhand.page.audit_local import local_gaps
from evenhand.page.audit_scores import scores
from evenhand.page.markup import text
from evenhand.page.plain import Section, plain_page
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.words import counted


def audit_page(audit: Audit, out: str | Path = "audit.html", title: str | None = None) -> Path:
    """Write a report on an audit; return its path."""
    path = Path(out)
    write_atomic(path, page(audit, title).encode())
    return path


def page(audit: Audit, title: str | None = None) -> str:
    """The whole page as text."""
    name = audit.source.get("file")
    return plain_page(
        "evenhand audit",
        title or ("Audit of predictions" + (f": {name}" if name else "")),
        _facts(audit),
        [_unbroken(text(one)) for one in audit.sentences],
        _sections(audit),
    )


def _unbroken(sentence: str) -> str:
    """Keep numbers on one line with their unit and interval."""
    return re.sub(r"(?<=\d) (?=%|\[)|(?<=%) (?=\[)|(?<=\d,) (?=-?\d+\.\d+\])", "&nbsp;", sentence)


def _facts(audit: Audit) -> list[str]:
    clients = len(audit.counts.clients)
    groups = len(audit.groups_named)
    return [
        counted(int(audit.counts.table.sum()), "sample"),
        counted(clients, "client") if clients > 1 else "",
        counted(groups, "group") if groups else "",
        f"{100 * audit.level:g} % intervals",
    ]


def _sections(audit: Audit) -> list[Section]:
    made: list[Section] = []
    for place, one in enumerate((*audit.parts.values(), audit)):
        if not one.groups_named:
            continue
        made += [
            (f"rates-{place}", f"Rates by {one.by}", sections.rates(one)),
            (f"gaps-{place}", f"Gaps by {one.by}", sections.gaps(one)),
            (f"local-{place}", f"Gaps by {one.by} within clients", local_gaps(one)),
            (f"scores-{place}", f"Scores by {one.by}", scores(one)),
        ]
    if not audit.groups_named:
        made.append(("scores", "Scores", scores(audit)))
    made += [
        ("clients", "Clients", sections.clients(audit)),
        ("everyone", "All samples", sections.everyone(audit)),
        ("source", "Where the results come from", sections.source(audit)),
    ]
    return made
