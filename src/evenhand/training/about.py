"""What a run records about itself: its spec, its data, and what the server saw."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from evenhand.algorithm import Algorithm, visible
from evenhand.algorithms.local_norms import OWN
from evenhand.data.federation import Federation
from evenhand.data.population import Population
from evenhand.local import described_solver
from evenhand.metrics.metric import Metric, named_metrics
from evenhand.training.provenance import PACKAGES, place_of
from evenhand.training.settings import Settings

PYTHON = "python"  # the name of data that came from a Python program


def run_table(
    name: str, module: nn.Module, settings: Settings, methods: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a Python program's run in the form of a spec.

    Data and module belong to the program, so the spec describes them but cannot rebuild them.
    """
    from evenhand.algorithms.naming import plain_fields

    device = settings.device or next(module.parameters()).device
    table = {
        "name": name,
        "rounds": settings.rounds,
        "seed": settings.seed,
        "loss": _named(settings.loss),
        "engine": _named(settings.engine),
        "device": str(device),
        "precision": settings.precision,
        "normalisation": settings.normalisation,
        "weights": settings.weights,
        "eval_every": settings.eval_every,
        "checkpoint_every": settings.checkpoint_every,
        "track_weights": settings.track_weights,
        "evaluate": settings.evaluate,
        "metrics": {name: _own(one) for name, one in named_metrics(settings.metrics).items()}
        or None,
        "data": {"name": PYTHON},
        "model": {
            "name": type(module).__name__,
            "parameters": sum(leaf.numel() for leaf in module.parameters()),
        },
        "local": described_solver(settings.local),
        "cohort": {
            "name": type(settings.cohort).__name__.lower(),
            **plain_fields(settings.cohort),
        },
        "methods": list(methods),
        # directories of earlier versions say nothing of it
        "keep_predictions": settings.keep_predictions or None,
    }
    return {key: value for key, value in table.items() if value is not None}


def _named(value: Any) -> str:
    """Return a name, or the name of a function or an engine."""
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)


def _own(metric: Metric) -> str:
    """Return how to import a metric's function, as far as its name tells."""
    function = metric.function
    return f"{getattr(function, '__module__', PYTHON)}:{_named(function)}"


def about_run(
    spec: str,
    population: Population,
    methods: Mapping[str, Algorithm],
    module: nn.Module,
    weights: str,
    seed: int,
    device: str,
    packages: Sequence[str] = PACKAGES,
    normalisation: str | None = None,
) -> dict[str, Any]:
    """Return what a run records about itself: data, machine, versions, and what the server sees.

    The latter is listed by the method's label: what the server sees client by client, and what
    stays with the clients. ``spec`` is the text of the spec.
    """
    own = [OWN] if normalisation == "local" else []
    census, params = population.census(weights), dict(module.named_parameters())
    encoding = population.encoding if isinstance(population, Federation) else None
    return {
        "spec": identity(spec),
        "sealed": True,  # it has manifests; runs of earlier versions have none
        "data": population.fingerprint(),
        "judged_on": "test" if population.judged_part == "test" else "training",
        "labels": list(population.label_names),
        "label": encoding.label if encoding else "",
        "label_scale": encoding.label_std if encoding else 1.0,
        "seed": seed,
        **place_of(device, packages),
        "server": {
            label: {
                "sees": list(visible(method, census)),
                "stays": [*(list(method.memory(params)) or ["model"] * method.personal), *own],
            }
            for label, method in methods.items()
        },
    }


def identity(spec: str) -> str:
    """Return a short text that changes when the text of a spec changes."""
    return hashlib.sha256(spec.encode()).hexdigest()
