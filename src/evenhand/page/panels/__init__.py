"""What the page shows in figures: each with a caption, words for those who do not see it, and its
numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator

from evenhand.page.panels.clients import distribution, sorted_clients
from evenhand.page.panels.groups import gaps
from evenhand.page.panels.methods import front, verdicts
from evenhand.page.panels.panel import Panel
from evenhand.page.panels.rounds import client_weights, learning_curves
from evenhand.studies.findings import Findings


def all_panels(findings: Findings) -> Iterator[Panel]:
    """The figures of the page, in its order. Those of single clients are left out where single
    clients shared nothing."""
    if not findings.study.sums_only:
        yield distribution(findings)
        yield sorted_clients(findings)
    yield front(findings)
    for by in ("group", "team"):
        if len(findings.study.names(by)) > 1 and by in findings.study.kinds:
            yield from gaps(findings, by)
    yield learning_curves(findings)
    for panel in (
        None if findings.study.sums_only else client_weights(findings),
        verdicts(findings),
    ):
        if panel is not None:
            yield panel
