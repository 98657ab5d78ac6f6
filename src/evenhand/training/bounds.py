"""Whether a method has kept the bound that it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from evenhand.algorithm import Algorithm
from evenhand.algorithms.local_norms import unwrapped
from evenhand.algorithms.prices import NEAR

BOUND = "group_bound"
ADVICE = "allow a larger one or train longer"
COLUMNS = "group_gap", BOUND, "final_gap", "final_loss", "compared", "final_above"


def called(method: Algorithm, several: bool = False) -> str:
    """Return a method's name, with the settings that are not the defaults.

    ``several``: whether it stands for runs with different settings, which are left out.

    >>> from evenhand.algorithms import FedProx, GroupConstraint
    >>> called(FedProx(inner=GroupConstraint(bound=0.1)))
    'FedProx(inner=GroupConstraint(bound=0.1))'
    """
    method = unwrapped(method)
    name = type(method).__name__
    if several or not is_dataclass(method):
        return name
    changed = []
    for field in fields(method):
        value = getattr(method, field.name)
        if field.init and value != field.default:
            said = called(value) if isinstance(value, Algorithm) else repr(value)
            changed.append(f"{field.name}={said}")
    return f"{name}({', '.join(changed)})" if changed else name


def of_history(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the columns that ``unmet`` reads, of a history; {} if it has no bound."""
    if not rows or BOUND not in rows[-1]:
        return {}
    return {
        name: [float(row.get(name, np.nan)) for row in rows]
        for name in COLUMNS
        if any(name in row for row in rows)
    }


def unmet(columns: Mapping[str, Sequence[float] | np.ndarray]) -> str:
    """Say by how much a run's trained model misses its bound; "" if it has none or keeps it.

    >>> history = {"group_gap": [0.4, 0.1, 0.3], "group_bound": [0.05] * 3, "final_gap": [0.2]}
    >>> unmet(history).split(";")[0]
    'the gap between groups ended at 0.200, above its bound of 0.05 (0.100 at best)'
    """
    if not len(columns.get(BOUND, ())) or np.isnan(bound := float(columns[BOUND][-1])):
        return ""

    def last(name: str) -> float:
        return float(columns[name][-1]) if len(columns.get(name, ())) else np.nan

    compared, above = last("compared"), last("final_above")
    if compared == 0:
        return (
            f"the bound of {bound:g} compared nobody, since fewer than two groups have enough"
            " samples: lower smallest, or merge groups"
        )
    if not np.isnan(above):
        if not above:
            return ""
        return (
            f"the gap between groups ended above its bound of {bound:g} at {above:g} of"
            f" {compared:g} clients with two groups to compare (mean {last('final_gap'):.3f});"
            f" {ADVICE}"
        )
    of_loss = not np.isnan(last("final_loss"))
    known = last("final_loss") if of_loss else last("final_gap")
    over_rounds = np.asarray(columns.get("group_gap", ()), dtype=float)
    value = last("group_gap") if np.isnan(known) else known
    if not value > bound * NEAR[0] + NEAR[1]:
        return ""
    what = "the largest loss of a group" if of_loss else "the gap between groups"
    text = f"{what} ended at {value:.3f}, above its bound of {bound:g}"
    later = over_rounds[len(over_rounds) // 10 :]  # an untrained model may treat all alike
    best = np.nanmin(later) if len(later) and not np.isnan(later).all() else np.nan
    return f"{text} ({best:.3f} at best); {ADVICE}" if best < 0.99 * value else f"{text}; {ADVICE}"
