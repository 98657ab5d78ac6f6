"""What pages with figures have in common: navigation, themes, drawing, printing, in one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from evenhand.page.markup import text

THEME = '<p class="buttons"><button type="button" id="theme">Dark colours</button></p>'


def framed(
    generator: str,
    title: str,
    links: Sequence[tuple[str, str]] | str,
    body: str,
    data: str,
    chooser: str = THEME,
    summary: str = "Sections",
    styles: Sequence[str] = (),
) -> str:
    """The whole page as text.

    Args:
        generator: the command that made it.
        links: of the navigation: where to, and words; or the items of its list, as HTML.
        body: of its main part, as HTML.
        data: elements that the script reads: figures-data and themes-data.
        chooser: below the navigation, with the button for dark colours, as HTML.
        summary: what the navigation is called where it is folded.
        styles: files beside this one, added to those that all pages have.
    """
    if not isinstance(links, str):
        links = "".join(f'<li><a href="{to}">{text(words)}</a></li>' for to, words in links)
    filled = {
        "generator": text(generator),
        "title": text(title),
        "summary": text(summary),
        "links": links,
        "chooser": chooser,
        "body": body,
        "style": "".join(_asset(name) for name in ("style.css", *styles)),
        "data": data,
        "draw": _asset("draw.js"),
        "script": _asset("script.js"),
    }
    # one pass, so that nothing inside a part is taken for a place
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("evenhand.page") / name).read_text(encoding="utf-8")
