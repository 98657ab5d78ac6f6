"""Metrics that a task brings by itself.

    labels     exact_match  samples with all labels right
               f1_macro     mean over labels of 2 tp / (2 tp + fp + fn)
    positions  iou          mean over classes of intersection / union
               dice_score   mean over classes of 2 intersection / (predicted + labelled)
    ordinal    mae          mean distance between predicted and true level

tp, fp, fn, intersections and unions are summed over samples first. A label or class that neither
occurs nor is predicted has no value and is left out of the mean. With one logit per position, the
only class is 1, the inside of the mask. Ignored labels do not count.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from evenhand.losses import labelled
from evenhand.metrics.metric import Metric
from evenhand.model import Model
from evenhand.targets import Target

Sums = tuple[Tensor, Tensor]  # numerators and denominators


def task_metrics(model: Model) -> dict[str, Metric]:
    """Return the metrics of the model's task by name; ``model`` has been checked against data."""
    target = model.target
    if target.kind == "labels":
        return {
            "exact_match": Metric(partial(exact_match, target)),
            "f1_macro": Metric(partial(overlap_of_labels, target)),
        }
    if target.kind == "positions":
        return {
            "iou": Metric(partial(intersection_over_union, target)),
            "dice_score": Metric(partial(overlap_of_classes, target)),
        }
    if target.kind == "ordinal":
        return {"mae": Metric(partial(distance, target), better="lower")}
    return {}


def exact_match(target: Target, output: Tensor, y: Tensor) -> Tensor:
    """Return (B,) whether all labels of a sample are right."""
    return (target.right(output, y) == 1).to(output.dtype)


def overlap_of_labels(target: Target, output: Tensor, y: Tensor) -> Sums:
    """Return (B, L) 2 tp and 2 tp + fp + fn."""
    there = labelled(y)
    chosen, right = (target.predict(output) == 1) & there, (y > 0) & there
    return 2 * (chosen & right).to(output.dtype), chosen.to(output.dtype) + right


def intersection_over_union(target: Target, output: Tensor, y: Tensor) -> Sums:
    """Return (B, C) positions in the intersections and unions of predictions and labels."""
    chosen, right = _by_class(target, output, y)
    return _count(chosen & right), _count(chosen | right)


def overlap_of_classes(target: Target, output: Tensor, y: Tensor) -> Sums:
    """Return (B, C) twice the positions in the intersections, and those predicted and labelled."""
    chosen, right = _by_class(target, output, y)
    both = 2 * _count(chosen & right)
    return both, _count(chosen) + _count(right)


def distance(target: Target, output: Tensor, y: Tensor) -> Tensor:
    """Return (B,) the distance between predicted and true level; NaN without a prediction."""
    apart = (target.predict(output) - y).abs().to(output.dtype)
    return torch.where(output.isnan().any(-1), torch.nan, apart)


def _by_class(target: Target, output: Tensor, y: Tensor) -> Sums:
    """Return (B, S, C) which positions are predicted to be, and are, of each class."""
    there = labelled(y).flatten(1).unsqueeze(-1)
    predicted, label = (codes.flatten(1).unsqueeze(-1) for codes in (target.predict(output), y))
    if target.axis is None:
        return (predicted == 1) & there, (label > 0) & there
    codes = torch.arange(target.classes, device=y.device)
    return (predicted == codes) & there, (label == codes) & there


def _count(member: Tensor) -> Tensor:
    return member.sum(1).double()  # half precision, which outputs may have, rounds above 256
