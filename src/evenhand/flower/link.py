"""Sends messages to nodes over Flower's grid and receives their replies."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from evenhand.errors import RunError
from evenhand.flower import records

log = logging.getLogger(__name__)

FETCHED = 64 << 20  # bytes of replies that are fetched together


@dataclass(frozen=True)
class Limits:
    """How long the server waits, and how large messages may be.

    Args:
        deadline: seconds for an exchange; messages expire then.
        poll: seconds between looking for replies.
        message: largest message in bytes.
        patience: seconds to wait for nodes, at the start and when all are gone.
        quorum: share of the asked clients whose answers are enough.
        grace: seconds that the others get after that.
    """

    deadline: float = 600.0
    poll: float = 0.2
    message: int = records.LIMIT
    patience: float = 600.0
    quorum: float = 1.0
    grace: float = 30.0


class Link:
    """Sends messages to nodes and yields their replies as they arrive."""

    def __init__(self, grid: Grid, limits: Limits) -> None:
        self.grid, self.limits = grid, limits

    def ask(
        self, contents: Mapping[int, RecordDict], kind: str, group: str, size: int = 1
    ) -> Iterator[tuple[int, Message]]:
        """Yield pairs of a node and its reply, until all have answered, a quorum has and the grace
        period is over, or the deadline has passed.

        ``size``: bytes of a reply; large replies are fetched a few at a time.
        """
        ttl = self.limits.deadline
        messages = [
            Message(content, dst_node_id=node, message_type=kind, group_id=group, ttl=ttl)
            for node, content in contents.items()
        ]
        names: list[str | None] = list(self.grid.push_messages(messages))
        if len(names) < len(messages):  # how Flower reports it
            raise RunError(
                "the SuperLink, or a proxy in front of it, refuses messages as large as this"
                " model's; raise its limit"
            )
        # a message without a name: its node has just left
        asked = {name: node for name, node in zip(names, contents, strict=True) if name}
        known, end = dict(asked), time.monotonic() + ttl
        at_once = max(1, FETCHED // size)
        enough = math.ceil(self.limits.quorum * len(known))
        while asked:
            for reply in self._fetched(list(asked), at_once):
                # by the message it answers: where a node is gone, Flower itself replies, under
                # another number
                name = reply.metadata.reply_to_message_id
                if name in asked:
                    yield asked.pop(name), reply
                elif name in known:
                    log.warning(
                        "node %s has replied already; its second reply is ignored", known[name]
                    )
                else:
                    log.warning(
                        "node %s replies to an earlier message; the reply is late and is ignored",
                        reply.metadata.src_node_id,
                    )
            if len(known) - len(asked) >= enough:
                end, enough = min(end, time.monotonic() + self.limits.grace), len(known) + 1
            if not asked or time.monotonic() > end:
                return
            time.sleep(self.limits.poll)

    def _fetched(self, names: list[str], at_once: int) -> Iterator[Message]:
        """The replies that have arrived; each is released once it is read."""
        for start in range(0, len(names), at_once):
            found = list(self.grid.pull_messages(names[start : start + at_once]))
            found.reverse()
            while found:
                yield found.pop()
