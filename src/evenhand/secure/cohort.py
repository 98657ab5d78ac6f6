"""The list of an exchange's clients, and the rules by which a node refuses one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from evenhand.secure.context import digest
from evenhand.secure.keys import Announcement, NodeKey, Trust
from evenhand.secure.settings import SecureSums


@dataclass(frozen=True)
class Member:
    """A client in the list.

    Args:
        number: the client's number; masks go by it.
        announced: its name, key, epoch and their signature.
        coefficient: its a_i, ``task.own["weight"]``.
        scales: other numbers of its own that scale what it adds; each is checked like a coefficient
            (times a_i).
        own: digest of all it is told alone (``task.own``), which the node compares with what it got.
    """

    number: int
    announced: Announcement
    coefficient: float
    scales: tuple[float, ...] = ()
    own: bytes = b""


@dataclass(frozen=True)
class Cohort:
    """The clients of an exchange, ascending by number."""

    members: tuple[Member, ...]

    def digest(self) -> bytes:
        """Digest of everything in the list."""
        raise NotImplementedError

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The clients' numbers."""
        return tuple(member.number for member in self.members)

    def member(self, number: int) -> Member:
        """The member with a number."""
        raise NotImplementedError

    def check(self, me: NodeKey, number: int, own: bytes, trust: Trust, settings: SecureSums) -> None:
        """Raise ``Refused`` unless a node may work with this list.

        Args:
            me: the node's key; ``number`` must be its place.
            own: digest of what the node was told alone.
            trust: whose keys it accepts.
            settings: the threshold of the exchange and the least number of clients.
        """
        raise NotImplementedError

    def only(self, numbers: tuple[int, ...]) -> Cohort:
        """The list with some of its members, to ask exactly these again."""
        raise NotImplementedError

    def packed(self) -> bytes:
        """The list as bytes (JSON), to send it."""
        raise NotImplementedError

    @classmethod
    def unpacked(cls, content: bytes) -> Cohort:
        """Undo ``packed``; raises a ValueError if that is not a list."""
        raise NotImplementedError


def effective(weights: tuple[float, ...]) -> float:
    """The effective number of clients, (sum w)^2 / sum w^2; 0 if all weights are zero."""
    raise NotImplementedError
