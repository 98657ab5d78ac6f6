"""The registered clients of a run, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from evenhand.data.population import Population
from evenhand.data.samples import PARTS
from evenhand.flower.admission import ANYONE, Admission
from evenhand.flower.masked.totals import Counted, HiddenPopulation, parts_of
from evenhand.flower.ordering import merge_orders
from evenhand.flower.registration import Registration, read_report
from evenhand.flower.sharing import SHARES
from evenhand.flower.weighing import WeighedPopulation
from evenhand.messages import Reply


@dataclass(frozen=True)
class Roster:
    """The clients in the order of their numbers, and the names of all groups and teams. Clients
    that join later get the next numbers."""

    clients: tuple[Registration, ...]
    groups: tuple[str, ...]
    teams: tuple[str, ...]
    admission: Admission = ANYONE
    counted: tuple[Counted, ...] = ()  # with hidden counts: what is known of them

    @classmethod
    def of(cls, clients: Sequence[Registration], admission: Admission = ANYONE) -> Roster:
        """The first clients of a run; raises a ValueError if they do not fit together."""
        for client in clients[1:]:
            check_fits(clients[0], client)
        return cls(tuple(clients), *_names_of(clients), admission)

    def with_clients(self, newcomers: Sequence[Registration]) -> Roster:
        """Add clients; raises a ValueError if one does not fit."""
        for client in newcomers:
            check_fits(self.clients[0], client)
        groups, teams = _names_of(newcomers)
        return replace(
            self,
            clients=(*self.clients, *newcomers),
            groups=_with(self.groups, groups),
            teams=_with(self.teams, teams),
        )

    def with_report(self, number: int, report: Registration) -> Roster:
        """The same clients, with what one of them shares now and its present key."""
        known = replace(self.clients[number], share=report.share, announced=report.announced)
        return replace(self, clients=(*self.clients[:number], known, *self.clients[number + 1 :]))

    def with_counted(self, found: Counted) -> Roster:
        """The same clients, with a sum of hidden counts."""
        return replace(self, counted=(*self.counted, found))

    @property
    def uncounted(self) -> list[int]:
        """Clients that hide their counts, and are in no sum of them yet."""
        inside = {client for one in self.counted for client in one.clients}
        return [it for it, client in enumerate(self.clients) if client.hides and it not in inside]

    def sharing_less(self, than: str) -> list[int]:
        """Clients whose owners share less than this."""
        rank = tuple(SHARES).index
        return [
            number for number, client in enumerate(self.clients) if rank(client.share) < rank(than)
        ]

    def number(self, name: str) -> int | None:
        """The client with this name."""
        return next(
            (number for number, client in enumerate(self.clients) if client.name == name), None
        )

    @cached_property
    def population(self) -> WeighedPopulation:
        """What the server knows about the clients."""
        codes = [self.teams.index(client.team) for client in self.clients] if self.teams else None
        hidden = self.clients[0].hides
        known = Population(
            parts_of(self.counted, self.groups, [client.splits for client in self.clients])
            if hidden
            else {
                part: torch.stack([self._counts(it, part) for it in self.clients]) for part in PARTS
            },
            self.clients[0].form,
            teams=None if codes is None else torch.tensor(codes),
            team_names=self.teams,
            group_names=self.groups,
            names=tuple(client.name for client in self.clients),
            label_names=self.clients[0].labels,
        )
        if hidden:
            return HiddenPopulation(known, self.counted)
        return WeighedPopulation(known, self.admission)

    def _counts(self, client: Registration, part: str) -> Tensor:
        """(A,) a client's samples of each group of the federation; (1,) without groups."""
        if not self.groups:
            return client.counts[part]
        counts = torch.zeros(len(self.groups), dtype=torch.int64)
        counts[[self.groups.index(name) for name in client.groups]] = client.counts[part]
        return counts

    def to_plain(self) -> dict[str, Any]:
        """As JSON values, for :meth:`from_plain`."""
        clients = [
            client.to_plain() | {kind: counts.tolist() for kind, counts in client.counts.items()}
            for client in self.clients
        ]
        found = {"groups": list(self.groups), "teams": list(self.teams), "clients": clients}
        if self.counted:
            found["counted"] = [one.to_plain() for one in self.counted]
        return found

    @classmethod
    def from_plain(cls, kept: Mapping[str, Any], admission: Admission = ANYONE) -> Roster:
        clients = [
            read_report(
                Reply(each={kind: torch.tensor(about[kind]) for kind in PARTS if kind in about}),
                about,
            )
            for about in kept["clients"]
        ]
        counted = tuple(Counted.from_plain(one) for one in kept.get("counted", ()))
        return cls(tuple(clients), tuple(kept["groups"]), tuple(kept["teams"]), admission, counted)


def _names_of(
    clients: Sequence[Registration],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Their groups and teams, each in a common order."""
    groups = merge_orders([client.groups for client in clients])
    return groups, merge_orders([(client.team,) for client in clients if client.team])


def _with(known: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return known + tuple(name for name in names if name not in known)


def kind_of(client: Registration) -> tuple[object, ...]:
    """What all clients of a run have in common."""
    return client.form, bool(client.groups), bool(client.team), client.labels, client.hides


def check_fits(first: Registration, client: Registration) -> None:
    """Raise a ValueError if two clients cannot be in one run."""
    if client.form != first.form:
        raise ValueError(
            f"nodes {first.name} and {client.name} have samples of different shapes or types;"
            " prepare both in the same way"
        )
    if kind_of(client) != kind_of(first):
        raise ValueError(
            f"nodes {first.name} and {client.name} differ in their classes, or only one of them has"
            " groups or teams"
        )
