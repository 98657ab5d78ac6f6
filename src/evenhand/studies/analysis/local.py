"""Gaps between groups within clients, next to those over all clients, by method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from evenhand.metrics.group_rates import Gap
from evenhand.metrics.local_gaps import UNKNOWN, LocalGaps, cells, local_gaps
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.groups import labelled
from evenhand.studies.runs.study import Study

Row = dict[str, Any]
Local = Mapping[str, LocalGaps]  # by kind


def local_views(
    study: Study, level: float = 0.95, least: int = 10, positive: str | None = None
) -> dict[str, dict[str, LocalGaps]]:
    """Gaps within clients by method, then kind; {} with fewer than two clients or groups, or
    without counts of predictions client by client.

    Counts are averaged over seeds, as in :func:`evenhand.studies.analysis.groups.group_views`.
    """
    found: dict[str, dict[str, LocalGaps]] = {}
    clients = study.names("client")
    for label in study.labels if len(study.names("group")) > 1 else ():
        counted = [study.trials[label, seed].counts for seed in study.judged_seeds]
        kept = [one for one in counted if one is not None and one.clients == clients]
        if not kept or len(kept) < len(counted):
            return {}
        table = np.mean([one.table for one in kept], 0)
        code = labelled(kept[0], positive)
        found[label] = local_gaps(cells(table, code), clients, kept[0].groups, level, least)
    return {label: kinds for label, kinds in found.items() if kinds}


def local_scopes(everyone: Mapping[str, Gap], found: LocalGaps) -> dict[str, Interval]:
    """A gap over all clients, and the mean and the largest within clients."""
    gap = everyone.get(found.kind)
    return {
        "over all clients": UNKNOWN if gap is None else gap.interval,
        "mean within clients": found.mean,
        "largest within a client": found.largest,
    }


def local_rows(everyone: Mapping[str, Gap], local: Local) -> list[Row]:
    """Rows of a table: for each kind the gap over all clients, the mean and the largest within
    clients, and each client's own."""
    rows: list[Row] = []
    for kind, found in local.items():
        gap, first = everyone.get(kind), found.clients[0] if found.clients else None
        whom = {
            "over all clients": ("",) * 3 if gap is None else ("", gap.low, gap.high),
            "mean within clients": ("",) * 3,
            "largest within a client": (
                ("",) * 3 if first is None else (first.client, first.low, first.high)
            ),
        }
        parts = [(scope, *whom[scope], one) for scope, one in local_scopes(everyone, found).items()]
        parts += [("client", one.client, one.low, one.high, one.interval) for one in found.clients]
        parts += [("left out", client, "", "", UNKNOWN) for client in found.left_out]
        rows += [
            {
                "kind": kind,
                "scope": scope,
                "client": client,
                "lowest": low,
                "highest": high,
                **interval._asdict(),
            }
            for scope, client, low, high, interval in parts
        ]
    return rows
