"""All cryptography of masked sums, on primitives of ``cryptography`` and pycryptodome.

Nothing here invents a cipher, a hash or a secret sharing; this file only fixes how they are used:
X25519 for secrets of pairs, HKDF-SHA256 for keys, AES-256 in counter mode for masks,
ChaCha20-Poly1305 for boxes, Shamir's scheme over GF(2^128) for shares, SHA-256 for commitments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from evenhand.secure.context import PROTOCOL, digest

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ImportError(
        "masked sums need cryptography and pycryptodome (extra: evenhand[privacy])"
    ) from error

SEED = 16  # bytes of a mask's seed, what Shamir's scheme takes
COMMITMENT = 32
TAG = 16  # bytes by which a box is longer than its content
BLOCK = 1 << 16  # numbers of a mask that are made at a time


def public_of(private: bytes) -> bytes:
    """The public X25519 key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derived(secret: bytes, info: bytes, length: int) -> bytes:
    """HKDF-SHA256 without salt: a key for one use."""
    return HKDF(SHA256(), length, salt=None, info=info).derive(secret)


def agreed(private: bytes, other: bytes, use: str, context: bytes, length: int) -> bytes:
    """A secret of two nodes for one use in one context; both get the same.

    Raises a ValueError for a public key that is no point or a weak one.
    """
    mine = X25519PrivateKey.from_private_bytes(private)
    both = sorted((public_of(private), other))
    info = digest(PROTOCOL, use, context, *both)
    return derived(mine.exchange(X25519PublicKey.from_public_bytes(other)), info, length)


def stream(key: bytes, count: int) -> Iterator[NDArray[np.uint64]]:
    """``count`` uniform numbers modulo 2^64 in blocks, by AES-256 in counter mode.

    A block must be used before the next one is made.
    """
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    zeros, out = bytes(8 * BLOCK), bytearray(8 * BLOCK + 15)
    for begin in range(0, count, BLOCK):
        size = min(BLOCK, count - begin)
        encryptor.update_into(memoryview(zeros)[: 8 * size], out)
        yield np.frombuffer(out, dtype="<u8", count=size)


def add_mask(
    vector: NDArray[np.uint64], seed: bytes, role: str, context: bytes, minus: bool
) -> None:
    """Add the mask of a seed to a vector in place, or subtract it, modulo 2^64."""
    begin, change = 0, np.subtract if minus else np.add
    for numbers in stream(derived(seed, digest(PROTOCOL, role, context), 32), len(vector)):
        part = vector[begin : begin + len(numbers)]
        change(part, numbers, out=part)
        begin += len(numbers)


def commitment(seed: bytes, role: str, context: bytes, owner: int, other: int) -> bytes:
    """What tells a seed recovered right from a wrong one, and does not tell the seed."""
    return digest(PROTOCOL, "commitment", role, context, owner, other, seed)


def sealed(key: bytes, context: bytes, sender: int, holder: int, content: bytes) -> bytes:
    """Encrypt what a sender tells a holder in one context."""
    return ChaCha20Poly1305(key).encrypt(_nonce(sender, holder), content, context)


def unsealed(key: bytes, context: bytes, sender: int, holder: int, box: bytes) -> bytes | None:
    """Undo ``sealed``; None if the box is not from this sender for this holder and context."""
    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(sender, holder), box, context)
    except InvalidTag:
        return None


def _nonce(sender: int, holder: int) -> bytes:
    # both directions have the same key
    return sender.to_bytes(6, "big") + holder.to_bytes(6, "big")


def shares_of(seed: bytes, least: int, holders: int) -> list[bytes]:
    """Shares of a seed, of which ``least`` give it back; the k-th is for holder k."""
    if not isinstance(seed, bytes) or len(seed) != SEED:
        raise TypeError(f"a seed must be {SEED} bytes")  # integers would be taken in silence
    return [share for _, share in Shamir.split(least, holders, seed, ssss=False)]


def combined(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """The seed from exactly ``least`` shares and their holders' places; garbage if one is wrong."""
    found: bytes = Shamir.combine([(place + 1, share) for place, share in shares], ssss=False)
    return found
