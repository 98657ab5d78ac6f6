"""Measures of a classifier as means over samples, so that all are tested in the same way.

Each sample of a cell (a client, group or team) gets a value. The mean of the values over the cell
is the measure, and their variance over the number of samples is its variance: for recall the values
are the positive samples' own, for the others they are influence functions (for AUC, DeLong's
placements). Two models evaluated on the same samples are compared by the differences of values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Judgement(NamedTuple):
    """A classifier's results for N samples."""

    label: Ints  # (N,)
    prediction: Ints  # (N,) one more than there are classes for none
    score: Floats  # (N,) of two classes, the probability of class 1

    def at(self, rows: Ints) -> Judgement:
        """Of some samples."""
        return Judgement(self.label[rows], self.prediction[rows], self.score[rows])


def of_class(judged: Judgement, positive: int, negatives: bool = False) -> tuple[Floats, Ints]:
    """Whether each sample of a class is found, and which samples these are: their mean is recall.

    ``negatives``: whether each sample of another class is not taken for this one: specificity.
    """
    found = judged.prediction == positive
    mine = (judged.label == positive) != negatives
    return (found != negatives)[mine].astype(np.float64), np.flatnonzero(mine)


def balanced_accuracy(judged: Judgement, cell: Ints, cells: int) -> Floats:
    """(N,) values whose mean over a cell is the mean recall over the classes it has."""
    return _over_classes(judged.prediction == judged.label, judged.label, judged.label, cell, cells)


def precision(judged: Judgement, cell: Ints, cells: int, positive: int | None) -> Floats:
    """(N,) values whose mean over a cell is the precision of a class, NaN where it is never
    predicted; of None, the mean over the classes that the cell has, 0 for one never predicted."""
    right = judged.prediction == judged.label
    if positive is None:
        return _over_classes(right, judged.prediction, judged.label, cell, cells)
    chosen = judged.prediction == positive
    total, count = _sums(np.ones(len(cell)), cell, cells), _sums(chosen, cell, cells)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = _sums(chosen & right, cell, cells) / count
        return np.asarray(rate[cell] + chosen * (total / count)[cell] * (right - rate[cell]))


def auc(judged: Judgement, cell: Ints, cells: int) -> Floats:
    """(N,) values whose mean over a cell is the area under the ROC curve of class 1; NaN where a
    class has no samples."""
    from scipy.stats import rankdata

    values = np.full(len(cell), np.nan)
    order = np.argsort(cell, kind="stable")
    for rows in np.split(order, np.searchsorted(cell[order], np.arange(1, cells))):
        positive = judged.label[rows] == 1
        n1, n0 = int(positive.sum()), int((~positive).sum())
        score = judged.score[rows]
        if n1 == 0 or n0 == 0 or np.isnan(score).any():
            continue
        rank, own = rankdata(score), np.empty(len(rows))
        own[positive], own[~positive] = rankdata(score[positive]), rankdata(score[~positive])
        # the share of the other class that a sample is on the right side of
        placed = np.where(positive, (rank - own) / n0, 1 - (rank - own) / n1)
        area = placed[positive].mean()
        values[rows] = area + (placed - area) * len(rows) / np.where(positive, n1, n0)
    return values


def ratio(stored: NDArray[Any], cell: Ints, cells: int) -> Floats:
    """(N,) values whose mean over a cell is a metric: a sum over another, or the mean of several
    such ratios. NaN in a cell where all denominators are 0.

    A ratio r = sum a / sum b of m samples has the values r + (a - r b) m / sum b (delta method).
    ``stored``: what the samples add, see :func:`evenhand.metrics.measuring.kept`.
    """
    if stored.ndim == 1:  # a mean of values
        return np.asarray(stored, np.float64)
    above, below = (stored[:, row].astype(np.float64) for row in (0, 1))  # (N, L)
    member = sparse_cells(cell, cells)
    over, under = member @ above, member @ below  # (cells, L)
    size = np.bincount(cell, minlength=cells).astype(np.float64)
    there = under != 0
    kinds = there.sum(1)
    rate = np.where(there, over / np.where(there, under, 1.0), 0.0)
    with np.errstate(invalid="ignore"):
        mean = rate.sum(1) / np.where(kinds > 0, kinds, np.nan)
    weight = np.where(there, size[:, None] / np.where(there, under, 1.0), 0.0)
    weight /= np.maximum(kinds, 1)[:, None]
    apart = ((above - rate[cell] * below) * weight[cell]).sum(1)
    return np.asarray(mean[cell] + apart)


