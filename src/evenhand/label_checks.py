"""Whether a named loss can use a module's outputs and the labels of the data."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand import losses
from evenhand.errors import require
from evenhand.losses import (
    IGNORED,
    LossFunction,
    class_axis,
    labelled,
    one_score_per_label,
    single_output,
)


def check(function: LossFunction, output: Tensor, y: Tensor) -> None:
    """Raise a ValueError if a named loss cannot use such outputs and labels ``y`` (N, ...).

    All labels are checked, not only those of the probe batch that produced ``output``.
    """
    function = losses.unwrapped(function)
    if function not in losses.LOSSES.values():
        return  # a user's function knows its own labels
    name = function.__name__
    if function in losses.REGRESSING:
        _check_numbers(name, output, y)
    elif function is losses.ordinal:
        _check_levels(output, y)
    elif function is losses.dice or _several(function, output, y):
        _check_several(function, output, y)
    elif function is losses.bce or (function is losses.focal and single_output(output)):
        _check_whole(name, y)
        require(
            single_output(output),
            "{} needs one output per label, but the module returns {} numbers per sample and y has"
            " one label; end the module with one output, or use cross_entropy",
            name,
            output[0].numel(),
        )
        _check_two_labels(name, y, {-1, 0, 1})
    else:
        _check_classes(function, output, y)


def _several(function: LossFunction, output: Tensor, y: Tensor) -> bool:
    """Whether samples have several labels; not for rows that may be one-hot."""
    if y.ndim == 1 or function not in losses.MASKED:
        return False
    matched = one_score_per_label(output, y) and function is not losses.cross_entropy
    return output.ndim > 2 or matched or function is losses.bce


def _check_numbers(name: str, output: Tensor, y: Tensor) -> None:
    require(
        output[0].numel() == y[0].numel(),
        "{}: the module returns {} numbers per sample, but y has {}; make them equal",
        name,
        output[0].numel(),
        y[0].numel(),
    )


def _check_levels(output: Tensor, y: Tensor) -> None:
    require(
        y.ndim == 1 and not y.is_floating_point(),
        "ordinal needs one whole level per sample, but y is {} of shape {}; number the levels 0, 1,"
        " 2, ... as int64",
        y.dtype,
        list(y.shape),
    )
    require(
        output.ndim == 2,
        "ordinal needs a module output of shape (batch, levels - 1), got {}",
        list(output.shape),
    )
    _check_range(
        y, output.shape[1] + 1, f"{output.shape[1]} outputs ({output.shape[1] + 1} levels)"
    )


def _check_several(function: LossFunction, output: Tensor, y: Tensor) -> None:
    """Check labels of several per sample: 0/1 each, or a class for each position."""
    name, axis = function.__name__, class_axis(output.shape, y.shape)
    require(
        y.ndim > 1,
        "{} needs masks, but y has one label per sample; use cross_entropy or bce",
        name,
    )
    there = labelled(y)
    empty = (~there.flatten(1).any(1)).nonzero()
    require(
        not len(empty),
        "sample {} has no labels: all are {}; leave it out of the data",
        int(empty[0]) if len(empty) else "",
        IGNORED,
    )
    if one_score_per_label(output, y) and function is not losses.cross_entropy:
        have, need = ([size for size in values.shape[1:] if size > 1] for values in (output, y))
        require(
            have == need,
            "{}: outputs {} and labels {} have different shapes; make them equal",
            name,
            list(output.shape[1:]),
            list(y.shape[1:]),
        )
        _check_whole(name, y)
        _check_two_labels(name, y[there], {0, 1}, "per label ")
        return
    classes = 0 if axis is None or function is losses.bce else output.shape[axis]
    wanted = (
        "one output per label"
        if function is losses.bce
        else "outputs (batch, classes, *labels) or (batch, *labels, classes)"
    )
    require(
        classes > 1,
        "{} needs {}; got outputs {} and labels {} per sample",
        name,
        wanted,
        list(output.shape[1:]),
        list(y.shape[1:]),
    )
    _check_whole(name, y)
    require(
        not y.is_floating_point(),
        "{} needs integer labels, but y is {}; convert it with y.astype('int64')",
        name,
        y.dtype,
    )
    _check_range(y[there], classes, f"{classes} outputs")


def _check_classes(function: LossFunction, output: Tensor, y: Tensor) -> None:
    name, scores = function.__name__, single_output(output) and function in SINGLE
    if y.ndim != 1:
        raise ValueError(
            f"{name} needs one label per sample, but labels in y have shape"
            f" {list(y.shape[1:])}; for one-hot rows use y.argmax(1)"
        )
    _check_whole(name, y)
    if y.is_floating_point() and not scores:
        raise ValueError(
            f"{name} needs integer labels, but y is {y.dtype}; convert it with y.astype('int64')"
        )
    if scores:
        _check_two_labels(name, y, {0, 1} if function is losses.brier else {-1, 0, 1})
        return
    if output.ndim != 2 or single_output(output):
        raise ValueError(
            f"{name} needs a module output of shape (batch, classes), got {list(output.shape)}; end"
            " the module with one output per class"
        )
    _check_range(y, output.shape[1], f"{output.shape[1]} outputs")


SINGLE = (losses.brier, losses.hinge, losses.hinge_sum)  # of the others, those that take one output


def _check_whole(name: str, y: Tensor) -> None:
    if y.is_floating_point() and bool((y != y.round()).any()):
        fraction = float(y[y != y.round()][0])
        raise ValueError(
            f"{name} needs class labels, but y has fractions such as {fraction:g}; for regression"
            ' use loss="mse"'
        )


def _check_two_labels(name: str, y: Tensor, allowed: set[int], each: str = "") -> None:
    values = set(torch.unique(y).tolist())
    if not values <= allowed or {-1, 0} <= values:
        signs = " or -1/1" if -1 in allowed else ""
        raise ValueError(
            f"{name} with one output {each}needs labels 0/1{signs}, found"
            f" {float(y.min()):g}..{float(y.max()):g}"
        )


def _check_range(y: Tensor, classes: int, outputs: str) -> None:
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"label {low if low < 0 else high} is out of range: the module has {outputs}, so labels"
            f" must be 0..{classes - 1}; widen the module's last layer or renumber the labels"
        )
