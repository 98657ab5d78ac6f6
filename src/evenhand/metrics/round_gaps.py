"""Gaps between groups after a round, from the clients' evaluations of a classifier of two classes.

They are the gaps of :mod:`evenhand.metrics.parity` for class 1 over the samples of all clients, as
computed from the confusion counts of the same model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from evenhand.messages import Replies
from evenhand.metrics.parity import gap
from evenhand.metrics.tallies import BY_LABEL

Floats = NDArray[np.float64]

# by column of the history
GAPS = {
    "selection_gap": "selection rate",
    "tpr_gap": "true-positive rate",
    "fpr_gap": "false-positive rate",
}


def round_gaps(replies: Replies) -> dict[str, Floats]:
    """Columns of the history, (...) by name with one value per run; {} without two classes and
    two groups.

    A group without samples for a rate is excluded from its gap; with fewer than two groups left,
    the gap is NaN.

    Args:
        replies: plain tallies by label, or full ones: (..., K, A, *) in ``each``, or their sums
            over clients (..., A, *) in ``total``.
    """
    found = _by_group(replies)
    if found is None or found[0].shape[-1] < 2:
        return {}
    positives, negatives, right, wrong = found
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as meant
        rates = (
            (right + wrong) / (positives + negatives),
            right / positives,
            wrong / negatives,
        )
    return {name: gap(rate) for name, rate in zip(GAPS, rates, strict=True)}


def _by_group(replies: Replies) -> list[Floats] | None:
    """(..., A) the numbers in BY_LABEL over all clients; None if they are unknown."""
    if BY_LABEL[0] in replies.each:
        return [_array(replies.each[name].sum(-2)) for name in BY_LABEL]
    if BY_LABEL[0] in replies.total:
        return [_array(replies.total[name]) for name in BY_LABEL]
    table = None
    if "confusion" in replies.each:
        table = _array(replies.each["confusion"].sum(-4))
    elif "confusion" in replies.total:
        table = _array(replies.total["confusion"])
    if table is None or table.shape[-2] != 2:
        return None
    positives, negatives = table[..., 1, :].sum(-1), table[..., 0, :].sum(-1)
    return [positives, negatives, table[..., 1, 1], table[..., 0, 1]]


def _array(sums: Tensor) -> Floats:
    return sums.cpu().numpy().astype(np.float64)
