"""Counts and sums per client and group. Tallies can be added; ratios are taken at the end.

A plain tally has a number for each of count, loss, and how much is predicted correctly: correct,
the number of samples whose class or level is right, or with several labels per sample
share_correct, the summed shares of labels that are right. With ``by_label`` it also has, for two
classes, the numbers in BY_LABEL: how many samples have label 1 or 0, and how many of these are
predicted as 1. A full tally adds, for C classes,

    brier      summed sum_c (p_c - 1[y = c])^2, where the loss makes probabilities of the outputs
    confusion  (C, C + 1) samples by label and prediction; the last prediction is none, see
               :class:`evenhand.metrics.counts.Counts`
    scored     (2, BINS) samples by outcome and score, see :mod:`evenhand.metrics.calibration`
    score      (2, BINS) their summed scores

and absolute, the summed absolute error, for a regression, with squared, the summed squared error,
where the loss is another. A metric, such as "higher:top5", has the sums (2, L) of its numerators
and denominators. A table with more than MOST_CELLS cells over all clients and groups is summed over
clients, so it is known by group but not by client. A table that has more cells by itself (10,000
words to predict) is omitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand import losses
from evenhand.data.samples import Batch
from evenhand.losses import single_output
from evenhand.messages import Replies
from evenhand.metrics.calibration import BINS, EDGES
from evenhand.metrics.measuring import Measured
from evenhand.model import Model
from evenhand.targets import predictions
from evenhand.tree import Tree

# whole numbers; the others are sums of real ones
BY_LABEL = ("positives", "negatives", "true_positives", "false_positives")
COUNTS = ("count", "correct", *BY_LABEL, "confusion", "scored")
# what softmax or sigmoid makes of outputs trained with these is a probability
PROBABLE = (losses.cross_entropy, losses.brier, losses.bce)
MOST_CELLS = 1 << 25  # 256 MB
BLOCK = 1024  # samples judged at once: fills a core, and stays small for deep networks
PIECE = 1 << 14  # clients whose tallies are worked on at once, to bound what is held in between
# scores are summed as multiples of 1 / FINEST: the sums are then exact, whatever their order
FINEST = 1 << 24

Tally = dict[str, NDArray[np.int64] | NDArray[np.float64]]  # (n, A, ...) by name


class Addend(NamedTuple):
    """What each sample of a batch adds to a number, to one cell of a table of this shape, or to all
    of its cells."""

    value: Tensor  # (B,) float64; (B, *shape) for all cells
    place: Tensor | None = None  # (B,) int64 into the flattened table
    shape: tuple[int, ...] = ()

    def add_to(self, sums: Tensor, cell: Tensor) -> None:
        """Add to stacked tables (..., *shape) on the CPU, each sample to that of its ``cell``."""
        if self.place is None and self.shape:
            values = self.value.cpu().reshape(len(cell), self.size)
            sums.view(-1, self.size).index_add_(0, cell, values)
            return
        index = cell if self.place is None else cell * self.size + self.place.cpu()
        sums.view(-1).index_add_(0, index, self.value.cpu())

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


def judge(
    model: Model,
    params: Tree,
    batch: Batch,
    full: bool = False,
    by_label: bool = False,
    metrics: Sequence[Measured] = (),
) -> dict[str, Addend]:
    """What each sample adds to a tally, plain (with ``by_label`` or without) or full, and to
    metrics."""
    output, y = model.output(params, batch.x), batch.y
    found = {"count": Addend(torch.ones_like(batch.weight).double())}
    if model.target.kind != "number":
        name = "share_correct" if model.target.shares else "correct"
        found[name] = Addend(model.target.right(output, y))
    found["loss"] = Addend(model.loss_function(output, y).double())
    if by_label and not full and model.classifies and _two_classes(output, y):
        found |= _by_label(output, y)
    if full and model.classifies:
        found |= _tables(output.double(), y)
        if model.loss_function in PROBABLE:
            found["brier"] = Addend(losses.brier(output.double(), labels(output, y)))
    if full and regresses(model):
        error = (output.reshape(y.shape) - y).abs().double()
        found["absolute"] = Addend(error.flatten(1).mean(1) if error.ndim > 1 else error)
        if model.loss_function is not losses.mse:
            found["squared"] = Addend(losses.mse(output, y).double())
    for metric in metrics:
        found[metric.key] = Addend(metric(output, y), None, (2, metric.entries))
    return found


def tally(
    model: Model,
    params: Tree,
    data: Batch,
    groups: int,
    full: bool = False,
    by_label: bool = False,
    metrics: Sequence[Measured] = (),
) -> Tree:
    """One client's tally by group, in float64: (max(groups, 1), ...) for each name."""
    cells = max(groups, 1)
    real = data.weight > 0
    # (B, A)
    member = (data.group[:, None] == torch.arange(cells, device=data.group.device)) & real[:, None]

    def summed(addend: Addend) -> Tensor:
        if addend.place is None and addend.shape:
            here = member.reshape(*member.shape, *[1] * len(addend.shape))
            return torch.where(here, addend.value[:, None], 0.0).sum(0)
        if addend.place is None:
            return torch.where(member, addend.value[:, None], 0.0).sum(0)
        table = torch.zeros(cells * addend.size, dtype=torch.float64, device=real.device)
        # out of place: tables of stacked clients are made of this one
        table = table.scatter_add(
            0, data.group * addend.size + addend.place, torch.where(real, addend.value, 0.0)
        )
        return table.reshape(cells, *addend.shape)

    found = judge(model, params, data, full, by_label, metrics)
    return {name: summed(addend) for name, addend in found.items()}


