"""Tables and sentences as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rich.table import Table
from rich.text import Text

from evenhand.studies.analysis.answer import Answer
from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.analysis.ledger import Entry
from evenhand.studies.runs.study import Study
from evenhand.studies.tables import methods as tables

MOST_ROWS = 40  # a table of more is no longer read
# readable on a light and on a dark background
STYLES = {
    "bold": "font-weight:bold",
    "dim": "opacity:0.7",
    "bold green": "font-weight:bold;color:#2e8b57",
    "bold red": "font-weight:bold;color:#d9534f",
}


def findings_html(
    study: Study,
    comparison: Comparison,
    entries: Sequence[Entry],
    least: int,
    answer: Answer,
    sentences: Sequence[str],
    more: Sequence[Table] = (),
) -> str:
    """The answer, how methods compare, who gains and who loses; other sentences are folded away."""
    lines = [f"<p><b>{escape(sentence)}</b></p>" for sentence in answer.sentences]
    if answer.command:
        lines.append(f"<p>Next: <code>{escape(answer.command)}</code></p>")
    lines.append(table_html(tables.comparison_table(study, comparison)))
    legend = tables.legend(study, comparison)
    lines += [f"<p><small>{escape(line)}</small></p>" for line in legend]
    lines += [table_html(table) for table in more]
    for by in study.kinds:
        if 0 < len(study.names(by)) <= MOST_ROWS:
            table = tables.ledger_table(study, entries, by, least)
            lines.append(table_html(table))
    details = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return "\n".join([*lines, f"<details><summary>Details</summary>{details}</details>"])


def table_html(table: Table) -> str:
    """A table with its title; columns are aligned as in a terminal."""
    aligned = [f' style="text-align:{column.justify}"' for column in table.columns]
    headings = [_cell(column.header) for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = [_row("td", aligned, [_cell(cell) for cell in row]) for row in rows]
    title = f"<caption>{_cell(table.title)}</caption>" if table.title else ""
    head = f"<thead>{_row('th', aligned, headings)}</thead>"
    return f"<table>{title}{head}<tbody>{''.join(body)}</tbody></table>"


def _row(tag: str, aligned: Sequence[str], cells: Sequence[str]) -> str:
    pairs = zip(aligned, cells, strict=True)
    return f"<tr>{''.join(f'<{tag}{style}>{cell}</{tag}>' for style, cell in pairs)}</tr>"


def _cell(content: object) -> str:
    """A cell with rich's markup."""
    text = content if isinstance(content, Text) else Text.from_markup(str(content))
    marks = {span.start: (span.end, STYLES.get(str(span.style))) for span in text.spans}
    parts, at = [], 0
    for start, (end, style) in sorted(marks.items()):
        inside = escape(text.plain[start:end])
        parts.append(escape(text.plain[at:start]))
        parts.append(f'<span style="{style}">{inside}</span>' if style else inside)
        at = end
    return "".join([*parts, escape(text.plain[at:])]).strip().replace("\n", "<br>")
