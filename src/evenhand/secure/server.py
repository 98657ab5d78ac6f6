"""The server's side: collects masked vectors, lets holders open masks, and decodes the sum."""

from __future__ import annotations

from collections.abc import Mapping

from evenhand.secure.cohort import Cohort
from evenhand.secure.context import Context
from evenhand.secure.node import Masked
from evenhand.secure.numbers import Decoded, Format
from evenhand.secure.settings import SecureSums


class Collection:
    """One exchange at the server: the sum so far, the boxes, the set of clients, the shares.

    ``keep`` what arrives, ``choose`` the set, save, ask each holder for ``requests()``, ``learn``
    what they open until ``enough()``, then take the ``result()``. In strict mode choose and take
    the result.
    """

    def __init__(
        self, cohort: Cohort, context: Context, format: Format, settings: SecureSums
    ) -> None:
        raise NotImplementedError

    def keep(self, number: int, masked: Masked) -> None:
        """Add a client's vector; raises a ValueError if it does not fit or comes too late."""
        raise NotImplementedError

    def choose(self) -> tuple[int, ...]:
        """Fix the set of clients that are summed; raises ``Void`` if there are too few."""
        raise NotImplementedError

    @property
    def answered(self) -> tuple[int, ...]:
        """The clients in the sum (so far)."""
        raise NotImplementedError

    def requests(self) -> dict[int, dict[int, bytes]]:
        """The boxes for each holder that has not opened them, by sender; empty in strict mode."""
        raise NotImplementedError

    def learn(self, holder: int, opened: Mapping[int, bytes]) -> None:
        """Keep what a holder has opened; raises a ValueError if it does not fit."""
        raise NotImplementedError

    def enough(self) -> bool:
        """Whether enough holders have answered."""
        raise NotImplementedError

    def result(self) -> Decoded:
        """The sum; raises ``Void``, ``NotCancelled`` or ``Overflow``."""
        raise NotImplementedError

    def save(self) -> bytes:
        """Everything as bytes. Write them before asking holders: only this set can be opened."""
        raise NotImplementedError

    @classmethod
    def load(cls, content: bytes) -> Collection:
        """Undo ``save``."""
        raise NotImplementedError
