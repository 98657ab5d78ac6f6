"""Metrics are tried on a few samples before training."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.errors import first_line
from evenhand.metrics.measuring import Measured, MetricError, table_of
from evenhand.metrics.metric import Metric
from evenhand.metrics.task_metrics import task_metrics
from evenhand.model import Model

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
            try:
                found = metric.function(output, few.y)
                table = table_of(found, name, len(output))
                alone = table_of(metric.function(output[:1], few.y[:1]), name, 1)
            except MetricError:
                raise
            except Exception as error:
                form = f"outputs {list(output.shape)} and labels {list(few.y.shape)}"
                raise MetricError(
                    f"metric {name!r} fails on {form}: {first_line(error)}"
                ) from error
        if alone.shape[1:] != table.shape[1:] or not torch.allclose(
            alone, table[:1], rtol=1e-3, atol=1e-6, equal_nan=True
        ):
            raise MetricError(
                f"metric {name!r} of a sample depends on the other samples in its batch, so clients"
                " would not add; return values of each sample alone"
            )
        # zeros that stand for samples elsewhere may have no value
        known = isinstance(population, Federation) and bool(output.isfinite().all())
        if known and not bool(table.isfinite().all()):
            bad = float(table[~table.isfinite()][0])
            raise MetricError(f"metric {name!r} returned {bad} for finite outputs")
        entries, plain = table.shape[2], not isinstance(found, tuple)
    return Measured(name, metric, entries, plain)
