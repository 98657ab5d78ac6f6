"""Whether runs have the same data, clients and measure, so that they can be one study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenhand.errors import RunError
from evenhand.metrics.scores import Columns
from evenhand.studies.runs.directories import SavedRun


def natural(scores: Iterable[Columns], data: Mapping[str, Any]) -> bool:
    """Whether clients are the same with every seed: hospitals, for example, not the numbered
    clients of a partition. ``scores``: of each seed; ``data``: the table of the spec."""
    names = {
        tuple(
            name for name, by in zip(columns["name"], columns["by"], strict=True) if by == "client"
        )
        for columns in scores
    }
    only, *others = names
    named = data.get("client") is not None and "partition" not in data
    return not others and (named or only != tuple(map(str, range(len(only)))))


def refuse_mixed(runs: Sequence[SavedRun]) -> None:
    """Raise if runs cannot be compared."""
    first = runs[0]
    by_seed: dict[int, SavedRun] = {}
    for run in runs:
        if replace(run.measure, scale=1.0, digits=0) != replace(first.measure, scale=1.0, digits=0):
            raise RunError(
                f"{first.directory} and {run.directory} have different measures; analyse them one"
                " by one"
            )
        other = by_seed.setdefault(run.spec.seed, run)
        if other.about["data"] != run.about["data"]:
            raise RunError(
                f"{other.directory} and {run.directory} have different data; analyse them one by"
                " one"
            )
