"""Counts and sums per client and group. Tallies add; ratios are taken once, at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from evenhand import tree
from evenhand.data import Batch
from evenhand.losses import single_output
from evenhand.model import Model
from evenhand.tree import Tree


def judge(model: Model, params: Tree, batch: Batch) -> Tree:
    """(B,) what each sample adds to a tally, in float64: itself, whether its prediction is correct, its loss."""
    output = model.output(params, batch.x)
    values = {"count": torch.ones_like(batch.weight), "correct": correct(output, batch.y), "loss": model.loss_function(output, batch.y)}
    return tree.to(values, torch.float64)


def tally(model: Model, params: Tree, data: Batch, groups: int) -> Tree:
    """One client's samples, correct predictions and summed loss by group: vectors (max(groups, 1),)."""
    codes = torch.arange(max(groups, 1), device=data.group.device)
    member = (data.group[:, None] == codes) & (data.weight > 0)[:, None]  # (B, A)
    return tree.map(lambda value: torch.where(member, value[:, None], 0.0).sum(0), judge(model, params, data))


def correct(output: Tensor, y: Tensor) -> Tensor:
    """(B,) whether the predicted class is the label; False throughout for outputs and labels that are no classification.

    The class of several outputs is the largest; a single output is a score that is positive for the positive class.
    """
    if single_output(output):
        return (output.reshape(len(y)) > 0) == (y > 0) if y.ndim == 1 else torch.zeros(len(y), dtype=torch.bool, device=y.device)
    if output.ndim == 2 and y.ndim == 1:
        return output.argmax(-1) == y
    return torch.zeros(len(y), dtype=torch.bool, device=y.device)
