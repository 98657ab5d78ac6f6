"""What a server knows about clients that hide their counts: sums over many of them.

Methods, cohorts and scores take a population with a row for each client. The rows here are equal
parts of the sums, so their totals are right and nothing in them is about one client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evenhand.data.population import Census, Extent, Population
from evenhand.data.samples import PARTS
from evenhand.flower.admission import ANYONE
from evenhand.flower.weighing import WeighedPopulation


@dataclass(frozen=True)
class Counted:
    """The samples of some clients together.

    Args:
        clients: their numbers.
        samples: by split, then by name of the group ("" without groups).
        squares: the sum of their squared numbers of training samples; 0 if it was not asked for.
        shares: the sum of each group's share of a client's training samples; {} if not asked for.
    """

    clients: tuple[int, ...]
    samples: Mapping[str, Mapping[str, int]]
    squares: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """As JSON values, for :meth:`from_plain`."""
        samples = {part: dict(found) for part, found in self.samples.items()}
        return {**vars(self), "samples": samples, "shares": dict(self.shares)}

    @classmethod
    def from_plain(cls, kept: Mapping[str, Any]) -> Counted:
        """Undo :meth:`to_plain`."""
        samples = {
            part: {str(group): int(count) for group, count in kept["samples"][part].items()}
            for part in PARTS
        }
        shares = {str(group): float(share) for group, share in kept["shares"].items()}
        return cls(tuple(map(int, kept["clients"])), samples, float(kept["squares"]), shares)


class HiddenPopulation(WeighedPopulation):
    """Clients of which only totals are known.

    Args:
        known: names, teams and equal parts of the totals.
        counted: the totals. Clients in none count as many samples as the others on average.
    """

    def __init__(self, known: Population, counted: Sequence[Counted]) -> None:
        super().__init__(known, ANYONE)
        self.counted = tuple(counted)

    def knows(self, part: str, clients: Sequence[int]) -> bool:
        """Whether the sum of these clients' counts in a split is known."""
        holders = set(self.sizes(part).nonzero().flatten().tolist())
        inside = {client for one in self.counted for client in one.clients}
        return holders <= inside and holders <= set(clients)

    @cached_property
    def otherwise(self) -> HiddenPopulation:
        """The same totals, dealt out very unequally: what differs with them cannot be known."""
        return self._with({part: unequal(self.counts(part)) for part in PARTS})

    def census(self, weights: str = "data") -> Census:
        found = super().census(weights)
        shares = [one.shares for one in self.counted]
        if weights == "data" or not self.groups or not all(shares):
            return found
        by_group = [[it.get(name, 0.0) for it in shares] for name in self.group_names]
        total = torch.tensor([math.fsum(own) for own in by_group], dtype=torch.float64)
        return found._replace(group_share=total / sum(len(one.clients) for one in self.counted))

    def fingerprint(self) -> str:
        """Return a hash of what stays as it is: counts of new clients may come later."""
        held = {part: (self.sizes(part) > 0).long()[:, None] for part in PARTS}
        return Population.fingerprint(
            self._with({part: F.pad(it, (0, max(0, self.groups - 1))) for part, it in held.items()})
        )

    def first(self, extent: Extent) -> Population:
        earlier = Population.first(self, extent)
        if earlier is self:
            return self
        return HiddenPopulation(
            earlier, [it for it in self.counted if max(it.clients) < extent.clients]
        )

    def _with(self, counts: Mapping[str, Tensor]) -> HiddenPopulation:
        about = (self.teams, self.team_names, self.group_names, self.names, self.label_names)
        return HiddenPopulation(Population(counts, self.form, *about), self.counted)


def parts_of(
    counted: Sequence[Counted], groups: Sequence[str], splits: Sequence[Sequence[str]]
) -> dict[str, Tensor]:
    """(n, A) rows of clients by split: equal parts of the totals among those that have the split.

    Args:
        groups: names of all groups.
        splits: of each client.
    """
    names, clients = tuple(groups) or ("",), len(splits)
    found = {part: torch.zeros(clients, len(names), dtype=torch.int64) for part in PARTS}
    inside = {client for one in counted for client in one.clients}
    for part, table in found.items():
        for one in counted:
            holders = [client for client in one.clients if part in splits[client]]
            _deal(table, holders, [one.samples[part].get(name, 0) for name in names])
        rest = [it for it in range(clients) if it not in inside and part in splits[it]]
        known = [it for it in range(clients) if it in inside and part in splits[it]]
        for client in rest:  # as many as others have on average, and at least one
            mean = table[known].sum(0) // len(known) if known else torch.zeros(len(names))
            table[client] = mean.long()
            table[client, 0] += int(not table[client].any())
    return found


def _deal(table: Tensor, holders: Sequence[int], totals: Sequence[int]) -> None:
    """Deal out each group's samples one by one, so that rows differ by one at most."""
    start = 0
    for group, total in enumerate(totals if holders else ()):
        each, more = divmod(total, len(holders))
        for place, client in enumerate(holders):
            table[client, group] += each + ((place - start) % len(holders) < more)
        start = (start + more) % len(holders)


def unequal(table: Tensor) -> Tensor:
    """(n, A) with the same sums by column, and as different rows as there can be."""
    groups = table.shape[1]
    holders = table.sum(1).nonzero().flatten().tolist()
    found = torch.zeros_like(table)
    for group in range(groups):
        left = int(table[:, group].sum())
        order = holders if group % 2 else holders[::-1]
        for place, client in enumerate(order):  # the first gets half, the next half of the rest ...
            share = left if place + 1 == len(order) else left - left // 2
            found[client, group] = share
            left -= share
    for client in holders:  # nobody may be left without
        if not found[client].any():
            richest = int(found.sum(1).argmax())
            group = int(found[richest].argmax())
            found[richest, group] -= 1
            found[client, group] += 1
    return found
