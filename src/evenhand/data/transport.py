"""How many samples of each cell every client gets, if client sizes are given and cells are scarce.

This is a transport problem: clients want a number of samples, cells have a limited supply, and a
client only takes from the cells that it holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROUNDS = 1000  # of scaling, at most; the rest is corrected exactly


def transport(wanted: Ints, there: Ints, leaning: Floats, rng: np.random.Generator) -> Ints | None:
    """Return (clients, cells) integers: client k gets ``wanted[k]``, cell c gives at most
    ``there[c]``.

    They are the closest to the proportions of ``leaning`` (clients, cells) by Kullback-Leibler
    divergence, up to rounding, and 0 where ``leaning`` is 0. Returns None if it is impossible.
    """
    rows, columns = rng.permutation(len(wanted)), rng.permutation(len(there))
    wanted, there, leaning = wanted[rows], there[columns], leaning[np.ix_(rows, columns)]
    ideal = _scaled(wanted, there, leaning)
    counts = np.floor(ideal + 1e-9).astype(np.int64)
    counts = counts + _flow(wanted - counts.sum(1), there - counts.sum(0), ideal > counts)
    missing = wanted - counts.sum(1)
    if missing.any():  # scaling did not converge: let clients exchange samples
        counts = counts + _flow(missing, there - counts.sum(0), leaning > 0, counts)
    if (counts.sum(1) < wanted).any():
        return None
    # shuffled until here, so that rounding does not favour clients by their number
    return counts[np.ix_(np.argsort(rows), np.argsort(columns))]


def feasible(wanted: Ints, there: Ints, members: Bools) -> bool:
    """Whether every client can have ``wanted`` samples from the cells that it holds."""
    # clients that hold the same cells count as one
    kinds, kind = np.unique(members, axis=0, return_inverse=True)
    asked = np.bincount(kind.reshape(-1), wanted, len(kinds)).astype(np.int64)
    return int(_flow(asked, there, kinds, most=int(asked.max())).sum()) == int(asked.sum())


def lowered(wanted: Ints, possible: Callable[[Ints], bool]) -> Ints | None:
    """Lower ``wanted`` proportionally, as little as possible and to at least 1 each.

    Returns None if even 1 each is impossible.

    >>> lowered(np.array([10, 20]), lambda sizes: sizes.sum() <= 17).tolist()
    [5, 11]
    """
    most = int(wanted.max())
    low, high = 0, most + 1  # the largest size that is possible, and the smallest that is not
    while high - low > 1:
        middle = (low + high) // 2
        if possible(np.maximum(wanted * middle // most, 1)):
            low = middle
        else:
            high = middle
    return np.maximum(wanted * low // most, 1) if low else None


def _scaled(wanted: Ints, there: Ints, leaning: Floats) -> Floats:
    """Scale rows of ``leaning``, and columns by at most 1, to fit the row and column sums.

    Rows add up to ``wanted`` and columns to at most ``there``, if possible.
    """
    column = np.ones(len(there))
    ideal = leaning
    for _ in range(ROUNDS):
        total = np.maximum(leaning @ column, 1e-300)
        ideal = (wanted / total)[:, None] * leaning
        column = np.minimum(1.0, there / np.maximum(ideal.sum(0), 1e-300))
        ideal = ideal * column
        if np.abs(ideal.sum(1) - wanted).max() < 1e-7:
            break
    return np.asarray(ideal)


def _flow(
    missing: Ints, spare: Ints, open_to: Bools, held: Ints | None = None, most: int = 0
) -> Ints:
    """Return (clients, cells) what more clients can get: as much as possible, in integers.

    Args:
        missing: what a client still wants.
        spare: what a cell still has.
        open_to: which cells a client may take from: one sample of each; or without limit if clients
            may give back what they have ``held``; or ``most`` of each.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    clients, cells = open_to.shape
    source, sink = clients + cells, clients + cells + 1
    limit = most or (1 if held is None else int(missing.sum()))
    taker, giver = np.nonzero(open_to)
    edges = [
        (np.full(clients, source), np.arange(clients), missing),
        (taker, giver + clients, np.full(len(taker), limit)),
        (np.arange(cells) + clients, np.full(cells, sink), spare),
    ]
    if held is not None:
        whose, which = np.nonzero(held)
        edges.append((which + clients, whose, held[whose, which]))
    start, end, room = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    graph = csr_array((room.astype(np.int32), (start, end)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(graph, source, sink).flow
    return np.asarray(flow[:clients, clients:source].toarray(), dtype=np.int64)
