"""Fingerprints of earlier versions, to resume runs that were started with one.

They are hashes of sums. They miss changes that leave the sums unchanged, such as swapped columns,
and from 20,000 samples on they may depend on the number of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from evenhand.data.federation import Federation
from evenhand.data.fingerprints import KIND
from evenhand.data.nested import Nested
from evenhand.data.population import Population
from evenhand.data.samples import PARTS
from evenhand.data.views import View

WEAKER = (
    "was started by an earlier version, whose weaker data check misses swapped columns; make sure"
    " that the data are the same"
)


def is_earlier(fingerprint: str) -> bool:
    """Whether a fingerprint is from an earlier version."""
    return not fingerprint.startswith(KIND)


def earlier_fingerprint(population: Population) -> str:
    """Return the fingerprint that earlier versions would have computed."""
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
    """Yield the shape, the sum, and the position-weighted sum of each array."""
    for part in federation.parts.values():
        if isinstance(part.x, Nested):  # which earlier versions did not know
            yield part.x.form
            continue
        source, rows = (part.x.source, part.x.rows) if isinstance(part.x, View) else (part.x, None)
        for column in (source, rows, part.y, part.group, part.offsets):
            if column is not None:
                each = column.reshape(len(column), -1).sum(1, dtype=torch.float64)
                place = torch.arange(1, len(column) + 1, dtype=torch.float64)
                yield tuple(column.shape), float(each.sum()), float(each @ place)


def _sums_of_zeros(population: Population, part: str) -> Iterator[object]:
    """Yield the same for the all-zero samples, sorted by group, that a server without samples
    used."""
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
