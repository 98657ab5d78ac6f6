"""Tuning: choose each method's settings on validation data before comparing them on test data.

runs/heart/
  spec.toml     the spec with [tune]; after tuning, the spec with the chosen settings
  tuning/       a run of every setting with the first seed, laid out as a comparison
  seed-0/ ...   the comparison with the chosen settings
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenhand import files
from evenhand.algorithms.naming import label_of
from evenhand.engines import processes
from evenhand.errors import RunError
from evenhand.studies.runs.comparing import Planned, check_comparison, execute_comparison
from evenhand.studies.runs.directories import TUNING, claim_comparison, load_spec
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.building import built
from evenhand.studies.specs.method import Method, flat_settings
from evenhand.studies.specs.selection import numbers
from evenhand.studies.specs.spec import Spec
from evenhand.studies.specs.tuning import Tuning, tuning_points
from evenhand.training.directory import SPEC
from evenhand.training.fit import Progress
from evenhand.training.manifest import renew


@dataclass(frozen=True)
class Chosen:
    """The chosen settings of one method."""

    label: str  # of the method
    name: str  # as in a grid
    point: str  # the label of the run that has the settings
    settings: Mapping[str, Any]  # the chosen values of what was tried
    tried: int
    number: float  # the merit on validation data that it was chosen by
    # settings at the smallest or largest value tried
    smallest: tuple[str, ...]
    largest: tuple[str, ...]


@dataclass(frozen=True)
class Tuned:
    """The settings chosen for every method, on validation data and with one seed."""

    study: Study
    rule: Tuning
    methods: tuple[Chosen, ...]

    def rows(self) -> list[dict[str, Any]]:
        """A row per method: its settings, the metric it was chosen by, and how many settings were
        tried."""
        keys = dict.fromkeys(key for one in self.methods for key in one.settings)
        return [
            {
                "method": one.label,
                **{key: one.settings.get(key) for key in keys},
                "rule": self.rule.rule,
                "validation": one.number,
                "tried": one.tried,
                "at_smallest": " ".join(one.smallest),
                "at_largest": " ".join(one.largest),
            }
            for one in self.methods
        ]


def plan_tuning(planned: Planned) -> Planned:
    """The checked tuning runs of a comparison; raises before anything is written or trained."""
    spec = planned.spec
    rule = _rule(spec)
    points = [point for found in tuning_points(spec, rule).values() for point in found]
    tried = dataclasses.replace(
        spec, seeds=spec.seeds[:1], methods=tuple(points), tune={}, select={"rule": rule.rule}
    )
    return _with_data_of(planned, tried)


def tune(
    planned: Planned, tuning: Planned, directory: Path, watch: Callable[..., Progress]
) -> Planned:
    """Train every setting not trained yet and choose; returns the comparison with the chosen ones.

    Args:
        tuning: see :func:`plan_tuning`.
    """
    place = directory / TUNING
    if not processes.from_first(lambda: (place / SPEC).exists(), "whether tuning has begun"):
        claim_comparison(planned.spec, directory)
    with unlogged():
        execute_comparison(tuning, place, watch)
    chosen = processes.from_first(
        lambda: _tuned(place, planned.spec.methods, _rule(planned.spec)).methods,
        "the tuned settings",
    )
    points = {point.label: point for point in tuning.spec.methods}
    methods = tuple(dataclasses.replace(points[one.point], label=one.label) for one in chosen)
    spec = dataclasses.replace(planned.spec, tune={}, methods=methods)
    _settle(directory, planned.spec, spec)
    return _with_data_of(planned, spec)._replace(given=planned.given)


@contextmanager
def unlogged() -> Iterator[None]:
    """Without warnings in the log: some step sizes are too large on purpose."""
    log = logging.getLogger("evenhand")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def read_tuned(directory: Path) -> Tuned | None:
    """The settings chosen for a comparison; None if it was not tuned."""
    place = directory / TUNING
    if not (place / SPEC).exists():
        return None
    rule = Tuning(load_spec(place).select["rule"])
    return _tuned(place, load_spec(directory).methods, rule)


def _with_data_of(planned: Planned, spec: Spec) -> Planned:
    """Check a comparison with the data of another, without reading them again."""
    federation = planned.first.federation
    return check_comparison(
        spec, given=lambda seed: planned.given(seed)._replace(federation=federation)
    )


def _rule(spec: Spec) -> Tuning:
    rule: Tuning = built("tune", Tuning, spec.tune)
    return rule


@processes.on_first
def _settle(directory: Path, asked: Spec, spec: Spec) -> None:
    """Replace the spec by the one with the chosen settings."""
    found = load_spec(directory)
    if found not in (asked, spec):
        raise RunError(
            f"{directory} was begun with other settings; run the changed spec in another directory"
        )
    files.write_atomic(directory / SPEC, spec.to_toml().encode())
    renew(directory, [SPEC])


def _tuned(place: Path, methods: Sequence[Method], rule: Tuning) -> Tuned:
    study = Study.load([place])
    return Tuned(study, rule, tuple(_chosen(study, method, methods, rule) for method in methods))


def _chosen(study: Study, method: Method, methods: Sequence[Method], rule: Tuning) -> Chosen:
    """The best point of a method by the rule; ties go to the better mean, then to the lower loss on
    validation data."""
    seed = study.seeds[0]
    labels = [
        label
        for label in study.trained
        if label.startswith(f"{method.label} ") and _owner(label, methods) == method.label
    ]
    merits = {label: [study.merits(label, seed, part="validation")] for label in labels}
    found = {
        label: point
        for label, point in numbers(merits).items()
        if all(np.isfinite([*point.values()])) and label in study.labels
    }
    if not found:
        raise RunError(
            f"no setting of {method.label} has finite scores on validation data; try smaller step"
            " sizes, such as --grid local.lr=0.001,0.01"
        )

    def rank(label: str) -> tuple[float, float, float]:
        losses = study.trials[label, seed].column("loss", "client", "validation")
        known = losses[np.isfinite(losses)]
        loss = float(known.mean()) if len(known) else np.inf
        point = found[label]
        return round(point[rule.rule], 12), round(point["mean"], 12), -loss

    best = max(found, key=rank)
    points = [flat_settings(study.trials[label, seed].method) for label in labels]
    tried = {
        key: [point.get(key) for point in points]
        for key in points[0]
        if len({str(point.get(key)) for point in points}) > 1
    }
    settings = flat_settings(study.trials[best, seed].method)
    settings = {key: settings.get(key) for key in tried} or settings
    smallest, largest = (
        tuple(key for key, values in tried.items() if _is_end(settings[key], values, end))
        for end in (min, max)
    )
    return Chosen(
        method.label,
        label_of(method.name),
        best,
        settings,
        len(labels),
        found[best][rule.rule],
        smallest,
        largest,
    )


def _owner(point: str, methods: Sequence[Method]) -> str:
    """The label of a point's method: the longest that the point begins with."""
    return max(
        (method.label for method in methods if point.startswith(f"{method.label} ")), key=len
    )


def _is_end(value: Any, tried: Sequence[Any], end: Callable[..., Any]) -> bool:
    numbers = [one for one in tried if isinstance(one, int | float)]
    return len(numbers) == len(tried) and bool(value == end(numbers))
