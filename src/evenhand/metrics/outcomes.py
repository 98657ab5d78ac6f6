"""Results per sample: value, loss and metrics and, for a classifier, prediction and score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand import losses, tree
from evenhand.data.samples import Batch, Part
from evenhand.losses import single_output
from evenhand.metrics.measuring import Measured, kept, metric_keys
from evenhand.metrics.tallies import BLOCK, MOST_CELLS, regresses, scores
from evenhand.model import Model
from evenhand.targets import predictions
from evenhand.tree import Tree

Outcomes = dict[str, NDArray[Any]]  # (N,) by name


def sample_outcomes(
    model: Model, part: Part, params: Tree, personal: list[dict[str, Tensor]] | None = None
) -> Outcomes:
    """Results of a model for each sample.

    "value" is 1 or 0 for a correct or wrong class or level, with several labels the share of them
    that is right, for a regression the squared error, and for a user's own loss without classes
    that loss. "loss" is the loss, where it is not the value. A classifier adds "prediction" (the
    number of classes if there is none) and "score": with two classes the probability of class 1,
    with more the confidence in the predicted one. A metric, such as "higher:top5", has what samples
    add to it: (N,) values, or numerators and denominators (N, 2, L), unless these are more than
    ``MOST_CELLS`` numbers. Levels add "prediction", and so does a regression of one number, in
    the scale of the labels it was trained on.

    Args:
        params: the model that all clients use; constants may be among its entries, as in
            ``result.params``.
        personal: each client's own model to use instead, as in ``result.personal``.
    """
    names = (*model.shared, *model.affine, *model.statistics)
    samples = part.samples(model.dtype, model.device)
    metrics = [one for one in model.metrics if 2 * len(part.x) * one.entries <= MOST_CELLS]
    count = len(part.x)
    owned = [(params, 0, count)]  # each model, and the first and last of its samples
    if personal is not None:
        ends = part.offsets.tolist()
        owned = list(zip(personal, ends[:-1], ends[1:], strict=True))
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for whole, begin, end in owned:
            chosen = tree.to({name: whole[name] for name in names}, model.device)
            for first in range(begin, end, BLOCK):
                index = torch.arange(first, min(first + BLOCK, end), device=model.device)
                weight = torch.ones(len(index), dtype=model.dtype, device=model.device)
                batch = Batch(samples, index, weight)
                output = model.output(chosen, batch.x)
                for name, values in _outcomes(model, output, batch.y, metrics).items():
                    if name not in found:  # of all samples: blocks joined later would be held twice
                        found[name] = torch.empty(count, *values.shape[1:], dtype=values.dtype)
                    found[name][first : first + len(index)] = values
    keys = {key for key, _ in metric_keys(found).values()}
    stored = {
        name: kept(values) if name in keys else values.numpy() for name, values in found.items()
    }
    return stored or {"value": np.zeros(0)}


def sample_values(
    model: Model, part: Part, params: Tree, personal: list[dict[str, Tensor]] | None = None
) -> NDArray[np.float64]:
    """(N,) the "value" of each sample, see :func:`sample_outcomes`."""
    return np.asarray(sample_outcomes(model, part, params, personal)["value"])


def _outcomes(
    model: Model, output: Tensor, y: Tensor, metrics: Sequence[Measured]
) -> dict[str, Tensor]:
    loss = model.loss_function(output, y).double()
    measured = {
        one.key: one(output, y)[:, 0, 0] if one.plain else one(output, y) for one in metrics
    }
    if model.target.kind == "number":
        found = {"value": loss}
        if model.loss_function is not losses.mse and regresses(model):
            found = {"value": losses.mse(output, y).double(), "loss": loss}
        if y.ndim == 1 and single_output(output):
            # NumPy has no bfloat16
            exact = torch.promote_types(output.dtype, torch.float32)
            found["prediction"] = output.reshape(len(y)).to(exact)
        return found | measured
    found = {"value": model.target.right(output, y), "loss": loss}
    if model.target.kind == "ordinal":
        found["prediction"] = model.target.predict(output).int()
    if model.classifies:
        found["prediction"] = predictions(output).int()
        found["score"] = scores(output.double())
    return found | measured
