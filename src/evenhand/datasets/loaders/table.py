"""A user's own table, from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenhand.data.federation import Federation
from evenhand.data.tables.files import read_table


def table(
    path: str | Path,
    label: str,
    client: str | None = None,
    group: str | Sequence[str] | None = None,
    team: str | None = None,
    task: str = "auto",
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    numeric: Sequence[str] = (),
    held_out: str | None = None,
    partition: str | Mapping[str, Any] | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    missing: str | float | Sequence[str | float] = (),
    encoding: str | None = None,
) -> Federation:
    """Load a CSV or Parquet file with one row per sample.

    The arguments are those of ``evenhand.data.tables.frame.from_frame`` and
    ``evenhand.read_table``.
    """
    return Federation.from_frame(
        read_table(path, missing=missing, encoding=encoding),
        client=client,
        label=label,
        group=group,
        team=team,
        task=task,
        drop=drop,
        categorical=categorical,
        numeric=numeric,
        held_out=held_out,
        partition=partition,
        split=split,
        seed=seed,
        clients=clients,
        missing=missing,
    )
