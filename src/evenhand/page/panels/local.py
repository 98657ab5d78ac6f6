"""Figures of gaps between groups within clients, next to those over all clients."""

from __future__ import annotations

import numpy as np

from evenhand.metrics.uncertainty import Interval
from evenhand.page import figures
from evenhand.page.markup import Cell, table, text
from evenhand.page.numbers import points
from evenhand.page.panels.groups import GAPS, gap_cell
from evenhand.page.panels.panel import MOST_ROWS, Panel, Variant, listed
from evenhand.studies.analysis.local import local_scopes
from evenhand.studies.analysis.local_in_words import FEW_LOOK_LARGER
from evenhand.studies.findings import Findings
from evenhand.studies.tables.local import local_lines


def local_gaps(findings: Findings) -> Panel | None:
    """Gaps between groups over all clients and within clients, one rate at a time; None if they
    are unknown."""
    if not findings.local:
        return None
    study, views, variants = findings.study, findings.groups["group"], []
    first = next(iter(findings.local.values()))
    for kind in (kind for kind in GAPS if kind in first):
        rate = GAPS[kind][0]
        scopes = {
            label: local_scopes(views[label].gaps, kinds[kind])
            for label, kinds in findings.local.items()
        }
        drawn = {
            label: {
                scope: (
                    Interval(*(100 * np.array(one)).tolist()),
                    f"{label}, {scope}: {points(one)} points",
                )
                for scope, one in found.items()
                if not np.isnan(one.value)
            }
            for label, found in scopes.items()
        }
        if not any(drawn.values()):  # such as false-positive rates without negative samples
            continue
        named = [
            f"{label}: " + ", ".join(f"{scope} {points(one)}" for scope, one in found.items())
            for label, found in scopes.items()
        ]
        rows: list[list[Cell | str]] = [
            [
                Cell(text(label), label),
                *(gap_cell(one, "") for one in found.values()),
                f"{len(findings.local[label][kind].clients)} of {len(study.names('client'))}",
            ]
            for label, found in scopes.items()
        ]
        heading = f"Gaps in {rate} between groups, points, with intervals"
        table_of_methods = table(
            ["method", *next(iter(scopes.values())), "clients compared"],
            rows,
            heading,
            list(scopes),
        )
        variants.append(
            Variant(
                rate,
                figures.local_gaps(study, drawn, rate),
                f"Gap in {rate}. {listed(named)}",
                table_of_methods + _clients(findings, kind, rate),
            )
        )
    if not variants:
        return None
    few = "".join(f" {text(line)}" for line in local_lines(first, findings.least))
    caption = (
        "Does the model treat groups alike over all clients, and within every client? The two can"
        " differ: groups that are spread unevenly over clients can make a gap over all clients, and"
        " gaps within clients can cancel. With"
        f" {100 * findings.comparison.level:g} % intervals over test samples; intervals of single"
        f" clients and of the largest hold for all clients at once. {text(FEW_LOOK_LARGER)}{few}"
    )
    return Panel("local-gaps", caption, tuple(variants), "Rate")


def _clients(findings: Findings, kind: str, rate: str) -> str:
    """The gap at each client with every method, for as many clients as a table takes."""
    found = {
        label: {one.client: one for one in kinds[kind].clients}
        for label, kinds in findings.local.items()
    }
    names = [
        name
        for name in findings.study.names("client")
        if any(name in row for row in found.values())
    ]
    rows: list[list[Cell | str]] = []
    for name in names[:MOST_ROWS]:
        cells: list[Cell | str] = [Cell(text(name), name)]
        for row in found.values():
            one = row.get(name)
            cells.append("-" if one is None else gap_cell(one.interval, f"{one.low} < {one.high}"))
        rows.append(cells)
    if not rows:
        return ""
    many = f", the first {MOST_ROWS} of {len(names)}" if len(names) > MOST_ROWS else ""
    caption = f"Gap in {rate} at each client{many}, points, with the two groups behind it"
    return table(["client", *map(text, found)], rows, caption, sortable=True)
