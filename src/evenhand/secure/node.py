"""The client's side: masks one vector for one exchange, and opens others' masks as a holder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evenhand.secure.cohort import Cohort
from evenhand.secure.context import Context
from evenhand.secure.keys import Announcement, Identity, NodeKey, Trust
from evenhand.secure.ledger import Ledger
from evenhand.secure.numbers import Format, Vector
from evenhand.secure.settings import SecureSums


class Masked(NamedTuple):
    """What a client sends: its vector, and for each holder a sealed box with shares.

    In strict mode there are no boxes and no commitments.
    """

    vector: Vector
    boxes: Mapping[int, bytes]  # by the holder's number
    commitments: bytes  # to the shared secrets, 32 bytes each


@dataclass(frozen=True)
class Node:
    """A client's node in one run: it has keys and memory, and enforces the rules.

    Args:
        ledger: what it has answered, with its key.
        name: of the client.
        run: of the run.
        trust: whose keys it accepts.
        identity: signs its key; by default a key of its own in the ledger, which others can pin.
        least: the owner's least number of clients; the server's ``least`` may be higher.
        modes: which modes the owner allows.
    """

    ledger: Ledger
    name: str
    run: str
    trust: Trust
    identity: Identity | None = None
    least: int = 3
    modes: tuple[str, ...] = ("recover", "strict")

    def key(self) -> NodeKey:
        """The node's key for this run; made and written when it is first needed."""
        raise NotImplementedError

    def announced(self) -> Announcement:
        """What the node tells with the census."""
        raise NotImplementedError

    def mask(
        self,
        vector: Vector,
        number: int,
        cohort: Cohort,
        context: Context,
        settings: SecureSums,
        own: bytes = b"",
        noise: Mapping[str, Any] | None = None,
        format: Format | None = None,
    ) -> Masked:
        """Mask a vector for one exchange; raises ``Refused``.

        The same vector again gives the same bytes. Noise is drawn here, once per context.

        Args:
            vector: from ``Format.encode``.
            number: the node's client number.
            cohort: the list as it was sent; its digest must be in the context.
            context: built by the node from what it was sent.
            settings: of the exchange, as sent.
            own: digest of what this client alone was sent.
            noise: by path, the standard deviation that the *sum* must carry (a number or an array);
                needs ``format``.
            format: the format of the vector, for noise.
        """
        raise NotImplementedError

    def open_boxes(
        self,
        answered: Sequence[int],
        boxes: Mapping[int, bytes],
        number: int,
        cohort: Cohort,
        context: Context,
        settings: SecureSums,
        own: bytes = b"",
    ) -> dict[int, bytes]:
        """As a holder, open the boxes of the clients that answered; raises ``Refused``.

        Returns, by sender, its share of the sender's own mask and of the masks it has with clients
        that did not answer. A box that cannot be opened is left out.

        Args:
            answered: the numbers of the clients in the sum.
            boxes: by sender.
        """
        raise NotImplementedError
