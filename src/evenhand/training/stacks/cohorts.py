"""Cohorts of the runs of a stack, grouped by size."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand.cohort import Draw
from evenhand.training.history import Rows
from evenhand.training.server import Cohorts


def grouped(draws: list[Draw], rows: Rows) -> list[Cohorts]:
    """Group the draws of runs ``rows`` by size."""
    sizes: dict[int, list[int]] = {}
    for place, draw in enumerate(draws):
        sizes.setdefault(len(draw.ids), []).append(place)
    found = []
    for places in sizes.values():
        together = Draw(
            *(
                torch.stack(values)
                for values in zip(*(draws[place] for place in places), strict=True)
            )
        )
        which = rows if len(sizes) == 1 else torch.tensor(places) if rows is None else rows[places]
        found.append(Cohorts(which, together))
    return found


def merged(cohorts: list[Cohorts]) -> list[Cohorts]:
    """Merge cohorts of equal size."""
    if len(cohorts) == 1 or len({some.draw.ids.shape[1] for some in cohorts}) == len(cohorts):
        return cohorts
    pairs = [
        (int(row), Draw(*(values[place] for values in some.draw)))
        for some in cohorts
        if some.rows is not None
        for place, row in enumerate(some.rows)
    ]
    return grouped([draw for _, draw in pairs], torch.tensor([row for row, _ in pairs]))


def places(among: Rows, rows: Tensor) -> Tensor:
    """Return the positions of ``rows`` in ``among``, which is ascending."""
    return rows if among is None else torch.searchsorted(among, rows)
