"""Work that is asked of clients in an exchange, and what becomes of their replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from evenhand.data.population import Population
from evenhand.engines.work import Work
from evenhand.flower.claims import steps_of
from evenhand.flower.proportion import Change, Measured, Medians, changed, judge, measure
from evenhand.flower.sums import OrderedSum
from evenhand.messages import Entries, Replies, Reply

Note = Callable[[int, str], None]  # of a client, why it is bounded


@dataclass(frozen=True)
class Request:
    """Work that is asked of clients.

    Args:
        text: the work as it travels.
        form: a reply of the right names, shapes and types.
        entries: what the reply of each client can be.
    """

    work: Work
    text: str
    form: Reply
    entries: dict[int, Entries]
    sums: OrderedSum
    _measured: dict[int, Measured] = field(default_factory=dict)

    def keep(self, client: int, reply: Reply, population: Population, loss: str) -> None:
        """Keep a reply until all are in; ``loss`` is the name of the run's."""
        entries, local = self.entries[client], self.work.local
        if entries:
            samples = int(population.sizes(self.work.part)[client])
            steps = steps_of(local, samples) if local else 1.0
            self._measured[client] = measure(reply, entries, steps, loss)
        self.sums.add(client, reply)

    def summed(self, bound: float | None, medians: Medians, round: int, note: Note) -> Replies:
        """The sum of the replies, none of them out of proportion."""
        changes = dict[int, Change]()
        if bound is not None and self._measured:
            changes = judge(self._measured, bound, medians, self.work.name, round)
        for client, change in changes.items():
            for what in change.words:
                note(client, what)

        def as_counted(client: int, reply: Reply) -> Reply:
            return changed(reply, changes[client]) if client in changes else reply

        return self.sums.replies(as_counted)
