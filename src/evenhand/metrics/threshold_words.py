"""Thresholds in words and as a table of text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenhand.metrics.threshold_effect import Row
    from evenhand.metrics.thresholds import Steps, Thresholds

RATES = {
    "selected": "selection rate",
    "TPR": "true-positive rate",
    "FPR": "false-positive rate",
    "accuracy": "accuracy",
}
LAWFUL = (
    "Thresholds by group need each person's group when the model is used, and they are not lawful"
    " everywhere: US employment and credit law, for example, restrict them. Ask a lawyer first, or"
    " use a common threshold (--common, common=True), which does not look at the group."
)


def sentences(found: Thresholds) -> Iterator[str]:
    """What thresholds change on test data: the gap, and what it costs."""
    rows = {(row["by"], row["measure"]): row for row in found.effect_rows}
    change, gap = rows["everyone", "accuracy"], rows["gap", found.notion]
    where = f"on {found.judged_on} data"
    kind = "A common threshold" if found.common else f"Thresholds by {found.by}"
    kind = "Common thresholds by client" if found.common and found.by == "client" else kind
    verb = _verb(gap["before"], gap["after"]) + "s" * (found.common and found.by == "group")
    if math.isnan(gap["after"]):
        yield f"{kind}: the gap in {found.notion} cannot be measured {where}."
    else:
        yield (
            f"{kind} {verb} the gap in {found.notion} {where} from {_points(gap, 'before')} to"
            f" {_points(gap, 'after')} points."
        )
    value = 100 * change["change"]
    moved = f"{_signed(value)} points"
    ends = f"[{_signed(100 * change['change_low'])}, {_signed(100 * change['change_high'])}]"
    yield (
        f"Accuracy changes by {moved} {ends}, from {_percent(change['before'])} to"
        f" {_percent(change['after'])}."
        if change["change"]
        else f"Accuracy stays at {_percent(change['after'])}."
    )
    if found.by == "client":
        local = [row for row in found.effect_rows if row["by"] == "client"]
        pairs = [(row["before"], row["after"]) for row in local if row["after"] == row["after"]]
        if pairs:
            before, after = (sum(one) / len(pairs) for one in zip(*pairs, strict=True))
            yield (
                f"The mean gap inside a client changes from {100 * before:.1f} to"
                f" {100 * after:.1f} points ({len(pairs)} clients)."
            )


def table_lines(found: Thresholds) -> Iterator[str]:
    """A row per group: thresholds, and each rate before and after."""
    rows = {(row["name"], row["measure"]): row for row in found.effect_rows if row["by"] == "group"}
    header = ["group", "threshold", *RATES]
    body = [
        [
            group,
            shown(steps),
            *(_arrow(rows[group, measure]) for measure in RATES.values()),
        ]
        for group, steps in zip(found.groups, found.rules, strict=True)
    ]
    widths = [max(len(row[place]) for row in (header, *body)) for place in range(len(header))]
    for row in (header, *body):
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    own = f"; {len(found.own)} clients have thresholds of their own" if found.own else ""
    where = f'on {found.judged_on} data; positive label "{found.positive}"'
    yield f"(% at threshold 0.5 → now, {where}{own})"


def shown(steps: Steps) -> str:
    """A rule in a few characters: 0.43, or 0.43 (70 %) / 0.45 (30 %)."""
    if len(steps) == 1:
        return str(thresholds_of(steps[0][1]))
    return " / ".join(f"{thresholds_of(at)} ({_share(chance)})" for chance, at in steps)


def thresholds_of(threshold: float, digits: int | None = 6) -> Any:
    """A threshold by name or number; with ``digits``, as text."""
    if threshold == 0:
        return "everybody"
    if math.isinf(threshold):
        return "nobody"
    return threshold if digits is None else f"{threshold:.{digits}g}"


def _verb(before: float, after: float) -> str:
    return "reduce" if after < before else "increase" if after > before else "keep"


def _points(row: Row, when: str) -> str:
    ends = f"{100 * row[f'{when}_low']:.1f}, {100 * row[f'{when}_high']:.1f}"
    return f"{100 * row[when]:.1f} [{ends}]"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if 0.005 <= value <= 0.995 else f"{100 * value:.2g} %"


def _signed(value: float) -> str:
    text = f"{value:+.1f}"
    return text[1:] if text in ("+0.0", "-0.0") else text


def _arrow(row: Row) -> str:
    if math.isnan(row["after"]):
        return "none"
    return f"{100 * row['before']:.1f} → {100 * row['after']:.1f}"
