"""Studies from records: no run directory is needed, and every number comes from the code that a
comparison's come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenhand.benchmarking.record import Ints, Record
from evenhand.errors import RunError
from evenhand.metrics.counts import Counts
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Floats, Trial
from evenhand.studies.specs.measure import measure_of
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import Spec


def study_of(records: Sequence[Record], by: str = "client") -> Study:
    """The study of all methods on one federation.

    ``by``: "group" takes demographic groups, or teams where there are none, for the clients, so
    that the worst client of the study is the worst group.
    """
    if not records:
        raise RunError("there are no benchmark records")
    first = records[0]
    for record in records[1:]:
        if (record.data, record.cells) != (first.data, first.cells):
            raise RunError(
                f"{first.federation}: {first.method} and {record.method} were tested on different"
                " data; run one of them again"
            )
    trials = {
        (record.method, seed): _trial(record, seed, by)
        for record in records
        for seed in record.seeds
    }
    spec = Spec(name=first.federation, rounds=first.rounds, seeds=first.seeds)
    measure = measure_of("cross_entropy", 1.0, True)
    return Study(first.federation, measure, trials, (spec,), ({"data": first.data},), (), True)


def has_groups(record: Record) -> bool:
    """Whether clients' samples have groups, or clients teams: at least two."""
    return len(record.groups) > 1 or len(set(record.teams)) > 1


def _trial(record: Record, seed: int, by: str) -> Trial:
    _, group = record.sample_cells()
    names, of = _served(record, by)
    known = of >= 0
    of, group, values = of[known], group[known], record.values(seed)[known].astype(np.float64)
    losses: Sequence[float | None] = record.loss[str(seed)]
    if by != "client":  # losses are kept by client
        losses = [0.0] * len(names)
    rows = _rows("client", names, of, values, losses, record.teams if by == "client" else ())
    if by == "client" and record.groups:
        rows += _rows("group", record.groups, group, values, [0.0] * len(record.groups))
    if seed in record.diverged:
        rows = [{**row, "loss": np.nan} for row in rows]
    return Trial(
        Method(record.name, record.method, _own_settings(record)),
        seed,
        Path(record.federation) / record.method,
        {key: [row[key] for row in rows] for key in rows[0]},
        {},
        counts=_counts(record, seed) if by == "client" else None,
        values=values,
        sample_client=of,
        sample_group=group if by == "client" else np.zeros_like(group),
    )


def _served(record: Record, by: str) -> tuple[tuple[str, ...], Ints]:
    """Names of the clients, groups or teams, and (N,) the one of each test sample, -1 for none."""
    client, group = record.sample_cells()
    if by == "client":
        return record.clients, client
    if len(record.groups) > 1:
        return record.groups, group
    names = tuple(sorted({*record.teams} - {""}))
    code = np.array([names.index(team) if team else -1 for team in record.teams], np.int64)
    return names, code[client]


def _rows(
    by: str,
    names: Sequence[str],
    of: Ints,
    values: Floats,
    losses: Sequence[float | None],
    teams: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The rows of a table of scores."""
    count = np.bincount(of, minlength=len(names))
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(of, values, len(names)) / count
    return [
        {
            "by": by,
            "name": name,
            "team": teams[place] if teams else "",
            "count": int(count[place]),
            "accuracy": float(accuracy[place]),
            "loss": np.nan if loss is None else loss,
        }
        for place, (name, loss) in enumerate(zip(names, losses, strict=True))
    ]


def _counts(record: Record, seed: int) -> Counts | None:
    """Of all clients together: rates are looked at by group."""
    table = record.counts.get(str(seed))
    if table is None:
        return None
    counted = np.array(table, np.int64)[None]
    return Counts(counted, ("everyone",), record.groups or ("",), record.labels)


def _own_settings(record: Record) -> dict[str, Any]:
    """Settings of the method itself, without those of the local solver."""
    return {key: value for key, value in record.settings.items() if "." not in key}
