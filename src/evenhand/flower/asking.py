"""Who is asked in an exchange of a real federation, and how their replies come in.

Each client's node gets its task as one message that expires with the exchange, so a node that comes
back does not work on an old round. Clients that miss the deadline, or send a faulty reply, are
skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, Message, MessageType, RecordDict

from evenhand import tree
from evenhand.data.population import Population
from evenhand.engines.work import Evaluate, Named
from evenhand.flower import records
from evenhand.flower.checks import RollCall, label
from evenhand.flower.faults import EXPIRED, GONE, in_words, note_fault
from evenhand.flower.link import Link
from evenhand.flower.membership import Membership
from evenhand.flower.memory import FIRST
from evenhand.flower.packing import byte_count
from evenhand.messages import Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

log = logging.getLogger(__name__)

ABOUT = 1 << 16  # bytes of a reply beside its tensors
# the type of message for each kind of work
KINDS = {
    "train": MessageType.TRAIN,
    "survey": "query.survey",
    "evaluate": MessageType.EVALUATE,
    "count": "query.count",
}

Receive = Callable[[int, Message, RollCall], None]  # takes a client's reply


class Failed(ValueError):
    """A client could not do what it was asked, and says so, or Flower does."""

    def __init__(self, reason: str, kind: str = "failed") -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class Asking:
    """Asks clients, and knows who has answered in earlier rounds.

    Args:
        run, loss, folder: see :class:`evenhand.flower.exchange.Remote`.
        least: clients without which nobody is asked.
        counted: each client's last round of training that counts.
    """

    link: Link
    membership: Membership
    model: Model
    population: Population
    seed: int
    run: str
    loss: str
    folder: Path | None
    least: int = 1
    counted: dict[int, int] = field(default_factory=dict)
    _begun: int = -1  # the last round of which some work has begun
    # clients for which Flower has said that it is too late
    _expired: set[int] = field(default_factory=set)

    @property
    def memories(self) -> dict[int, Tree]:
        """The round of each client's memory, for checkpoints; the memory stays on the node."""
        return {client: {"counted": torch.tensor(round)} for client, round in self.counted.items()}

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self.counted = {client: int(kept["counted"]) for client, kept in memories.items()}

    def begun(self) -> None:
        """Let no client join in round 0: what is asked is for those that are there."""
        self._begun = max(self._begun, 0)

    def nodes(self, clients: list[int], work: Named, round: int) -> dict[int, int]:
        """The nodes that are asked now, and the client of each."""
        present = self._present(clients, work, round)
        resting = self._resting(present, work, round)
        for client in sorted(set(clients) - set(present.values())):
            what = f"has no node any more and is skipped in round {round + 1}"
            self.note(round, client, "gone", what)
        return {node: client for node, client in present.items() if client not in resting}

    def _present(self, clients: list[int], work: Named, round: int) -> dict[int, int]:
        """The nodes of clients that have one, and the client of each."""
        membership = self.membership
        # nothing of the round is lost when clients join now
        begins = not isinstance(work, Evaluate) and round > self._begun
        found = membership.nodes_of(clients, admit_new=begins)
        if not found:
            membership.wait_for_someone(round)
            found = membership.nodes_of(clients)
        if len(found) < min(self.least, len(clients)):
            membership.wait_for(clients, self.least, round)
            found = membership.nodes_of(clients)
        self._begun = max(self._begun, round)
        return found

    def _resting(self, present: dict[int, int], work: Named, round: int) -> set[int]:
        """Clients that missed deadlines and are not asked now; the final evaluation asks
        everyone."""
        if isinstance(work, Evaluate) and work.full:
            return set()
        return self.membership.backoff.waiting(present.values(), round)

    def about(self, work: str, how: str, client: int, round: int) -> dict[str, Any]:
        """The plain values of a task."""
        about: dict[str, Any] = {
            "run": self.run,
            "client": client,
            "round": round,
            "work": work,
            "how": how,
            "session": self.membership.session,
            "seed": self.seed,
            "counted": self.counted.get(client, FIRST),
            "groups": list(self.population.group_names),
            "loss": self.loss,
        }
        if self.model.normalisation is not None:
            about["normalisation"] = self.model.normalisation
        return about

    def content(self, task: Task, shared: Array, place: int, about: records.About) -> RecordDict:
        """The message for the client at ``place`` of ``task``."""
        own = tree.map(lambda leaf: leaf[place : place + 1], task.own)
        limit = self.link.limits.message
        return records.task_content(Task(task.shared, own), about, shared, limit)

    def ask(
        self,
        contents: Mapping[int, RecordDict],
        client_of: Mapping[int, int],
        work: Named,
        round: int,
        size: int,
        receive: Receive,
    ) -> None:
        """Send messages, pass on the replies, and note who is late.

        Args:
            contents: by node.
            client_of: the client of each node.
            size: bytes of a reply.
        """
        roll = RollCall(list(client_of.values()), round, work.name, self.population.name)
        membership = self.membership
        membership.unresponsive -= set(client_of.values())
        begun, self._expired = time.monotonic(), set()
        for node, message in self.link.ask(contents, KINDS[work.name], f"{round}", size):
            receive(client_of[node], message, roll)
        waited = min(self.link.limits.deadline, time.monotonic() - begun)
        for client in roll.missing:
            what = f"has not answered within {waited:.3g} s"
            self.note(round, client, "late", f"{what} and is skipped in round {round + 1}")
        membership.unresponsive |= set(roll.missing)
        late = self._expired.union(roll.missing)
        membership.backoff.note(set(client_of.values()) - late, late, round, self.label)

    def read(self, client: int, message: Message, size: int) -> tuple[Reply, dict[str, Any]]:
        """The reply in a message and its plain values; raises a ValueError if it cannot be read."""
        if message.has_error():
            self.membership.unresponsive.add(client)
            code = message.error.code
            if code == EXPIRED:
                self._expired.add(client)
            raise Failed(in_words(code), {EXPIRED: "late", GONE: "gone"}.get(code, "failed"))
        if fault := records.fault_in(message.content):
            raise Failed(fault)
        limit = self.link.limits.message
        records.check_size(message.content, limit)
        if (found := records.size_of(message.content)) > size:
            raise ValueError(f"its reply has {byte_count(found)}, at most {byte_count(size)} fit")
        return records.read_reply(message.content, limit)

    def note(self, round: int, client: int, kind: str, said: str) -> None:
        """Log and record a fault; ``said`` may begin with the client's name."""
        who = self.label(client)
        what = said.removeprefix(who).removeprefix(":").strip()
        line = said if said.startswith(who) else f"{who} {said}"
        log.warning("%s", line)
        name = self.population.name(client)
        note_fault(self.folder, round + 1, client, name, kind, what)

    def label(self, client: int) -> str:
        """A client in words."""
        return label(client, self.population.name)
