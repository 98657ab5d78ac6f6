"""Run a part of an experiment: every row with every seed, settings chosen, numbers kept."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from evenhand.errors import SpecError
from evenhand.layers.choices import processor
from evenhand.papers.choosing import RULES, choose
from evenhand.papers.experiment import Part, Row, experiments
from evenhand.papers.numbers import ALWAYS, numbers_of
from evenhand.papers.published import published
from evenhand.papers.results import Result, identity_of
from evenhand.studies.runs.comparing import Planned, check_comparison, execute_comparison
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.grid import Axis, grid_points
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import Spec
from evenhand.training.fit import Progress
from evenhand.training.places import alone
from evenhand.training.provenance import ElsewhereWarning

Watch = Callable[[Spec], AbstractContextManager[Callable[..., Progress]]]


class Job(NamedTuple):
    """A part that was found to work."""

    part: Part
    rows: list[tuple[Row, list[Method]]]  # each with the points of its grid
    planned: Planned


def prepare(part: Part, device: str = "auto") -> Job:
    """Read data, build everything, and check it; raises before anything is trained."""
    rows = [(row, points_of(row)) for row in part.rows]
    if not rows:
        raise SpecError(f"{part.title} has no rows")
    for row, _ in rows:
        if row.rule and row.rule not in RULES:
            raise SpecError(f"unknown rule {row.rule!r} in {part.title}: take {', '.join(RULES)}")
    methods = tuple(point for _, points in rows for point in points)
    table = {
        "name": part.title.replace(":", "."),
        "track_weights": False,
        "device": device,
        "seeds": list(range(part.seeds)),
        **part.spec,
        "methods": [method.table() for method in methods],
    }
    spec = Spec.from_table(table, part.title)
    with _published_settings():
        planned = check_comparison(spec)
    if len(methods) > len(rows) and not _has_validation(planned):
        raise SpecError(f"{part.title} has settings to choose but no validation data")
    return Job(part, rows, planned)


def run(job: Job, directory: Path, watch: Watch, command: str = "") -> Result:
    """Train what is not trained yet, choose settings, and collect the numbers."""
    part, spec = job.part, job.planned.spec
    directory.mkdir(parents=True, exist_ok=True)
    whole = not any(directory.glob("seed-*"))  # not the rest of a run that was interrupted
    began = time.perf_counter()
    with alone(directory), watch(spec) as progress, _published_settings():
        execute_comparison(job.planned, directory, progress)
    seconds = time.perf_counter() - began
    study = Study.load([directory])
    choices = choose(study, job.rows)
    drawn = experiments()[part.experiment].figure.get("metrics", ())
    metrics = dict.fromkeys((*ALWAYS, *drawn, *(number.metric for number in published(part))))
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    for row, choice in choices.items():
        if choice.label:
            found = [numbers_of(study.trials[choice.label, seed], metrics) for seed in study.seeds]
            values[row] = {name: tuple(one[name] for one in found) for name in metrics}
    return Result(
        part.title,
        part.budget,
        part.note,
        identity_of(part),
        study.seeds,
        values,
        {row: dict(choice.settings) for row, choice in choices.items() if choice.settings},
        {row: choice.edges for row, choice in choices.items() if choice.edges},
        tuple(row for row, choice in choices.items() if not choice.label),
        study.clients,
        study.samples,
        spec.rounds,
        round(seconds, 1) if whole else 0.0,
        _about(study, command),
    )


@contextmanager
def _published_settings() -> Iterator[None]:
    """Without warnings of settings, which are the paper's, not the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", ElsewhereWarning)
        yield


def points_of(row: Row) -> list[Method]:
    """The points of a row's grid, each a method."""
    axes = [Axis.of(key, values, key) for key, values in row.grid.items()]
    method = Method.from_table(row.method)
    return grid_points([method], axes) if axes else [method]


def _has_validation(planned: Planned) -> bool:
    validation = planned.first.federation.val
    return validation is not None and len(validation.x) > 0


def _about(study: Study, command: str) -> dict[str, object]:
    begun = study.about[0]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "device": begun["device"],
        "engine": begun.get("engine", ""),
        "processor": processor(torch.device(begun["device"])),
        "system": platform.system(),
        "versions": begun["versions"],
    }
