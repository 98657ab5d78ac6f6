"""Exchanges with clients behind Flower's grid: the engine of a real federation.

A task goes to each client's node as one message that expires with the exchange, so that a node
which comes back does not work on an old round. Replies are checked, then added in the order of the
clients' numbers as far as they have come, in float64, as the simulator adds them: the sums do not
depend on who is quick. Who does not answer in time, or answers with a fault, is left out of this
exchange.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.data.federation import Federation
from evenhand.engines.base import Engine, Exchange, Look
from evenhand.engines.fold import Fold
from evenhand.engines.underway import numbers_at_home
from evenhand.engines.work import Evaluate, Train, Work
from evenhand.errors import RunError
from evenhand.flower import bundle, records, roster
from evenhand.flower.checks import RollCall, check_reply, label
from evenhand.flower.memory import FIRST
from evenhand.flower.node import Node
from evenhand.flower.wire import described
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

if TYPE_CHECKING:
    from evenhand.flower.attendance import Attendance

log = logging.getLogger(__name__)

# with which Flower itself replies
ERRORS = {3: "it has not answered in time", 5: "its node is gone"}
# of work
KINDS = {"train": MessageType.TRAIN, "survey": "query.survey", "evaluate": MessageType.EVALUATE}


@dataclass(frozen=True)
class Limits:
    """How long and how large.

    Args:
        deadline: seconds that clients have for an exchange; messages expire then.
        poll: seconds between looking for replies.
        message: bytes of a message.
        patience: seconds to wait for nodes, at the start and where none is left.
    """

    deadline: float = 600.0
    poll: float = 0.2
    message: int = records.LIMIT
    patience: float = 600.0


class Link:
    """Sends messages to nodes and gives their replies as they come."""

    def __init__(self, grid: Grid, limits: Limits) -> None:
        self.grid, self.limits = grid, limits

    def ask(
        self, contents: Mapping[int, RecordDict], kind: str, group: str
    ) -> Iterator[tuple[int, Message]]:
        """Pairs of a node and its reply, until all have answered or the time is over."""
        ttl = self.limits.deadline
        messages = [
            Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=ttl)
            for node, content in contents.items()
        ]
        names: list[str | None] = list(self.grid.push_messages(messages))
        if len(names) < len(messages):  # Flower's way to say it
            raise RunError(
                "the SuperLink, or a proxy before it, takes no messages as large as this model's;"
                " raise its limit"
            )
        # without a name: the node has just left
        asked = {name: node for name, node in zip(names, contents, strict=True) if name}
        known, end = dict(asked), time.monotonic() + ttl
        while asked:
            for reply in list(self.grid.pull_messages(list(asked))):
                # by the message it answers: where a node is gone, Flower itself replies, under
                # another number
                name = reply.metadata.reply_to_message_id
                if name in asked:
                    yield asked.pop(name), reply
                elif name in known:
                    log.warning(
                        "node %s has replied already; its second reply is not counted", known[name]
                    )
                else:
                    log.warning(
                        "node %s replies to an earlier message; the reply is late and is not"
                        " counted",
                        reply.metadata.src_node_id,
                    )
            if not asked or time.monotonic() > end:
                return
            time.sleep(self.limits.poll)


@dataclass(frozen=True)
class Remote(Engine):
    """Clients behind Flower's grid.

    Args:
        attendance: the clients and their nodes.
        method: the run's.
        run: a name that stays when the run is resumed; nodes keep their clients' memories under it.
        loss: its name.
        by_client: whether the server sees how single clients fare, not only sums over them.
    """

    link: Link
    attendance: Attendance
    method: Algorithm
    run: str
    loss: str
    by_client: bool = False

    def attach(self, model: Model, federation: Federation, seed: int) -> Exchange:
        return GridExchange(self, model, federation, seed)


class GridExchange:
    """Exchanges over a grid; see :class:`evenhand.engines.base.Exchange`."""

    here = False

    def __init__(self, settings: Remote, model: Model, federation: Federation, seed: int) -> None:
        self.by_client = settings.by_client
        self.settings, self.model, self.federation, self.seed = settings, model, federation, seed
        self.meanwhile: Callable[[], tuple[Work, Tensor, int] | None] | None = None
        # the last round of which some work has begun
        self._attendance, self._begun = settings.attendance, -1
        self._counted: dict[int, int] = {}  # the last round whose training of a client counts
        self._expected: dict[str, Reply] = {}

    @property
    def memories(self) -> dict[int, Tree]:
        """What clients remember stays with them; here is after which round, for checkpoints."""
        return {client: {"counted": torch.tensor(round)} for client, round in self._counted.items()}

    @memories.setter
    def memories(self, memories: dict[int, Tree]) -> None:
        self._counted = {client: int(kept["counted"]) for client, kept in memories.items()}

    def exchange(self, work: Work, task: Task, ids: Tensor, round: int) -> Replies:
        """Send ``task`` to clients ``ids`` and add up what they reply."""
        return self._exchange(work, task, ids, round, None)

    def exchange_with(
        self, look: Look, work: Work, task: Task, ids: Tensor, round: int
    ) -> tuple[Replies, Replies]:
        """The same, and in the same messages what they see of models before they work."""
        how = described(look.work, self.settings.method)
        beside = _Beside(look, how, self._form(look.work, how, look.task))
        replies = self._exchange(work, task, ids, round, beside)
        return beside.replies(), replies

    def _exchange(
        self, work: Work, task: Task, ids: Tensor, round: int, beside: _Beside | None
    ) -> Replies:
        clients, how = ids.tolist(), described(work, self.settings.method)
        shared = records.pack(
            task.shared
            if beside is None
            else bundle.with_model(task.shared, beside.look.task.shared["model"])
        )
        # nothing of the round is lost when clients join now
        begins = not isinstance(work, Evaluate) and round > self._begun
        client_of = self._attendance.find(clients, look_around=begins)
        if not client_of:
            self._attendance.wait_for_someone(round)
            client_of = self._attendance.find(clients)
        self._begun = max(self._begun, round)
        place_of = {client: place for place, client in enumerate(clients)}
        contents = {
            node: self._content(work, how, task, shared, place_of[client], client, round, beside)
            for node, client in client_of.items()
        }
        expected = self._form(work, how, task)
        roll = RollCall(list(client_of.values()), round, work.name, self.federation.name)
        fold = _InTurn(clients)
        for client in sorted(set(clients) - set(client_of.values())):
            log.warning(
                "%s has no node any more and is left out of round %d",
                self._label(client),
                round + 1,
            )
            fold.without(client)
        answered: list[int] = []
        link = self.settings.link
        self._attendance.silent -= set(clients)
        for node, message in link.ask(contents, KINDS[work.name], f"{round}"):
            client = client_of[node]
            reply = self._checked(client, message, roll, expected, work, beside)
            if reply is None:
                fold.without(client)
            else:
                answered.append(client)
                fold.add(client, reply)
        for client in roll.missing:
            log.warning(
                "%s has not answered within %g s and is left out of round %d",
                self._label(client),
                link.limits.deadline,
                round + 1,
            )
            fold.without(client)
        self._attendance.silent |= set(roll.missing)
        answered.sort()
        if isinstance(work, Train):
            self._counted |= dict.fromkeys(answered, round)
        if not answered:
            return Replies(ids[:0], {}, {})
        total, each = fold.sums(answered)
        return Replies(torch.tensor(answered), numbers_at_home(total), numbers_at_home(each))

    def _content(
        self,
        work: Work,
        how: str,
        task: Task,
        shared: Any,
        place: int,
        client: int,
        round: int,
        beside: _Beside | None,
    ) -> RecordDict:
        own = tree.map(lambda leaf: leaf[place : place + 1], task.own)
        about: dict[str, Any] = {
            "run": self.settings.run,
            "client": client,
            "round": round,
            "work": work.name,
            "how": how,
        }
        about |= {
            "session": self._attendance.session,
            "seed": self.seed,
            "counted": self._counted.get(client, FIRST),
            "groups": list(self.federation.group_names),
            "loss": self.settings.loss,
        }
        if beside is not None and client in beside.clients:
            about["look"] = beside.how
        return records.task_content(
            Task(task.shared, own), about, shared, self.settings.link.limits.message
        )

    def _checked(
        self,
        client: int,
        message: Message,
        roll: RollCall,
        expected: Reply,
        work: Work,
        beside: _Beside | None,
    ) -> Reply | None:
        """A reply that can be counted; None, and a line in the log, where it cannot."""
        who = self._label(client)
        try:
            if message.has_error():
                self._attendance.silent.add(client)
                code = message.error.code
                raise ValueError(
                    f"{ERRORS.get(code, 'its node has failed, see its log')} (Flower's error"
                    f" {code})"
                )
            fault = fault_in(message.content)
            if fault:
                raise ValueError(fault)
            reply, about = records.read_reply(message.content, self.settings.link.limits.message)
            looks = beside is not None and client in beside.clients
            reply, seen = bundle.parted(reply) if looks else (reply, None)
        except ValueError as error:
            roll.answer(client, {})
            log.warning("%s is left out: %s", who, error)
            return None
        reasons = roll.answer(client, about) or self._faults(client, reply, expected, work)
        if beside is not None and seen is not None and not reasons:
            reasons = self._faults(client, seen, beside.expected, beside.look.work)
            if not reasons:
                beside.heard[client] = seen
        for reason in reasons:
            log.warning("%s; left out", reason)
        return None if reasons else reply

    def _faults(self, client: int, reply: Reply, expected: Reply, work: Work) -> list[str]:
        known = self._known(work, client)
        return check_reply(
            reply, expected, self._label(client), must_be_finite=work.must_be_finite, known=known
        )

    def _known(self, work: Work, client: int) -> dict[tuple[str, ...], Tensor]:
        """What a reply must say of itself: when it evaluates, as many samples of each group as its
        node told at the start."""
        if not isinstance(work, Evaluate):
            return {}
        part = getattr(self.federation, work.part)
        rows = slice(int(part.offsets[client]), int(part.offsets[client + 1]))
        codes = (
            torch.zeros(rows.stop - rows.start, dtype=torch.int64)
            if part.group is None
            else part.group[rows]
        )
        return {
            ("each" if work.by_client else "total", "count"): torch.bincount(
                codes, minlength=max(1, work.groups)
            )
        }

    def _form(self, work: Work, how: str, task: Task) -> Reply:
        """A reply of the right form: one client's to made-up samples."""
        if how not in self._expected:
            part = roster.federation_of([_nobody(self.federation)])
            node = Node(self.model, part, self.seed, 0)
            own = tree.map(lambda leaf: leaf[:1], task.own)
            reply, _ = node.answer(
                work, Task(task.shared, own), 0, work.first_memory(self.model.init())
            )
            self._expected[how] = reply
        return self._expected[how]

    def _label(self, client: int) -> str:
        return label(client, self.federation.name)


