"""The figures of the report, each with a caption, a description for screen readers, and its data as
a table."""

from __future__ import annotations

from collections.abc import Iterator

from evenhand.page.panels.clients import distribution, gains, sorted_clients
from evenhand.page.panels.groups import groups
from evenhand.page.panels.local import local_gaps
from evenhand.page.panels.methods import front, overview, verdicts
from evenhand.page.panels.panel import Panel
from evenhand.page.panels.privacy import privacy_costs
from evenhand.page.panels.rounds import client_weights, gap_curves, group_weights, learning_curves
from evenhand.page.panels.sweeps import sensitivity
from evenhand.studies.findings import Findings


def all_panels(findings: Findings) -> Iterator[Panel]:
    """The figures of the report in order; without those of single clients if the server saw sums
    only."""
    study = findings.study
    if not study.labels:  # all diverged
        return
    found: list[Panel | None] = [
        overview(findings),
        None if findings.sweep is None else sensitivity(findings.sweep),
        verdicts(findings),
        gains(findings),
    ]
    if not study.sums_only:
        found += [distribution(findings), *([sorted_clients(findings)] * (study.clients >= 10))]
    for by in ("group", "team"):
        if len(study.names(by)) > 1 and by in study.kinds:
            found += groups(findings, by)
    found.append(local_gaps(findings))
    found += [front(findings), learning_curves(findings), gap_curves(findings)]
    if not study.sums_only:
        found.append(client_weights(findings))
    if len(study.names("group")) > 1:
        found.append(group_weights(findings))
    found.append(privacy_costs(findings))
    yield from (panel for panel in found if panel is not None)
