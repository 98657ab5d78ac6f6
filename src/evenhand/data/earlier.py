"""Fingerprints as earlier versions took them, to go on with runs that were begun with one.

They are hashes of sums. They miss changes that leave the sums as they are, such as exchanged
columns, and from 20,000 samples on they may depend on the number of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from evenhand.data.federation import Federation
from evenhand.data.fingerprints import KIND
from evenhand.data.population import Population
from evenhand.data.samples import PARTS, View

WEAKER = (
    "was begun by an earlier version, whose check of the data is weaker: it does not see exchanged"
    " columns. Make sure that the data are the same"
)


def is_earlier(fingerprint: str) -> bool:
    """Whether a fingerprint is one of an earlier version."""
    return not fingerprint.startswith(KIND)


def earlier_fingerprint(population: Population) -> str:
    """The fingerprint that earlier versions would have taken."""
    found: list[object] = [
        population.names,
        population.group_names,
        population.team_names,
        population.label_names,
        None if population.teams is None else population.teams.tolist(),
    ]
    if isinstance(population, Federation):
        found += _sums(population)
    else:
        for part in PARTS:
            if part == "train" or population.has(part):
                found += _sums_of_zeros(population, part)
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _sums(federation: Federation) -> Iterator[object]:
    """Of each array: its shape, its sum, and its sum weighted by place."""
    for part in federation.parts.values():
        source, rows = (part.x.source, part.x.rows) if isinstance(part.x, View) else (part.x, None)
        for column in (source, rows, part.y, part.group, part.offsets):
            if column is not None:
                each = column.reshape(len(column), -1).sum(1, dtype=torch.float64)
                place = torch.arange(1, len(column) + 1, dtype=torch.float64)
                yield tuple(column.shape), float(each.sum()), float(each @ place)


def _sums_of_zeros(population: Population, part: str) -> Iterator[object]:
    """The same of samples that are all zero, sorted by group, which a server without samples had
    in their place."""
    counts, total = population.counts(part).flatten(), int(population.counts(part).sum())
    yield (1, *population.form.x_shape), 0.0, 0.0
    yield (total,), 0.0, 0.0
    yield (total, *population.form.y_shape), 0.0, 0.0
    if population.groups:
        codes = torch.arange(population.groups).repeat(population.clients)
        ends = counts.cumsum(0)
        places = (ends * (ends + 1) - (ends - counts) * (ends - counts + 1)) // 2
        yield (total,), float((codes * counts).sum()), float((codes * places).sum())
    offsets = F.pad(population.sizes(part).cumsum(0), (1, 0))
    places = torch.arange(1, len(offsets) + 1)
    yield (len(offsets),), float(offsets.sum()), float((offsets * places).sum())
