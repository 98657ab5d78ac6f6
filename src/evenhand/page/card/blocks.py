"""Paragraphs, lists, tables and code, as Markdown and as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evenhand.page import markup

# what Markdown may take for markup: underscores inside words and lone brackets it does not
SPECIAL = re.compile(r"([\\`*|~$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|!(?=\[))")


@dataclass(frozen=True)
class Paragraph:
    """A sentence or several."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    words: bool = False  # whether cells are texts, not numbers


@dataclass(frozen=True)
class Code:
    """Lines of code or of a file."""

    text: str
    language: str = ""
    title: str = ""  # folded in HTML if it has one


Block = Paragraph | Bullets | Table | Code


class Section(NamedTuple):
    """A part of the card."""

    key: str
    heading: str
    blocks: Sequence[Block]


def markdown(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown; no character of a text is taken for markup."""
    return "\n\n".join(_markdown(block) for block in blocks)


def escaped(text: str) -> str:
    r"""A text as Markdown on one line; what does no harm stays readable.

    >>> print(escaped("a|b <i> *c* d_e [1, 2] [x](y)"))
    a\|b &lt;i> \*c\* d_e [1, 2] [x\](y)
    """
    # entities are text in every reader of Markdown, and so are escaped marks
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return SPECIAL.sub(r"\\\1", line)


def paragraph(text: str) -> str:
    r"""A text as a paragraph, not a heading or a list.

    >>> print(paragraph("# 1"), paragraph("1. a"), paragraph("-5 points"))
    \# 1 1\. a -5 points
    """
    return re.sub(r"^(\d*)([#+.)-](?=\s|$)|>)", r"\1\\\2", escaped(text))


def _markdown(block: Block) -> str:
    if isinstance(block, Paragraph):
        return paragraph(block.text)
    if isinstance(block, Bullets):
        return "\n".join(f"* {paragraph(item)}" for item in block.items)
    if isinstance(block, Code):
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall(r"`+", block.text))])
        title = f"{escaped(block.title)}:\n\n" if block.title else ""
        return f"{title}{fence}{block.language}\n{block.text.rstrip()}\n{fence}"
    lines = [
        "| " + " | ".join(escaped(cell) for cell in row) + " |"
        for row in (block.headings, *block.rows)
    ]
    aligned = "|---" if block.words else "|---:"
    lines.insert(1, "|---" + aligned * (len(block.headings) - 1) + "|")
    return paragraph(block.caption) + "\n\n" + "\n".join(lines)


def html(blocks: Sequence[Block]) -> str:
    """Blocks as HTML; all text is escaped."""
    return "".join(_html(block) for block in blocks)


def _html(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{unbroken(block.text)}</p>"
    if isinstance(block, Bullets):
        items = "".join(f"<li>{unbroken(item)}</li>" for item in block.items)
        return f'<ul class="sentences">{items}</ul>'
    if isinstance(block, Code):
        code = f"<pre><code>{markup.text(block.text.rstrip())}</code></pre>"
        if not block.title:
            return code
        return f"<details><summary>{markup.text(block.title)}</summary>{code}</details>"
    made = markup.table(block.headings, block.rows, markup.text(block.caption))
    return f'<div class="words-table">{made}</div>' if block.words else made


def unbroken(text: str) -> str:
    """HTML that keeps numbers on one line with their unit and interval."""
    spaces = r"(?<=\d) (?=%|\[)|(?<=%) (?=\[)|(?<=\d,) (?=-?\d+\.\d+\])"
    return re.sub(spaces, "&nbsp;", markup.text(text))
