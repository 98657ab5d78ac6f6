"""What a card is about: one method of a study."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evenhand.algorithms.naming import plain_fields
from evenhand.data.tables.encoding import Encoding
from evenhand.errors import SpecError
from evenhand.studies.analysis.writing import count_of
from evenhand.studies.findings import Findings
from evenhand.studies.methods import one_line, page
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.spec import Spec
from evenhand.training.deciding import has_shared_model
from evenhand.training.directory import PERSONAL


@dataclass(frozen=True)
class Subject:
    """One method of a study, and what its author says about it.

    Attributes:
        label: of the method.
        purpose: what the model is for; "" if nobody said so.
        license: of the model; "" if it is unknown.
    """

    findings: Findings
    label: str
    purpose: str = ""
    license: str = ""

    @property
    def study(self) -> Study:
        return self.findings.study

    @property
    def title(self) -> str:
        return f"{self.study.name}, {self.label}"

    @property
    def trial(self) -> Trial:
        """Of the first seed."""
        return self.study.trial(self.label)

    @cached_property
    def place(self) -> int:
        """The number of the first seed's run among those of the study."""
        folders = (self.trial.folder, self.trial.folder.parent)
        found = [n for n, path in enumerate(self.study.directories) if path in folders]
        return found[0] if found else 0

    @property
    def spec(self) -> Spec:
        return self.study.specs[self.place]

    @property
    def about(self) -> Mapping[str, Any]:
        return self.study.about[self.place]

    @property
    def directory(self) -> Path:
        """What the user calls the run."""
        return self.study.root or self.study.directories[self.place]

    @property
    def classifies(self) -> bool:
        return not self.study.measure.squared and self.study.measure.kind != "mae"

    @property
    def real(self) -> bool:
        """Whether it was trained in a real federation."""
        return "federation" in self.about

    @property
    def personal(self) -> bool:
        """Whether each client has a model of its own."""
        if (self.trial.folder / PERSONAL).exists():  # any method, if clients keep their BatchNorm
            return True
        try:  # in a real federation the clients keep them
            return bool(self.trial.method.algorithm().personal)
        except SpecError:  # a class of another program
            return False

    @property
    def shares(self) -> bool:
        """Whether there is a shared model."""
        return has_shared_model(self.trial)

    @property
    def encoding(self) -> Encoding | None:
        """How a table's columns became numbers, if the data came as a table."""
        return (self.trial.folds or (self.trial,))[0].encoding

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, as far as they are known."""
        counts = self.trial.counts
        return tuple(map(str, self.about.get("labels") or (counts.labels if counts else ())))

    @property
    def method_in_words(self) -> tuple[str, str]:
        """What the method does, and its paper; "" where that is unknown."""
        name = self.trial.method.name
        try:
            heading = page(name).partition("\n")[0].removeprefix("# ")
        except SpecError:
            return "", ""
        return one_line().get(name, ""), heading

    @property
    def settings(self) -> str:
        """The hyper-parameters."""
        given = dict(self.trial.method.parameters)
        with contextlib.suppress(SpecError):  # a class of another program
            given = plain_fields(self.trial.method.algorithm()) | given
        given.pop("name", None)
        return ", ".join(f"{key} = {_plain(value)}" for key, value in given.items())

    @property
    def rounds(self) -> str:
        """How many rounds were trained, over the training runs: "60 rounds" or "12 to 60
        rounds"."""
        trials = [self.study.trial(self.label, seed) for seed in self.study.seeds]
        parts = [part for trial in trials for part in trial.folds or (trial,)]
        found = {self.spec.rounds if one.stopped is None else one.stopped.round for one in parts}
        least, most = min(found), max(found)
        return f"{least} to " * (least < most) + count_of(most, "round")

    @property
    def runs(self) -> str:
        """The training runs behind the numbers, in words."""
        if self.study.folds:
            return f"{self.study.folds} folds of a cross-validation"
        seeds = self.study.seeds
        listed = ", ".join(map(str, seeds))
        return f"{count_of(len(seeds), 'training run')} (seed{'s' * (len(seeds) > 1)} {listed})"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_plain(one)}" for key, one in value.items()) + "}"
    return str(value)