class _Beside:
    """A look that goes with other work, and what has been seen so far."""

    def __init__(self, look: Look, how: str, expected: Reply) -> None:
        self.look, self.how, self.expected = look, how, expected
        self.clients = set(look.ids.tolist())
        self.heard: dict[int, Reply] = {}

    def replies(self) -> Replies:
        """Added up in the order of the clients' numbers."""
        answered = sorted(self.heard)
        if not answered:
            return Replies(self.look.ids[:0], {}, {})
        fold = _InTurn(answered)
        for client in answered:
            fold.add(client, self.heard[client])
        total, each = fold.sums(answered)
        return Replies(torch.tensor(answered), numbers_at_home(total), numbers_at_home(each))


class _InTurn:
    """Adds replies in the order of ``clients``; one that comes early waits for those before it."""

    def __init__(self, clients: list[int]) -> None:
        self._clients, self._fold = clients, Fold(1, len(clients))
        self._waiting: dict[int, Reply | None] = {}
        self._next = 0

    def add(self, client: int, reply: Reply) -> None:
        self._waiting[client] = reply
        self._go_on()

    def without(self, client: int) -> None:
        self._waiting[client] = None
        self._go_on()

    def _go_on(self) -> None:
        while self._next < len(self._clients) and self._clients[self._next] in self._waiting:
            reply = self._waiting.pop(self._clients[self._next])
            if reply is not None:
                total, each = (tree.map(lambda leaf: leaf[None], values) for values in reply)
                self._fold.add(
                    total,
                    each,
                    torch.tensor([self._next]),
                    torch.zeros(1, dtype=torch.int64),
                    torch.ones(1, dtype=torch.bool),
                )
            self._next += 1

    def sums(self, answered: list[int]) -> tuple[Tree, Tree]:
        """The totals, and rows of those who have answered."""
        total, each = self._fold.sums()
        rows = torch.tensor([self._clients.index(client) for client in answered])
        return tree.row(total, 0), tree.map(lambda leaf: leaf[rows], each)


def _nobody(federation: Federation) -> roster.Entry:
    """A client with two samples of each group in every part."""
    x, y = federation.train.x, federation.train.y
    counts = dict.fromkeys(("train", "val", "test"), torch.full((max(1, federation.groups),), 2))
    team = federation.team_names[0] if federation.team_names else ""
    return roster.Entry(
        "nobody",
        team,
        federation.group_names,
        federation.label_names,
        (x.shape[1:], x.dtype, y.shape[1:], y.dtype),
        counts,
    )


def fault_content(fault: str) -> RecordDict:
    """The reply of a client that cannot do what it is asked, with a reason that tells nothing of
    its data."""
    return RecordDict({"fault": ConfigRecord({"reason": fault})})


def fault_in(content: RecordDict) -> str:
    """The reason in a reply of :func:`fault_content`; empty where it is another reply."""
    record = content.get("fault")
    reason = record.get("reason") if isinstance(record, ConfigRecord) else None
    return "".join(filter(str.isprintable, reason))[:200] if isinstance(reason, str) else ""
