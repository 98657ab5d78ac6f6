"""What is printed about thresholds: parts of sentences and tables, and what to beware of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from evenhand.metrics.threshold_effect import Row

Steps = tuple[tuple[float, float], ...]  # (probability, threshold)

WIDTH = 100  # columns of printed sentences
NEARLY = 0.01  # a smaller share is nearly nobody
TINY = 1e-9  # shares closer than this are equal
LAWFUL = (
    "Thresholds by group need each person's group whenever the model is used, and they are not"
    " allowed everywhere: in the United States, for example, the law on employment tests forbids"
    " different cutoffs by race or sex. Ask a lawyer first. One common threshold (--common,"
    " common=True) does not look at the group."
)


def cautions(rows: Sequence[Row], judged_on: str) -> Iterator[str]:
    """That decisions are of little use: less accurate than a constant, or alike for everybody."""
    chosen, there = (
        [row for row in rows if row["by"] == "unit" and row["measure"] == measure]
        for measure in ("selection rate", "true-positive rate")
    )
    whole = sum(row["samples"] for row in chosen)
    if not whole:
        return
    accuracy = next(row["after"] for row in rows if row["by"] == "everyone")
    positives = sum(row["samples"] for row in there) / whole
    constant = max(positives, 1 - positives)
    if accuracy < constant - TINY:
        yield (
            "These decisions are less accurate than the same answer for everyone, which is right"
            f" for {100 * constant:.1f} % of the {judged_on} samples."
        )
    accepted = sum(row["samples"] * row["after"] for row in chosen if row["samples"]) / whole
    for share, who in ((accepted, "nobody"), (1 - accepted, "everybody")):
        if share < NEARLY:
            nearly = "" if share < TINY else "nearly "
            yield (
                f"With these thresholds {nearly}{who} gets a yes: {100 * accepted:.4g} % of the"
                f" {judged_on} samples."
            )


def shown(steps: Steps) -> str:
    """A rule in a few characters.

    >>> shown(((1.0, 0.43),)), shown(((0.7, 0.43), (0.3, math.inf)))
    ('0.43', '0.43 (70 %), nobody (30 %)')
    """
    names = {0.0: "everybody", math.inf: "nobody"}
    parts = [(names.get(at) or f"{at:g}", f"{100 * chance:.3g} %") for chance, at in steps]
    return parts[0][0] if len(parts) == 1 else ", ".join(f"{at} ({p})" for at, p in parts)


def change_of(row: Row) -> str:
    """The change of a row and its interval, in percentage points: -0.9 [-1.3, -0.4]."""
    change, low, high = (
        f"{100 * row[name]:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0")
        for name in ("change", "change_low", "change_high")
    )
    return f"{change} [{low}, {high}]"


def points(row: Row, when: str) -> str:
    """A value and its interval, in percentage points: 16.1 [9.6, 22.6]."""
    ends = f"{100 * row[f'{when}_low']:.1f}, {100 * row[f'{when}_high']:.1f}"
    return f"{100 * row[when]:.1f} [{ends}]"


def arrow(row: Row) -> str:
    """A rate before and after, in percent."""
    if math.isnan(row["after"]):
        return "no samples"
    return f"{100 * row['before']:.1f} → {100 * row['after']:.1f}"