def dense(replies: Replies, clients: int) -> Tally:
    """Tallies (n, A, ...) of all clients by name, zero for those that did not reply.

    Those known only as sums over clients are (1, A, ...). The replies are used up: large tables are
    taken out of them, not held a second time.
    """
    found: Tally = {}
    for name in list(replies.each):
        values = replies.each.pop(name).numpy()
        if len(replies.ids) < clients:  # else ids, which ascend, are those of all clients
            whole = np.zeros((clients, *values.shape[1:]), values.dtype)
            whole[replies.ids.numpy()] = values
            values = whole
        found[name] = _whole(values) if name in COUNTS else values.astype(np.float64, copy=False)
    for name, values in replies.total.items():
        found[name] = values[None].numpy().astype(np.int64 if name in COUNTS else np.float64)
    return found


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The same whole numbers as integers, in the same memory."""
    if values.dtype != np.float64:
        return values.astype(np.int64)
    found = values.view(np.int64)
    for rows in pieces(len(values)):
        found[rows] = values[rows].astype(np.int64)
    return found


def pieces(rows: int) -> Iterator[slice]:
    """Rows in turn, PIECE of them or a few more: never one by itself unless it is alone, since
    NumPy may sum a single row in another order."""
    count = max(1, rows // PIECE)
    ends = [rows * piece // count for piece in range(count + 1)]
    return map(slice, ends, ends[1:])


def regresses(model: Model) -> bool:
    """Whether the loss is one of the named ones for numbers, whose errors have a size."""
    return losses.unwrapped(model.loss_function) in losses.REGRESSING


def accuracy_of(tally: Mapping[str, Any]) -> str:
    """The entry of a tally with what is right, over the count the accuracy; "" without one."""
    return next((name for name in ("correct", "share_correct") if name in tally), "")


def labels(output: Tensor, y: Tensor) -> Tensor:
    """(B,) the class of each label; for a single output 0/1, also where the data say -1/1."""
    return (y > 0).long() if single_output(output) else y


def scores(output: Tensor) -> Tensor:
    """(B,) with two classes the probability of class 1, with more the confidence in the predicted
    one."""
    if single_output(output):
        return output.reshape(len(output)).sigmoid()
    if output.shape[1] == 2:
        return (output[:, 1] - output[:, 0]).sigmoid()
    return output.softmax(-1).amax(-1)


def decided(output: Tensor) -> Tensor:
    """(B,) scores of two classes that are 0.5 or above exactly where the prediction is class 1.

    A prediction of class 0 can have a score of 0.5: if both outputs are equal, or nearly.
    """
    score = scores(output)
    below = math.nextafter(0.5, 0.0) if score.dtype == torch.float64 else 0.5 - 2.0**-25
    return torch.where((score >= 0.5) & (predictions(output) == 0), below, score)


def _two_classes(output: Tensor, y: Tensor) -> bool:
    return y.ndim == 1 and (single_output(output) or output.shape[1:] == (2,))


def _by_label(output: Tensor, y: Tensor) -> dict[str, Addend]:
    """The numbers in BY_LABEL; a label that is no class of the model is in none of them."""
    label, chosen = labels(output, y), predictions(output) == 1
    there, absent = label == 1, label == 0
    found = (there, absent, there & chosen, absent & chosen)
    return {name: Addend(one.double()) for name, one in zip(BY_LABEL, found, strict=True)}


def _tables(output: Tensor, y: Tensor) -> dict[str, Addend]:
    """Where each sample is in the tables of a classifier."""
    # a label that is no class of the model, which a user's loss may allow, is in none
    label, prediction = labels(output, y), predictions(output)
    classes = 2 if single_output(output) else output.shape[1]
    known = (label >= 0) & (label < classes)
    label = label.clamp(0, classes - 1)
    if classes > 2:
        score, outcome = scores(output), (prediction == label).long()
    else:
        score, outcome = decided(output), label
    scored = known & ~score.isnan()
    score = torch.where(scored, score, 0.0)
    place = outcome * BINS + torch.bucketize(
        score, torch.tensor(EDGES, dtype=torch.float64, device=score.device), right=True
    )
    shape = classes, classes + 1
    confusion = Addend(known.double(), label * (classes + 1) + prediction, shape)
    return {
        **({"confusion": confusion} if confusion.size <= MOST_CELLS else {}),
        "scored": Addend(scored.double(), place, (2, BINS)),
        "score": Addend((score * FINEST).round() / FINEST, place, (2, BINS)),
    }
