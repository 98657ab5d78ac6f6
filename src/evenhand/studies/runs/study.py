"""Several runs as one study: several methods, each trained with several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenhand.errors import RunError, require_known
from evenhand.studies.runs import merits
from evenhand.studies.runs.alike import natural, refuse_mixed
from evenhand.studies.runs.directories import TUNING, SavedRun, run_directories
from evenhand.studies.runs.divergence import Diverged, find_diverged
from evenhand.studies.runs.folds import are_folds, pooled, rescaled
from evenhand.studies.runs.trained import TrainedModel, trained_model
from evenhand.studies.runs.trial import Floats, Ints, Trial
from evenhand.studies.specs.measure import Measure, chosen_measure
from evenhand.studies.specs.method import Method
from evenhand.studies.specs.spec import REFERENCES, Spec

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from evenhand.calls import OutputFunction


@dataclass(frozen=True, repr=False)
class Study:
    """Methods x seeds on one federation, and the measure to compare them by."""

    name: str
    measure: Measure
    trials: Mapping[tuple[str, int], Trial]  # by label and seed
    specs: tuple[Spec, ...]  # of the runs
    about: tuple[Mapping[str, Any], ...]  # versions, machine, seed of the runs
    directories: tuple[Path, ...]
    same_data: bool  # whether all seeds have the same clients and samples
    # whether the clients are the same with every seed, though the splits differ
    same_clients: bool = False
    folds: int = 0  # of a cross-validation, pooled into one trial per method
    root: Path | None = None  # the directory it was read from

    @classmethod
    def load(cls, paths: Iterable[Path | str]) -> Study:
        """Read run directories and directories of comparisons and sweeps."""
        given = [Path(path) for path in paths]
        runs = [
            SavedRun.read(directory, path) for path in given for directory in run_directories(path)
        ]
        if not runs:
            raise RunError("no run to analyse; give the directory of one")
        refuse_mixed(runs)
        same_data = len({run.about["data"] for run in runs}) == 1
        trials: dict[tuple[str, int], Trial] = {}
        origin: dict[tuple[str, int], SavedRun] = {}
        for run in runs:
            for trial in run.trials:
                key = (trial.method.label, trial.seed)
                if key in trials:
                    if trials[key].method == trial.method and origin[key].like(run):
                        continue  # such as FedAvg in two runs of one spec
                    key = (f"{trial.method.label} ({run.directory.name})", trial.seed)
                trial = rescaled(trial, run.measure.scale / runs[0].measure.scale)
                trials[key] = replace(trial, method=replace(trial.method, label=key[0]))
                origin[key] = run
        study = cls(
            given[0].resolve().name,
            runs[0].measure,
            trials,
            tuple(run.spec for run in runs),
            tuple(run.about for run in runs),
            tuple(run.directory for run in runs),
            same_data,
            root=given[0] if len(given) == 1 else None,
        )
        if are_folds(study.specs) and len(study.seeds) > 1:
            return study.with_folds_pooled()
        if same_data or study.sums_only:
            return study
        scores = (study.trial(seed=seed).score_columns for seed in study.seeds)
        return replace(study, same_clients=natural(scores, study.specs[0].data))

    @cached_property
    def tuned(self) -> bool:
        """Whether the methods' settings were chosen on validation data."""
        return self.root is not None and (self.root / TUNING).exists()

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """All methods, in the order of the specs."""
        return tuple(dict.fromkeys(label for label, _ in self.trials))

    @cached_property
    def diverged(self) -> tuple[Diverged, ...]:
        """The methods that diverged with any seed; they are excluded."""
        return find_diverged(self.trials, self.trained, self.seeds)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The methods to compare, in the order of the specs: those that did not diverge."""
        left_out = {one.label for one in self.diverged}
        return tuple(label for label in self.trained if label not in left_out)

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that every method was trained with, ascending."""
        found = [{seed for label, seed in self.trials if label == known} for known in self.trained]
        return tuple(sorted(set.intersection(*found))) if found else ()

    @cached_property
    def reference(self) -> str | None:
        """The label of FedAvg; None if it is not in the study."""
        return self._named("fedavg")

    @cached_property
    def alone(self) -> str | None:
        """The label of local-only training; None if it is not in the study."""
        return self._named("localonly")

    @cached_property
    def sums_only(self) -> tuple[str, ...]:
        """Methods for which the server saw sums only, no scores client by client."""
        hidden = {label for (label, _), trial in self.trials.items() if not trial.by_client}
        return tuple(label for label in self.labels if label in hidden)

    @property
    def sampled(self) -> bool:
        """Whether per-sample results are known."""
        return all(trial.values is not None for trial in self.trials.values())

    @property
    def clients(self) -> int:
        """How many clients there are, also if the server saw sums only."""
        return max(
            len(self.names("client")),
            *(len(run["federation"]["clients"]) for run in self.about if "federation" in run),
            *(int((one.over_clients or {}).get("clients", 0)) for one in self.trials.values()),
            0,
        )

    @property
    def samples(self) -> int:
        """How many samples methods are evaluated on."""
        return int(
            self.first.column("count", "client" if self.first.by_client else "everyone").sum()
        )

    @property
    def judged_seeds(self) -> tuple[int, ...]:
        """Seeds with the same clients: all, or only the first if clients differ between seeds."""
        return self.seeds if self.same_data or self.same_clients else self.seeds[:1]

    def __repr__(self) -> str:
        methods, seeds = ", ".join(self.trained), len(self.seeds)
        return f"<Study {self.name}: {methods}; {seeds} seed{'s' * (seeds != 1)}>"

    def trial(self, label: str | None = None, seed: int | None = None) -> Trial:
        """Model, scores and history of a method with a seed; by default of the first."""
        known = (*self.labels, *self.trained)
        key = (known[0] if label is None else label, self.seeds[0] if seed is None else seed)
        if key not in self.trials:
            require_known("method", key[0], self.trained)
            seeds = ", ".join(map(str, self.seeds))
            raise ValueError(f"{key[0]} was not trained with seed {key[1]}; choose from {seeds}")
        return self.trials[key]

    def model(
        self,
        method: str | None = None,
        seed: int | None = None,
        *,
        module: nn.Module | None = None,
        output: OutputFunction | None = None,
    ) -> TrainedModel:
        """A trained model, ready to predict for new samples.

        Args:
            method: its label; not needed if the run has one method.
            seed: of the training; by default the first.
            module: the network, for a run of your own module; ``output`` as in its settings.
        """
        return trained_model(self.chosen(method, seed), module, output)

    def predictions(self, method: str | None = None, seed: int | None = None) -> pd.DataFrame:
        """What a method predicted for each test sample when it was evaluated, without thresholds.

        ``row`` counts the rows of the table or data set from 0. ``probability`` is that of the
        second of two classes, or of the predicted one of several.
        """
        return self.chosen(method, seed).predictions

    def chosen(self, method: str | None = None, seed: int | None = None) -> Trial:
        """The trial of a method that must be named if there are several."""
        if method is None and len(self.trained) > 1:
            raise ValueError(f"choose a method of {self.name}: {', '.join(self.trained)}")
        return self.trial(self.trained[0] if method is None else method, seed)

    def with_folds_pooled(self) -> Study:
        """The study with one trial for the folds of each method."""
        seeds = self.seeds
        trials = {
            (label, seeds[0]): pooled([self.trials[label, seed] for seed in seeds])
            for label in self.trained
        }
        return replace(self, trials=trials, same_data=True, folds=len(seeds))

    def in_order(self) -> Study:
        """The same study with FedAvg first and local-only training last."""
        first = {self.method(label).name: label for label in reversed(self.trained)}
        rank = {first.get(REFERENCES[0]): -1, first.get(REFERENCES[1]): 1}
        # the others keep their order
        keys = sorted(self.trials, key=lambda key: rank.get(key[0], 0))
        return replace(self, trials={key: self.trials[key] for key in keys})

    def _named(self, name: str) -> str | None:
        return next((label for label in self.labels if self.method(label).name == name), None)

    def method(self, label: str) -> Method:
        """A method by its label: its name and settings."""
        return next(trial.method for (known, _), trial in self.trials.items() if known == label)

    @property
    def first(self) -> Trial:
        """Any trial: all have the same clients, groups and teams."""
        return self.trials[(*self.labels, *self.trained)[0], self.seeds[0]]

    @cached_property
    def teams(self) -> tuple[str, ...]:
        """(n,) the team of each client; "" without teams; () if a method has no scores client by
        client."""
        if self.sums_only:
            return ()
        scores = self.first.score_columns
        return tuple(
            team for team, by in zip(scores["team"], scores["by"], strict=True) if by == "client"
        )

    @cached_property
    def team_codes(self) -> Ints:
        """(n,) the index of each client's team in ``names("team")``."""
        place = {name: code for code, name in enumerate(self.names("team"))}
        return np.array([place.get(team, -1) for team in self.teams], np.int64)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds to report, of "client", "group" and "team": not teams if they are the same as
        groups."""
        sizes = [
            dict(zip(self.names(by), self.sizes(by).tolist(), strict=True))
            for by in ("group", "team")
        ]
        return ("client", "group") if sizes[0] == sizes[1] else ("client", "group", "team")

    def names(self, by: str) -> tuple[str, ...]:
        """Names of the clients, groups or teams (by = "client", "group" or "team") in every
        method."""
        if by == "team":
            return tuple(sorted({team for team in self.teams if team}))
        if by == "client" and self.sums_only:
            return ()
        return tuple(self.first.names(by))

    def sizes(self, by: str = "client", seed: int | None = None, label: str | None = None) -> Ints:
        """Test samples of each client, group or team (for recall, those with its label); by default
        of the first seed."""
        if by == "team" and not self.names("team"):
            return np.zeros(0, np.int64)
        return merits.sizes(self.trial(label, seed), self.measure, by, self.team_codes)

    def merits(self, label: str, seed: int, by: str = "client", part: str = "test") -> Floats:
        """The merit of each client, group or team by the measure, larger is better; NaN without
        samples. part: "test" or "validation"."""
        trial = self.trials[label, seed]
        if part != "test" and trial.validation is None:
            raise RunError(
                f"{trial.folder} has no validation scores; the data had no validation split"
            )
        return merits.merits(trial, self.measure, by, part, self.team_codes)

    def everyone(self, label: str, seed: int) -> dict[str, Floats]:
        """{"pooled": the merit over all samples} for a measure that is no mean over samples; {} if
        it follows from the clients' merits."""
        found = merits.of_everyone(self.trials[label, seed], self.measure)
        return {} if found is None else {"pooled": found}

    def cells(self, by: str, seed: int | None = None) -> Ints | None:
        """(N,) the client, group or team of each test sample, -1 for none; None if samples are not
        known. ``seed``: by default the first."""
        trial = self.trial(seed=seed)
        client, group = trial.sample_client, trial.sample_group
        if client is None:
            return None
        if by == "group":
            return None if group is None else group.astype(np.int64)
        return client.astype(np.int64) if by == "client" else self.team_codes[client]

    def sample_merits(self, label: str, seed: int, by: str = "client") -> Floats | None:
        """(N,) values of samples whose mean over a client, group or team is its merit, or minus its
        square for a root; NaN for samples that do not count."""
        if (cell := self.cells(by, seed)) is None:
            return None
        trial, count = self.trials[label, seed], len(self.names(by))
        return merits.sample_merits(trial, self.measure, cell, count)

    def measured_by(self, kind: str, positive: str | None = None) -> Study:
        """The same runs with another measure, see :mod:`evenhand.studies.specs.measure`."""
        counts = self.first.counts
        labels = counts.labels if counts is not None else ()
        return replace(self, measure=chosen_measure(self.measure, kind, labels, positive))

    def column(self, label: str, seed: int, name: str, by: str = "client") -> Floats:
        """A column of the test scores of clients or groups: "accuracy", "loss", "auc", "brier",
        ..."""
        return self.trials[label, seed].column(name, by)
