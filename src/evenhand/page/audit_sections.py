"""The sections of an audit's report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from evenhand.metrics.uncertainty import Interval
from evenhand.page.audit_figures import Mark, forest, span, told, top
from evenhand.page.markup import Cell, table, text
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.printing import left_out, notes
from evenhand.studies.audits.tables import SHORT, chance, number, outside, ratio, signed
from evenhand.studies.audits.words import enough, significant, smallest_found

MOST_CLIENTS = 60  # drawn; --out writes all
MOST_PAIRS = 12  # shown unfolded
ABOUT = {
    "accuracy": "share of predictions that are correct",
    "base rate": "share of samples with label {label}",
    "selection rate": "share of samples predicted as {label}",
    "true-positive rate": "share of samples with label {label} that are predicted as {label}; the"
    " others are false negatives",
    "false-positive rate": "share of samples with another label that are predicted as {label}",
    "precision": "share of samples predicted as {label} that have label {label}; the others are"
    " false discoveries",
    "false-omission rate": "share of samples not predicted as {label} that have label {label}",
}


def rates(audit: Audit) -> str:
    """Every rate of every group with its interval, drawn and in numbers."""
    rows = audit.rates()
    parts = []
    for rate in SHORT:
        groups = [row for row in rows if row["by"] == "group" and row["rate"] == rate]
        if not groups:
            continue
        everyone = float(audit.shares("everyone")[rate].value[0])
        ends = span([row[end] for row in groups for end in ("low", "high")])
        about = ABOUT[rate].format(label=audit.label)
        marks = [_mark(audit, row) for row in groups]
        parts.append(forest(rate.capitalize(), about, marks, ends, _percents(ends), everyone))
    hidden = audit.suppressed("group")
    names = text(", ".join(sorted(hidden)))
    note = f"<p>Suppressed, with fewer than {enough(audit)}: {names}.</p>"
    return (
        "<p>Dots are rates, with the interval of each group; the dotted line is the rate over all"
        f' samples.</p><div class="rates">{"".join(parts)}</div>{note if hidden else ""}'
    )


def _mark(audit: Audit, row: Row) -> Mark:
    found = Interval(row["value"], row["low"], row["high"])
    few = ' <span class="tag">few</span>' if row["few"] else ""
    written = told(f"{number(found.value)} %", number(found.low), number(found.high))
    counts = f'<small class="count">{_counts(audit, row)}{few}</small>'
    return Mark(row["name"], found, (written if row["of"] else "-") + counts, row["few"])


def _percents(ends: tuple[float, float]) -> tuple[str, str]:
    return f"{100 * ends[0]:g}", f"{100 * ends[1]:g} %"


def _counts(audit: Audit, row: Row) -> str:
    if audit.weighted:
        return f"of {row['effective']:,.0f} effective"
    return f"{row['hits']:,} of {row['of']:,}"


def gaps(audit: Audit) -> str:
    """Gaps with their two groups, ratios, and pairs."""
    if not audit.gaps:
        return f"<p>Fewer than two groups have {enough(audit)}.</p>"
    rows: list[list[Cell | str]] = []
    for gap in (*audit.gaps.values(), *([audit.base_rates] if audit.base_rates else [])):
        if math.isnan(gap.interval.value):
            rows.append([gap.kind, "-", "-", "-"])
            continue
        found = smallest_found(audit, gap.rate, gap.low, gap.high)
        names = f"<small>{text(gap.low)} lowest, {text(gap.high)} highest</small>"
        rows.append(
            [
                Cell(f"{gap.kind} {names}"),
                Cell(told(*map(number, gap.interval))),
                chance(gap.p),
                number(found),
            ]
        )
    headings = ["parity", "gap, points", "p", "detectable"]
    caption = (
        "Largest gap between two groups. Detectable: the gap that would be detected with 80 % power"
    )
    left = "".join(f"<p>{text(note)}</p>" for note in left_out(audit))
    compared = f'<div class="compared">{table(headings, rows, caption)}</div>'
    return compared + left + _ratios(audit) + _pairs(audit)


def _ratios(audit: Audit) -> str:
    if not audit.ratios:
        return ""
    rows = [row for row in audit.ratios if not math.isnan(row["ratio"])]
    end = top([1.0, *(min(row["high"], 2.0) for row in rows)])
    marks = [
        Mark(
            row["group"],
            Interval(row["ratio"], row["low"], row["high"]),
            told(*(ratio(row[end]) for end in ("ratio", "low", "high")))
            + f'<small class="count">{text(row["verdict"])}</small>',
        )
        for row in rows
    ]
    why = "the reference" if audit.compared_with else "the group with the highest rate"
    title = f"Four-fifths rule: ratio to {audit.ratios[0]['against']}, {why}"
    about = f"ratio of selection rates of {audit.label}; the line is at 0.8"
    drawn = forest(title, about, marks, (0.0, end), ("0", f"{end:g}"), bound=0.8)
    return f'<div class="rates">{drawn}</div>'


def _pairs(audit: Audit) -> str:
    sure = significant(audit)
    known = {id(row) for row in sure}
    others = [row for row in audit.pairs if id(row) not in known]
    test = "the score test" if audit.weighted else "Fisher's exact test"
    caption = (
        "Differences between two groups, points. Intervals hold for all pairs of a rate at once;"
        f" p is from {test}, with Holm's correction over the pairs of the rate"
    )
    found = "<p>No two groups differ significantly in any rate.</p>"
    if sure:
        found = _pair_table(sure[:MOST_PAIRS], caption)
    for rows, what in (
        (sure[MOST_PAIRS:], "Smaller significant differences"),
        (others, "Pairs that do not differ significantly"),
    ):
        if rows:
            found += (
                f"<details><summary>{what} ({len(rows)})</summary>"
                f"{_pair_table(rows, caption)}</details>"
            )
    return found


def _pair_table(rows: Sequence[Row], caption: str) -> str:
    cells: list[list[Cell | str]] = [
        [
            Cell(
                f"{text(row['group'])} <small>compared with {text(row['against'])},"
                f" {row['rate']}</small>"
            ),
            Cell(told(*(signed(row[end]) for end in ("difference", "low", "high")))),
            Cell(told(*(ratio(row[end]) for end in ("ratio", "ratio_low", "ratio_high")))),
            chance(row["p_holm"]),
        ]
        for row in rows
    ]
    headings = ["groups", "difference", "ratio", "p (Holm)"]
    return f'<div class="compared">{table(headings, cells, caption)}</div>'


def clients(audit: Audit) -> str:
    """Accuracy of each client, lowest first, and metrics across clients."""
    if len(audit.counts.clients) < 2:
        return ""
    rows = [row for row in audit.rates() if row["by"] == "client" and row["rate"] == "accuracy"]
    rows.sort(key=lambda row: (math.isnan(row["value"]), row["value"]))
    everyone = float(audit.shares("everyone")["accuracy"].value[0])
    marks = [_mark(audit, row) for row in rows[:MOST_CLIENTS]]
    more = len(rows) - len(marks)
    cut = f"; --out writes {more} more with higher accuracy" if more > 0 else ""
    half = (len(marks) + 1) // 2 if len(marks) > 8 else len(marks)
    ends = span([row[end] for row in rows for end in ("low", "high")])
    drawn = "".join(
        forest(title, about, part, ends, _percents(ends), everyone)
        for title, about, part in (
            ("Accuracy of clients", f"lowest first{cut}", marks[:half]),
            ("Accuracy of clients, continued", "up to the highest", marks[half:]),
        )
        if part
    )
    across = audit.across_clients()
    cells = [
        [
            words,
            number(across[name].value),
            f"{number(across[name].low)} to {number(across[name].high)}"
            + ("*" if outside(across[name]) else ""),
        ]
        for name, words in (
            ("mean", "mean over clients"),
            ("worst10", "worst 10 % of clients"),
            ("min", "worst client"),
            ("std", "standard deviation"),
        )
    ]
    caption = (
        "Accuracy across clients, %. * Clients with few samples look more different than they are;"
        " the interval corrects for that"
    )
    return (
        table(["metric", "observed", "interval"], cells, caption)
        + f'<div class="rates">{drawn}</div>'
    )


def everyone(audit: Audit) -> str:
    """Every rate over all samples."""
    cells = []
    for row in audit.rates():
        if row["by"] == "everyone":
            ends = f"{number(row['low'])} to {number(row['high'])}"
            cells.append([row["rate"], number(row["value"]), ends, _counts(audit, row)])
    about = f", rates of label {text(audit.label)}" if audit.code is not None else ""
    return table(["rate", "%", "interval", "counts"], cells, f"All samples{about}")


def source(audit: Audit) -> str:
    """Notes, and what you need to repeat the audit."""
    found = audit.provenance()
    flat = {
        key: value if isinstance(value, str | int | float) else json.dumps(value)
        for key, value in found.items()
    }
    rows = [[key.replace("_", " "), str(value)] for key, value in flat.items()]
    said = "".join(f"<p>{text(note)}</p>" for note in notes(audit))
    made = table(["what", "value"], rows, "Source, options and version", identity="provenance")
    return f'{said}<div class="source">{made}</div>'
