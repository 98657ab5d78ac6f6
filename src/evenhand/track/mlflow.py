"""MLflow as a tracker."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from evenhand import files
from evenhand.errors import RunError, first_line, require_kind
from evenhand.track.tracker import (
    Tracker,
    cleaned,
    missing,
    numbers_in,
    scores_in,
    settings_in,
    tags_of,
)
from evenhand.training.callbacks import RunInfo
from evenhand.training.result import Result

FOLDERS = "MLFLOW_ALLOW_FILE_STORE"  # without it, newer versions of MLflow refuse folders
LONGEST = 6000  # characters of a parameter
AT_ONCE = 100  # parameters or metrics in one request; MLflow takes no more


@dataclass
class MLflow(Tracker):
    """Track runs with MLflow: parameters, metrics by round, final scores, tags and tables.

    Every run of evenhand is a run of MLflow. A resumed run is a new one that begins with the rounds
    done earlier.

    Args:
        experiment: the experiment, which is created if it does not exist.
        uri: the tracking server or store, such as "http://localhost:5000" or
            "sqlite:///mlflow.db"; by default what MLflow is set to (``MLFLOW_TRACKING_URI``).
        run_name: the name of the run; by default method and seed.
    """

    experiment: str = "evenhand"
    uri: str | None = None
    run_name: str | None = None
    _open: Any = field(default=None, init=False, repr=False, compare=False)  # client and run

    def __post_init__(self) -> None:
        require_kind("experiment", self.experiment, str, '"heart"')
        for name in ("uri", "run_name"):
            require_kind(name, getattr(self, name) or "", str, '"sqlite:///mlflow.db"')

    def require_package(self) -> None:
        _client_class()

    def begin(self, run: RunInfo) -> None:
        kind = _client_class()
        try:
            with _quiet():
                client = kind(tracking_uri=self.uri)
                found = client.get_experiment_by_name(self.experiment)
                number = (
                    client.create_experiment(self.experiment)
                    if found is None
                    else found.experiment_id
                )
                name = self.run_name or f"{run.label} seed {run.seed}"
                made = client.create_run(number, tags=tags_of(run), run_name=name)
        except Exception as error:
            raise RunError(_unusable(self.uri, error)) from error
        self._open = (client, made.info.run_id)
        self._send(params=settings_in(run))
        for row in run.history:
            self.log(row["round"], numbers_in(row))

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self._send(metrics=numbers, step=round)

    def end(self, result: Result) -> None:
        client, run = self._open
        self._send(metrics=scores_in(result), step=len(result.history_rows))
        if result.stopped is not None:
            client.set_tag(run, "stopped", str(result.stopped))
        with tempfile.TemporaryDirectory() as place:
            files.write_rows(Path(place) / "scores.csv", result.score_rows)
            files.write_rows(Path(place) / "history.csv", result.history_rows)
            client.log_artifacts(run, place)
        client.set_terminated(run)

    def _send(
        self,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        step: int = 0,
    ) -> None:
        from mlflow.entities import Metric, Param

        client, run = self._open
        now = int(1000 * time.time())
        for some in _pieces(params or {}):
            found = [Param(cleaned(key), str(value)[:LONGEST]) for key, value in some]
            client.log_batch(run, params=found)
        for some in _pieces(metrics or {}):
            numbers = [Metric(cleaned(key), value, now, step) for key, value in some]
            client.log_batch(run, metrics=numbers)


def _pieces(table: Mapping[str, Any]) -> Iterator[list[tuple[str, Any]]]:
    entries = iter(table.items())
    while some := list(islice(entries, AT_ONCE)):
        yield some


def _client_class() -> Any:
    """Return MLflow's client."""
    try:
        with _quiet():
            return import_module("mlflow.tracking").MlflowClient
    except ImportError:
        raise missing("mlflow-skinny", "mlflow", "eh.track.MLflow") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings that MLflow and its database library have about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _unusable(uri: str | None, error: Exception) -> str:
    """Say why a store cannot be used, and what to do."""
    place = "its default store" if uri is None else uri
    if FOLDERS in str(error):
        return (
            f"MLflow does not write to folders any more ({place}); use a database, such as"
            f' uri="sqlite:///mlflow.db", or set {FOLDERS}=true'
        )
    return f"MLflow cannot track at {place}: {first_line(error)}"
