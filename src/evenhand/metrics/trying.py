"""Metrics are tried on a few samples before training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.errors import first_line
from evenhand.losses import one_score_per_label
from evenhand.metrics.measuring import Measured, MetricError, table_of
from evenhand.metrics.metric import Metric
from evenhand.metrics.task_metrics import task_metrics
from evenhand.model import Model
from evenhand.targets import Target

FEW = 8  # samples to try a metric on


def measured(
    model: Model, population: Population, given: Mapping[str, Metric]
) -> tuple[Measured, ...]:
    """Return the metrics of the task and of the user; raise if one does not fit the data.

    ``model`` has been checked against the data.
    """
    own = task_metrics(model)
    for name in given:
        if name in own:
            raise ValueError(f"this task has a metric {name!r} already; rename yours")
    return tuple(_tried(model, population, *item) for item in {**own, **given}.items())


def _tried(model: Model, population: Population, name: str, metric: Metric) -> Measured:
    entries, plain = 1, False
    for given in population.examples():
        few = given.first(FEW).to(model.dtype, model.device)
        with torch.no_grad():
            output = model.output(model.init(), few.x[:])
        table, plain = _alone(metric, name, output, few.y)
        # an untrained model may have nothing right, and what is 0 seems to depend on nothing
        _alone(metric, name, _right(model.target, output, few.y), few.y)
        # zeros that stand for samples elsewhere may have no value
        known = isinstance(population, Federation) and bool(output.isfinite().all())
        if known and not bool(table.isfinite().all()):
            bad = float(table[~table.isfinite()][0])
            raise MetricError(f"metric {name!r} returned {bad} for finite outputs")
        entries = table.shape[2]
    return Measured(name, metric, entries, plain)


def _alone(metric: Metric, name: str, output: Tensor, y: Tensor) -> tuple[Tensor, bool]:
    """Return what samples add, and whether the function returns values without denominators; raise
    if it fails, or if the first sample adds something else when it is alone."""
    try:
        with torch.no_grad():
            found = metric.function(output, y)
            table = table_of(found, name, len(output))
            first = table_of(metric.function(output[:1], y[:1]), name, 1)
    except MetricError:
        raise
    except Exception as error:
        form = f"outputs {list(output.shape)} and labels {list(y.shape)}"
        raise MetricError(f"metric {name!r} fails on {form}: {first_line(error)}") from error
    if first.shape[1:] != table.shape[1:] or not torch.allclose(
        first, table[:1], rtol=1e-3, atol=1e-6, equal_nan=True
    ):
        raise MetricError(
            f"metric {name!r} of a sample depends on the other samples in its batch, so clients"
            " would not add; return values of each sample alone"
        )
    return table, not isinstance(found, tuple)


def _right(target: Target, output: Tensor, y: Tensor) -> Tensor:
    """Return outputs of the same shape that predict the labels; numbers stay as they are."""
    if target.kind == "number":
        return output
    if target.kind == "ordinal":
        hit = y.unsqueeze(-1) > torch.arange(output.shape[-1], device=y.device)
    elif one_score_per_label(output, y):
        hit = (y > 0).reshape(output.shape)
    else:
        codes = y.long().clamp(0, target.classes - 1)
        hit = one_hot(codes, target.classes).movedim(-1, target.axis or -1).bool()
    return torch.where(hit, 1.0, -1.0).to(output.dtype)
