"""Common parts of methods for group fairness: samples counted by cell, that is by group and label.

A label is favourable (1) or not (0). The favourable class is class 1; with more than two classes,
the others count as one. With one output, as for ``hinge``, it is the label 1 and a positive output.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from evenhand.algorithms.groups import group_counts, group_share
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require
from evenhand.losses import single_output
from evenhand.messages import Asked, Entries, Entry, Task
from evenhand.model import Model
from evenhand.tree import Tree

STATISTICS = ("loss", "soft", "hard")


def check_classifier(
    method: str, model: Model, instead: str = "FedMinMax or AgnosticFedAvg"
) -> None:
    """Raise a ValueError unless the model is a classifier."""
    require(
        model.classifies,
        "{} compares how often groups get the favourable label, so it needs one class per sample;"
        " for other tasks, use {}",
        method,
        instead,
    )


def group_count(method: str, census: Census) -> int:
    """Return the number of groups; raises if there are none."""
    return group_counts(method, census).shape[1]


def favourable(batch: Batch) -> Tensor:
    """Return (B,) whether each sample has the favourable label."""
    return batch.y == 1


def by_cell(table: Tensor, batch: Batch) -> Tensor:
    """Return (B,) the entry of a table (A, 2) for the cell of each sample."""
    return table.reshape(-1)[2 * batch.group + favourable(batch).long()]


def favourable_score(output: Tensor) -> Tensor:
    """Return (B,) the log-odds of the favourable class: a logit, or a difference of two."""
    if single_output(output):
        return output.reshape(len(output))
    rest = torch.cat([output[:, :1], output[:, 2:]], dim=1)
    return output[:, 1] - rest.logsumexp(1)


def favourable_prediction(output: Tensor) -> Tensor:
    """Return (B,) whether the favourable class is predicted."""
    return output.reshape(len(output)) > 0 if single_output(output) else output.argmax(1) == 1


def remembering(model: Model) -> Model:
    """Return the same model, which computes the output for the same arguments only once.

    For an objective that needs losses and outputs; keep it only while that objective runs.
    """
    twin = copy.copy(model)
    known: dict[tuple[int, int], Tensor] = {}

    def output(params: Tree, x: Tensor) -> Tensor:
        key = id(params), id(x)
        if key not in known:
            known[key] = model.output(params, x)
        return known[key]

    twin.output = output  # type: ignore[method-assign]
    return twin


def statistics(model: Model, params: Tree, data: Batch, statistic: str) -> Tensor:
    """Return (B,) each sample's loss, or its soft or hard prediction of the favourable class."""
    output = model.output(params, data.x)
    if statistic == "loss":
        return model.loss_function(output, data.y)
    if statistic == "soft":
        return favourable_score(output).sigmoid()
    return favourable_prediction(output).to(output.dtype)


def cell_sums(values: Tensor, data: Batch, groups: int) -> tuple[Tensor, Tensor]:
    """Return (A, 2) the sum of ``values`` (B,) in each cell, and the number of samples in it."""
    codes = torch.arange(2 * groups, device=data.group.device)
    cell = 2 * data.group + favourable(data).long()
    member = (cell[:, None] == codes) & (data.weight > 0)[:, None]  # (B, 2 A)
    values = values[:, None]
    total = torch.where(member, values, torch.zeros_like(values)).sum(0)
    return total.reshape(groups, 2), member.to(values.dtype).sum(0).reshape(groups, 2)


def cell_totals(
    model: Model, params: Tree, data: Batch, task: Task, groups: int, statistic: str
) -> Tree:
    """Return one client's part of every cell's summed statistic and share, (A, 2) each."""
    total, count = cell_sums(statistics(model, params, data, statistic), data, groups)
    per_sample = task.own["weight"] / data.weight.sum()
    return {"cell_sum": per_sample * total, "cell_share": per_sample * count}


def cell_entries(asked: Asked, statistic: str) -> Entries:
    """Declare what ``cell_totals`` returns; the census bounds the number of samples in a cell."""
    most = group_share(asked)[:, None].expand(-1, 2)
    values = (
        Entry(kind="loss", per=lambda part: part["cell_share"])
        if statistic == "loss"
        else Entry(low=0.0, high=most)
    )
    return {"cell_sum": values, "cell_share": Entry(low=0.0, high=most)}
