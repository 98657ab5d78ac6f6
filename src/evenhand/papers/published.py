"""The numbers that the papers print, as published.csv in this package has them."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from evenhand.papers.experiment import FOLDER, Part


@dataclass(frozen=True)
class Published:
    """One number of a table."""

    row: str
    metric: str  # see evenhand.papers.numbers
    mean: float
    std: float | None  # over runs
    runs: int | None
    unit: str
    digits: int  # after the decimal point, as printed
    note: str

    @property
    def text(self) -> str:
        """As printed."""
        spread = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


def published(part: Part) -> tuple[Published, ...]:
    """The numbers of a part, row by row in the order of the table; () for a figure whose values are
    not printed."""
    return _by_part().get(part.title, ()) or _by_part().get(part.home, ())


@cache
def _by_part() -> dict[str, tuple[Published, ...]]:
    text = (resources.files(FOLDER) / "published.csv").read_text(encoding="utf-8")
    found: dict[str, list[Published]] = {}
    for entry in csv.DictReader(text.splitlines()):
        title = ":".join(filter(None, [entry["experiment"], entry["part"]]))
        texts = [entry["mean"], entry["std"] or "0"]
        number = Published(
            entry["row"],
            entry["metric"],
            float(entry["mean"]),
            float(entry["std"]) if entry["std"] else None,
            int(entry["runs"]) if entry["runs"] else None,
            entry["unit"],
            max(map(_decimals, texts)) if entry["unit"] != "%²" else 0,
            entry["note"],
        )
        found.setdefault(title, []).append(number)
    return {title: tuple(_by_row(numbers)) for title, numbers in found.items()}


def _by_row(numbers: list[Published]) -> list[Published]:
    rows = list(dict.fromkeys(number.row for number in numbers))
    return sorted(numbers, key=lambda number: rows.index(number.row))


def _decimals(text: str) -> int:
    """Digits after the decimal point.

    >>> _decimals("0.485"), _decimals("18.0"), _decimals("3")
    (3, 1, 0)
    """
    assert math.isfinite(float(text))
    return len(text.partition(".")[2])
