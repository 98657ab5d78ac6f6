"""Losses with one value per sample.

A loss is any function ``(output, target) -> (B,)``. The named ones are:

    cross_entropy  -log softmax(output)[y]                           (C outputs, labels 0..C-1)
    focal          -(1 - p)^2 log p, p the probability of the label  (C outputs, or one per label)
    brier          sum over classes of (softmax(output) - onehot)^2  (one output: 2 (sigmoid - y)^2)
    hinge          max(0, 1 + max_{j != y} s_j - s_y)                (one output: max(0, 1 - y s),
                                                                     y in {-1, 1} or {0, 1})
    hinge_sum      hinge, but a client's loss is the sum over its samples
    bce            -log sigmoid(+-output)                            (one output per 0/1 label)
    dice           1 - (2 sum p t + 1) / (sum p + sum t + 1)         (masks)
    ordinal        sum over k of bce(output_k, y > k)                (K - 1 outputs, labels 0..K-1)
    mse            squared error, averaged over the target's entries
    huber          error^2 / 2 up to an error of 1, then |error| - 1/2, averaged in the same way

A sample can have one label, or several: L labels of 0/1 (``bce``, ``focal``), or a class for every
token or pixel (``cross_entropy``, ``focal``, ``dice``). Its loss is then the mean over its labels
(for ``dice``, one value for the whole mask). Labels of IGNORED = -100 do not count; a sample whose
labels are all ignored has a loss of 0.

A client's loss is the mean over its samples. The exception is hinge_sum, where ``Model.loss`` is
the sum: over a batch during local training, and over all data when a method compares clients. This
is the linear SVM of q-FFL's code (Li et al., ICLR 2020), F_i = 1/2 |W|^2 + sum of hinge. Its
penalty is LocalSGD(weight_decay=1); unlike in that code, the penalty includes the bias and is not
part of the loss raised to the power q. With sums, methods that compare losses take large clients
for badly served ones, a step grows with the batch size, and q or t need other values than with
means. Per-sample quantities do not change: evaluation reports means, and FedMinMax, AgnosticFedAvg
and TERM's level="sample" use means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LossFunction = Callable[[Tensor, Tensor], Tensor]

# the label of a token or pixel that does not count, as in torch and transformers
IGNORED = -100
SMOOTHING = 1.0  # added to both sides of the Dice coefficient, which is then defined without a mask


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return (B,) losses of (B, C) logits and (B,) labels.

    With labels (B, *S) of tokens or pixels, logits are (B, C, *S) or (B, *S, C), and the loss is
    the mean over a sample's labelled positions.
    """
    if target.ndim == 1:
        return -output.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return _mean(-_log_probability(output, target), target)


def focal(output: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    """Return cross-entropies that count less where the label's probability p is high: times
    (1 - p)^gamma.

    Takes outputs and labels as ``cross_entropy`` does, or as ``bce`` does.
    """
    if one_score_per_label(output, target):
        score = output.reshape(target.shape)
        log_p = F.logsigmoid(torch.where(target > 0, score, -score))
    else:
        log_p = _log_probability(output, target)
    # 1 - p without cancellation near p = 1; at 0, its power has no slope if gamma is below 1
    missed = (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).tiny)
    return _mean(-(missed**gamma) * log_p, target)


def brier(output: Tensor, target: Tensor) -> Tensor:
    """Return (B,) squared errors summed over classes, in [0, 2], of (B, C) logits and (B,)
    labels."""
    if single_output(output):
        return 2 * (output.reshape(target.shape).sigmoid() - target) ** 2
    probability = output.softmax(-1)
    # sum_c p_c^2 - 2 p_y + 1 is the same but loses digits near p_y = 1; so subtract the one-hot
    # vector itself
    onehot = torch.zeros_like(probability).scatter(-1, target.unsqueeze(-1), 1.0)
    return ((probability - onehot) ** 2).sum(-1)


def hinge(output: Tensor, target: Tensor) -> Tensor:
    """Return margin losses: binary with one output, Crammer and Singer's with C outputs."""
    if single_output(output):
        sign = torch.where(target > 0, 1.0, -1.0).to(output.dtype)
        return (1 - sign * output.reshape(target.shape)).clamp(min=0)
    index = target.unsqueeze(-1)
    rival = output.scatter(-1, index, -torch.inf).amax(-1)
    return (1 + rival - output.gather(-1, index).squeeze(-1)).clamp(min=0)


def hinge_sum(output: Tensor, target: Tensor) -> Tensor:
    """Return ``hinge`` losses; ``Model.loss`` adds them up instead of averaging (see
    ``SUMMED``)."""
    return hinge(output, target)


def bce(output: Tensor, target: Tensor) -> Tensor:
    """Return (B,) binary cross-entropies of one logit per label, averaged over a sample's labels.

    Labels are 0/1, or -1/1 if there is one per sample.
    """
    score, positive = output.reshape(target.shape), (target > 0).to(output.dtype)
    return _mean(F.binary_cross_entropy_with_logits(score, positive, reduction="none"), target)


