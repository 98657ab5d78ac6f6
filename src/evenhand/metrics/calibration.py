"""AUC and calibration from histograms of scores, which can be added over clients.

A histogram (..., 2, BINS) counts samples by outcome and score. With two classes, the score is the
probability of class 1 and the outcome is the label; with more, the score is the confidence in the
predicted class and the outcome whether it is correct. Leading axes stay, so one call handles every
client or group. Samples without a score (NaN outputs) are in no bin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evenhand.errors import require, require_whole

Floats = NDArray[np.float64]

TENTHS = 10  # coarse bins of the calibration error
# equally wide bins; the first and the last are cut further, since the scores of rare classes crowd
# there
FINE = 100
TAIL = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3)
EDGES = tuple(
    sorted({*TAIL, *(place / FINE for place in range(1, FINE)), *(1 - place for place in TAIL)})
)
BINS = len(EDGES) + 1  # bin b holds scores from EDGES[b - 1] up to, but not including, EDGES[b]


def auc(histogram: ArrayLike) -> Floats:
    """(...) probability that a sample with outcome 1 scores higher than one with outcome 0.

    Equal scores count half. Scores in one bin count as equal, so this differs from the area under
    the curve of the scores themselves by at most :func:`auc_error`. NaN if one of the outcomes has
    no samples.

    >>> float(auc([[1, 1, 0], [0, 1, 2]]))  # 6 pairs: 5 in order, 1 in the same bin
    0.9166666666666666
    """
    missed, found = _outcomes(histogram)
    lower = missed.cumsum(-1) - missed
    return _ratio((found * (2 * lower + missed)).sum(-1), 2 * missed.sum(-1) * found.sum(-1))


def auc_error(histogram: ArrayLike) -> Floats:
    """(...) the most by which bins can change :func:`auc`.

    Half of the probability that two samples with different outcomes share a bin.

    >>> float(auc_error([[1, 1, 0], [0, 1, 2]]))  # 1 of 6 pairs
    0.08333333333333333
    """
    missed, found = _outcomes(histogram)
    return _ratio((missed * found).sum(-1), 2 * missed.sum(-1) * found.sum(-1))


def calibration_error(histogram: ArrayLike, scores: ArrayLike, bins: int = TENTHS) -> Floats:
    """(...) expected calibration error: |mean score - share of outcome 1| over equally wide bins.

    Bins are weighted by their samples. The mean score of a bin comes from the summed ``scores``
    (..., 2, BINS), not from its middle, so the bins of the histogram add no error to that of the
    ``bins`` coarse ones, a divisor of 100. NaN without samples.
    """
    histogram, summed = coarse(histogram, bins), coarse(scores, bins)
    return _ratio(np.abs(summed.sum(-2) - histogram[..., 1, :]).sum(-1), histogram.sum((-2, -1)))


def coarse(values: ArrayLike, bins: int = TENTHS) -> Floats:
    """(..., bins) sums over equally wide bins of values (..., BINS)."""
    require_whole("bins", bins, 1)
    require(FINE % bins == 0, "bins must divide {}, got {}", FINE, bins)
    # the fine bin that each coarse one begins with
    starts = np.searchsorted(EDGES, np.arange(bins) / bins, side="right")
    return np.add.reduceat(np.asarray(values, np.float64), starts, axis=-1)


def _outcomes(histogram: ArrayLike) -> tuple[Floats, Floats]:
    given = np.asarray(histogram, np.float64)
    return given[..., 0, :], given[..., 1, :]


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan)
