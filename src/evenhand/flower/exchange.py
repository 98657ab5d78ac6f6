"""The engine of a real federation: exchanges messages with clients through Flower's grid.

Each client's node gets its task as one message that expires with the exchange, so a node that comes
back does not work on an old round. Replies are checked, then summed in the order of client numbers,
in float64, as in the simulator: the sums do not depend on who is fast. Clients that miss the
deadline, or send a faulty reply, are skipped.
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
from evenhand.data.population import Population
from evenhand.engines.base import Engine, Exchange, Look
from evenhand.engines.work import Evaluate, Train, Work
from evenhand.flower import bundle, records
from evenhand.flower.checks import RollCall, check_reply, label
from evenhand.flower.claims import check_claims, entries_of
from evenhand.flower.evaluation_checks import check_evaluation
from evenhand.flower.faults import EXPIRED, GONE, in_words, note_fault
from evenhand.flower.link import Link
from evenhand.flower.membership import Membership
from evenhand.flower.memory import FIRST
from evenhand.flower.packing import byte_count, pack, packed_size
from evenhand.flower.proportion import BOUND, Medians
from evenhand.flower.request import Request, form_of
from evenhand.flower.spool import Spool
from evenhand.flower.sums import OrderedSum
from evenhand.flower.wire import describe_work
from evenhand.messages import Replies, Reply, Task
from evenhand.metrics.client_sums import CELLS
from evenhand.model import Model
from evenhand.tree import Tree

log = logging.getLogger(__name__)

ABOUT = 1 << 16  # bytes of a reply beside its tensors
# the type of message for each kind of work
KINDS = {"train": MessageType.TRAIN, "survey": "query.survey", "evaluate": MessageType.EVALUATE}


@dataclass(frozen=True)
class Remote(Engine):
    """Clients behind Flower's grid.

    Args:
        method: the run's method.
        run: a name that a resumed run keeps; nodes store their clients' memory under it.
        loss: the name of the run's loss.
        by_client: whether the server sees the scores of single clients, not only sums.
        bound: largest multiple of the median for an update or a loss; None for no bound.
        folder: where faults are recorded and replies wait; None records none.
    """

    link: Link
    membership: Membership
    method: Algorithm
    run: str
    loss: str
    by_client: bool = False
    bound: float | None = BOUND
    folder: Path | None = None

    def attach(self, model: Model, population: Population, seed: int) -> Exchange:
        return GridExchange(self, model, population, seed)


class _Failed(ValueError):
    """A client could not do what it was asked, and says so, or Flower does."""

    def __init__(self, reason: str, kind: str = "failed") -> None:
        super().__init__(reason)
        self.kind = kind


class GridExchange:
    """Exchanges over a grid; see :class:`evenhand.engines.base.Exchange`."""

    here = False

    def __init__(self, engine: Remote, model: Model, population: Population, seed: int) -> None:
        self.by_client, self.cells = engine.by_client, CELLS
        self.engine, self.model, self.population, self.seed = engine, model, population, seed
        self.meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None = None
        self._begun = -1  # the last round of which some work has begun
        self._counted: dict[int, int] = {}  # each client's last round of training that counts
        self._forms: dict[str, Reply] = {}  # by work
        self._medians = Medians(engine.folder)
        self._expired: set[int] = set()  # clients for which Flower has said that it is too late

    @property
    def memories(self) -> dict[int, Tree]:
        """The round of each client's memory, for checkpoints; the memory stays on the node."""
        return {client: {"counted": torch.tensor(round)} for client, round in self._counted.items()}

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._counted = {client: int(kept["counted"]) for client, kept in memories.items()}

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Send ``task`` to clients ``ids`` and sum their replies."""
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

    def _request(self, work: Work, task: Task, ids: Tensor) -> Request:
        text = describe_work(work, self.engine.method)
        clients = ids.tolist()
        entries = {
            client: entries_of(work, task, place, self.population, client)
            for place, client in enumerate(clients)
        }
        sums = OrderedSum(sorted(clients), Spool(self.engine.folder))
        form = self._form(work, text, task)
        return Request(work, text, task, form, entries, sums)

    def _exchange(
        self, requests: list[Request], task: Task, shared: Array, ids: Tensor, round: int
    ) -> list[Replies]:
        """The clients' replies to the first request, and to the second where it was sent."""
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
        link, membership = self.engine.link, self.engine.membership
        for client in sorted(set(clients) - set(present.values())):
            what = f"has no node any more and is skipped in round {round + 1}"
            self._note(round, client, "gone", what)
        membership.unresponsive -= set(client_of.values())
        begun, self._expired = time.monotonic(), set()
        size = sum(packed_size(part) for request in requests for part in request.form) + ABOUT
        for node, message in link.ask(contents, KINDS[work.name], f"{round}", size):
            self._receive(client_of[node], message, roll, requests, round, size)
        waited = min(link.limits.deadline, time.monotonic() - begun)
        for client in roll.missing:
            what = f"has not answered within {waited:.3g} s"
            self._note(round, client, "late", f"{what} and is skipped in round {round + 1}")
        membership.unresponsive |= set(roll.missing)
        late = self._expired.union(roll.missing)
        membership.backoff.note(set(client_of.values()) - late, late, round, self._label)
        replies = [
            request.summed(
                self.engine.bound,
                self._medians,
                round,
                lambda client, what: self._note(
                    round, client, "bounded", f"is bounded in round {round + 1}: {what}"
                ),
            )
            for request in requests
        ]
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
        """Clients that missed deadlines and are not asked now; the final evaluation asks
        everyone."""
        if isinstance(work, Evaluate) and work.full:
            return set()
        return self.engine.membership.backoff.waiting(present.values(), round)

    def _content(
        self,
        requests: list[Request],
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
        if self.model.normalisation is not None:
            about["normalisation"] = self.model.normalisation
        for request in requests[1:]:
            if client in request.entries:
                about["look"] = request.text
        limit = self.engine.link.limits.message
        return records.task_content(Task(task.shared, own), about, shared, limit)

    def _receive(
        self,
        client: int,
        message: Message,
        roll: RollCall,
        requests: list[Request],
        round: int,
        size: int,
    ) -> None:
        """Keep the client's replies, or record why they cannot count."""
        asked = [request for request in requests if client in request.entries]
        try:
            replies, about = self._read(client, message, both=len(asked) > 1, size=size)
        except _Failed as error:
            roll.answer(client, {})
            self._note(round, client, error.kind, f"is skipped: {error}")
            return
        except ValueError as error:
            roll.answer(client, {})
            self._note(round, client, "refused", f"is skipped: {error}")
            return
        reasons = roll.answer(client, about)
        for request, reply in zip(asked, replies, strict=True):
            reasons = reasons or self._faults_in(client, reply, request)
        for reason in reasons:
            self._note(round, client, "refused", f"{reason}; skipped")
        for request, reply in zip(asked, [] if reasons else replies, strict=False):
            request.keep(client, reply, self.population, self.engine.loss)

    def _note(self, round: int, client: int, kind: str, said: str) -> None:
        """Log and record a fault; ``said`` may begin with the client's name."""
        who = self._label(client)
        what = said.removeprefix(who).removeprefix(":").strip()
        line = said if said.startswith(who) else f"{who} {said}"
        log.warning("%s", line)
        name = self.population.name(client)
        note_fault(self.engine.folder, round + 1, client, name, kind, what)

    def _read(
        self, client: int, message: Message, both: bool, size: int
    ) -> tuple[tuple[Reply, ...], dict[str, Any]]:
        """The replies in a message and their plain values; raises a ValueError if they cannot be
        read."""
        if message.has_error():
            self.engine.membership.unresponsive.add(client)
            code = message.error.code
            if code == EXPIRED:
                self._expired.add(client)
            raise _Failed(in_words(code), {EXPIRED: "late", GONE: "gone"}.get(code, "failed"))
        if fault := records.fault_in(message.content):
            raise _Failed(fault)
        limit = self.engine.link.limits.message
        records.check_size(message.content, limit)
        if (found := records.size_of(message.content)) > size:
            raise ValueError(f"its reply has {byte_count(found)}, at most {byte_count(size)} fit")
        reply, about = records.read_reply(message.content, limit)
        return bundle.split_reply(reply) if both else (reply,), about

    def _faults_in(self, client: int, reply: Reply, request: Request) -> list[str]:
        who = self._label(client)
        found = check_reply(
            reply,
            request.form,
            who,
            must_be_finite=request.work.must_be_finite,
            known=self._known(request.work, client),
        )
        if found:
            return found
        if isinstance(request.work, Evaluate):
            return check_evaluation(reply, request.task, self.model, who)
        return check_claims(reply, request.entries[client], who, self.engine.loss)

    def _known(self, work: Work, client: int) -> dict[tuple[str, ...], Tensor]:
        """What a reply must contain: an evaluation, the sample counts that its node reported."""
        if not isinstance(work, Evaluate):
            return {}
        counts = self.population.counts(work.part)[client]
        return {("each" if work.by_client else "total", "count"): counts}

    def _form(self, work: Work, text: str, task: Task) -> Reply:
        if text not in self._forms:
            self._forms[text] = form_of(work, task, self.model, self.population, self.seed)
        return self._forms[text]

    def _label(self, client: int) -> str:
        return label(client, self.population.name)
