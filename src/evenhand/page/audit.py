"""The page about an audit: one HTML file that opens from disk, without a network."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from evenhand.files import write_atomic
from evenhand.page import audit_sections as sections
from evenhand.page.audit_scores import scores
from evenhand.page.markup import text
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.words import counted

Section = tuple[str, str, str]  # id, heading, HTML


def audit_page(audit: Audit, out: str | Path = "audit.html", title: str | None = None) -> Path:
    """Write a page about an audit; the path."""
    path = Path(out)
    write_atomic(path, page(audit, title).encode())
    return path


def page(audit: Audit, title: str | None = None) -> str:
    """The whole page as text."""
    name = audit.source.get("file")
    parted = [section for section in _sections(audit) if section[2]]
    parts = {
        "title": text(title or ("Who is served how well" + (f": {name}" if name else ""))),
        "facts": _facts(audit),
        "sentences": "".join(f"<li>{_unbroken(text(one))}</li>" for one in audit.sentences),
        "links": "".join(
            f'<li><a href="#{key}">{text(heading)}</a></li>' for key, heading, _ in parted
        ),
        "sections": "".join(
            f'<section id="{key}" aria-labelledby="{key}-h"><h2 id="{key}-h">{text(heading)}</h2>'
            f"{body}</section>"
            for key, heading, body in parted
        ),
        "style": _asset("style.css") + _asset("audit.css"),
        "script": _asset("audit.js"),
    }
    # one pass, so that nothing inside a part is taken for a place
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("audit.html"))


def _unbroken(sentence: str) -> str:
    """Numbers stay on a line with their unit and their interval."""
    return re.sub(r"(?<=\d) (?=%|\[)|(?<=%) (?=\[)|(?<=\d,) (?=-?\d+\.\d+\])", "&nbsp;", sentence)


def _asset(name: str) -> str:
    return (resources.files("evenhand.page") / name).read_text(encoding="utf-8")


def _facts(audit: Audit) -> str:
    clients = len(audit.counts.clients)
    groups = len(audit.groups_named)
    found = [
        counted(int(audit.counts.table.sum()), "sample"),
        counted(clients, "client") if clients > 1 else "",
        counted(groups, "group") if groups else "",
        f"{100 * audit.level:g} % intervals",
    ]
    return "".join(
        f"<li><b>{text(number)}</b> {text(rest)}</li>"
        for number, _, rest in (fact.partition(" ") for fact in found if fact)
    )


def _sections(audit: Audit) -> list[Section]:
    made: list[Section] = []
    for place, one in enumerate((*audit.parts.values(), audit)):
        if not one.groups_named:
            continue
        made += [
            (f"rates-{place}", f"Rates by {one.by}", sections.rates(one)),
            (f"gaps-{place}", f"Gaps by {one.by}", sections.gaps(one)),
            (f"scores-{place}", f"Scores by {one.by}", scores(one)),
        ]
    if not audit.groups_named:
        made.append(("scores", "Scores", scores(audit)))
    made += [
        ("clients", "Clients", sections.clients(audit)),
        ("everyone", "All samples", sections.everyone(audit)),
        ("source", "Where the numbers come from", sections.source(audit)),
    ]
    return made
