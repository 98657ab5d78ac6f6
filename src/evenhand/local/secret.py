"""Random numbers that nobody can compute without a secret key: SHAKE-256 of the key and a place.

They depend only on (key, place), so every engine draws the same ones and no generator has a state
to save.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TINY = 2.0**-64


def words(key: bytes, place: str, count: int) -> NDArray[np.uint64]:
    """Return ``count`` random 64-bit numbers of one place, such as "noise 3 0 12"."""
    # the length comes first, so that no key and place can be read as another key and place
    head = len(key).to_bytes(8, "little") + key + place.encode()
    return np.frombuffer(hashlib.shake_256(head).digest(8 * count), dtype="<u8")


def uniforms(key: bytes, place: str, count: int) -> Floats:
    """Return numbers in (0, 1]."""
    found: Floats = (words(key, place, count).astype(np.float64) + 0.5) * TINY
    return found


def gaussians(key: bytes, place: str, count: int) -> Floats:
    """Return standard normal numbers: Box and Muller's transform of 64-bit uniform ones."""
    pairs = (count + 1) // 2
    drawn = uniforms(key, place, 2 * pairs)
    radius = np.sqrt(-2 * np.log(drawn[:pairs]))
    angle = 2 * np.pi * drawn[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
