"""Numbers such as 999 or -9 that may mean a missing value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from evenhand.data.tables.values import Floats

CODES = (99.0, 999.0, 9999.0, 99999.0, -1.0, -9.0, -99.0, -999.0, -9999.0, 0.0)
FEWEST = 3  # rows with the code
LARGEST_SHARE = 0.5  # of the rows with a value: more make the code an ordinary value
LARGEST_SHARE_OF_ZEROS = 0.3  # the same for 0
FEWEST_BESIDE = 5  # distinct values besides -1 or 0: -1, 0 and 1 are a scale
# in standard deviations of the other values: the least distance of a code from the nearest of them,
# and from their mean; and the largest distance of the others from it, since in a long tail nothing
# stands out
GAP, FAR, TAIL = 1.0, 3.0, 10.0


class Sentinel(NamedTuple):
    """A code that lies far outside the other values of a column."""

    code: float
    rows: int
    present: int  # rows with a value
    low: float  # of the other values
    high: float


def sentinels(numbers: Floats) -> list[Sentinel]:
    """Return codes that occur repeatedly, far outside the other values."""
    present = numbers[~np.isnan(numbers)]
    # a code outside the rest is the smallest or the largest number, unless another code is
    if not len(present) or not {float(present.min()), float(present.max())} & set(CODES):
        return []
    counts = {code: int((present == code).sum()) for code in CODES}
    # a frequent value is not a code
    found = {
        code: count
        for code, count in counts.items()
        if FEWEST <= count <= _largest_share(code) * len(present)
    }
    while found:
        rest = _others(present, found)
        if not len(rest):
            return []
        low, high = float(rest.min()), float(rest.max())
        usual = [code for code in found if not _stands_out(code, rest, low, high)]
        if not usual:
            break
        # an ordinary value after all; drop the nearest first, since another code may still stand
        # out
        del found[min(usual, key=lambda code: max(low - code, code - high))]
    return [Sentinel(code, count, len(present), low, high) for code, count in found.items()]


def _others(present: Floats, codes: Iterable[float]) -> Floats:
    chosen = np.ones(len(present), dtype=bool)
    for code in codes:
        chosen &= present != code
    return present[chosen]


def _largest_share(code: float) -> float:
    return LARGEST_SHARE_OF_ZEROS if code == 0 else LARGEST_SHARE


def _stands_out(code: float, rest: Floats, low: float, high: float) -> bool:
    mean, std = float(rest.mean()), float(rest.std())
    far = (
        max(low - code, code - high) >= GAP * std
        and abs(code - mean) >= FAR * std
        and max(mean - low, high - mean) < TAIL * std
    )
    # negative, while nothing else is
    odd = code < 0 <= low
    beside = FEWEST_BESIDE if code in (-1, 0) else 2
    return (far or odd) and len(pd.unique(rest)) >= beside
