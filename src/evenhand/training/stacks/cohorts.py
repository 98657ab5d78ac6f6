"""Cohorts of the runs of a stack, those of equal size together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from evenhand.cohort import Draw
from evenhand.training.stacks.server import Rows


class Party(NamedTuple):
    """Runs of a stack whose cohorts have the same number of clients, and these cohorts."""

    rows: Rows
    draw: Draw  # (R', K) each


def parties_of(draws: list[Draw], rows: Rows) -> list[Party]:
    """Draws of runs ``rows``, those of equal size together."""
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
        found.append(Party(which, together))
    return found


def merged(parties: list[Party]) -> list[Party]:
    """Parties of equal size as one."""
    if len(parties) == 1 or len({party.draw.ids.shape[1] for party in parties}) == len(parties):
        return parties
    pairs = [
        (int(row), Draw(*(values[place] for values in party.draw)))
        for party in parties
        if party.rows is not None
        for place, row in enumerate(party.rows)
    ]
    return parties_of([draw for _, draw in pairs], torch.tensor([row for row, _ in pairs]))


def places(among: Rows, rows: Tensor) -> Tensor:
    """Where ``rows`` are in ``among``, which is ascending."""
    return rows if among is None else torch.searchsorted(among, rows)
