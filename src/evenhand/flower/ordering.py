"""The order of names that come from several nodes."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Sequence
from itertools import pairwise


def natural_order(names: Sequence[str]) -> list[str]:
    """Names as people sort them: site 2 before site 10."""

    def key(name: str) -> tuple[list[tuple[int, int, str]], str]:
        pieces = re.split(r"([0-9]{1,18})", name)
        # "1" is not "01"
        return [
            (0, int(piece), "") if place % 2 else (1, 0, piece)
            for place, piece in enumerate(pieces)
        ], name

    return sorted(names, key=key)


def merge_orders(orders: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Merge names into one order that agrees with all ``orders``: the order of one common table, if
    nodes prepare their tables alike.

    Names that no node has together are in the order of :meth:`evenhand.Federation.from_arrays`; so
    are all names if nodes contradict each other.
    """
    later: dict[str, set[str]] = {name: set() for order in orders for name in order}
    for order in orders:
        for first, second in pairwise(order):
            later[first].add(second)
    before = {name: sum(name in names for names in later.values()) for name in later}
    ready = [(_rank(name), name) for name, count in before.items() if not count]
    heapq.heapify(ready)
    found: list[str] = []
    while ready:
        found.append(heapq.heappop(ready)[1])
        for name in later[found[-1]]:
            before[name] -= 1
            if not before[name]:
                heapq.heappush(ready, (_rank(name), name))
    return tuple(found if len(found) == len(later) else sorted(later, key=_rank))


def _rank(name: str) -> tuple[bool, float, str]:
    """Numbers by value, then texts, as in :mod:`evenhand.data.arrays`; nodes send numbers as
    text."""
    try:
        value = float(name)
    except ValueError:
        value = math.nan
    return (False, value, name) if math.isfinite(value) else (True, 0.0, name)
