"""A node's keys: X25519 for masks and boxes, signed by an identity key that the server lacks."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from evenhand.secure import primitives
from evenhand.secure.context import PROTOCOL, digest
from evenhand.secure.refusals import Refused

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import (
        ECDSA,
        SECP384R1,
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.hashes import SHA384
except ImportError as error:  # pragma: no cover (primitives says it first)
    raise ImportError(
        "masked sums need cryptography and pycryptodome (extra: evenhand[privacy])"
    ) from error

WANTED = "use an Ed25519 or ECDSA P-384 key, such as ssh-keygen -t ecdsa -b 384 makes"


class Identity:
    """An owner's signing key: ECDSA on P-384 or Ed25519, in OpenSSH or PEM form."""

    def __init__(self, private: EllipticCurvePrivateKey | Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def load(cls, key: Path | bytes, password: bytes | None = None) -> Identity:
        """Read a private key, from a file or from its content."""
        content = key if isinstance(key, bytes) else key.read_bytes()
        what = "the identity key" if isinstance(key, bytes) else str(key)
        openssh = b"OPENSSH PRIVATE KEY" in content
        load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
        try:
            private = load(content, password)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(f"{what} cannot be read as a private key: {error}") from error
        fits = isinstance(private, Ed25519PrivateKey) or (
            isinstance(private, EllipticCurvePrivateKey) and isinstance(private.curve, SECP384R1)
        )
        if not fits:
            raise ValueError(
                f"{what} is a {type(private).__name__} that is not supported; {WANTED}"
            )
        assert isinstance(private, EllipticCurvePrivateKey | Ed25519PrivateKey)
        return cls(private)

    @classmethod
    def new(cls) -> Identity:
        """A new Ed25519 key, for a node without an identity key; others can only pin it."""
        return cls(Ed25519PrivateKey.generate())

    def content(self) -> bytes:
        """The private key in PEM form, without a password."""
        return self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    @property
    def public(self) -> str:
        """The public key as one line of OpenSSH text, without a comment."""
        return _openssh(self._private.public_key())

    def sign(self, content: bytes) -> bytes:
        """Sign bytes."""
        if isinstance(self._private, Ed25519PrivateKey):
            return self._private.sign(content)
        return self._private.sign(content, ECDSA(SHA384()))


def _openssh(public: EllipticCurvePublicKey | Ed25519PublicKey) -> str:
    return public.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode()


def _public_key(line: str) -> EllipticCurvePublicKey | Ed25519PublicKey:
    """Read a line of OpenSSH text, or a public key in PEM form."""
    content = line.strip().encode()
    try:
        if content.startswith(b"-----"):
            found = serialization.load_pem_public_key(content)
        else:
            found = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{line.strip()[:40]!r} is not a public key; {WANTED}") from error
    if isinstance(found, Ed25519PublicKey) or (
        isinstance(found, EllipticCurvePublicKey) and isinstance(found.curve, SECP384R1)
    ):
        return found
    raise ValueError(f"{line.strip()[:40]!r} is not a key of a supported kind; {WANTED}")


def fingerprint(public: str) -> str:
    """The fingerprint of a public key, as ``ssh-keygen -l`` prints it (SHA256:...)."""
    content = base64.b64decode(_openssh(_public_key(public)).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


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

    def digest(self) -> bytes:
        """Digest of everything that the signature covers, and of the signer."""
        return digest(self.signed, self.signer)

    @property
    def signed(self) -> bytes:
        """What the signature is of."""
        return digest(PROTOCOL, "key", self.run, self.name, self.key, self.epoch)

    def verify(self) -> None:
        """Raise ``Refused("signed keys")`` unless the signature is right."""
        if not _is_signed(self):
            raise Refused("signed keys", f"the key of {self.name!r} is not signed by its owner")

    def plain(self) -> dict[str, str | int]:
        """As plain values, for JSON or a message."""
        found = asdict(self)
        for name in ("key", "signature"):
            found[name] = base64.b64encode(found[name]).decode()
        return found

    @classmethod
    def read(cls, values: dict[str, Any]) -> Announcement:
        """Undo ``plain``; raises a ValueError if values are missing or wrong."""
        try:
            key, signature = (
                base64.b64decode(values[k], validate=True) for k in ("key", "signature")
            )
            texts = [values[name] for name in ("run", "name", "signer")]
            epoch = values["epoch"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("the announcement of a key is incomplete") from error
        if not all(isinstance(text, str) for text in texts) or type(epoch) is not int:
            raise ValueError("the announcement of a key has values of a wrong kind")
        run, name, signer = texts
        return cls(run, name, key, epoch, signer, signature)


@lru_cache(maxsize=4096)
def _is_signed(announced: Announcement) -> bool:
    if len(announced.key) != 32:
        return False
    try:
        public = _public_key(announced.signer)
        if isinstance(public, Ed25519PublicKey):
            public.verify(announced.signature, announced.signed)
        else:
            public.verify(announced.signature, announced.signed, ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return announced.signer == _openssh(public)  # one spelling: owners are counted by it


@dataclass(frozen=True)
class NodeKey:
    """A node's static X25519 key pair for one run. The private key never leaves the node."""

    run: str
    name: str
    epoch: int
    private: bytes

    def __repr__(self) -> str:
        return f"NodeKey(run={self.run!r}, name={self.name!r}, epoch={self.epoch})"

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return primitives.public_of(self.private)

    @property
    def seal(self) -> bytes:
        """A secret of the node alone, to seal what it hides."""
        return digest(PROTOCOL, "seal", self.private)

    def announced(self, identity: Identity) -> Announcement:
        """What others learn of it, signed."""
        unsigned = Announcement(self.run, self.name, self.public, self.epoch, identity.public, b"")
        signature = identity.sign(unsigned.signed)
        return Announcement(
            self.run, self.name, self.public, self.epoch, identity.public, signature
        )

    def secret(self, other: Announcement, use: str, context: bytes, length: int) -> bytes:
        """A secret shared with another node, for one use in one context."""
        try:
            return primitives.agreed(self.private, other.key, use, context, length)
        except ValueError as error:
            raise Refused("signed keys", f"the key of {other.name!r} is not a safe one") from error


class Trust:
    """Whose keys a node accepts: those of a list, or the first that it sees of each client.

    Args:
        trusted: public keys, one per line, as in ``authorized_keys``; None pins the first seen.
    """

    def __init__(self, trusted: str | None = None) -> None:
        self.trusted: frozenset[str] | None = None
        if trusted is None:
            return
        lines = [line.strip() for line in trusted.splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ValueError("the list of trusted keys is empty; write one public key per line")
        self.trusted = frozenset(_openssh(_public_key(key)) for key in keys)

    @classmethod
    def load(cls, path: Path) -> Trust:
        """Read a file of public keys."""
        return cls(path.read_text(encoding="utf-8"))

    def check(self, announced: Announcement) -> None:
        """Raise ``Refused`` unless a key is signed, and by somebody who is trusted."""
        announced.verify()
        if self.trusted is not None and _openssh(_public_key(announced.signer)) not in self.trusted:
            raise Refused(
                "trusted keys",
                f"the owner of {announced.name!r} ({fingerprint(announced.signer)}) is not in the"
                " list of trusted keys",
            )
