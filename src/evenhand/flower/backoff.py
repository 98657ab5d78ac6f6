"""Asks clients that miss deadlines less and less often, until they answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

log = logging.getLogger(__name__)

Name = Callable[[int], str]

PATIENT = 2  # misses in a row before a client is skipped
MOST = 64  # most rounds to skip it for


class BackOff:
    """Which clients are not asked at present.

    A client that misses two rounds in a row is not asked in the next round, after another miss not
    in the next two, then four, and so on.
    """

    def __init__(self) -> None:
        self._missed: dict[int, int] = {}  # rounds in a row
        self._last: dict[int, int] = {}  # the last of them
        self._until: dict[int, int] = {}  # the round in which each is asked again

    def waiting(self, clients: Collection[int], round: int) -> set[int]:
        """Clients that are not asked in this round; empty if that would be all of them."""
        found = {client for client in clients if self._until.get(client, round) > round}
        return set() if len(found) == len(clients) else found

    def forget(self, client: int) -> None:
        """A client has answered, or may have a new process."""
        self._missed.pop(client, None)
        self._until.pop(client, None)

    def note(
        self, answered: Collection[int], missed: Collection[int], round: int, name: Name
    ) -> None:
        """Record who answered and who missed the deadline."""
        for client in answered:
            self.forget(client)
        for client in missed:
            if self._last.get(client) == round and client in self._missed:
                continue  # training and evaluation of one round
            self._last[client] = round
            times = self._missed[client] = self._missed.get(client, 0) + 1
            if times < PATIENT:
                continue
            self._until[client] = round + 1 + min(2 ** (times - PATIENT), MOST)
            if times == PATIENT:  # named once
                log.warning(
                    "%s has missed %d rounds in a row; it is asked again in round %d, then less and"
                    " less often until it answers",
                    name(client),
                    times,
                    self._until[client] + 1,
                )
