"""Numbers such as 999 or -9 that may stand for a missing value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from evenhand.data.tables.values import Floats

CODES = (99.0, 999.0, 9999.0, 99999.0, -1.0, -9.0, -99.0, -999.0, -9999.0, 0.0)
FEWEST = 3  # rows with the code
LARGEST_SHARE = 0.5  # of the rows with a value that have the code
LARGEST_SHARE_OF_ZEROS = 0.3  # where more are 0, 0 is what is usual
FEWEST_BESIDE = 5  # different values beside -1 or 0: -1, 0 and 1 are a scale
# in standard deviations of the other values: how far a code is from the nearest of them, and from
# their mean; and how far from it they may be, since nothing is far out in a long tail
GAP, FAR, TAIL = 1.0, 3.0, 10.0


class Sentinel(NamedTuple):
    """A code that stands far outside of the other values of a column."""

    code: float
    rows: int
    present: int  # rows with a value
    low: float  # of the other values
    high: float


def sentinels(numbers: Floats) -> list[Sentinel]:
    """Codes that occur repeatedly, far outside of the other values."""
    present = numbers[~np.isnan(numbers)]
    # a code outside of the rest is the least or the largest number, or another code is
    if not len(present) or not {float(present.min()), float(present.max())} & set(CODES):
        return []
    counts = {code: int((present == code).sum()) for code in CODES}
    # what is usual is no code
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
        # one of the other values, the nearest of them first: another code may stand out beside it
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
    # below 0 where nothing else is
    odd = code < 0 <= low
    beside = FEWEST_BESIDE if code in (-1, 0) else 2
    return (far or odd) and len(pd.unique(rest)) >= beside
