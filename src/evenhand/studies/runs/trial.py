"""One method, trained with one seed, as a run directory holds it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand import files, tree
from evenhand.errors import RunError
from evenhand.metrics.counts import Counts
from evenhand.metrics.scores import Columns, summary_of
from evenhand.metrics.thresholds import Thresholds
from evenhand.privacy.record import Privacy
from evenhand.reading import RESTORE, read_tensors
from evenhand.studies.runs.contents import read_arrays, read_encoding, read_thresholds
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import Spec
from evenhand.targets import Target
from evenhand.training.by_row import by_row
from evenhand.training.deciding import Deciding
from evenhand.training.directory import MODEL, PERSONAL, SAMPLES, THRESHOLDS, VALUES
from evenhand.training.ending import Stopped
from evenhand.training.manifest import Sealed, drop, renew

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from evenhand.calls import OutputFunction
    from evenhand.data.tables.encoding import Encoding

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Source(NamedTuple):
    """The run that a trial was read from."""

    directory: Path  # of one seed
    spec: Spec
    about: Mapping[str, Any]
    way_out: str = RESTORE  # where a file is damaged


@dataclass(frozen=True)
class Trial(Deciding):
    """The saved results of a method, under the names of :class:`evenhand.Result`."""

    method: Method
    seed: int
    folder: Path
    # a row per client, or one for everyone, then one per group: by, name, team, count, accuracy,
    # ...
    score_columns: Columns = field(repr=False)
    # a row per round; NaN where a round was not evaluated
    history_columns: Columns = field(repr=False)
    # as score_columns, on validation data
    validation: Columns | None = field(default=None, repr=False)
    # confusion counts by client and group on test data
    counts: Counts | None = field(default=None, repr=False)
    # (n, A, ...) the sums behind the scores, see metrics.tallies
    tally: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # (N,) of each test sample: 1 or 0 for right or wrong, a share of its labels, or its squared
    # error
    values: Floats | None = field(default=None, repr=False)
    sample_client: Ints | None = field(
        default=None, repr=False
    )  # (N,) the owner of each test sample
    sample_group: Ints | None = field(default=None, repr=False)  # (N,)
    # (N,) of each test sample, by name: loss, prediction, score, and its label
    outcomes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # constant predictions: the most frequent training label, and the mean
    guess: tuple[float, float] | None = None
    weight_rounds: Ints | None = field(default=None, repr=False)  # (T,)
    # (T, n) each client's effective weight, summing to one
    weights: Floats | None = field(default=None, repr=False)
    # at the end: objective, gap, and a row per client
    certificate: Mapping[str, Any] | None = field(default=None, repr=False)
    # metrics across clients if the server saw sums only
    over_clients: Mapping[str, float] | None = field(default=None, repr=False)
    judged_on: str = "test"  # the data of scores and tally: "test", or "training" without test data
    # score histograms (n, A, 2, BINS) to find thresholds on, by the data they are of
    scored: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # why training ended before the last round, and the round whose model this is if it is earlier
    stopped: Stopped | None = None
    restored: int | None = None
    # the run whose thresholds predictions use, if there are any; None if they use `chosen`
    run: Path | None = field(default=None, repr=False)
    chosen: Thresholds | None = None
    source: Source | None = field(default=None, repr=False)
    # the trials of a cross-validation that this one combines, a fold each
    folds: tuple[Trial, ...] = field(default=(), repr=False)
    privacy: Privacy | None = None  # what a private run may claim
    target: Target | None = None  # what the model predicts; None for runs of earlier versions

    @cached_property
    def decision(self) -> Thresholds | None:
        """The thresholds of its predictions; None for 0.5. Read now, since nothing else needs
        them."""
        return self.chosen if self.run is None else read_thresholds(self.folder, self.run)

    def _with(self, thresholds: Thresholds | None) -> Trial:
        return replace(self, run=None, chosen=thresholds)

    @property
    def network(self) -> nn.Module | None:
        """None: a directory holds parameters, not the network's code."""
        return None

    @property
    def output(self) -> OutputFunction | None:
        """None: a directory holds no functions."""
        return None

    @cached_property
    def encoding(self) -> Encoding | None:
        """How a table's columns became numbers, if the data came as a table."""
        return None if self.source is None else read_encoding(*self._of_run())

    @cached_property
    def by_row(self) -> Columns:
        """What was predicted for each test sample, see :mod:`evenhand.training.by_row`."""
        if self.folds:
            parts = [fold.by_row for fold in self.folds]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if self.source is None:
            raise RunError("this trial was not read from a directory, so it has no predictions")
        # read again: those of the trial can be in the unit of another run
        directory, way_out = self._of_run()
        samples, outcomes = (
            read_arrays(Sealed(folder).path(name), way_out) if Sealed(folder).has(name) else {}
            for folder, name in ((directory, SAMPLES), (self.folder, VALUES))
        )
        labels = self.source.about.get("labels", ())
        return by_row(
            samples, outcomes, self.names("client"), self.names("group"), labels, self.encoding
        )

    def _of_run(self) -> tuple[Path, str]:
        """The directory of its run, and what to do about damaged files."""
        assert self.source is not None
        return self.source.directory, self.source.way_out

    def names(self, by: str) -> list[str]:
        """Names of the clients, groups or teams."""
        rows = zip(self.score_columns["name"], self.score_columns["by"], strict=True)
        return [name for name, kind in rows if kind == by]

    @property
    def by_client(self) -> bool:
        """Whether there is a row per client."""
        return "client" in self.score_columns["by"]

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per client, then one per group and team."""
        import pandas as pd

        return pd.DataFrame(self.score_columns)

    @property
    def predictions(self) -> pd.DataFrame:
        """One row per test sample."""
        import pandas as pd

        return pd.DataFrame(self.by_row)

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row per round."""
        import pandas as pd

        return pd.DataFrame(self.history_columns)

    @cached_property
    def params(self) -> dict[str, Tensor]:
        """The final model, with the keys of ``module.state_dict()``."""
        return tree.unflatten(read_tensors(Sealed(self.folder).path(MODEL))[0])

    @cached_property
    def personal(self) -> list[dict[str, Tensor]] | None:
        """Each client's own model, for methods that have them."""
        held = Sealed(self.folder)
        if not held.has(PERSONAL):
            return None
        found = tree.unflatten(read_tensors(held.path(PERSONAL))[0])
        shared = self.params if found["0"].keys() != self.params.keys() else {}
        return [{**shared, **found[str(client)]} for client in range(len(found))]

    def save_thresholds(self) -> Path:
        """Write the thresholds that the trial uses next to its model, and return their file.

        Locking the run directory is up to the caller, see
        :func:`evenhand.training.places.alone`.
        """
        path = self.folder / THRESHOLDS
        if self.decision is None:
            raise ValueError("this trial uses no thresholds; see using()")
        files.write_atomic(path, self.decision.to_json().encode())
        if Sealed(self.folder).manifest is not None:
            renew(self.folder, [THRESHOLDS])
        return path

    def remove_thresholds(self) -> bool:
        """Delete the thresholds next to its model; False if there were none. The lock is up to the
        caller again."""
        there = Sealed(self.folder).has(THRESHOLDS) or (self.folder / THRESHOLDS).exists()
        if there:
            drop(self.folder, [THRESHOLDS])
        return there

    def read_models(self) -> None:
        """Read the models and predictions now, so that the folder can be deleted."""
        _ = self.params, self.personal, self.decision, self.encoding
        for trial in self.folds or (self,):
            with suppress(RunError):  # it has none
                _ = trial.by_row

    @property
    def summary(self) -> dict[str, float]:
        """Mean, worst and best 10 %, worst client and standard deviation of the clients' accuracy;
        see :attr:`evenhand.Result.summary`."""
        return summary_of(self.score_columns, self.tally, self.over_clients)

    def column(self, name: str, by: str, part: str = "test") -> Floats:
        """A column of the rows of clients, groups or "everyone"."""
        columns = self.score_columns if part == "test" else self.validation
        if columns is None:
            raise KeyError(part)
        chosen = np.array([kind == by for kind in columns["by"]], bool)
        if name in ("accuracy", "loss") and name not in columns:  # all clients diverged
            return np.full(int(chosen.sum()), np.nan)
        values: Floats = np.asarray(columns[name], np.float64)[chosen]
        return values
