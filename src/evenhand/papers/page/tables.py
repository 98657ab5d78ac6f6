"""Tables of a part: published numbers beside ours, settings that were chosen, where it was run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evenhand.page.markup import Cell, table, text
from evenhand.papers.choosing import DEFAULT, RULES
from evenhand.papers.experiment import Row
from evenhand.papers.numbers import heading, unit_of
from evenhand.papers.page.answer import NONE, mark
from evenhand.papers.page.drawing import ours, rows_of, theirs
from evenhand.papers.page.entry import DIVERGED, Entry
from evenhand.papers.results import Result
from evenhand.papers.verdicts import Line

MINUS = "\u2212"
DIGITS = {"%": 2, "%²": 0, "Brier": 3, "count": 0}


def compared(entry: Entry) -> str:
    """A row for each published row, a column for each metric: published, ours, verdict."""
    if entry.result is None:
        return ""
    metrics = list(dict.fromkeys(line.published.metric for line in entry.lines))
    by_row: dict[str, dict[str, Line]] = {}
    for line in entry.lines:
        by_row.setdefault(line.published.row, {})[line.published.metric] = line
    many = len(entry.result.seeds) > 1
    captions = "<br>".join(
        ["published", "ours", *(["interval"] if many else []), "difference", "verdict"]
    )
    rows = [
        [
            Cell(
                f'<span class="named"><span>{text(row)}</span><span class="lines"'
                f' aria-hidden="true">{captions}</span></span>',
                row,
            ),
            *(_cell(entry, found[metric]) if metric in found else Cell(NONE) for metric in metrics),
        ]
        for row, found in by_row.items()
    ]
    caption = (
        f"{text(entry.heading)}. Means, with standard deviations over"
        f" {'runs; the 95 % interval of our mean over seeds' if many else 'runs; ours is one seed'}"
        "; ours minus published; and the verdict."
    )
    made = table([_unit(metrics), *map(heading, metrics)], rows, caption)
    notes = dict.fromkeys(
        (line.published.note, line.published.row) for line in entry.lines if line.published.note
    )
    return f'<div class="compared">{made}</div>{_notes(list(notes))}'


def _unit(metrics: Sequence[str]) -> str:
    units = {unit_of(metric) for metric in metrics}
    return f"row, in {'Brier score' if units == {'Brier'} else ' and '.join(sorted(units))}"


def _notes(notes: Sequence[tuple[str, str]]) -> str:
    rows: dict[str, list[str]] = {}
    for note, row in notes:
        rows.setdefault(note, []).append(row)
    items = "".join(
        f"<li>{text(', '.join(found))}: {text(note)}.</li>" for note, found in rows.items()
    )
    return f'<p class="notes">Notes on the published numbers:</p><ul>{items}</ul>' if items else ""


def _cell(entry: Entry, line: Line) -> Cell:
    number = line.published
    first = _line("published", "theirs", text(number.text))
    if not line.verdict:
        lost = entry.result is not None and number.row in entry.result.diverged
        return Cell(first + _line("ours", "own", DIVERGED if lost else "not run"), math.nan)
    digits = number.digits
    one = math.isnan(line.low)
    own = f"{line.mean:.{digits}f}" + ("" if one else f" ± {line.std:.{digits}f}")
    interval = f"[{line.low:.{digits}f}, {line.high:.{digits}f}]"
    return Cell(
        first
        + _line("ours", "own", own)
        + ("" if one else _line("", "interval", interval))
        + _line("difference", "gap", signed(line.difference, digits))
        + _line("", "told", mark(line.verdict)),
        line.mean,
    )


def _line(word: str, kind: str, content: str) -> str:
    said = f'<span class="word">{word} </span>' if word else ""
    return f'<span class="line {kind}">{said}{content}</span>'


def signed(value: float, digits: int) -> str:
    """A difference with its sign.

    >>> signed(-0.04, 1), signed(-1.25, 2), signed(3, 0)
    ('0.0', '−1.25', '+3')
    """
    size = f"{abs(value):.{digits}f}"
    if not float(size):
        return size
    return f"{MINUS if value < 0 else '+'}{size}"


def drawn_numbers(found: Sequence[Entry], metrics: Sequence[str]) -> str:
    """The numbers of a redrawn figure."""
    rows: list[list[Cell | str]] = []
    for entry in found:
        known = theirs(entry)
        for row in rows_of([entry]):
            cells = []
            for metric in metrics:
                own, paper = ours(entry, row, metric), known.get((row, metric))
                digits = DIGITS[unit_of(metric)]
                words = f"{own.mean:.{digits}f} ± {own.std:.{digits}f}" if own else NONE
                small = f"<small>published {text(paper.text)}</small>" if paper else ""
                cells.append(Cell(words + small))
            name = f"{entry.part.name}: {row}" if entry.part.name else row
            rows.append([name, *cells])
    made = table(["row", *map(heading, metrics)], rows, "Ours, mean ± std over seeds.")
    return (
        '<details><summary>Data of this figure</summary><div class="numbers">'
        f"{made}</div></details>"
    )


def chosen(entry: Entry) -> str:
    """Settings chosen on validation data, with what was tried, and which are at an edge."""
    result = entry.result
    if result is None or not result.chosen:
        return ""
    known = {row.label: row for row in entry.part.rows}
    rows: list[list[Cell | str]] = []
    for label, settings in result.chosen.items():
        row, edges = known.get(label), result.edges.get(label, ())
        words = "<br>".join(
            f"{text(key)} = {text(value)}{_edge(key in edges)}" for key, value in settings.items()
        )
        tried = "<br>".join(_tried(row, key) for key in settings)
        rule = RULES.get(row.rule or DEFAULT, "") if row else ""
        rows.append([label, Cell(words), Cell(tried), rule])
    edged = sum(len(edges) for edges in result.edges.values())
    caption = "Settings that the paper does not state, chosen on validation data."
    if edged:
        caption += f" {edged} {'is' if edged == 1 else 'are'} at the edge of what was tried."
    made = table(["row", "chosen", "tried", "by"], rows, caption)
    return (
        "<details><summary>Settings chosen on validation data"
        f"{f', {edged} at an edge' * bool(edged)}"
        f'</summary><div class="words-table">{made}</div></details>'
    )


def _edge(at: bool) -> str:
    return ' <span class="tag">edge</span>' if at else ""


def _tried(row: Row | None, key: str) -> str:
    values = row.grid.get(key, []) if row else []
    return text(", ".join(map(str, values)) or NONE)


def source(result: Result) -> str:
    """Where, when and how the runs were made."""
    about = result.about
    versions = about.get("versions", {})
    told = {
        "date": about.get("date"),
        "command": about.get("command"),
        "time": duration(result.seconds) if result.seconds else "not known: it was interrupted",
        "machine": ", ".join(
            str(about[key]) for key in ("processor", "system", "device") if about.get(key)
        ),
        "engine": about.get("engine"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items())
        if isinstance(versions, Mapping)
        else versions,
        "fingerprint of settings": result.identity,
    }
    rows = [[name, str(value)] for name, value in told.items() if value]
    made = table(["what", "value"], rows, "How the runs were made.")
    return (
        '<details><summary>Machine, date and command</summary><div class="words-table">'
        f"{made}</div></details>"
    )


def duration(seconds: float) -> str:
    """
    >>> duration(4.25), duration(75), duration(7260)
    ('4 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
