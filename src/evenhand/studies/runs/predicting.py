"""Predictions of a finished run for the rows of a file."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.data.tables.anew import Difference, names_in
from evenhand.data.tables.endings import PARQUET, SEPARATORS, table_ending
from evenhand.data.tables.files import read_cells, read_table
from evenhand.errors import DataError, require
from evenhand.files import check_formats, write_atomic
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trained import NAME, TrainedModel

if TYPE_CHECKING:
    import pandas as pd

CHANCE = "probability"


@dataclass(frozen=True)
class Predicted:
    """Predictions for the rows of a file."""

    model: TrainedModel
    table: pd.DataFrame  # the columns of the file, then the predictions
    differences: Sequence[Difference]  # from the training rows
    shared: int  # rows that the shared model predicted, of clients without one of their own
    seeds: Sequence[int]  # of the run
    diverged: bool = False  # whether the training of the method did

    def numbers(self) -> dict[str, Any]:
        """What was predicted and what is new in the table, for JSON."""
        trial = self.model.trial
        return {
            "method": trial.method.label,
            "seed": trial.seed,
            "rows": len(self.table),
            "predictions": self._predictions(),
            "shared_model": self.shared,
            "thresholds": trial.decision is not None,
            "diverged": self.diverged,
            "differences": [
                {**one._asdict(), "values": dict(one.values)} for one in self.differences
            ],
        }

    def _predictions(self) -> dict[str, Any]:
        found = self.table[NAME]
        if not self.model.classifies:
            return {"mean": found.mean(), "least": found.min(), "most": found.max()}
        counts = Counter(map(str, found.tolist()))
        return {str(label): counts[str(label)] for label in self.model.labels}

    def lines(self) -> Iterator[str]:
        """The same in words."""
        found, trial = self._predictions(), self.model.trial
        if self.model.classifies:
            said = ", ".join(f"{label} {count}" for label, count in found.items() if count)
        else:
            said = "mean {mean:.4g}, from {least:.4g} to {most:.4g}".format(**found)
        rows = f"{len(self.table)} row{'s' * (len(self.table) != 1)}"
        others = [str(seed) for seed in self.seeds if seed != trial.seed]
        seed = f", seed {trial.seed} (--seed takes {' or '.join(others)})" if others else ""
        yield f"{rows} predicted with {trial.method.label}{seed}: {said}"
        if self.diverged:
            yield (
                f"{trial.method.label} diverged in training: do not use these predictions; train it"
                " again with a smaller learning rate"
            )
        if trial.decision is not None:
            yield f"decided by the thresholds in {trial.folder / 'thresholds.json'}"
        if self.shared:
            yield f"{self.shared} of {rows} are of no known client: the shared model predicts them"
        yield from map(str, self.differences)


def predict_file(
    run: Path,
    path: Path,
    method: str | None = None,
    seed: int | None = None,
    *,
    client_column: str | None = None,
    client: str | None = None,
    group_columns: Sequence[str] = (),
    shared: bool = False,
    each: bool = False,
    encoding: str | None = None,
) -> Predicted:
    """Predict for each row of a CSV or Parquet file.

    Args:
        run: the directory of a run, comparison or sweep.
        path: the file; it needs no column with the label.
        method, seed: of the model, see ``evenhand.Study.model``.
        client_column: the column with the client, if it is not the run's own.
        client: the client of all rows.
        group_columns: the columns with the group, if they are not the run's own.
        shared: use the shared model for clients without a model of their own.
        each: add the probability of each label instead of one.
        encoding: of a text file.
    """
    study = Study.load([run])
    model = study.model(method, seed)
    if model.trial.encoding is None:
        raise DataError(
            f"{run} was not trained on a table; predict in Python:"
            " evenhand.load(RUN).model(METHOD).predict(x)"
        )
    _check_options(model, client, each)
    table = read_table(path, encoding=encoding)
    clients: Any = client
    if client_column is not None:
        clients = names_in(table, "--client-column", client_column)
    groups = None
    if group_columns:
        columns = [names_in(table, "--group-column", column) for column in group_columns]
        groups = [" & ".join(names) for names in zip(*columns, strict=True)]
    found = model.answer(table, clients, groups, shared=shared)
    added: dict[str, Any] = {NAME: found.predictions}
    if found.probabilities is not None:
        added |= _chances(model, found.probabilities, each)
    cells = read_cells(path, encoding=encoding)
    twice = [name for name in added if name in cells.columns]
    if twice:
        raise DataError(f"{path} already has a column {twice[0]!r}; rename or remove it")
    return Predicted(
        model,
        cells.assign(**added),
        model.differences(table),
        0 if found.owner is None else int((found.owner < 0).sum()),
        study.seeds,
        model.trial.method.label in {one.label for one in study.diverged},
    )


def _check_options(model: TrainedModel, client: str | None, each: bool) -> None:
    """Raise for options that would change nothing."""
    label, decision = model.trial.method.label, model.trial.decision
    by_client = decision is not None and decision.by == "client" and not decision.common
    require(
        client is None or by_client or model.trial.personal is not None,
        "{} has one model for all clients; leave out --for-client",
        label,
    )
    require(
        not each or model.classifies,
        "--proba is for classifiers; {} predicts a number",
        label,
    )


def _chances(model: TrainedModel, chances: Any, each: bool) -> dict[str, Any]:
    if each:
        return {
            f"{CHANCE}_{label}": column
            for label, column in zip(model.labels, chances.T, strict=True)
        }
    return {CHANCE: chances[:, 1] if chances.shape[1] == 2 else np.max(chances, 1)}


def check_out(out: Path, source: Path) -> None:
    """Raise if a table cannot be written to a file, before anything is computed."""
    ending = table_ending(out.name)
    if ending is None:
        raise DataError(f"--out must end with .csv, .tsv or .parquet, got {str(out)!r}")
    if ending in PARQUET:
        check_formats(["parquet"])
    if out.exists() and source.exists() and out.samefile(source):
        raise DataError(f"--out {out} is the table itself; write to another file")


def write_table(table: pd.DataFrame, out: Path) -> None:
    """Write a table as CSV, tab-separated or Parquet, by the ending of the file."""
    ending = str(table_ending(out.name))
    if ending in PARQUET:
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
        write_atomic(out, buffer.getvalue())
        return
    text = table.to_csv(index=False, sep=SEPARATORS[ending.removesuffix(".gz")]).encode()
    write_atomic(out, gzip.compress(text) if ending.endswith(".gz") else text)
