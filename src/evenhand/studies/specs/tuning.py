"""The settings to try for each method of a comparison, equally many for all methods.

Every method is tried with several step sizes. A method with a fairness hyper-parameter is tried
with a few values of it; the others get more step sizes instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenhand.algorithms.naming import Table, described, label_of
from evenhand.errors import SpecError, require_choice
from evenhand.studies.specs.grid import Axis, grid_points
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.selection import RULES
from evenhand.studies.specs.spec import Spec

LR = "local.lr"
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of a method's step size
# the fairness hyper-parameter of each method, and values to try
KNOBS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "qffl": ("q", (0.1, 1.0, 5.0)),
    "term": ("t", (0.1, 1.0, 5.0)),
    "afl": ("lr_lambda", (0.01, 0.1, 1.0)),
    "drfa": ("lr_lambda", (0.01, 0.1, 1.0)),
    "agnosticfedavg": ("lr_lambda", (0.01, 0.1, 1.0)),
    "fedminmax": ("lr_mu", (0.01, 0.1, 1.0)),
    "fafl": ("alpha", (0.1, 0.3, 0.7)),
    "gifair": ("strength", (0.1, 0.5, 0.9)),
    "propfair": ("M", (2.0, 3.0, 5.0)),
    "fedmgda": ("epsilon", (0.05, 0.1, 0.5)),
    "deltafl": ("tail", (0.25, 0.5, 0.75)),
    "fedfv": ("alpha", (0.0, 0.1, 0.5)),
    "adafed": ("gamma", (0.5, 1.0, 2.0)),
    "ditto": ("lam", (0.1, 1.0, 10.0)),
    "fairfed": ("beta", (0.02, 0.2, 1.0)),
    "fedfb": ("alpha", (0.01, 0.1, 1.0)),
    "eagle": ("lam", (0.1, 0.5, 2.0)),
    "fedheal": ("beta", (0.1, 0.4, 0.8)),
    "fedgini": ("epsilon", (0.0, 0.3, 0.7)),
    "fcfl": ("bound", (0.02, 0.05, 0.2)),
}
CHOICES = ("mean", "worst10", "min")


@dataclass(frozen=True)
class Tuning:
    """How to choose each method's settings: the rule, a metric across clients on validation data;
    and values to try instead of the default ones, by key, such as "local.lr" or "qffl.q"."""

    rule: str = "mean"
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_choice("rule", self.rule, CHOICES)
        for key, values in self.grid.items():
            if "." not in key or not isinstance(values, Sequence) or isinstance(values, str):
                raise ValueError(
                    "grid must map keys such as local.lr or qffl.q to lists of values, got"
                    f" {key!r} with {values!r}"
                )

    @property
    def stated(self) -> str:
        """The rule in words."""
        return RULES[self.rule]


def tuning_points(spec: Spec, tuning: Tuning) -> dict[str, list[Method]]:
    """The settings to try for each method, by label."""
    names = {label_of(method.name) for method in spec.methods} | {"local"}
    for key in tuning.grid:
        if key.partition(".")[0] not in names:
            known = ", ".join(f"{name}." for name in sorted(names))
            raise SpecError(f"the key {key!r} of the grid must begin with one of {known}")
    axes = {method.label: _axes(method, tuning) for method in spec.methods}
    most = max((_size(found) for found in axes.values()), default=0)
    return {
        method.label: _points(spec, method, axes[method.label], tuning, most)
        for method in spec.methods
    }


def _axes(method: Method, tuning: Tuning) -> dict[str, tuple[Any, ...]]:
    """The values to try for a method besides step sizes, by key."""
    name = label_of(method.name)
    own = {
        key.removeprefix(f"{name}."): tuple(values)
        for key, values in tuning.grid.items()
        if key.startswith((f"{name}.", "local.")) and key != LR
    }
    if not any(key.startswith(f"{name}.") for key in tuning.grid):
        own |= _knob(_table(method))
    return own


def _points(
    spec: Spec, method: Method, axes: Mapping[str, tuple[Any, ...]], tuning: Tuning, most: int
) -> list[Method]:
    given = tuning.grid.get(LR)
    if given is None:
        base = float({"lr": 0.1, **spec.local, **method.local}["lr"])
        rates = [float(f"{base * factor:.3g}") for factor in _factors(axes, most)]
    else:
        rates = list(given)
    whole = [Axis.of(key, values, key) for key, values in {**axes, LR: rates}.items()]
    return grid_points([_without(method, [*axes, LR])], whole)


def _factors(axes: Mapping[str, tuple[Any, ...]], most: int) -> list[float]:
    """Factors of the step size: enough to give each method equally many settings."""
    count = len(FACTORS) * most // max(1, _size(axes))
    if count <= len(FACTORS):
        return list(FACTORS)
    return [float(factor) for factor in np.geomspace(FACTORS[0], FACTORS[-1], count)]


def _size(axes: Mapping[str, tuple[Any, ...]]) -> int:
    return int(np.prod([len(values) for values in axes.values()], dtype=int))


def _knob(table: Table) -> dict[str, tuple[Any, ...]]:
    """The fairness hyper-parameter of a method or of its inner method, with values to try."""
    name, inner = table["name"], table.get("inner")
    if name in KNOBS:
        key, values = KNOBS[name]
        return {key: values}
    if inner is None:
        return {}
    found = _knob({"name": inner} if isinstance(inner, str) else inner)
    return {f"inner.{key}": values for key, values in found.items()}


def _table(method: Method) -> Table:
    return described(method.given) if method.given is not None else method.table()


def _without(method: Method, keys: Sequence[str]) -> Method:
    """A method without its own values of the settings to try."""
    local = {key: value for key, value in method.local.items() if f"local.{key}" not in keys}

    def rest(table: Table, prefix: str) -> Table:
        return {
            key: rest(value, f"{prefix}{key}.") if isinstance(value, dict) else value
            for key, value in table.items()
            if f"{prefix}{key}" not in keys
        }

    return replace(method, parameters=rest(method.parameters, ""), local=local)
