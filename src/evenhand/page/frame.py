"""The frame of pages with figures: navigation, themes, drawing and printing in one file."""

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
        links: of the navigation: targets and texts; or the items of its list, as HTML.
        body: the main part, as HTML.
        data: elements that the script reads: figures-data and themes-data.
        chooser: HTML below the navigation, with the button for dark colours.
        summary: the heading of the folded navigation.
        styles: style sheets in this directory, added to the common one.
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
    # in one pass, so that placeholders inside a part are not filled
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("evenhand.page") / name).read_text(encoding="utf-8")
