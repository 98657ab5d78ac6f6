"""A node's keys: X25519 for masks and boxes, signed by an identity key that the server lacks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class Identity:
    """An owner's signing key: ECDSA on P-384 or Ed25519, in OpenSSH or PEM form."""

    @classmethod
    def load(cls, key: Path | bytes, password: bytes | None = None) -> Identity:
        """Read a private key, from a file or from its content."""
        raise NotImplementedError

    @classmethod
    def new(cls) -> Identity:
        """A new Ed25519 key, for a node without an identity key; others can only pin it."""
        raise NotImplementedError

    @property
    def public(self) -> str:
        """The public key as one line of OpenSSH text, without a comment."""
        raise NotImplementedError

    def sign(self, content: bytes) -> bytes:
        """Sign bytes."""
        raise NotImplementedError


def fingerprint(public: str) -> str:
    """The fingerprint of a public key, as ``ssh-keygen -l`` prints it (SHA256:...)."""
    raise NotImplementedError


@dataclass(frozen=True)
class Announcement:
    """What a node tells about its key: goes to the server with the census, and to all in the list.

    Args:
        run: the run for which the key is.
        name: the client's name.
        key: the public X25519 key, 32 bytes.
        epoch: rises when a node has lost its key (seconds since 1970 at which it was made).
        signer: the public identity key, a line of OpenSSH text.
        signature: of run, name, key, epoch and protocol version.
    """

    run: str
    name: str
    key: bytes
    epoch: int
    signer: str
    signature: bytes

    def verify(self) -> None:
        """Raise ``Refused("signed keys")`` unless the signature is right."""
        raise NotImplementedError

    def plain(self) -> dict[str, str | int]:
        """As plain values, for JSON or a message."""
        raise NotImplementedError

    @classmethod
    def read(cls, values: dict[str, str | int]) -> Announcement:
        """Undo ``plain``; raises a ValueError if values are missing or wrong."""
        raise NotImplementedError


@dataclass(frozen=True)
class NodeKey:
    """A node's static X25519 key pair for one run. It never leaves the node."""

    run: str
    name: str
    epoch: int
    private: bytes

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        raise NotImplementedError

    def announced(self, identity: Identity) -> Announcement:
        """What others learn of it, signed."""
        raise NotImplementedError

    def secret(self, other: bytes, use: bytes, length: int) -> bytes:
        """A secret shared with another node, for one use: HKDF of the Diffie-Hellman secret."""
        raise NotImplementedError


class Trust:
    """Whose keys a node accepts: those of a list, or the first that it sees of each client.

    Args:
        trusted: public keys, one per line, as in ``authorized_keys``; None pins the first seen.
    """

    def __init__(self, trusted: str | None = None) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, path: Path) -> Trust:
        """Read a file of public keys."""
        raise NotImplementedError
