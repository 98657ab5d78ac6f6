"""Metrics of a user, as a module that specs and nodes can name."""

from __future__ import annotations

import torch
from torch import Tensor

import evenhand as eh


def top2(output: Tensor, y: Tensor) -> Tensor:
    """Whether the label is among the two largest outputs."""
    return (output.topk(2).indices == y[:, None]).any(1)


def f1_parts(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Numerators and denominators of F1 by class."""
    classes = output.shape[1]
    guess = torch.nn.functional.one_hot(output.argmax(1), classes)
    truth = torch.nn.functional.one_hot(y, classes)
    return 2 * guess * truth, guess + truth


def distance(output: Tensor, y: Tensor) -> Tensor:
    """How far the predicted class is from the label; not made of torch alone."""
    return torch.from_numpy(abs(output.numpy().argmax(1) - y.numpy()))


cost = eh.Metric(distance, better="lower")
METRICS = {"top2": top2, "f1": eh.Metric(f1_parts), "cost": cost}
