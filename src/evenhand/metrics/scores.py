"""From tallies to one row per client and group, and a few numbers about all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from evenhand.data import Federation
from evenhand.tree import Tree

Row = dict[str, Any]


def score_rows(ids: Tensor, tallies: Tree, federation: Federation, classification: bool) -> list[Row]:
    """One row per client, then one per group, from stacked tallies (k, A) of clients ``ids``.

    Clients without samples in the evaluated part get a count of 0 and NaN scores.
    """
    cells = {name: values.double().numpy() for name, values in tallies.items()}
    place = {int(client): row for row, client in enumerate(ids)}
    empty = dict.fromkeys(cells, 0.0)
    sizes = federation.train.sizes.tolist()
    rows = []
    for client in range(federation.clients):
        sums = {name: float(values[place[client]].sum()) for name, values in cells.items()} if client in place else empty
        team = "" if federation.teams is None else federation.team_names[int(federation.teams[client])]
        about = {"by": "client", "name": federation.name(client), "team": team, "train_count": sizes[client]}
        rows.append({**about, **_ratios(sums, classification)})
    for group, name in enumerate(federation.group_names):
        sums = {key: float(values[:, group].sum()) for key, values in cells.items()}
        count = 0 if federation.train.group is None else int((federation.train.group == group).sum())
        rows.append({"by": "group", "name": name, "team": "", "train_count": count, **_ratios(sums, classification)})
    return rows


def _ratios(sums: dict[str, float], classification: bool) -> Row:
    count = int(sums["count"])
    accuracy = sums["correct"] / count if count and classification else math.nan
    return {"count": count, "accuracy": accuracy, "loss": sums["loss"] / count if count else math.nan}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean, worst and best 10 %, worst client and standard deviation of one value per client (larger is better).

    Worst and best 10 % are means over floor(n/10) clients, at least one; the standard deviation is the population's. Clients
    without a value (NaN) are left out.

    >>> summary([0.5, 1.0, 0.75, 0.75])
    {'mean': 0.75, 'worst10': 0.5, 'best10': 1.0, 'worst': 0.5, 'std': 0.1767766952966369}
    """
    ordered = np.sort([value for value in values if not math.isnan(value)])
    if not len(ordered):
        return dict.fromkeys(("mean", "worst10", "best10", "worst", "std"), math.nan)
    tenth = max(1, len(ordered) // 10)
    return {
        "mean": float(ordered.mean()),
        "worst10": float(ordered[:tenth].mean()),
        "best10": float(ordered[-tenth:].mean()),
        "worst": float(ordered[0]),
        "std": float(ordered.std()),
    }


def change(values: Sequence[float], reference: Sequence[float]) -> dict[str, list[int]]:
    """Which clients gained and which lost against a reference, by index; ties and clients without a value are in neither."""
    pairs = list(enumerate(zip(values, reference, strict=True)))
    return {"gained": [i for i, (new, old) in pairs if new > old], "lost": [i for i, (new, old) in pairs if new < old]}
