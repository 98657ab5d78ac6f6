"""Clients' nodes and a server in this process, for tests of masked sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenhand.secure import (
    Cohort,
    Collection,
    Context,
    Decoded,
    Format,
    Ledger,
    Masked,
    Member,
    Node,
    SecureSums,
    Trust,
    digest,
)


@dataclass
class Party:
    """Some nodes, and an exchange among all of them."""

    nodes: list[Node]
    settings: SecureSums
    cohort: Cohort
    format: Format
    context: Context
    totals: list[dict[str, Any]] = field(default_factory=list)

    def mask(self, client: int, **changes: Any) -> Masked:
        """What a client sends; ``changes`` are other arguments of ``Node.mask``."""
        given: dict[str, Any] = {
            "vector": self.format.encode(self.totals[client])[0],
            "number": client,
            "cohort": self.cohort,
            "context": self.context,
            "settings": self.settings,
        }
        return self.nodes[client].mask(**given | changes)

    def open(
        self, holder: int, answered: Sequence[int], boxes: Mapping[int, bytes], **changes: Any
    ) -> dict[int, bytes]:
        """What a holder opens."""
        given: dict[str, Any] = {
            "answered": answered,
            "boxes": boxes,
            "number": holder,
            "cohort": self.cohort,
            "context": self.context,
            "settings": self.settings,
        }
        return self.nodes[holder].open_boxes(**given | changes)

    def collection(self) -> Collection:
        """The exchange at the server."""
        return Collection(self.cohort, self.context, self.format, self.settings)

    def run(self, sending: Iterable[int], holding: Iterable[int]) -> Decoded:
        """The whole exchange with clients that send, and holders that open."""
        server = self.collection()
        for client in sending:
            server.keep(client, self.mask(client))
        chosen = server.choose()
        requests = server.requests()
        for holder in holding:
            if holder in requests:
                server.learn(holder, self.open(holder, chosen, requests[holder]))
        return server.result()

    def again(self, **changes: Any) -> Party:
        """The same nodes in another exchange: ``changes`` are of the context."""
        return replace(self, context=replace(self.context, **changes))


def context_of(cohort: Cohort, format: Format, settings: SecureSums, **changes: Any) -> Context:
    """A context with plain values."""
    plain: dict[str, Any] = {
        "run": "run",
        "session": 1,
        "exchange": 1,
        "round": 0,
        "work": "train",
        "how": "how",
        "shared": digest("model"),
        "cohort": cohort.digest(),
        "numbers": format.digest(),
        "settings": settings.described(),
    }
    return Context(**plain | changes)


def party(
    clients: int = 5,
    settings: SecureSums | None = None,
    totals: list[dict[str, Any]] | None = None,
    change: Callable[[Member], Member] = lambda member: member,
) -> Party:
    """Nodes that pin keys; without totals, each has a small model of its own."""
    settings = settings or SecureSums()
    if totals is None:
        random = np.random.default_rng(7)
        totals = [
            {"delta": {"w": random.normal(size=(3, 2))}, "weight": random.random(())}
            for _ in range(clients)
        ]
    nodes = [Node(Ledger(), f"clinic-{client}", "run", Trust()) for client in range(clients)]
    members = (
        change(Member(client, node.announced(), 1 / clients)) for client, node in enumerate(nodes)
    )
    cohort = Cohort(tuple(members))
    format = Format.of(totals[0], clients)
    context = context_of(cohort, format, settings)
    return Party(nodes, settings, cohort, format, context, totals)
