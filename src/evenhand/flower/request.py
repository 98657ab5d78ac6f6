"""A task for the clients of an exchange, and what happens to their replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from evenhand import tree
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.data.samples import Part
from evenhand.engines.client import SingleClient
from evenhand.engines.work import Evaluate, Work
from evenhand.flower.claims import steps_of
from evenhand.flower.proportion import Change, Measured, Medians, changed, judge, measure
from evenhand.flower.sums import OrderedSum
from evenhand.flower.weighing import weighed_reply
from evenhand.messages import Entries, Replies, Reply, Task
from evenhand.model import Model

Note = Callable[[int, str], None]  # of a client, why it is bounded


@dataclass(frozen=True)
class Request:
    """Work for clients.

    Args:
        text: the work as it travels.
        form: a reply of the right names, shapes and types.
        entries: what the reply of each client can contain.
    """

    work: Work
    text: str
    task: Task
    form: Reply
    entries: dict[int, Entries]
    sums: OrderedSum
    _measured: dict[int, Measured] = field(default_factory=dict)

    def keep(self, client: int, reply: Reply, population: Population, loss: str) -> None:
        """Keep a reply until all have arrived; ``loss`` is the name of the run's loss."""
        entries, local = self.entries[client], self.work.local
        if entries:
            samples = int(population.sizes(self.work.part)[client])
            steps = steps_of(local, samples) if local else 1.0
            self._measured[client] = measure(reply, entries, steps, loss)
        if isinstance(self.work, Evaluate):
            reply = weighed_reply(reply, population, self.work.part, client)
        self.sums.add(client, reply)

    def summed(self, bound: float | None, medians: Medians, round: int, note: Note) -> Replies:
        """Sum the replies, with bounds on those out of proportion."""
        changes = dict[int, Change]()
        if bound is not None and self._measured:
            changes = judge(self._measured, bound, medians, self.work.name, round)
        for client, change in changes.items():
            for what in change.words:
                note(client, what)

        def as_counted(client: int, reply: Reply) -> Reply:
            return changed(reply, changes[client]) if client in changes else reply

        return self.sums.replies(as_counted)


def form_of(work: Work, task: Task, model: Model, population: Population, seed: int) -> Reply:
    """A reply of the right names, shapes and types: the one of a client whose samples are zeros."""
    client = SingleClient(model, _zeros(population), seed, 0)
    own = tree.map(lambda leaf: leaf[:1], task.own)
    form, _ = client.answer(work, Task(task.shared, own), 0, work.first_memory(model.init()))
    return form


def _zeros(population: Population) -> Federation:
    """One client with two samples of each group in every split."""
    groups = torch.arange(max(1, population.groups)).repeat_interleave(2)
    x, y, _ = population.form.zeros(len(groups))
    part = Part(x, y, torch.tensor([0, len(groups)]), groups if population.groups else None)
    return Federation(part, part, part, group_names=population.group_names)
