"""The context of an exchange: what all its clients must have been told alike.

Every mask depends on the digest of the context. If a server tells two clients something different,
their masks do not cancel, and what it gets is noise.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

PROTOCOL = b"evenhand masked sums 1"  # of masks, boxes and signatures; a change is a new version


def digest(*parts: bytes | str | int | float) -> bytes:
    """SHA-256 of a sequence: each part with its kind and its length before it.

    So no two sequences have the same encoding, wherever their parts begin and end.
    """
    found = hashlib.sha256()
    for part in parts:
        kind, content = encoded(part)
        found.update(kind + len(content).to_bytes(8, "big") + content)
    return found.digest()


def encoded(part: bytes | str | int | float) -> tuple[bytes, bytes]:
    """The kind of a value and its bytes; a float is written exactly."""
    if isinstance(part, bytes):
        return b"b", part
    if isinstance(part, str):
        return b"s", part.encode()
    if isinstance(part, float):
        return b"f", part.hex().encode()
    return b"i", str(int(part)).encode()


@dataclass(frozen=True)
class Context:
    """What an exchange is about; the same for all its clients.

    Args:
        run: the run's name.
        session: rises whenever the server starts again.
        exchange: rises with every exchange of a session.
        round: of training.
        work: such as "train".
        how: the work and its settings as text, as the server sends it.
        shared: digest of what is sent to all clients (32 bytes); each node takes it of what it got.
        cohort: the list's ``digest()``.
        numbers: the format's ``digest()``.
        settings: ``SecureSums.described()``.
    """

    run: str
    session: int
    exchange: int
    round: int
    work: str
    how: str
    shared: bytes
    cohort: bytes
    numbers: bytes
    settings: str

    def digest(self) -> bytes:
        """The digest c that all masks of the exchange depend on."""
        return digest(
            PROTOCOL,
            self.run,
            self.session,
            self.exchange,
            self.round,
            self.work,
            self.how,
            self.shared,
            self.cohort,
            self.numbers,
            self.settings,
        )

    def question(self) -> bytes:
        """What is asked, whatever the list and the exponents: there is one sum about it."""
        return digest(PROTOCOL, "question", self.run, self.round, self.work, self.shared)