def sparse_cells(cell: Ints, cells: int) -> Any:
    """(cells, N) a sparse matrix that sums samples by cell."""
    from scipy import sparse

    rows = np.arange(len(cell) + 1)
    return sparse.csr_matrix((np.ones(len(cell)), cell, rows), (len(cell), cells)).T


def effective_counts(values: Floats, client: Ints, clients: int) -> tuple[Ints, Ints]:
    """(n,) right predictions and samples that would make a share as uncertain as each client's mean
    of such values is: m v(1 - v) / s^2 samples for m values with mean v and variance s^2, at most
    m."""
    m, total, square = (
        _sums(weights, client, clients) for weights in (np.ones(len(client)), values, values**2)
    )
    mean = np.divide(total, m, out=np.zeros(clients), where=m > 0)
    # one sample more on each side, so that a share of 0 or 1 has a variance, too
    smooth = (np.clip(mean, 0, 1) * m + 1) / (m + 2)
    spread = np.maximum(square / np.maximum(m, 1) - mean**2, 1e-12)
    samples = np.rint(np.minimum(m, np.maximum(1.0, m * smooth * (1 - smooth) / spread)))
    samples = np.where(m > 0, samples, 0.0)
    return np.rint(np.clip(mean, 0, 1) * samples).astype(np.int64), samples.astype(np.int64)


def relative_spread(values: Floats, client: Ints, clients: int) -> float:
    """How much shares of one client's samples vary, relative to right and wrong samples with the
    same mean: the pooled variance within clients over that of m(1 - m), in (0, 1].

    It is 1 for values of 0 and 1, or if nothing is known: half a sample with 1 is added.
    """
    count, total, square = (
        _sums(weights, client, clients) for weights in (np.ones(len(client)), values, values**2)
    )
    m = np.maximum(count, 1)
    mean = total / m
    within = np.maximum(square - m * mean**2, 0.0)
    freedom = m - 1
    # m(1 - m) of an observed mean is too small by the variance of this mean
    most = mean * (1 - mean) + within / np.maximum(freedom, 1) / m
    known = float(most.mean()) if clients else 0.0
    if known <= 0:
        return 1.0
    found = (float(within.sum()) + known / 2) / (float(freedom @ most) + known / 2)
    return min(1.0, found)


def _over_classes(
    right: NDArray[np.bool_], of: Ints, label: Ints, cell: Ints, cells: int
) -> Floats:
    """Values of the mean over the classes that a cell has, of the share that is right among the
    samples whose class is ``of``."""
    classes = int(max(label.max(initial=0), of.max(initial=0))) + 1
    place, size = cell * classes + of, cells * classes
    there = _sums(np.ones(len(cell)), cell * classes + label, size).reshape(cells, classes) > 0
    count, hits = (_sums(weight, place, size) for weight in (np.ones(len(cell)), right))
    rate = np.divide(hits, count, out=np.zeros(size), where=count > 0)
    kinds = there.sum(1)
    mean = (rate.reshape(cells, classes) * there).sum(1) / np.maximum(kinds, 1)
    total = _sums(np.ones(len(cell)), cell, cells)
    weight = (total / np.maximum(kinds, 1))[cell] / count[place] * there.ravel()[place]
    return np.asarray(mean[cell] + weight * (right - rate[place]))


def _sums(values: NDArray[np.generic], cell: Ints, cells: int) -> Floats:
    return np.bincount(cell, weights=values, minlength=cells).astype(np.float64)
