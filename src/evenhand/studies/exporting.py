"""Export a model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from evenhand.errors import RunError, require_known
from evenhand.models import MODELS
from evenhand.studies.findings import Findings
from evenhand.studies.runs.executing import ELSEWHERE
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.spec import Spec
from evenhand.training.exporting import Exported, described
from evenhand.training.exporting import export as write
from evenhand.training.result import EXAMPLES


def export(
    run: str | Path | Study | Findings,
    path: str | Path,
    *,
    method: str | None = None,
    seed: int | None = None,
    client: str | int | None = None,
    format: str | None = None,
    module: nn.Module | None = None,
    example: Any = None,
) -> Exported:
    """Write a model of a finished run to a file that runs without evenhand, and check the file: it
    is loaded, and its outputs are compared with the network's.

    Args:
        run: the directory of a run or comparison, or what :func:`evenhand.load` or
            :func:`evenhand.compare` return.
        path: the file: .pt2 for ``torch.export``, .onnx for ONNX.
        method: the label of the method; not needed if there is one.
        seed: of the training run, by default the first.
        client: name or number of the client whose own model is meant, for methods that give each
            client one.
        format: "torch" or "onnx", if the suffix does not say it.
        module: the network, for a run of a Python program; a run that names its model rebuilds it.
        example: samples as the network takes them, for a run of a Python program.
    """
    study = study_of(run)
    label = chosen(study, method)
    if study.folds:
        raise RunError(
            f"a cross-validation has a model per fold; give the directory of one, such as"
            f" {study.directories[0]}"
        )
    trial = study.trial(label, seed)
    place = next(
        (
            number
            for number, directory in enumerate(study.directories)
            if directory in (trial.folder, trial.folder.parent)
        ),
        0,
    )
    spec, population = study.specs[place], None
    if module is None or example is None:
        _require_rebuilt(spec, module is None)
        population = spec.build_data()
        if population.fingerprint() != study.about[place]["data"]:
            raise RunError(
                f"the data of {study.directories[place]} have changed since it was trained; put"
                " the old data back, or give module= and example="
            )
    network = trial.module(
        client, module=spec.build_model(population) if module is None and population else module
    )
    return write(
        network,
        path,
        population.probe(EXAMPLES).x if example is None and population else example,
        format=format,
        about=described(trial, repr(trial.method.algorithm()), client, population),
    )


def study_of(run: str | Path | Study | Findings) -> Study:
    """The study of a run's directory, or of what was read from it."""
    if isinstance(run, Findings):
        return run.study
    return run if isinstance(run, Study) else Study.load([run])


def chosen(study: Study, method: str | None) -> str:
    """The label of the method that is meant."""
    if method is None and len(study.trained) == 1:
        return study.trained[0]
    if method is None:
        raise ValueError(f"choose a method of {study.name}: {', '.join(study.trained)}")
    require_known("method", method, study.trained)
    return method


def _require_rebuilt(spec: Spec, model: bool) -> None:
    """Raise if data or model belong to a Python program or to other machines."""
    if spec.data.get("name") in ELSEWHERE or (model and spec.model.get("name") not in MODELS):
        raise RunError(
            "this run does not name its data and model; export it in Python: eh.export(run, path,"
            " module=..., example=...)"
        )
