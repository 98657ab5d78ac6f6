"""Metrics that a task brings by itself."""

from __future__ import annotations

from evenhand.metrics.metric import Metric
from evenhand.model import Model


def task_metrics(model: Model) -> dict[str, Metric]:
    """Return the metrics of the model's task by name; ``model`` has been checked against data."""
    return {}
