"""Results per sample: value and loss and, for a classifier, prediction and score."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenhand import tree
from evenhand.data.samples import Batch, Part
from evenhand.losses import single_output
from evenhand.metrics.tallies import BLOCK, correct, predictions, scores
from evenhand.model import Model
from evenhand.tree import Tree

Outcomes = dict[str, NDArray[Any]]  # (N,) by name


def sample_outcomes(
    model: Model, part: Part, params: Tree, personal: list[dict[str, Tensor]] | None = None
) -> Outcomes:
    """Results of a model for each sample.

    "value" is 1 or 0 for a correct or wrong class, and for a regression the loss. A classifier adds
    "loss", "prediction" (the number of classes if there is none) and "score": with two classes the
    probability of class 1, with more the confidence in the predicted one. A regression of one
    number adds "prediction", in the scale of the labels it was trained on.

    Args:
        params: the model that all clients use; constants may be among its entries, as in
            ``result.params``.
        personal: each client's own model to use instead, as in ``result.personal``.
    """
    names, samples = list(model.init()), part.samples(model.dtype, model.device)
    owned = [(params, torch.arange(len(part.x)))]
    if personal is not None:
        owned = list(
            zip(personal, torch.split(torch.arange(len(part.x)), part.sizes.tolist()), strict=True)
        )
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for whole, rows in owned:
            chosen = tree.to({name: whole[name] for name in names}, model.device)
            for index in torch.split(rows.to(model.device), BLOCK) if len(rows) else ():
                batch = Batch(
                    samples, index, torch.ones(len(index), dtype=model.dtype, device=model.device)
                )
                for name, values in _outcomes(
                    model, model.output(chosen, batch.x), batch.y
                ).items():
                    found.setdefault(name, []).append(values.cpu())
    kept = {name: torch.cat(parts).numpy() for name, parts in found.items()}
    return kept or {"value": np.zeros(0)}


def sample_values(
    model: Model, part: Part, params: Tree, personal: list[dict[str, Tensor]] | None = None
) -> NDArray[np.float64]:
    """(N,) 1 or 0 for a correct or wrong class; for a regression, the loss."""
    return np.asarray(sample_outcomes(model, part, params, personal)["value"])


def _outcomes(model: Model, output: Tensor, y: Tensor) -> dict[str, Tensor]:
    loss = model.loss_function(output, y).double()
    if not model.classifies:
        if y.ndim != 1 or not single_output(output):
            return {"value": loss}
        # NumPy has no bfloat16
        exact = torch.promote_types(output.dtype, torch.float32)
        return {"value": loss, "prediction": output.reshape(len(y)).to(exact)}
    found = {"value": correct(output, y).double(), "loss": loss}
    if y.ndim == 1 and output.ndim <= 2:
        found["prediction"] = predictions(output).int()
        found["score"] = scores(output.double())
    return found
