"""The lengths that clients' data are padded to, and how many clients a stacked step holds.

Both keep masked work below MOST_PADDING of all work. Widths depend only on the federation, never on
a cohort or chunk, so a client's arithmetic does not depend on the clients it is stacked with.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_PADDING = 0.15
# candidate widths; more would make planning slow for a federation with many sizes
MOST_CANDIDATES = 256


def padded_widths(sizes: Tensor) -> Tensor:
    """Ascending widths, each the size of some client, that every client's data are padded to.

    They are as few as possible with padding of at most MOST_PADDING of all padded samples, and then
    have the least padding.

    >>> [padded_widths(torch.tensor(sizes)).tolist() for sizes in ([50, 50], [95, 100, 10, 9, 10])]
    [[50], [10, 100]]
    """
    distinct, counts = np.unique(sizes.clamp(min=1).numpy(), return_counts=True)
    # as many quantiles of the samples, the largest size among them
    if len(distinct) > MOST_CANDIDATES:
        samples = np.cumsum(distinct * counts)
        chosen = np.unique(
            np.searchsorted(samples, np.linspace(0, samples[-1], MOST_CANDIDATES + 1)[1:])
        )
        counts = np.diff(np.cumsum(counts)[chosen], prepend=0)
        distinct = distinct[chosen]
    real, until = float(sizes.sum()), np.concatenate([[0], np.cumsum(counts)])
    # cost[i, j]: padded samples of the clients in (i, j], all padded to the j-th width
    cost = np.where(
        np.arange(len(until))[:, None] < np.arange(len(until)),
        (until - until[:, None]) * np.concatenate([[0], distinct]),
        np.inf,
    )
    least = cost[0]
    origins: list[NDArray[np.int64]] = []
    while least[-1] - real > MOST_PADDING * least[-1] and len(origins) + 1 < len(distinct):
        totals = least[:, None] + cost
        totals[0] = np.inf
        origins.append(totals.argmin(0))
        least = totals.min(0)
    ends = [len(distinct)]
    for origin in reversed(origins):
        ends.append(int(origin[ends[-1]]))
    return torch.from_numpy(distinct[np.array(sorted(ends)) - 1].astype(np.int64))


def stacked_clients(count: int) -> int:
    """The smallest of a few numbers that is at least ``count``.

    These numbers are less than an eighth apart, so that there are few shapes.

    >>> [stacked_clients(count) for count in (1, 8, 17, 33, 100)]
    [1, 8, 18, 36, 104]
    """
    grain = 1 << max(0, count.bit_length() - 4)
    return -(-count // grain) * grain
