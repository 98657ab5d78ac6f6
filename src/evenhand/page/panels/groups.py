"""Figures of results by group or team."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures
from evenhand.page.markup import Cell, table, text
from evenhand.page.numbers import merit_words, points
from evenhand.page.panels.panel import MOST_ROWS, Panel, Variant, listed
from evenhand.page.rates import Rates, Served, extremes, rates
from evenhand.studies.findings import Findings, left_out

# the rate behind each kind of gap, and what it is a share of
GAPS = {
    "accuracy parity": ("accuracy", "correct predictions"),
    "equal opportunity": (
        "true-positive rate",
        "share of samples with the label that are predicted to have it",
    ),
    "false-positive parity": (
        "false-positive rate",
        "share of samples without the label that are predicted to have it",
    ),
    "equalised odds": ("odds", "the larger of these two gaps"),
    "demographic parity": ("selection rate", "share of samples predicted to have the label"),
    "predictive parity": ("precision", "share of predictions of the label that are correct"),
    "calibration": ("calibration", "distance between predicted probabilities and frequencies"),
}
ABOUT = dict(GAPS.values())
OF_ALL_LABELS = ("accuracy", "accuracy parity", "calibration")


def groups(findings: Findings, by: str) -> Iterator[Panel]:
    """Rates of groups or teams, and the gaps between them."""
    found = rates(findings, by)
    yield _members(findings, by, found)
    if any(view.gaps for view in findings.groups.get(by, {}).values()):
        yield _gaps(findings, by, found)


def _members(findings: Findings, by: str, found: Rates) -> Panel:
    study = findings.study
    order = [name for name, _ in sorted(_sizes(findings, by).items(), key=lambda item: -item[1])]
    variants = []
    for rate in next(iter(found.values())):
        kept = {label: {name: row[rate][name] for name in order} for label, row in found.items()}
        # the denominator of precision depends on the method; other rates have the same samples
        sizes = {
            name: "" if rate == "precision" else f" (n = {one.of:,.0f})"
            for name, one in next(iter(kept.values())).items()
        }
        percent = " %" if rate in ABOUT else study.measure.percent
        drawn = {
            label: {
                name + sizes[name]: (
                    one.interval,
                    f"{name}: {_number(study.measure.digits, one, percent)}",
                )
                for name, one in list(row.items())[:MOST_ROWS]
            }
            for label, row in kept.items()
        }
        label_words = f"; label {findings.positive}"
        about = label_words if rate in ABOUT and rate not in OF_ALL_LABELS else ""
        unit = ", %" if rate in ABOUT else study.measure.unit
        title = f"{rate}{about}{unit}"
        ends = {label: _ends(row) for label, row in kept.items()}
        finding = f"{rate.capitalize()}. " + listed(
            [f"{label}: {words}" for label, words in ends.items() if words]
        )
        rows = [
            [
                name,
                *(_cell(study.measure.digits, row[name], percent) for row in kept.values()),
            ]
            for name in order[:MOST_ROWS]
        ]
        what = f" ({ABOUT[rate]})" if rate in ABOUT else ""
        caption = f"{rate.capitalize()}{what} of each {by}{text(about)}, with counts"
        variants.append(
            Variant(
                rate,
                figures.members(study, drawn, by, title),
                finding,
                table([by, *study.labels], rows, text(caption)),
            )
        )
    intervals = (
        f" Bars are {100 * findings.comparison.level:g} % intervals over test samples of the {by}."
        if any(rate in ABOUT for rate in next(iter(found.values())))
        else ""
    )
    seeds = " Means over seeds." if len(study.seeds) > 1 else ""
    shown = f"{merit_words(study)} and other rates" if len(variants) > 1 else merit_words(study)
    many = f" The {MOST_ROWS} largest of {len(order)} are shown." if len(order) > MOST_ROWS else ""
    caption = f"{shown} of each {by}, largest {by} first.{intervals}{seeds}{many}"
    return Panel(f"members-{by}", caption, tuple(variants), "Rate" if len(variants) > 1 else "")


def _gaps(findings: Findings, by: str, found: Rates) -> Panel:
    study = findings.study
    gaps = {
        label: {kind: gap.interval for kind, gap in view.gaps.items()}
        | {
            kind: interval
            for kind, interval in findings.gaps.get(by, {}).get(label, {}).items()
            if kind == "calibration"
        }
        for label, view in findings.groups[by].items()
    }
    kinds = [
        kind
        for kind in GAPS
        if any(kind in row for row in gaps.values())
        and (findings.positive is not None or kind in OF_ALL_LABELS)
    ]
    drawn = {
        label: {
            GAPS[kind][0]: (
                Interval(*(100 * np.array(row[kind])).tolist()),
                _gap_words(findings, found, by, label, kind, row[kind]),
            )
            for kind in kinds
            if kind in row and not np.isnan(row[kind].value)
        }
        for label, row in gaps.items()
    }
    rows = [
        [
            label,
            *(
                gap_cell(row[kind], extremes(findings, found, by, label, kind))
                if kind in row
                else "-"
                for kind in kinds
            ),
        ]
        for label, row in gaps.items()
    ]
    named = [
        f"{label}: {_gap_words(findings, found, by, label, kinds[0], row[kinds[0]])}"
        for label, row in gaps.items()
        if kinds[0] in row
    ]
    about = (
        f"The label is “{text(findings.positive)}”."
        if findings.positive is not None
        else "With more than two labels, pass --positive LABEL for rates of one label."
    )
    few = "".join(f" {text(line)}" for line in left_out(findings, by))
    meaning = "; ".join(f"{GAPS[kind][0]}: {GAPS[kind][1]}" for kind in kinds)
    caption = (
        f"Difference between the largest and the smallest rate over the {by}s, with"
        f" {100 * findings.comparison.level:g} % intervals over test samples and the two {by}s"
        f" behind each gap.{few} {text(meaning.capitalize())}. {about}"
    )
    numbers = table(
        ["method", *(GAPS[kind][0] for kind in kinds)],
        rows,
        f"Gaps between {by}s, points, with intervals",
        list(gaps),
    )
    finding = f"Gap in {GAPS[kinds[0]][0]}. {listed(named)}"
    return Panel(
        f"gaps-{by}",
        caption,
        (Variant("", figures.gaps(study, drawn, by), finding, numbers),),
        open=True,
    )


def _gap_words(
    findings: Findings, found: Rates, by: str, label: str, kind: str, interval: Interval
) -> str:
    pair = extremes(findings, found, by, label, kind)
    return f"{points(interval)} points{f' ({pair})' if pair else ''}"


def gap_cell(interval: Interval, pair: str) -> Cell:
    """A gap in points with its interval, and the two groups behind it."""
    value, *ends = points(interval).split(" ", 1)
    shown = "".join(f"<small>{part}</small>" for part in ends)
    return Cell(f'{value}{shown}<small class="names">{text(pair)}</small>', interval.value)


def _sizes(findings: Findings, by: str) -> dict[str, int]:
    study = findings.study
    return dict(zip(study.names(by), study.sizes(by).tolist(), strict=True))


def _number(digits: int, one: Served, percent: str) -> str:
    value, low, high = one.interval
    if np.isnan(value):
        return f"no samples ({one.counts})"
    ends = "" if np.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{percent}{ends}, {one.counts}"


def _cell(digits: int, one: Served, percent: str) -> Cell | str:
    value, low, high = one.interval
    if np.isnan(value):
        return "-"
    ends = "" if np.isnan(low) else f"<small>[{low:.{digits}f}, {high:.{digits}f}]</small>"
    return Cell(f"{value:.{digits}f}{ends}<small>{text(one.counts)}</small>", value)


def _ends(row: dict[str, Served]) -> str:
    there = {
        name: one.interval.value for name, one in row.items() if not np.isnan(one.interval.value)
    }
    if not there:
        return ""
    low, high = min(there, key=lambda name: there[name]), max(there, key=lambda name: there[name])
    return f"lowest {low} {there[low]:.1f}, highest {high} {there[high]:.1f}"
