"""Exchanges with clients behind Flower's grid: the engine of a real federation.

A task goes to each client's node as one message that expires with the exchange, so that a node which comes back does not work on an old
round. Replies are checked, then added in the order of the clients' numbers as far as they have come, in float64, as the simulator adds
them: the sums do not depend on who is quick. Who does not answer in time, or answers with a fault, is left out of this exchange.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm
from evenhand.data import PARTS, Federation, Part
from evenhand.engines.base import Engine, Exchange, Look
from evenhand.engines.fold import Fold
from evenhand.engines.underway import numbers_at_home
from evenhand.engines.work import Evaluate, Train, Work
from evenhand.errors import RunError
from evenhand.flower import company, records, roster
from evenhand.flower.checks import RollCall, check_reply, label
from evenhand.flower.memory import FIRST
from evenhand.flower.node import Node
from evenhand.flower.wire import described
from evenhand.messages import Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree

log = logging.getLogger(__name__)

CENSUS = "query.census"
ERRORS = {3: "it has not answered in time", 5: "its node is gone"}  # with which Flower itself replies
KINDS = {"train": MessageType.TRAIN, "survey": "query.survey", "evaluate": MessageType.EVALUATE}  # of work


@dataclass(frozen=True)
class Limits:
    """How long and how large.

    Args:
        deadline: seconds that clients have for an exchange; messages expire then.
        poll: seconds between looking for replies.
        message: bytes of a message.
    """

    deadline: float = 600.0
    poll: float = 0.2
    message: int = records.LIMIT


class Link:
    """Sends messages to nodes and gives their replies as they come."""

    def __init__(self, grid: Grid, limits: Limits) -> None:
        self.grid, self.limits = grid, limits

    def ask(self, contents: Mapping[int, RecordDict], kind: str, group: str) -> Iterator[tuple[int, Message]]:
        """Pairs of a node and its reply, until all have answered or the time is over."""
        ttl = self.limits.deadline
        messages = [Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=ttl) for node, content in contents.items()]
        names: list[str | None] = list(self.grid.push_messages(messages))
        if len(names) < len(messages):  # Flower's way to say it
            raise RunError("the SuperLink, or a proxy before it, takes no messages as large as this model's; raise its limit")
        asked = {name: node for name, node in zip(names, contents, strict=True) if name}  # without a name: the node has just left
        known, end = dict(asked), time.monotonic() + ttl
        while asked:
            for reply in list(self.grid.pull_messages(list(asked))):
                # by the message it answers: where a node is gone, Flower itself replies, under another number
                name = reply.metadata.reply_to_message_id
                if name in asked:
                    yield asked.pop(name), reply
                elif name in known:
                    log.warning("node %s has replied already; its second reply is not counted", known[name])
                else:
                    log.warning("node %s replies to an earlier message; the reply is late and is not counted", reply.metadata.src_node_id)
            if not asked or time.monotonic() > end:
                return
            time.sleep(self.limits.poll)


def census(link: Link, clients: int, patience: float) -> tuple[Federation, dict[int, int]]:
    """The federation as the server sees it once ``clients`` nodes are there, and the node of each client."""
    known: dict[int, roster.Entry] = {}
    end = time.monotonic() + patience
    while len(known) < clients:
        fresh = [node for node in link.grid.get_node_ids() if node not in known]
        known |= _heard(link, fresh)
        if len(known) >= clients:
            break
        if time.monotonic() > end:
            raise TimeoutError(
                f"only {len(known)} of {clients} nodes have told of their data within {patience:g} s; start the others, or wait for fewer"
            )
        time.sleep(link.limits.poll)
    names = [entry.name for entry in known.values()]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"two nodes are called {doubled}; give each its own name in its node config")
    order = {name: number for number, name in enumerate(roster.in_order(names))}
    entries = sorted(known.values(), key=lambda entry: order[entry.name])
    return roster.federation_of(entries), {order[entry.name]: node for node, entry in known.items()}


def _heard(link: Link, nodes: list[int]) -> dict[int, roster.Entry]:
    found = {}
    question = RecordDict({"about": ConfigRecord({"format": records.FORMAT})})
    for node, reply in link.ask(dict.fromkeys(nodes, question), CENSUS, "census"):
        try:
            if reply.has_error():
                raise ValueError(f"Flower's error {reply.error.code}")
            if fault := fault_in(reply.content):
                raise ValueError(fault)
            found[node] = roster.heard(*records.read_reply(reply.content, link.limits.message))
        except ValueError as error:
            log.warning("node %s cannot take part: %s", node, error)
    return found


@dataclass(frozen=True)
class Remote(Engine):
    """Clients behind Flower's grid.

    Args:
        nodes: the node of each client.
        method: the run's.
        run: a name that stays when the run is resumed; nodes keep their clients' memories under it.
        loss: its name.
        by_client: whether the server sees how single clients fare, not only sums over them.
    """

    link: Link
    nodes: dict[int, int]
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
        self._nodes = Whereabouts(settings.link, settings.nodes, federation)
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

    def exchange_with(self, look: Look, work: Work, task: Task, ids: Tensor, round: int) -> tuple[Replies, Replies]:
        """The same, and in the same messages what they see of models before they work."""
        how = described(look.work, self.settings.method)
        beside = _Beside(look, how, self._form(look.work, how, look.task))
        replies = self._exchange(work, task, ids, round, beside)
        return beside.replies(), replies

    def _exchange(self, work: Work, task: Task, ids: Tensor, round: int, beside: _Beside | None) -> Replies:
        clients, how = ids.tolist(), described(work, self.settings.method)
        shared = records.pack(task.shared if beside is None else company.with_model(task.shared, beside.look.task.shared["model"]))
        client_of = self._nodes.find(clients)
        place_of = {client: place for place, client in enumerate(clients)}
        contents = {
            node: self._content(work, how, task, shared, place_of[client], client, round, beside) for node, client in client_of.items()
        }
        expected = self._form(work, how, task)
        roll, fold = RollCall(list(client_of.values()), round, work.name, self.federation.name), _InTurn(clients)
        for client in sorted(set(clients) - set(client_of.values())):
            log.warning("%s has no node any more and is left out of round %d", self._label(client), round + 1)
            fold.without(client)
        answered: list[int] = []
        link = self.settings.link
        self._nodes.silent -= set(clients)
        for node, message in link.ask(contents, KINDS[work.name], f"{round}"):
            client = client_of[node]
            reply = self._checked(client, message, roll, expected, work, beside)
            if reply is None:
                fold.without(client)
            else:
                answered.append(client)
                fold.add(client, reply)
        for client in roll.missing:
            log.warning("%s has not answered within %g s and is left out of round %d", self._label(client), link.limits.deadline, round + 1)
            fold.without(client)
        self._nodes.silent |= set(roll.missing)
        answered.sort()
        if isinstance(work, Train):
            self._counted |= dict.fromkeys(answered, round)
        if not answered:
            return Replies(ids[:0], {}, {})
        total, each = fold.sums(answered)
        return Replies(torch.tensor(answered), numbers_at_home(total), numbers_at_home(each))

    def _content(
        self, work: Work, how: str, task: Task, shared: Any, place: int, client: int, round: int, beside: _Beside | None
    ) -> RecordDict:
        own = tree.map(lambda leaf: leaf[place : place + 1], task.own)
        about: dict[str, Any] = {"run": self.settings.run, "client": client, "round": round, "work": work.name, "how": how}
        about |= {
            "seed": self.seed,
            "counted": self._counted.get(client, FIRST),
            "groups": list(self.federation.group_names),
            "loss": self.settings.loss,
        }
        if beside is not None and client in beside.clients:
            about["look"] = beside.how
        return records.task_content(Task(task.shared, own), about, shared, self.settings.link.limits.message)

    def _checked(self, client: int, message: Message, roll: RollCall, expected: Reply, work: Work, beside: _Beside | None) -> Reply | None:
        """A reply that can be counted; None, and a line in the log, where it cannot."""
        who = self._label(client)
        try:
            if message.has_error():
                self._nodes.silent.add(client)
                code = message.error.code
                raise ValueError(f"{ERRORS.get(code, 'its node has failed, see its log')} (Flower's error {code})")
            fault = fault_in(message.content)
            if fault:
                raise ValueError(fault)
            reply, about = records.read_reply(message.content, self.settings.link.limits.message)
            looks = beside is not None and client in beside.clients
            reply, seen = company.parted(reply) if looks else (reply, None)
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
        return check_reply(reply, expected, self._label(client), must_be_finite=work.must_be_finite, known=known)

    def _known(self, work: Work, client: int) -> dict[tuple[str, ...], Tensor]:
        """What a reply must say of itself: when it evaluates, as many samples of each group as its node told at the start."""
        if not isinstance(work, Evaluate):
            return {}
        part = getattr(self.federation, work.part)
        rows = slice(int(part.offsets[client]), int(part.offsets[client + 1]))
        codes = torch.zeros(rows.stop - rows.start, dtype=torch.int64) if part.group is None else part.group[rows]
        return {("each" if work.by_client else "total", "count"): torch.bincount(codes, minlength=max(1, work.groups))}

    def _form(self, work: Work, how: str, task: Task) -> Reply:
        """A reply of the right form: one client's to made-up samples."""
        if how not in self._expected:
            part = roster.federation_of([_nobody(self.federation)])
            node = Node(self.model, part, self.seed, 0)
            own = tree.map(lambda leaf: leaf[:1], task.own)
            reply, _ = node.answer(work, Task(task.shared, own), 0, work.first_memory(self.model.init()))
            self._expected[how] = reply
        return self._expected[how]

    def _label(self, client: int) -> str:
        return label(client, self.federation.name)


