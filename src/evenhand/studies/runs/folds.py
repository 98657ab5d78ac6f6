"""Combine the folds of a cross-validation: every sample is tested once, by the model that did not
train on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from evenhand.data.population import Form, Population
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import Columns, score_columns
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.spec import Spec

# columns in units of the label, and in their squares
ERRORS, SQUARES = ("rmse", "mae", "absolute"), ("loss", "shared_loss")
OWN_SQUARES = ("mse", "squared")  # where the loss is another error, which keeps its unit


def fold_of(spec: Spec) -> tuple[int, int] | None:
    """The number of a run's fold and of all folds; None without cross-validation."""
    split = spec.data.get("split")
    fold = split.get("fold") if isinstance(split, Mapping) else None
    return None if fold is None else (fold[0], fold[1])


def unfolded(spec: Spec) -> Spec:
    """The spec of a fold's run without the fold."""
    if fold_of(spec) is None:
        return spec
    split = {key: value for key, value in spec.data["split"].items() if key != "fold"}
    data = {key: value for key, value in spec.data.items() if key != "split"}
    return replace(spec, data={**data, **({"split": split} if split else {})})


def are_folds(specs: Sequence[Spec]) -> bool:
    """Whether runs are different folds of the same samples."""
    by_seed = {spec.seed: spec for spec in specs}
    folds = [fold_of(spec) for spec in by_seed.values()]
    return (
        None not in folds
        and len({*folds}) == len(folds) > 1
        and len({fold[1] for fold in folds if fold is not None}) == 1
        and len({spec.data_seed for spec in specs}) == 1
    )


def pooled(trials: Sequence[Trial]) -> Trial:
    """One trial from the folds of a method, on the test samples of all folds. The model and the
    final weights are the first fold's; histories are means over folds."""
    first = trials[0]
    tally = {name: sum(trial.tally[name] for trial in trials) for name in first.tally}
    counts = [trial.counts for trial in trials]

    def joined(name: str) -> Any:
        found = [getattr(trial, name) for trial in trials]
        return None if any(one is None for one in found) else np.concatenate(found)

    return replace(
        first,
        score_columns=_scores(first, tally),
        history_columns=_mean_history([trial.history_columns for trial in trials]),
        validation=None,
        counts=None if any(one is None for one in counts) else _summed(counts),
        tally=tally,
        values=joined("values"),
        sample_client=joined("sample_client"),
        sample_group=joined("sample_group"),
        outcomes={
            name: np.concatenate([trial.outcomes[name] for trial in trials])
            for name in first.outcomes
            if all(name in trial.outcomes for trial in trials)
        },
        weights=_mean_weights(trials),
        scored={},  # each fold has a model, and so thresholds, of its own
        run=None,
        folds=tuple(trials),
    )


def rescaled(trial: Trial, factor: float) -> Trial:
    """The trial of a regression with its unit multiplied by ``factor``."""
    if factor == 1:
        return trial

    squares = OWN_SQUARES if "squared" in trial.tally else SQUARES

    def changed(columns: Mapping[str, Any]) -> dict[str, Any]:
        power = {**dict.fromkeys(ERRORS, 1), **dict.fromkeys(squares, 2)}
        return {
            name: values * factor ** power[name] if name in power else values
            for name, values in columns.items()
        }

    return replace(
        trial,
        score_columns=changed(trial.score_columns),
        validation=None if trial.validation is None else changed(trial.validation),
        tally=changed(trial.tally),
        values=None if trial.values is None else trial.values * factor**2,
        outcomes={
            name: values * factor if name == "label" else values
            for name, values in trial.outcomes.items()
        },
        guess=None if trial.guess is None else (trial.guess[0], trial.guess[1] * factor),
    )


def _scores(first: Trial, tally: Mapping[str, Any]) -> Columns:
    """Scores over the samples of all folds, from the sums of their tallies; without columns that do
    not follow from tallies."""
    rows = first.score_columns
    named = {
        by: tuple(name for name, kind in zip(rows["name"], rows["by"], strict=True) if kind == by)
        for by in ("client", "group", "team")
    }
    teams = None
    if named["team"]:
        place = {name: code for code, name in enumerate(named["team"])}
        of_clients = rows["team"][: len(named["client"])]
        teams = torch.tensor([place[team] for team in of_clients])
    # scores follow from the tallies; only the shape of these counts matters
    train = torch.ones(len(named["client"]), max(1, len(named["group"])), dtype=torch.int64)
    population = Population(
        {"train": train},
        Form((), torch.float32, (), torch.int64),
        teams,
        named["team"],
        named["group"],
        named["client"],
    )
    found = score_columns(dict(tally), population)
    return {**found, "train_count": rows["train_count"]}


def _summed(counts: Sequence[Counts | None]) -> Counts:
    known = [one for one in counts if one is not None]
    table = np.sum([one.table for one in known], axis=0)
    return replace(known[0], table=table)


def _mean_history(histories: Sequence[Columns]) -> Columns:
    """Means over folds, round by round, of the columns of numbers."""
    first = histories[0]

    def mean(name: str) -> Any:
        values = [np.asarray(history[name]) for history in histories if name in history]
        alike = len(values) == len(histories) and len({one.shape for one in values}) == 1
        return np.mean(values, axis=0) if alike else first[name]

    return {
        name: mean(name) if isinstance(column, np.ndarray) else column
        for name, column in first.items()
    }


def _mean_weights(trials: Sequence[Trial]) -> Any:
    weights = [trial.weights for trial in trials if trial.weights is not None]
    alike = len(weights) == len(trials) and len({one.shape for one in weights}) == 1
    return np.mean(weights, axis=0) if alike else trials[0].weights
