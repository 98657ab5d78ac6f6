"""Cells that cannot be read, in all columns, reported in one error."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from evenhand.errors import DataError

MOST_COLUMNS, MOST_TEXTS, MOST_ROWS, MOST_LETTERS = 8, 3, 3, 40  # shown in a message

Item = TypeVar("Item")
Result = TypeVar("Result")


class Bad(NamedTuple):
    """The cells of one column that cannot be read."""

    column: str
    what: str  # what they should be: "number", "finite number", "date (year-month-day)"
    texts: tuple[str, ...]  # the distinct texts, in the order of the table
    rows: tuple[tuple[int, ...], ...]  # rows of the first MOST_TEXTS, counted from 1

    def __str__(self) -> str:
        cells = [
            f"{_short(text)} in {_rows(rows)}"
            for text, rows in zip(self.texts, self.rows, strict=False)
        ]
        more = len(self.texts) - len(cells)
        shown = enumerated([*cells, *([f"{more} other text{'s' * (more != 1)}"] if more else [])])
        one = len(self.texts) == 1 and len(self.rows[0]) == 1
        noun, _, rest = self.what.partition(" (")
        what = f"a {noun}" if one else f"{noun}s"
        return (
            f"column {self.column!r}: {shown} {'is' if one else 'are'} not {what}"
            f"{f' ({rest}' if rest else ''}"
        )


class BadCells(DataError):
    """Some columns have cells that cannot be read."""

    def __init__(self, columns: Sequence[Bad]) -> None:
        self.columns = tuple(columns)
        listed = [str(bad) for bad in self.columns[:MOST_COLUMNS]]
        more = len(self.columns) - len(listed)
        if more:
            listed.append(f"{more} more column{'s' * (more != 1)} with such cells")
        one = len(self.columns) == 1 and sum(map(len, self.columns[0].rows)) == 1
        texts = [text for bad in self.columns if bad.what != "finite number" for text in bad.texts]
        named = f", {mark_missing(texts)}" if texts else ""
        ways = f"correct or empty {'it' if one else 'them'}{named}, or pass the column to --drop"
        super().__init__(f"{'; '.join(listed)}; {ways} or --categorical")


def mark_missing(texts: Iterable[str]) -> str:
    """Say how to mark the first few texts as missing values.

    >>> mark_missing(["<0.5", "n.d."])
    "pass --missing '<0.5' --missing n.d. if they mean missing"
    """
    shown = list(dict.fromkeys(texts))[:MOST_TEXTS]
    options = " ".join(f"--missing {shlex.quote(text)}" for text in shown)
    return f"pass {options} if {'it means' if len(shown) == 1 else 'they mean'} missing"


def for_each(items: Iterable[Item], read: Callable[[Item], Result]) -> list[Result]:
    """Return ``read`` of every item; raise the bad cells of all items as one error."""
    results: list[Result] = []
    bad: list[Bad] = []
    for item in items:
        try:
            results.append(read(item))
        except BadCells as error:
            bad += error.columns
    if bad:
        raise BadCells(bad)
    return results


def _short(text: str) -> str:
    return repr(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}...")


def _rows(rows: Sequence[int]) -> str:
    shown = [str(row) for row in rows[:MOST_ROWS]]
    more = len(rows) - len(shown)
    return (
        f"row{'s' * (len(rows) != 1)} {enumerated([*shown, *([f'{more} more'] if more else [])])}"
    )


def enumerated(words: Sequence[str]) -> str:
    """Join words with commas, and "and" before the last."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
