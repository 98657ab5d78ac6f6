"""From tallies to one row per client and group, and a few numbers about all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from evenhand.data import Federation
from evenhand.metrics import spread
from evenhand.tree import Tree

Row = dict[str, Any]
Columns = dict[str, Any]  # equally long arrays or lists, by name


def score_columns(ids: Tensor, tallies: Tree, federation: Federation, classification: bool) -> Columns:
    """Columns of a table with a row per client, then one per group, from stacked tallies (k, A) of clients ``ids``.

    Clients without samples in the evaluated part get a count of 0 and NaN scores.
    """
    cells = {key: values.double().numpy() for key, values in tallies.items()}
    clients, groups = federation.clients, federation.groups
    sums = {key: np.zeros(clients + groups) for key in cells}
    for key, values in cells.items():
        sums[key][ids.numpy()] = values.sum(1)
        if groups:
            sums[key][clients:] = values.sum(0)
    members = np.bincount(federation.train.group.numpy(), minlength=groups) if federation.train.group is not None else np.zeros(groups)
    teams = [""] * clients if federation.teams is None else [federation.team_names[code] for code in federation.teams.tolist()]
    count = sums["count"]
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as meant
        return {
            "by": ["client"] * clients + ["group"] * groups,
            "name": [federation.name(client) for client in range(clients)] + list(federation.group_names),
            "team": teams + [""] * groups,
            "train_count": np.concatenate([federation.train.sizes.numpy(), members]).astype(np.int64),
            "count": count.astype(np.int64),
            "accuracy": sums["correct"] / count if classification else np.full(len(count), math.nan),
            "loss": sums["loss"] / count,
        }


def rows_of(columns: Columns) -> list[Row]:
    """A table as one mapping per row, with plain Python values."""
    plain = [values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*plain, strict=True)]


def summary(values: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Mean, worst and best 10 %, worst client and standard deviation of one value per client (larger is better).

    Worst and best 10 % are means over floor(n/10) clients, at least one; the standard deviation is the population's. Clients
    without a value (NaN) are left out.

    >>> summary([0.5, 1.0, 0.75, 0.75])
    {'mean': 0.75, 'worst10': 0.5, 'best10': 1.0, 'worst': 0.5, 'std': 0.1767766952966369}
    """
    kinds = {"mean": spread.mean, "worst10": spread.worst, "best10": spread.best, "worst": spread.smallest, "std": spread.std}
    return {name: float(function(values)) for name, function in kinds.items()}


def change(values: Sequence[float], reference: Sequence[float]) -> dict[str, list[int]]:
    """Which clients gained and which lost against a reference, by index; ties and clients without a value are in neither."""
    pairs = list(enumerate(zip(values, reference, strict=True)))
    return {"gained": [i for i, (new, old) in pairs if new > old], "lost": [i for i, (new, old) in pairs if new < old]}
