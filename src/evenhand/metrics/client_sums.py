"""Metrics across clients from sums only, without the scores of single clients.

Each client adds its accuracy, its square and a one in the cell of a histogram. Of other metrics,
whose range is unknown, it adds the value, so only their mean over clients is known. The mean and
standard deviation follow exactly, the worst and best tenths to half a cell. The sums reveal which
accuracies occur, to half a cell, but not whose they are; with few clients whose numbers of samples
are known, that can be guessed: 0.729 is 35 of 48.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from evenhand.metrics.measuring import metric_keys
from evenhand.metrics.scores import summaries
from evenhand.metrics.tallies import accuracy_of
from evenhand.tree import Tree

CELLS = 1000  # of the histogram: half a cell is a twentieth of a point
# under masked sums: a cell with one client in it says less about that client
COARSE = 20
NAMES = (
    "clients",
    "client_loss",
    "client_accuracy",
    "client_accuracy_squared",
    "client_accuracies",
)
CLIENT_METRIC = (
    "client_metric:"  # begins the name of the sums (2,) of a metric's values and clients
)


def client_sums(tally: Tree, cells: int = CELLS) -> Tree:
    """The contribution of one client with this tally, (A, ...) by name; ``cells`` of the histogram
    are as wide as an accuracy of 1, and one more is for the accuracy 1."""
    count = tally["count"].sum()
    found = {"clients": torch.ones_like(count), "client_loss": tally["loss"].sum() / count}
    if name := accuracy_of(tally):
        accuracy = tally[name].sum() / count
        cell = torch.arange(cells + 1, device=count.device) == (accuracy * cells).round()
        found |= {
            "client_accuracy": accuracy,
            "client_accuracy_squared": accuracy**2,
            "client_accuracies": cell.to(count.dtype),
        }
    for key, _ in metric_keys(tally).values():
        above, below = tally[key].sum(0)  # (L,)
        there = below != 0
        each = torch.where(there, above / torch.where(there, below, 1.0), 0.0)
        known = there.any().to(each.dtype)
        value = torch.where(there.any(), each.sum() / there.sum().clamp(min=1), 0.0)
        found[CLIENT_METRIC + key] = torch.stack([value, known])
    return found


def from_client_sums(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """The mean loss and metrics over clients; mean, tails and spread of their accuracies, if they
    have any."""
    clients = float(sums["clients"])
    found = {"loss": float(sums["client_loss"]) / clients}
    own = {name: sums[name] for name in sums if name.startswith(CLIENT_METRIC)}
    for name, (key, _) in metric_keys(key.removeprefix(CLIENT_METRIC) for key in own).items():
        value, known = own[CLIENT_METRIC + key].tolist()
        found[name] = value / known if known else math.nan
    if "client_accuracy" in sums:
        mean = float(sums["client_accuracy"]) / clients
        counts = sums["client_accuracies"].numpy().astype(np.int64)
        cells = np.repeat(np.arange(len(counts)) / (len(counts) - 1), counts)
        variance = max(0.0, float(sums["client_accuracy_squared"]) / clients - mean**2)
        found |= {name: float(value) for name, value in summaries(cells).items()} | {
            "mean": mean,
            "std": variance**0.5,
        }
    return found
