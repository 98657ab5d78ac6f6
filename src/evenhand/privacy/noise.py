"""Gaussian noise from a secret: reproducible for who knows it, unpredictable for all others.

Sums of floating-point numbers have holes in their low bits, and so does noise that is added to
them; both can give a value away (Mironov, 2012). So a sum is first rounded to a grid, 2^-40 of the
noise or finer. The noise is rounded to the same grid and added in integers: what is released is
a multiple of the grid, and equals the rounded value of sum plus continuous noise.

Uniform bits are those of AES-256 in counter mode under HMAC-SHA256(secret, label). Box and Muller's
method makes normal numbers of them, in float64. They end at 8.5 standard deviations, beyond which a
normal number lies with probability 2e-17.
"""

from __future__ import annotations

import hashlib
import hmac
import math

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import require

BITS = 40  # of the grid, below the standard deviation
PIECE = 1 << 18  # numbers made at a time
FAR = 2.0**62  # integers beyond it could overflow with their noise


def derived(secret: bytes, label: str) -> bytes:
    """Return the 32 bytes that belong to a label."""
    return hmac.new(secret, label.encode(), hashlib.sha256).digest()


def gaussians(secret: bytes, label: str, count: int) -> NDArray[np.float64]:
    """Return ``count`` standard normal numbers; another label gives independent ones."""
    stream, found = _Stream(derived(secret, label)), np.empty(count + count % 2)
    for first in range(0, len(found), PIECE):
        pairs = (min(PIECE, len(found) - first) + 1) // 2
        radius = np.sqrt(-2 * np.log1p(-stream.uniform(pairs)))
        angle = 2 * np.pi * stream.uniform(pairs)
        found[first : first + pairs] = radius * np.cos(angle)
        found[first + pairs : first + 2 * pairs] = radius * np.sin(angle)
    return found[:count]


def grid(std: float) -> float:
    """Return the grid of what is released with noise of this standard deviation: a power of two."""
    return 2.0 ** (math.floor(math.log2(std)) - BITS)


def released(
    values: NDArray[np.float64], std: float, secret: bytes, label: str
) -> NDArray[np.float64]:
    """Return ``values`` plus noise, as multiples of the grid."""
    cell = grid(std)
    scaled = np.rint(values / cell)
    require(
        bool((np.abs(scaled) < FAR).all()), "a sum is too large for noise {:g}; is it finite?", std
    )
    noise = np.rint(std / cell * gaussians(secret, label, values.size)).astype(np.int64)
    sums = scaled.astype(np.int64) + noise.reshape(values.shape)
    return np.asarray(sums.astype(np.float64) * cell)


class _Stream:
    """The key stream of AES-256 in counter mode, as numbers in [0, 1)."""

    def __init__(self, key: bytes) -> None:
        from evenhand.privacy.needed import import_needed

        ciphers = import_needed("cryptography.hazmat.primitives.ciphers")
        modes, algorithms = ciphers.modes, ciphers.algorithms
        # each key is used for one stream only, so the counter may start at zero
        self._cipher = ciphers.Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def uniform(self, count: int) -> NDArray[np.float64]:
        bits = np.frombuffer(self._cipher.update(bytes(8 * count)), np.dtype("<u8"))
        found: NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return found
