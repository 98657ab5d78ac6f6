"""Export a model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenhand.errors import RunError
from evenhand.studies.findings import Findings
from evenhand.studies.runs.executing import ELSEWHERE
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trained import trained_model
from evenhand.studies.runs.trial import Trial
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
        module: the network, for a run of your own module; a run that names its model rebuilds it.
        example: samples as the network takes them, for a run of a Python program without a table.
    """
    study = study_of(run)
    trial = study.chosen(method, seed)
    label = trial.method.label
    if label in {one.label for one in study.diverged}:
        raise RunError(f"{label} diverged, so there is no model to export; train it again")
    network = trained_model(trial, module).module(client)
    assert trial.source is not None
    return write(
        network,
        path,
        _example(trial) if example is None else example,
        format=format,
        about=described(
            trial, repr(trial.method.algorithm()), client, trial.source.about.get("labels", ())
        ),
    )


def _example(trial: Trial) -> Any:
    """Samples of the run, or numbers in their place if it was trained on a table."""
    assert trial.source is not None
    if trial.encoding is not None:
        return torch.linspace(-1, 1, EXAMPLES * len(trial.encoding.features)).reshape(EXAMPLES, -1)
    if trial.source.spec.data.get("name") in ELSEWHERE:
        raise ValueError("give example=, a few samples as the network takes them")
    return trial.source.spec.build_data().probe(EXAMPLES).x


def study_of(run: str | Path | Study | Findings) -> Study:
    """The study of a run's directory, or of what was read from it."""
    if isinstance(run, Findings):
        return run.study
    return run if isinstance(run, Study) else Study.load([run])
