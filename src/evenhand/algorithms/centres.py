"""Centres of weighted points that a minority cannot move far.

``points`` is (K, P), one point per row, and ``votes`` (K,) are their weights, not negative. A
centre of no points is zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 1 << 16  # coordinates that are sorted together
ROUNDING = 1e-7  # sums of votes that differ by less, relatively, are equal: float32's rounding


def coordinate_median(points: Tensor, votes: Tensor) -> Tensor:
    """Return (P,) the weighted median of each coordinate.

    Where exactly half of the votes lie on either side, it is the middle between the two values, so
    equal votes give the usual median.
    """

    def median(values: Tensor, ahead: Tensor, _: Tensor) -> Tensor:
        half = ahead[:, -1:] / 2
        last = values.shape[1] - 1
        low = (ahead < half * (1 - ROUNDING)).sum(1, keepdim=True).clamp(max=last)
        high = (ahead <= half * (1 + ROUNDING)).sum(1, keepdim=True).clamp(max=last)
        return (values.gather(1, low) + values.gather(1, high)).squeeze(1) / 2

    return _by_coordinate(median, points, votes)


def trimmed_mean(points: Tensor, votes: Tensor, trim: Tensor | float) -> Tensor:
    """Return (P,) the weighted mean of each coordinate without the lowest and the highest values,
    whose votes are ``trim`` < 1/2 of all at either end.

    A value on the border counts with the part of its votes that is left.
    """

    def mean(values: Tensor, ahead: Tensor, votes: Tensor) -> Tensor:
        whole = ahead[:, -1:]
        # a little more than trim, or rounding would leave a trace of a huge value on the border
        low = trim * whole * (1 + ROUNDING)
        kept = torch.minimum(ahead, whole - low) - torch.maximum(ahead - votes, low)
        kept = torch.where(votes > 0, kept.clamp(min=0), 0.0)
        kept = kept / kept.sum(1, keepdim=True).clamp(min=torch.finfo(kept.dtype).tiny)
        return (kept * values).sum(1)

    return _by_coordinate(mean, points, votes)


def _by_coordinate(
    centre: Callable[[Tensor, Tensor, Tensor], Tensor], points: Tensor, votes: Tensor
) -> Tensor:
    """Call ``centre`` with blocks of coordinates: the values (B, K) in ascending order, the votes
    up to and including each, and the votes of each."""
    if not len(points):
        return points.sum(0)
    found = []
    for block in torch.split(points, BLOCK, dim=1):
        values, order = block.T.contiguous().sort(dim=1)
        sorted_votes = votes[order]
        found.append(centre(values, sorted_votes.cumsum(1), sorted_votes))
    return torch.cat(found)


def geometric_median(
    points: Tensor, votes: Tensor, smoothing: float, tolerance: float, iterations: int
) -> Tensor:
    """Return (P,) the point with the least weighted sum of distances to the others.

    Smoothed Weiszfeld iterations: a distance d counts as d^2 / 2w + w / 2 below the width w. The
    width starts at the median distance and halves until it is ``smoothing`` times as long, because
    a small one holds the iterations at any point they come close to.
    """
    centre = coordinate_median(points, votes)
    if not len(points):
        return centre
    total = votes.sum()
    length = coordinate_median(_distances(points, centre)[:, None], votes)[0]
    if not bool(length * total > 0):
        return centre  # most votes are for this very point, or there are none
    width = length
    for _ in range(iterations):
        pull = votes / _distances(points, centre).clamp(min=width)
        nearer = pull @ points / pull.sum()
        # the slope of the sum of distances is the move times the summed pulls
        slope = (nearer - centre).norm() * pull.sum()
        centre, last = nearer, width <= smoothing * length
        if last and bool(slope <= tolerance * total):
            break
        width = torch.maximum(width / 2, smoothing * length)
    # towards one of the points the iterations are slow, so end there if that is better
    nearest = points[_distances(points, centre).argmin()]
    sums = [votes @ _distances(points, one) for one in (centre, nearest)]
    return torch.where(sums[1] < sums[0], nearest, centre)


def _distances(points: Tensor, centre: Tensor) -> Tensor:
    # differences, not products: those of an update of 1e6 would hide the others' distances
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(points, centre[None], compute_mode=exact)[:, 0]
