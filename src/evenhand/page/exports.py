"""Tables for papers: CSV with mean and standard deviation over runs, and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.files import as_cell, write_atomic
from evenhand.page.comparison import FIRST, SHORT, TENTHS
from evenhand.page.numbers import digits, written
from evenhand.page.rates import rates
from evenhand.studies.analysis.other_metrics import metric_tables
from evenhand.studies.analysis.statistics import STATISTICS, across_clients
from evenhand.studies.findings import Findings

Row = dict[str, Any]
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def save_tables(studies: Sequence[Findings], directory: str | Path) -> list[Path]:
    """Write methods.csv, methods.tex and, with groups, groups.csv, with metrics, metrics.csv and
    metric_gains.csv; with several studies, each into its own directory."""
    paths = []
    for number, findings in enumerate(studies, start=1):
        place = Path(directory)
        if len(studies) > 1:
            place /= f"study-{number}-{findings.study.name}"
        found = {}
        if methods := method_rows(findings):  # none if all diverged
            found = {"methods.csv": _csv(methods), "methods.tex": latex(findings)}
        if groups := group_rows(findings):
            found["groups.csv"] = _csv(groups)
        for name, rows in metric_tables(findings.metrics).items():
            if rows:
                found[f"{name}.csv"] = _csv(rows)
        for name, content in found.items():
            write_atomic(place / name, content.encode())
            paths.append(place / name)
    return paths


def method_rows(findings: Findings) -> list[Row]:
    """A row for each method and statistic: mean and sample standard deviation over runs, and the
    interval."""
    study, rows = findings.study, []
    for label in study.labels:
        found = [across_clients(study, label, seed) for seed in study.seeds]
        for name in STATISTICS:
            values = np.array([written(study, name, float(one[name])) for one in found])
            if np.isnan(values).any():
                continue
            ends = sorted(
                written(study, name, end) for end in findings.comparison.rows[label][name][1:]
            )
            rows.append(
                {
                    "method": label,
                    "statistic": name,
                    "runs": len(values),
                    "mean": float(values.mean()),
                    "std": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
                    "low": ends[0],
                    "high": ends[1],
                }
            )
    return rows


def group_rows(findings: Findings) -> list[Row]:
    """A row for each method, group (or team) and rate, with counts and interval."""
    study = findings.study
    return [
        {
            "by": by,
            "name": group,
            "method": label,
            "rate": rate,
            "value": one.interval.value,
            "low": one.interval.low,
            "high": one.interval.high,
            "hits": one.hits,
            "of": one.of,
        }
        for by in ("group", "team")
        if len(study.names(by)) > 1 and by in study.kinds
        for label, found in rates(findings, by).items()
        for rate, members in found.items()
        for group, one in members.items()
    ]


def latex(findings: Findings) -> str:
    """The comparison as a LaTeX table, which needs the package booktabs."""
    study, comparison = findings.study, findings.comparison
    names = [
        name
        for name in FIRST
        if not (name in TENTHS and study.clients < 10)
        and any(not math.isnan(row[name].value) for row in comparison.rows.values())
    ]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(names)}}}",
        r"\toprule",
        " & ".join(["method", *(escaped(SHORT[name]) for name in names)]) + r" \\",
        r"\midrule",
    ]
    for label in study.labels:
        cells = [escaped(label)]
        for name in names:
            interval, places = comparison.rows[label][name], digits(study, name)
            value = f"{written(study, name, interval.value):.{places}f}"
            if comparison.best.get(name) == label:
                value = rf"\textbf{{{value}}}"
            low, high = sorted(written(study, name, end) for end in interval[1:])
            ends = "" if math.isnan(low) else f" [{low:.{places}f}, {high:.{places}f}]"
            cells.append("--" if math.isnan(interval.value) else value + ends)
        lines.append(" & ".join(cells) + r" \\")
    about = f"{study.measure.part} {study.measure.name}{study.measure.unit}"
    comment = (
        f"% {about}; {100 * comparison.level:g} % intervals over {comparison.over}; needs booktabs"
    )
    return "\n".join([comment, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(words: str) -> str:
    """Text as LaTeX.

    >>> escaped("worst 10 %, a_b")
    'worst 10 \\\\%, a\\\\_b'
    """
    return "".join(LATEX.get(character, character) for character in words)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: "" if value != value else as_cell(value) for key, value in row.items()}
        )
    return text.getvalue()
