"""Exchanges with clients behind Flower's grid: the engine of a real federation.

A task goes to each client's node as one message that expires with the exchange, so that a node
that comes back does not work on an old round. Replies are checked, then added in the order of the
clients' numbers, in float64, as the simulator adds them: the sums do not depend on who is quick.
Clients that miss the deadline, or send a reply with a fault, are left out of the exchange.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, Message, MessageType, RecordDict
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.data.samples import Part
from evenhand.engines.base import Engine, Exchange, Look
from evenhand.engines.client import SingleClient
from evenhand.engines.work import Evaluate, Train, Work
from evenhand.flower import bundle, faults, records
from evenhand.flower.checks import RollCall, check_reply, label
from evenhand.flower.evaluation_checks import check_evaluation
from evenhand.flower.link import Link
from evenhand.flower.membership import Membership
from evenhand.flower.memory import FIRST
from evenhand.flower.packing import pack
from evenhand.flower.sums import OrderedSum
from evenhand.flower.weighing import weighed_reply
from evenhand.flower.wire import describe_work
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

log = logging.getLogger(__name__)

# the type of message for each kind of work
KINDS = {"train": MessageType.TRAIN, "survey": "query.survey", "evaluate": MessageType.EVALUATE}


@dataclass(frozen=True)
class Remote(Engine):
    """Clients behind Flower's grid.

    Args:
        method: the run's method.
        run: a name that stays when the run is resumed; nodes keep their clients' memories under it.
        loss: the name of the run's loss.
        by_client: whether the server sees how single clients fare, not only sums over them.
        folder: where faults of clients are noted; None notes them in the log alone.
    """

    link: Link
    membership: Membership
    method: Algorithm
    run: str
    loss: str
    by_client: bool = False
    folder: Path | None = None

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        return GridExchange(self, model, population, seed)


@dataclass(frozen=True)
class _Request:
    """Work that is asked of clients."""

    work: Work
    text: str  # the work as it travels
    task: Task
    form: Reply  # a reply of the right names, shapes and types
    clients: set[int]


class GridExchange:
    """Exchanges over a grid; see :class:`evenhand.engines.base.Exchange`."""

    here = False

    def __init__(self, engine: Remote, model: Model, population: Population, seed: int) -> None:
        self.by_client = engine.by_client
        self.engine, self.model, self.population, self.seed = engine, model, population, seed
        self.meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None = None
        self._begun = -1  # the last round of which some work has begun
        self._counted: dict[int, int] = {}  # each client's last round of training that counts
        self._forms: dict[str, Reply] = {}  # by work
        self._expired: set[int] = set()  # clients for which Flower has said that it is too late

    @property
    def memories(self) -> dict[int, Tree]:
        """After which round each client's memory is, for checkpoints; memories stay on the
        nodes."""
        return {client: {"counted": torch.tensor(round)} for client, round in self._counted.items()}

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._counted = {client: int(kept["counted"]) for client, kept in memories.items()}

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Send ``task`` to clients ``ids`` and add up their replies."""
        request = self._request(work, task, ids)
        return self._exchange([request], task, pack(task.shared), ids, round)[0]

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        """The same, with an evaluation before the work in the same messages."""
        requests = [
            self._request(work, task, ids),
            self._request(look.work, look.task, look.ids),
        ]
        shared = pack(bundle.add_model(task.shared, look.task.shared["model"]))
        replies, evaluation = self._exchange(requests, task, shared, ids, round)
        return evaluation, replies

    def _request(self, work: Work, task: Task, ids: Tensor) -> _Request:
        text = describe_work(work, self.engine.method)
        return _Request(work, text, task, self._form(work, text, task), set(ids.tolist()))

    def _exchange(
        self, requests: list[_Request], task: Task, shared: Array, ids: Tensor, round: int
    ) -> list[Replies]:
        """What the clients reply to the first request, and those of the second to both."""
        clients, work = ids.tolist(), requests[0].work
        present = self._present(clients, work, round)
        resting = self._resting(present, work, round)
        client_of = {node: it for node, it in present.items() if it not in resting}
        place_of = {client: place for place, client in enumerate(clients)}
        contents = {
            node: self._content(requests, task, shared, place_of[client], client, round)
            for node, client in client_of.items()
        }
        roll = RollCall(list(client_of.values()), round, work.name, self.population.name)
        sums = [OrderedSum(sorted(request.clients)) for request in requests]
        link, membership = self.engine.link, self.engine.membership
        for client in sorted(set(clients) - set(present.values())):
            self._warn(client, round, "has no node any more and is left out of round %d", round + 1)
        for client in sorted(set(clients) - set(client_of.values())):
            sums[0].add(client, None)
        membership.unresponsive -= set(client_of.values())
        begun, self._expired = time.monotonic(), set()
        for node, message in link.ask(contents, KINDS[work.name], f"{round}"):
            client = client_of[node]
            checked = self._checked(client, message, roll, requests)
            for one, reply in zip(sums, checked, strict=False):
                one.add(client, reply)
        waited = min(link.limits.deadline, time.monotonic() - begun)
        for client in roll.missing:
            text = "has not answered within %.3g s and is left out of round %d"
            self._warn(client, round, text, waited, round + 1)
        membership.unresponsive |= set(roll.missing)
        late = self._expired.union(roll.missing)
        membership.backoff.note(set(client_of.values()) - late, late, round, self._label)
        replies = [one.replies() for one in sums]
        if isinstance(work, Train):
            self._counted |= dict.fromkeys(replies[0].ids.tolist(), round)
        return replies

    def _present(self, clients: list[int], work: Work, round: int) -> dict[int, int]:
        """The nodes of clients that have one, and the client of each."""
        membership = self.engine.membership
        # nothing of the round is lost when clients join now
        begins = not isinstance(work, Evaluate) and round > self._begun
        found = membership.nodes_of(clients, admit_new=begins)
        if not found:
            membership.wait_for_someone(round)
            found = membership.nodes_of(clients)
        self._begun = max(self._begun, round)
        return found

    def _resting(self, present: dict[int, int], work: Work, round: int) -> set[int]:
        """Clients that have missed deadlines and are not asked now; at the end everyone is."""
        if isinstance(work, Evaluate) and work.full:
            return set()
        return self.engine.membership.backoff.waiting(present.values(), round)

    def _content(
        self,
        requests: list[_Request],
        task: Task,
        shared: Array,
        place: int,
        client: int,
        round: int,
    ) -> RecordDict:
        own = tree.map(lambda leaf: leaf[place : place + 1], task.own)
        about: dict[str, Any] = {
            "run": self.engine.run,
            "client": client,
            "round": round,
            "work": requests[0].work.name,
            "how": requests[0].text,
            "session": self.engine.membership.session,
            "seed": self.seed,
            "counted": self._counted.get(client, FIRST),
            "groups": list(self.population.group_names),
            "loss": self.engine.loss,
        }
        for request in requests[1:]:
            if client in request.clients:
                about["look"] = request.text
        limit = self.engine.link.limits.message
        return records.task_content(Task(task.shared, own), about, shared, limit)

    def _checked(
        self, client: int, message: Message, roll: RollCall, requests: list[_Request]
    ) -> list[Reply | None]:
        """The client's replies to the requests; none, and a line in the log, where they cannot
        count."""
        asked = [request for request in requests if client in request.clients]
        try:
            replies, about = self._read(client, message, both=len(asked) > 1)
        except ValueError as error:
            roll.answer(client, {})
            self._warn(client, roll.round, "is left out: %s", error)
            return [None for _ in asked]
        reasons = roll.answer(client, about)
        for request, reply in zip(asked, replies, strict=True):
            reasons = reasons or self._faults(client, reply, request)
        for reason in reasons:
            log.warning("%s; left out", reason)
            self._note(client, roll.round, reason)
        if reasons:
            return [None for _ in asked]
        return [
            weighed_reply(reply, self.population, request.work.part, client)
            if isinstance(request.work, Evaluate)
            else reply
            for request, reply in zip(asked, replies, strict=True)
        ]

    def _read(
        self, client: int, message: Message, both: bool
    ) -> tuple[tuple[Reply, ...], dict[str, Any]]:
        """The replies in a message, and what goes with them; raises a ValueError where they cannot
        be read."""
        if message.has_error():
            self.engine.membership.unresponsive.add(client)
            if message.error.code == faults.EXPIRED:
                self._expired.add(client)
            raise ValueError(faults.in_words(message.error.code))
        if fault := records.fault_in(message.content):
            raise ValueError(fault)
        reply, about = records.read_reply(message.content, self.engine.link.limits.message)
        return bundle.split_reply(reply) if both else (reply,), about

    def _faults(self, client: int, reply: Reply, request: _Request) -> list[str]:
        found = check_reply(
            reply,
            request.form,
            self._label(client),
            must_be_finite=request.work.must_be_finite,
            known=self._known(request.work, client),
        )
        if found or not isinstance(request.work, Evaluate):
            return found
        return check_evaluation(reply, request.task, self.model, self._label(client))

    def _known(self, work: Work, client: int) -> dict[tuple[str, ...], Tensor]:
        """What a reply must say: when it evaluates, as many samples of each group as its node has
        reported."""
        if not isinstance(work, Evaluate):
            return {}
        counts = self.population.counts(work.part)[client]
        return {("each" if work.by_client else "total", "count"): counts}

    def _form(self, work: Work, text: str, task: Task) -> Reply:
        """A reply of the right names, shapes and types: that of a client with zeros for samples."""
        if text not in self._forms:
            client = SingleClient(self.model, _zeros(self.population), self.seed, 0)
            own = tree.map(lambda leaf: leaf[:1], task.own)
            memory = work.first_memory(self.model.init())
            self._forms[text], _ = client.answer(work, Task(task.shared, own), 0, memory)
        return self._forms[text]

    def _label(self, client: int) -> str:
        return label(client, self.population.name)

    def _warn(self, client: int, round: int, text: str, *values: Any) -> None:
        """Name a client that is left out."""
        log.warning("%s " + text, self._label(client), *values)
        self._note(client, round, text % values)

    def _note(self, client: int, round: int, what: str) -> None:
        name = self.population.name(client)
        faults.note_fault(self.engine.folder, round + 1, client, name, what)


def _zeros(population: Population) -> Federation:
    """One client with two samples of each group in every part."""
    groups = torch.arange(max(1, population.groups)).repeat_interleave(2)
    x, y, _ = population.form.zeros(len(groups))
    part = Part(x, y, torch.tensor([0, len(groups)]), groups if population.groups else None)
    return Federation(part, part, part, group_names=population.group_names)