def dice(output: Tensor, target: Tensor) -> Tensor:
    """Return (B,) one minus the soft Dice coefficient of each mask, smoothed by 1.

    Binary masks need one logit per pixel. With C classes, logits are as for ``cross_entropy``, and
    the coefficients of all classes, with or without pixels in the sample, are averaged.
    """
    there = labelled(target).unsqueeze(-1)  # (B, *S, 1)
    if one_score_per_label(output, target):
        score, inside = output.reshape(target.shape).unsqueeze(-1), (target > 0).unsqueeze(-1)
        p, missed = score.sigmoid(), (-score).sigmoid()
    else:
        score = _classes_last(output, target)
        inside = _codes(target).unsqueeze(-1) == torch.arange(score.shape[-1], device=score.device)
        p = score.softmax(-1)
        missed = 1 - p
    # P + T - 2 I as a sum of terms that are never negative
    wrong = torch.where(inside, missed, p)
    size = p + inside.to(p.dtype)
    wrong, size = (
        torch.where(there, values, torch.zeros_like(values)).flatten(1, -2).sum(1)
        for values in (wrong, size)
    )
    return (wrong / (size + SMOOTHING)).mean(-1)


def ordinal(output: Tensor, target: Tensor) -> Tensor:
    """Return (B,) losses of K - 1 cumulative logits and levels 0..K-1.

    Logit k is that of y > k; the loss is the sum of their binary cross-entropies.
    """
    steps = torch.arange(output.shape[-1], device=output.device)
    above = (target.unsqueeze(-1) > steps).to(output.dtype)
    return F.binary_cross_entropy_with_logits(output, above, reduction="none").sum(-1)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return squared errors, averaged over a target's entries if it has several."""
    error = (output.reshape(target.shape) - target) ** 2
    return error.flatten(1).mean(1) if error.ndim > 1 else error


def huber(output: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """Return squared errors (halved) up to ``delta`` and absolute ones beyond, averaged over a
    target's entries."""
    target = target.to(output.dtype)
    error = F.huber_loss(output.reshape(target.shape), target, reduction="none", delta=delta)
    return error.flatten(1).mean(1) if error.ndim > 1 else error


LOSSES: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "focal": focal,
    "brier": brier,
    "hinge": hinge,
    "hinge_sum": hinge_sum,
    "bce": bce,
    "dice": dice,
    "ordinal": ordinal,
    "mse": mse,
    "huber": huber,
}
SUMMED = (hinge_sum,)  # a client's loss is the sum over its samples, not the mean
CLASSIFYING = (cross_entropy, focal, brier, hinge, hinge_sum, bce)  # with one label per sample
MASKED = (cross_entropy, focal, bce, dice)  # take several labels per sample
REGRESSING = (mse, huber)


def single_output(output: Tensor) -> bool:
    """Whether the output has one number per sample."""
    return output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1)


def one_score_per_label(output: Tensor, target: Tensor) -> bool:
    """Whether each label has one logit, rather than one for each class."""
    return math.prod(output.shape[1:]) == math.prod(target.shape[1:])


def class_axis(output: Sequence[int], target: Sequence[int]) -> int | None:
    """Return the axis of the classes in an output of this shape for labels of this shape; None if
    they do not match.

    It is 1 for (B, C, *S) and -1 for (B, *S, C). If both match, as for 8 tokens in 8 classes, it is
    -1 for sequences (B, T, C), as of transformers and recurrent layers, and 1 for images
    (B, C, H, W), as of convolutions.
    """
    scores, positions = list(output[1:]), list(target[1:])
    first, last = scores[1:] == positions, scores[:-1] == positions
    if not scores or not (first or last):
        return None
    return -1 if last and (len(positions) < 2 or not first) else 1


def labelled(target: Tensor) -> Tensor:
    """Return which labels count: all that are not IGNORED."""
    return (target if target.is_floating_point() else target.long()) != IGNORED


def unwrapped(function: LossFunction) -> LossFunction:
    """Return the loss inside a ``functools.partial``, such as one that sets ``gamma``."""
    inner: LossFunction = getattr(function, "func", function)
    return inner


def resolve(loss: str | LossFunction) -> LossFunction:
    """Return the loss function with this name, or the function itself."""
    if callable(loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ValueError(
            f"unknown loss {loss!r}; choose from {', '.join(LOSSES)} or pass a function (output,"
            " target) -> (B,)"
        )
    return LOSSES[loss]


def _classes_last(output: Tensor, target: Tensor) -> Tensor:
    """Return (B, *S, C) logits."""
    axis = class_axis(output.shape, target.shape)
    if axis is None:
        raise ValueError(
            f"outputs {list(output.shape)} have no axis of classes beside labels"
            f" {list(target.shape)}"
        )
    return output.movedim(axis, -1)


def _codes(target: Tensor) -> Tensor:
    """Return labels as indices, 0 for ignored ones."""
    return torch.where(labelled(target), target, torch.zeros_like(target)).long()


def _log_probability(output: Tensor, target: Tensor) -> Tensor:
    """Return (B, *S) the log-probability of each label."""
    logits = _classes_last(output, target).log_softmax(-1)
    return logits.gather(-1, _codes(target).unsqueeze(-1)).squeeze(-1)


def _mean(values: Tensor, target: Tensor) -> Tensor:
    """Average (B, *S) values over a sample's labels that count; 0 if there are none."""
    if target.ndim == 1:
        return values
    there = labelled(target)
    total = torch.where(there, values, torch.zeros_like(values)).flatten(1).sum(1)
    return total / there.flatten(1).sum(1).clamp(min=1)
