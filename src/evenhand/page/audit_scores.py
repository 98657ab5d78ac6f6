"""The section of an audit's report on scores: AUC, calibration and thresholds."""

from __future__ import annotations

import math

from evenhand.data.plots import looks
from evenhand.metrics.uncertainty import Interval
from evenhand.page.audit_figures import Line, Mark, chart, forest, legend, told, top
from evenhand.page.markup import table, text
from evenhand.studies.audits.audit import Audit
from evenhand.studies.audits.basis import Row
from evenhand.studies.audits.sweeping import steps
from evenhand.studies.audits.tables import number, ratio, signed

MOST_LINES = 8  # groups in a chart
SWEPT = ("true-positive rate", "false-positive rate", "selection rate")


def scores(audit: Audit) -> str:
    """AUC and calibration by group, and rates by threshold."""
    rows = [row for row in audit.scores if row["by"] != "client"]
    if not rows:
        return ""
    drawn = [
        forest(
            "AUC",
            f"probability that a sample with label {audit.label} scores higher than one without",
            [_auc_mark(row) for row in rows],
            (0.5, 1.0),
            ("0.5", "1"),
        )
    ]
    if "bias" in rows[0]:
        wide = top([max(abs(row["bias_low"]), abs(row["bias_high"])) for row in rows])
        drawn.append(
            forest(
                "Mean score minus share",
                f"above 0, scores overestimate label {audit.label}; error: distance between scores"
                " and frequencies in ten bins, corrected for chance",
                [
                    Mark(
                        row["name"],
                        Interval(row["bias"], row["bias_low"], row["bias_high"]),
                        told(*(signed(row[end]) for end in ("bias", "bias_low", "bias_high")))
                        + '<small class="count">error'
                        f" {number(row['calibration_error'])}</small>",
                    )
                    for row in rows
                ],
                (-wide, wide),
                (f"{-100 * wide:g}", f"{100 * wide:g} points"),
                0.0,
            )
        )
    return f'<div class="rates">{"".join(drawn)}</div>{_calibration(audit)}{_thresholds(audit)}'


def _auc_mark(row: Row) -> Mark:
    found = Interval(row["auc"], row["auc_low"], row["auc_high"])
    written = "-" if math.isnan(found.value) else told(*map(ratio, found))
    counts = f"{row['positives']:,} positive, {row['negatives']:,} negative"
    return Mark(row["name"], found, f'{written}<small class="count">{counts}</small>')


def _names(audit: Audit) -> list[str]:
    """The groups in charts: the largest ones, in their original order."""
    sizes = dict(zip(audit.counts.groups, audit.samples(), strict=True))
    shown = [name for name in audit.groups_named if name not in audit.suppressed("group")]
    largest = sorted(shown, key=lambda name: -sizes[name])[:MOST_LINES]
    return [name for name in shown if name in largest] or ["everyone"]


def _calibration(audit: Audit) -> str:
    names = _names(audit)
    if not audit.reliability:
        return ""
    drawn = looks(names)
    charts = []
    for name in names:
        rows = [row for row in audit.reliability if row["name"] == name]
        points = [(row["score"], row["share"]) for row in rows]
        band = [(row["score"], row["low"], row["high"]) for row in rows]
        finding = "; ".join(
            f"score {100 * row['score']:.0f} %, share {100 * row['share']:.0f} %" for row in rows
        )
        line = Line(name, points, band)
        ticks = ("0 %", "50 %", "100 %")
        charts.append(
            chart(name, [line], drawn, ticks, "mean score", f"{name}: {finding}", even=True)
        )
    return (
        f"<h3>Calibration</h3><p>Share with label {text(audit.label)} by mean score, in up to ten"
        " bins of equally many samples, with intervals. On the dashed line, scores match the"
        f' frequencies.</p><div class="charts">{"".join(charts)}</div>'
    )


def _thresholds(audit: Audit) -> str:
    names, found = _names(audit), steps(audit)
    if not found:
        return ""
    cuts = [step.threshold for step in found]
    first, last = cuts[0], cuts[-1]
    drawn, charts = looks(names), []
    for rate in SWEPT:
        lines = []
        for name in names:
            rows = [row for row in audit.sweep if row["name"] == name and row["rate"] == rate]
            points = [
                ((row["threshold"] - first) / ((last - first) or 1), row["value"])
                for row in rows
                if not math.isnan(row["value"])
            ]
            lines.append(Line(name, points))
        ticks = (f"{first:g}", f"{(first + last) / 2:g}", f"{last:g}")
        what = f"{rate.capitalize()} by threshold; the data are in the table below"
        charts.append(chart(rate.capitalize(), lines, drawn, ticks, "threshold", what))
    cells = [
        [
            f"{step.threshold:g}",
            number(step.accuracy),
            number(step.selected),
            ratio(step.ratio),
            *(
                "-" if gap is None else f"{number(gap.value)} ({gap.low}, {gap.high})"
                for gap in (step.tpr, step.fpr)
            ),
        ]
        for step in found
    ]
    headings = ["threshold", "accuracy", "selected", "ratio", "TPR gap", "FPR gap"]
    caption = (
        "Rates in %, gaps in points with the groups of the lowest and the highest rate; ratio:"
        " lowest over highest selection rate"
    )
    return (
        f"<h3>Thresholds</h3>{legend(drawn)}<div class='charts'>{''.join(charts)}</div><details>"
        f"<summary>Gaps by threshold</summary>{table(headings, cells, caption)}</details>"
    )