class _Beside:
    """A look that goes with other work, and what has been seen so far."""

    def __init__(self, look: Look, how: str, expected: Reply) -> None:
        self.look, self.how, self.expected, self.clients = look, how, expected, set(look.ids.tolist())
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


class Whereabouts:
    """The node of each client; a node that restarts without a key comes back under another number.

    Where a client's node is gone, or did not answer when it was last asked (Flower takes a minute to notice that a node is gone), nodes
    that are no client's are asked for the census. One that tells the same name and counts is the client's from then on.
    """

    def __init__(self, link: Link, nodes: Mapping[int, int], federation: Federation) -> None:
        self.silent: set[int] = set()  # clients that did not answer when they were last asked
        self._link, self._node_of, self._federation = link, dict(nodes), federation
        self._strangers: dict[int, roster.Entry] = {}  # nodes that are no client's, and what they have told

    def find(self, clients: list[int]) -> dict[int, int]:
        """Nodes that are there now, and the client of each; clients without a node are missing."""
        present = set(self._link.grid.get_node_ids())
        lost = [client for client in clients if client in self.silent or self._node_of[client] not in present]
        if lost:
            known = {*self._node_of.values(), *self._strangers}
            self._strangers |= _heard(self._link, sorted(present - known))
        for client in lost:
            found = [node for node, entry in self._strangers.items() if node in present and self._is(entry, client)]
            if found:
                log.warning("%s has a new node", label(client, self._federation.name))
                self._node_of[client] = found[-1]
                del self._strangers[found[-1]]
        return {self._node_of[client]: client for client in clients if self._node_of[client] in present}

    def _is(self, entry: roster.Entry, client: int) -> bool:
        """Whether a node tells the name and the counts that the client had at the start."""
        return entry.name == self._federation.name(client) and all(
            _counts(getattr(self._federation, kind), client, self._federation.group_names) == _told_counts(entry, kind) for kind in PARTS
        )


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
                self._fold.add(total, each, torch.tensor([self._next]), torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool))
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
        "nobody", team, federation.group_names, federation.label_names, (x.shape[1:], x.dtype, y.shape[1:], y.dtype), counts
    )


def _counts(part: Part | None, client: int, groups: tuple[str, ...]) -> dict[str, int]:
    """Samples of each of the client's groups; all under no name where there are no groups."""
    if part is None:
        return {}
    rows = slice(int(part.offsets[client]), int(part.offsets[client + 1]))
    if part.group is None:
        return {"": rows.stop - rows.start} if rows.stop > rows.start else {}
    found = torch.bincount(part.group[rows], minlength=len(groups)).tolist()
    return {name: count for name, count in zip(groups, found, strict=True) if count}


def _told_counts(entry: roster.Entry, kind: str) -> dict[str, int]:
    return {name: count for name, count in zip(entry.groups or ("",), entry.counts[kind].tolist(), strict=True) if count}


def fault_content(fault: str) -> RecordDict:
    """The reply of a client that cannot do what it is asked, with a reason that tells nothing of its data."""
    return RecordDict({"fault": ConfigRecord({"reason": fault})})


def fault_in(content: RecordDict) -> str:
    """The reason in a reply of :func:`fault_content`; empty where it is another reply."""
    record = content.get("fault")
    reason = record.get("reason") if isinstance(record, ConfigRecord) else None
    return "".join(filter(str.isprintable, reason))[:200] if isinstance(reason, str) else ""
