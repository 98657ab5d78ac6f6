"""Asks nodes for their reports, without waiting for those that do not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from flwr.app import ConfigRecord, Message, RecordDict

from evenhand.flower import faults, records
from evenhand.flower.admission import Admission
from evenhand.flower.link import Link
from evenhand.flower.registration import Registration, read_report

log = logging.getLogger(__name__)

REPORT = "query.census"  # the type of the message that asks nodes for their reports
LONGEST = 16  # a silent node is asked again after at most this many deadlines
GREETING = 30.0  # seconds that others wait for a node's first answer, once


class Enquiry:
    """Asks nodes for their reports. Nodes that do not answer, or send an unusable report, are asked
    again at growing intervals.

    ``refused`` has the reasons why nodes cannot take part; each is logged once. With a ``run``,
    nodes are asked for their keys for masked sums in it, too; ``hidden`` asks them to hide their
    counts.
    """

    def __init__(
        self, link: Link, admission: Admission, run: str = "", hidden: bool = False
    ) -> None:
        self.refused: dict[int, str] = {}
        self._link, self._admission, self._run, self._hidden = link, admission, run, hidden
        self._asked: dict[str, int] = {}  # the node of each message that is underway
        self._tries: dict[int, int] = {}  # how often each node was asked without an answer
        self._again: dict[int, float] = {}  # when each is asked again
        self._greeted: dict[int, float] = {}  # until when others wait for its first answer

    def ask(self, nodes: Collection[int]) -> None:
        """Ask the nodes that are due."""
        now, limits = time.monotonic(), self._link.limits
        due = sorted(node for node in nodes if self._again.get(node, now) <= now)
        if not due:
            return
        about = ConfigRecord({"format": records.FORMAT})
        if self._run:
            about["masked"] = self._run
            about["counts"] = "masked" if self._hidden else "visible"
        question = RecordDict({"about": about})
        messages = [
            Message(question, node, REPORT, ttl=limits.deadline, group_id="census") for node in due
        ]
        for name, node in zip(self._link.grid.push_messages(messages), due, strict=False):
            if name:  # others have just left
                self._asked[name] = node
            self._greeted.setdefault(node, now + min(GREETING, limits.deadline))
            tries = self._tries[node] = self._tries.get(node, 0) + 1
            self._again[node] = now + limits.deadline * min(2 ** (tries - 1), LONGEST)

    def collect(self) -> dict[int, Registration]:
        """The reports that have arrived since the last call."""
        found: dict[int, Registration] = {}
        if not self._asked:
            return found
        for reply in list(self._link.grid.pull_messages(list(self._asked))):
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                found[node] = self._read(node, reply)
            except ValueError as error:
                self.refuse(node, str(error))
                # it is there: its data may be, too, in a moment
                wait = self._link.limits.poll * 2 ** min(self._tries[node], 10)
                self._again[node] = time.monotonic() + min(wait, self._link.limits.deadline)
            else:
                self.refused.pop(node, None)
                self.forget([node])
        return found

    def wait(self) -> dict[int, Registration]:
        """The reports that have arrived, waiting briefly for nodes that were asked for the first
        time."""
        found = self.collect()
        while any(time.monotonic() < self._greeted[node] for node in self._asked.values()):
            time.sleep(self._link.limits.poll)
            found |= self.collect()
        return found

    def forget(self, nodes: Collection[int]) -> None:
        """Ask these nodes without delay the next time."""
        for node in nodes:
            self._tries.pop(node, None)
            self._again.pop(node, None)

    def keep_present(self, nodes: Collection[int]) -> None:
        """Forget nodes that are gone, so that they are asked at once when they come back."""
        self._asked = {name: node for name, node in self._asked.items() if node in nodes}
        for node in [node for node in self._greeted if node not in nodes]:
            del self._greeted[node]
            self.forget([node])

    def refuse(self, node: int, reason: str, name: str = "") -> None:
        """Record why a node cannot take part, and log it once."""
        if self.refused.get(node) != reason:
            who = f"node {node} ({name})" if name else f"node {node}"
            log.warning("%s cannot take part: %s", who, reason)
        self.refused[node] = reason

    def _read(self, node: int, reply: Message) -> Registration:
        if reply.has_error():
            raise ValueError(faults.in_words(reply.error.code))
        if fault := records.fault_in(reply.content):
            raise ValueError(fault)
        limit = self._link.limits.message
        report = read_report(*records.read_reply(reply.content, limit))
        if self._run and (report.announced is None or report.announced.run != self._run):
            raise ValueError(
                "node sent no key for masked sums in this run; install the same version everywhere,"
                " with its extras: '.[flower,privacy]' in a clone"
            )
        if report.hides != self._hidden:
            raise ValueError(
                "node tells its counts, and this run hides them; install the same version"
                " everywhere"
                if self._hidden
                else "node hides its counts, and this run needs them"
            )
        if report.announced is not None and report.announced.name != report.name:
            raise ValueError("node's key for masked sums is for another name")
        reason = self._admission.reason_against(report, node, self._key(node))
        if reason:
            raise ValueError(reason)
        return report

    def _key(self, node: int) -> bytes:
        """The public key of a node, if admission needs it."""
        if not self._admission.needs_keys:
            return b""
        known = {found.node_id: found.public_key for found in self._link.grid.get_nodes()}
        return bytes(known.get(node, b""))
