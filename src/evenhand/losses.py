"""Losses with one value per sample, and checks that labels fit them.

A loss is any function ``(output, target) -> (B,)``. The named ones are:

    cross_entropy  -log softmax(output)[y]                           (C outputs, labels 0..C-1)
    brier          sum over classes of (softmax(output) - onehot)^2  (one output: 2 (sigmoid - y)^2)
    hinge          max(0, 1 + max_{j != y} s_j - s_y)                (one output: max(0, 1 - y s),
                                                                     y in {-1, 1} or {0, 1})
    hinge_sum      hinge, but a client's loss is the sum over its samples
    mse            squared error, averaged over the target's entries

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

from collections.abc import Callable

import torch
from torch import Tensor

LossFunction = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return (B,) losses of (B, C) logits and (B,) labels."""
    return -output.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)


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


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return squared errors, averaged over a target's entries if it has several."""
    error = (output.reshape(target.shape) - target) ** 2
    return error.flatten(1).mean(1) if error.ndim > 1 else error


LOSSES: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "brier": brier,
    "hinge": hinge,
    "hinge_sum": hinge_sum,
    "mse": mse,
}
SUMMED = (hinge_sum,)  # a client's loss is the sum over its samples, not the mean
CLASSIFYING = (cross_entropy, brier, hinge, hinge_sum)


def single_output(output: Tensor) -> bool:
    """Whether the output has one number per sample."""
    return output.ndim == 1 or (output.ndim == 2 and output.shape[1] == 1)


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


def check(function: LossFunction, output: Tensor, y: Tensor) -> None:
    """Raise a ValueError if a named loss cannot use such outputs and labels ``y`` (N, ...).

    All labels are checked, not only those of the probe batch that produced ``output``.
    """
    width = list(output.shape)
    if function is mse:
        per_sample = output[0].numel()
        if per_sample != y[0].numel():
            raise ValueError(
                f"mse: the module returns {per_sample} numbers per sample, but y has"
                f" {y[0].numel()}; make them equal"
            )
        return
    if function not in CLASSIFYING:
        return  # a user's function knows its own labels
    name = function.__name__
    if y.ndim != 1:
        raise ValueError(
            f"{name} needs one label per sample, but labels in y have shape"
            f" {list(y.shape[1:])}; for one-hot rows use y.argmax(1)"
        )
    if y.is_floating_point() and bool((y != y.round()).any()):
        fraction = float(y[y != y.round()][0])
        raise ValueError(
            f"{name} needs class labels, but y has fractions such as {fraction:g}; for regression"
            ' use loss="mse"'
        )
    if y.is_floating_point() and not (single_output(output) and function is not cross_entropy):
        raise ValueError(
            f"{name} needs integer labels, but y is {y.dtype}; convert it with y.astype('int64')"
        )
    low, high = int(y.min()), int(y.max())
    if single_output(output) and function is not cross_entropy:
        allowed = {0, 1} if function is brier else {-1, 0, 1}
        if not set(y.tolist()) <= allowed or (low == -1 and bool((y == 0).any())):
            raise ValueError(
                f"{name} with one output needs labels 0/1{'' if function is brier else ' or -1/1'},"
                f" found {low}..{high}"
            )
        return
    if output.ndim != 2 or single_output(output):
        raise ValueError(
            f"{name} needs a module output of shape (batch, classes), got {width}; end the module"
            " with one output per class"
        )
    if low < 0 or high >= output.shape[1]:
        bad = low if low < 0 else high
        raise ValueError(
            f"label {bad} is out of range: the module has {output.shape[1]} outputs, so labels must"
            f" be 0..{output.shape[1] - 1}; widen the module's last layer or renumber the labels"
        )
