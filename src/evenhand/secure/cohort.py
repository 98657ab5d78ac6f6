"""The list of an exchange's clients, and the rules by which a node refuses one."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from evenhand.secure.context import digest
from evenhand.secure.keys import Announcement, NodeKey, Trust
from evenhand.secure.refusals import Refused
from evenhand.secure.settings import SecureSums

MOST = 1 << 24  # client numbers are smaller


@dataclass(frozen=True)
class Member:
    """A client in the list.

    Each node must compare its own coefficient and scales with the task it got: together, the nodes
    then know that all of them are true.

    Args:
        number: the client's number; masks go by it.
        announced: its name, key, epoch and their signature.
        coefficient: its a_i, ``task.own["weight"]``.
        scales: other numbers of its own that scale what it adds; each is checked like a coefficient
            (times a_i).
        own: digest of all it is told alone (``task.own``), which the node compares with what it
            got.
    """

    number: int
    announced: Announcement
    coefficient: float
    scales: tuple[float, ...] = ()
    own: bytes = b""

    def digest(self) -> bytes:
        """Digest of all that is said about the client."""
        return digest(
            self.number,
            self.announced.digest(),
            float(self.coefficient),
            len(self.scales),
            *(float(scale) for scale in self.scales),
            self.own,
        )


@dataclass(frozen=True)
class Cohort:
    """The clients of an exchange, ascending by number."""

    members: tuple[Member, ...]

    def digest(self) -> bytes:
        """Digest of everything in the list."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return digest("cohort", *(member.digest() for member in self.members))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The clients' numbers."""
        return tuple(member.number for member in self.members)

    def place(self, number: int) -> int:
        """Where a client is in the list; raises a ValueError if it is not."""
        return self.numbers.index(number)

    def member(self, number: int) -> Member:
        """The member with a number."""
        return self.members[self.place(number)]

    def check(
        self, me: NodeKey, number: int, own: bytes, trust: Trust, settings: SecureSums
    ) -> None:
        """Raise ``Refused`` unless a node may work with this list.

        Args:
            me: the node's key; ``number`` must be its place.
            own: digest of what the node was told alone.
            trust: whose keys it accepts.
            settings: the threshold of the exchange and the least number of clients.
        """
        self._check_lists(me, number, own)
        for member in self.members:
            if member.announced.run != me.run:
                raise Refused(
                    "signed keys", f"the key of {member.announced.name!r} is for another run"
                )
            trust.check(member.announced)
        try:
            settings.check(len(self.members))
        except ValueError as error:
            raise Refused(
                "enough others" if len(self.members) < settings.least else "threshold", str(error)
            ) from error
        owners = len({member.announced.signer for member in self.members})
        if owners < settings.least:
            raise Refused(
                "enough others", f"the list has {owners} owners, at least {settings.least}"
            )
        self._check_weights(settings.least)

    def _check_lists(self, me: NodeKey, number: int, own: bytes) -> None:
        if list(self.numbers) != sorted(set(self.numbers)):
            raise Refused("in the list", "the list's clients are not in ascending order, each once")
        if self.members and not 0 <= self.numbers[0] <= self.numbers[-1] < MOST:
            raise Refused("in the list", "the list has client numbers out of range")
        for what in ("name", "key"):
            if len({getattr(member.announced, what) for member in self.members}) < len(
                self.members
            ):
                raise Refused("in the list", f"two clients of the list have the same {what}")
        if number not in self.numbers:
            raise Refused("in the list", f"client {number} is not in the list")
        mine = self.member(number)
        told = (mine.announced.name, mine.announced.key, mine.announced.epoch)
        if told != (me.name, me.public, me.epoch):
            raise Refused("in the list", f"the list has another key for {me.name!r}")
        if mine.own != own:
            raise Refused("same task", "the list says other things about this client than its task")

    def _check_weights(self, least: int) -> None:
        if len({len(member.scales) for member in self.members}) > 1:
            raise Refused("enough others", "the list's clients have different numbers of scales")
        weights = [member.coefficient for member in self.members]
        columns = [weights] + [
            [weight * scale for weight, scale in zip(weights, scales, strict=True)]
            for scales in zip(*(member.scales for member in self.members), strict=True)
            if any(scales)  # zeros for all make nobody stand out
        ]
        for column in columns:
            found = effective(column)
            # rounding must not refuse equal weights
            if not found >= least - 1e-6:
                raise Refused(
                    "enough others",
                    f"the weights make the sum that of {found:.3g} clients, at least {least}",
                )

    def only(self, numbers: Sequence[int]) -> Cohort:
        """The list with some of its members, to ask exactly these again."""
        kept = set(numbers)
        return Cohort(tuple(member for member in self.members if member.number in kept))

    def packed(self) -> bytes:
        """The list as bytes (JSON), to send it."""
        rows = [
            {
                "number": member.number,
                "announced": member.announced.plain(),
                "coefficient": float(member.coefficient).hex(),
                "scales": [float(scale).hex() for scale in member.scales],
                "own": base64.b64encode(member.own).decode(),
            }
            for member in self.members
        ]
        return json.dumps(rows).encode()

    @classmethod
    def unpacked(cls, content: bytes) -> Cohort:
        """Undo ``packed``; raises a ValueError if that is not a list."""
        try:
            return cls(
                tuple(
                    Member(
                        int(row["number"]),
                        Announcement.read(row["announced"]),
                        float.fromhex(row["coefficient"]),
                        tuple(float.fromhex(scale) for scale in row["scales"]),
                        base64.b64decode(row["own"], validate=True),
                    )
                    for row in json.loads(content)
                )
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the list of clients cannot be read: {error}") from error


def effective(weights: Sequence[float]) -> float:
    """The effective number of clients, (sum w)^2 / sum w^2; 0 if all weights are zero.

    >>> effective([1, 1, 1, 1]), effective([1, 0, 0])
    (4.0, 1.0)
    """
    if not all(math.isfinite(weight) for weight in weights):
        return 0.0
    largest = max((abs(weight) for weight in weights), default=0.0)
    if not largest:
        return 0.0
    scaled = [weight / largest for weight in weights]  # squares must not overflow
    return math.fsum(scaled) ** 2 / math.fsum(weight * weight for weight in scaled)
