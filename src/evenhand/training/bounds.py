"""Whether a method has reached the bound that it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NEAR = 1.05, 0.001  # hard rates move in steps of a sample around the bound


COLUMNS = "group_gap", "group_bound"


def of_history(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the columns that ``unmet`` reads, of a history; {} if it has none."""
    if not rows or COLUMNS[1] not in rows[-1]:
        return {}
    return {name: [float(row.get(name, np.nan)) for row in rows] for name in COLUMNS}


def unmet(columns: Mapping[str, Sequence[float] | np.ndarray]) -> str:
    """Say by how much a run's history misses its bound; "" if it has none or reaches it.

    The last tenth of the rounds counts: there the smallest gap is at most the bound, or close.

    >>> unmet({"group_gap": [0.4, 0.3, 0.2], "group_bound": [0.05, 0.05, 0.05]})
    'the bound of 0.05 on the gap was not reached: it was 0.200 at the end of training'
    """
    if "group_bound" not in columns or not len(columns["group_bound"]):
        return ""
    gap, bound = np.asarray(columns["group_gap"], dtype=float), float(columns["group_bound"][-1])
    late = gap[-max(1, len(gap) // 10) :]
    if np.nanmin(late) <= bound * NEAR[0] + NEAR[1]:
        return ""
    best = f", and {np.nanmin(gap):.3f} at best" if np.nanmin(gap) < 0.99 * gap[-1] else ""
    return (
        f"the bound of {bound:g} on the gap was not reached: it was {gap[-1]:.3f} at the end of"
        f" training{best}"
    )
