"""A page of sentences and sections: one HTML file that opens offline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from evenhand.page.markup import text

Section = tuple[str, str, str]  # id, heading, HTML


def plain_page(
    generator: str,
    title: str,
    facts: Sequence[str],
    sentences: Sequence[str],
    sections: Sequence[Section],
    *styles: str,
) -> str:
    """The whole page as text.

    Args:
        generator: the command that made it.
        facts: counts with their nouns: "35 clients".
        sentences: as HTML.
        sections: empty ones are omitted.
        styles: style sheets in this directory, added to the common ones.
    """
    there = [section for section in sections if section[2]]
    parts = {
        "generator": text(generator),
        "title": text(title),
        "facts": "".join(
            f"<li><b>{text(number)}</b> {text(rest)}</li>"
            for number, _, rest in (fact.partition(" ") for fact in facts if fact)
        ),
        "sentences": "".join(f"<li>{one}</li>" for one in sentences),
        "links": "".join(
            f'<li><a href="#{key}">{text(heading)}</a></li>' for key, heading, _ in there
        ),
        "sections": "".join(
            f'<section id="{key}" aria-labelledby="{key}-h"><h2 id="{key}-h">{text(heading)}</h2>'
            f"{body}</section>"
            for key, heading, body in there
        ),
        "style": "".join(_asset(name) for name in ("style.css", "audit.css", *styles)),
        "script": _asset("plain.js"),
    }
    # in one pass, so that placeholders inside a part are not filled
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("plain.html"))


def _asset(name: str) -> str:
    return (resources.files("evenhand.page") / name).read_text(encoding="utf-8")
