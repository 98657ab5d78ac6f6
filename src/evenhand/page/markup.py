"""Small pieces of HTML; all text from users is escaped here."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """A cell of a table: its content and its sort key."""

    content: str  # HTML
    value: float | str = ""


def text(value: object) -> str:
    """Text as HTML.

    >>> text("<script> & co")
    '&lt;script&gt; &amp; co'
    """
    return html.escape(str(value), quote=True)


def hidden(words: str) -> str:
    """Text for screen readers only."""
    return f'<span class="unseen">{text(words)}</span>'


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell | str]],
    caption: str,
    methods: Sequence[str] = (),
    sortable: bool = False,
    identity: str = "",
) -> str:
    """A table whose first column names its rows.

    Args:
        rows: cells; plain text is escaped, as headings are.
        caption: as HTML.
        methods: the method of each row, if rows are hidden with their method.
    """
    head = "".join(_heading(heading, sortable) for heading in headings)
    body = []
    for place, row in enumerate(rows):
        cells = [cell if isinstance(cell, Cell) else Cell(text(cell), cell) for cell in row]
        mark = f' data-method="{text(methods[place])}"' if methods else ""
        first = f'<th scope="row"{_sorted_by(cells[0], sortable)}>{cells[0].content}</th>'
        others = [f"<td{_sorted_by(cell, sortable)}>{cell.content}</td>" for cell in cells[1:]]
        body.append(f"<tr{mark}>{first}{''.join(others)}</tr>")
    name = f' id="{identity}"' if identity else ""
    kind = ' class="sortable"' if sortable else ""
    return (
        '<div class="wide" role="group" tabindex="0"'
        f' aria-label="{text(plain(caption))}"><table{name}{kind}>'
        f"<caption><span>{caption}</span></caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _heading(heading: str, sortable: bool) -> str:
    inner = f'<button type="button">{text(heading)}</button>' if sortable else text(heading)
    return f'<th scope="col">{inner}</th>'


def _sorted_by(cell: Cell, sortable: bool) -> str:
    if not sortable:
        return ""
    nothing = isinstance(cell.value, float) and math.isnan(cell.value)
    return f' data-value="{"" if nothing else text(cell.value)}"'


def plain(markup: str, most: int = 80) -> str:
    """The first words of a piece of HTML without its tags."""
    words, inside = "", False
    for character in markup:
        inside = character == "<" or (inside and character != ">")
        words += "" if inside or character == ">" else character
    found = html.unescape(words).split(".")[0].strip()
    return found if len(found) <= most else found[: most - 1] + "…"


def script_json(identity: str, content: Any) -> str:
    """Data for the page's script. They cannot end the element, since < and > are escaped.

    >>> script_json("x", {"n": "</script><!--"})
    '<script type="application/json" id="x">{"n":"\\\\u003c/script\\\\u003e\\\\u003c!--"}</script>'
    """
    encoded = (
        content
        if isinstance(content, str)
        else json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    )
    for character in "<>&\u2028\u2029":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{identity}">{encoded}</script>'
