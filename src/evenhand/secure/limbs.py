"""Floats as sums of limbs of 32 bits, so that adding them up is exact.

A float64 is an integer times 2^-1074. That integer is cut into limbs of 32 bits, which all have the
float's sign. Limbs add up in int64 without overflow for less than 2^31 numbers, and the sum is
rounded once, like ``math.fsum``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIMBS = 66  # of 32 bits: 1074 bits below the point, 1024 above it, and 14 to spare
SLOTS = LIMBS + 1  # the last one counts values that are not finite
SMALLEST = 1074  # floats are multiples of 2^-1074

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def to_limbs(values: Floats) -> Integers:
    """Cut floats (m,) into limbs (m, SLOTS)."""
    finite = np.isfinite(values)
    fraction, exponent = np.frexp(np.where(finite, values, 0.0))
    mantissa = np.ldexp(np.abs(fraction), 53).astype(np.int64)  # 53 bits
    place = exponent.astype(np.int64) - 53 + SMALLEST
    mantissa >>= np.maximum(-place, 0)  # subnormal numbers end in zeros
    first, shift = np.divmod(np.maximum(place, 0), 32)
    low, high = (mantissa & 0xFFFFFFFF) << shift, (mantissa >> 32) << shift
    pieces = (low & 0xFFFFFFFF, (low >> 32) | (high & 0xFFFFFFFF), high >> 32)
    found = np.zeros((len(values), SLOTS), dtype=np.int64)
    rows, sign = np.arange(len(values)), np.where(fraction < 0, -1, 1)
    for offset, piece in enumerate(pieces):
        found[rows, np.minimum(first + offset, LIMBS - 1)] += sign * piece
    found[:, LIMBS] = ~finite
    return found


def from_limbs(limbs: Integers) -> Floats:
    """The floats nearest to sums of limbs (m, SLOTS); NaN where a value was not finite."""
    carried = limbs[:, :LIMBS].astype(np.int64)
    digits = np.zeros((len(limbs), LIMBS), dtype="<u4")
    carry = np.zeros(len(limbs), dtype=np.int64)
    for place in range(LIMBS):
        whole = carried[:, place] + carry
        digits[:, place] = whole & 0xFFFFFFFF
        carry = whole >> 32
    return np.array(
        [
            np.nan
            if broken
            else _as_float(int.from_bytes(row.tobytes(), "little") + (over << 32 * LIMBS))
            for row, over, broken in zip(digits, carry.tolist(), limbs[:, LIMBS], strict=True)
        ],
        dtype=np.float64,
    )


def _as_float(units: int) -> float:
    """A number of units of 2^-1074 as the nearest float."""
    try:
        return units / (1 << SMALLEST)  # Python rounds the quotient of integers once
    except OverflowError:
        return np.inf if units > 0 else -np.inf
