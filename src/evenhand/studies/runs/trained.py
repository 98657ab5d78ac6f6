"""A model of a finished run, ready to predict for new samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from evenhand.calls import OutputFunction
from evenhand.errors import require, require_kind
from evenhand.models import MODELS
from evenhand.studies.runs.new_rows import Rows
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.building import build_network, sample_form
from evenhand.studies.specs.spec import NODES
from evenhand.targets import Target
from evenhand.training.about import PYTHON
from evenhand.training.by_row import value_array, values_of
from evenhand.training.deciding import (
    decide,
    has_shared_model,
    model_outputs,
    require_chances,
    target_of,
)
from evenhand.training.predicting import (
    Floats,
    Ints,
    numbers,
    probabilities,
    require_scores,
)

if TYPE_CHECKING:
    import pandas as pd

    from evenhand.data.tables.anew import Difference

NAME = "prediction"  # of a column of predictions


class Answer(NamedTuple):
    """What a model says about rows."""

    predictions: Any  # (N,) labels or numbers
    probabilities: Floats | None  # (N, C); None for a regression
    # (N,) the client whose model predicted each row, -1 for the shared one; None for a single model
    owner: Ints | None
    table: pd.DataFrame | None  # if the rows were one


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained model of a run: predictions for tables, arrays or tensors.

    A table is one of pandas or polars with the columns that the run was trained on; others are
    ignored. It is encoded as the training rows were.

    Attributes:
        trial: the method and seed that it is a model of.
        network: the network before training.
    """

    trial: Trial
    network: nn.Module
    _output: OutputFunction | None = None

    def __repr__(self) -> str:
        return f"<TrainedModel {self.trial.method.label}, seed {self.trial.seed}>"

    def predict(
        self,
        x: Any,
        client: Any = None,
        group: Any = None,
        *,
        shared: bool = False,
        seed: int | None = None,
    ) -> Any:
        """The predicted label of each row: its name, or for a regression a number in its own unit.

        A pandas table gives a Series with the same index, a polars table a polars Series, anything
        else a NumPy array. Thresholds of the run are applied.

        Args:
            x: the rows: a table, or (N, ...) an array or tensor, or a dict of these.
            client: the client of all rows, or of each; by default the table's own column. Only
                needed if every client has a model or a threshold of its own.
            group: the group of all rows, or of each; by default the table's own columns. Only
                needed if thresholds differ by group.
            shared: use the shared model for clients without a model of their own.
            seed: of the random numbers of randomised thresholds; None draws new ones.
        """
        from evenhand.data.tables.anew import like

        found = self.answer(x, client, group, shared=shared, seed=seed)
        return found.predictions if found.table is None else like(x, found.predictions, NAME)

    def predict_proba(self, x: Any, client: Any = None, *, shared: bool = False) -> Any:
        """(N, C) the probability of each label, whatever thresholds the run has.

        A table gives a table with a column for each label. See :meth:`predict` for the arguments.
        """
        from evenhand.data.tables.anew import like_table

        require_chances(self.trial)
        rows = Rows.of(self.trial, x)
        owner = self._owner(rows, client, shared)
        output = model_outputs(self.trial, rows.features, owner, self.network, self._output)
        require_scores(output)
        chances = probabilities(output, self._target)
        if rows.table is None or chances.ndim > 2:
            return chances
        names = map(str, self._named(chances.shape[1]))
        return like_table(x, dict(zip(names, chances.T, strict=True)))

    def answer(
        self,
        x: Any,
        client: Any = None,
        group: Any = None,
        *,
        shared: bool = False,
        seed: int | None = None,
    ) -> Answer:
        """Predictions and probabilities at once, as arrays. See :meth:`predict` for the
        arguments."""
        rows = Rows.of(self.trial, x)
        owner = self._owner(rows, client, shared)
        output = model_outputs(self.trial, rows.features, owner, self.network, self._output)
        found = self._decided(rows, output, client, group, seed)
        chances = probabilities(output, self._target) if self.classifies else None
        return Answer(found, chances, owner, rows.table)

    def differences(self, x: Any) -> list[Difference]:
        """What a table has that the training rows had not: missing values and unknown categories,
        column by column. Predictions for such rows are less certain than they look."""
        from evenhand.data.tables.anew import differences

        rows = Rows.of(self.trial, x)
        if rows.table is None or rows.encoding is None:
            raise TypeError("x is no table; only the columns of a table have names and categories")
        return differences(rows.encoding, rows.table)

    def module(self, client: str | int | None = None) -> nn.Module:
        """The trained network, a copy on the CPU in evaluation mode; ``client`` asks for its own
        model."""
        return self.trial.module(client, module=self.network)

    @property
    def classifies(self) -> bool:
        """Whether it predicts one class or level for each row."""
        return self._target.kind in ("class", "ordinal")

    @property
    def _target(self) -> Target:
        return target_of(self.trial)

    @cached_property
    def labels(self) -> tuple[Any, ...]:
        """The labels in the order of :meth:`predict_proba`; () for a regression."""
        tally = self.trial.tally
        count = tally["confusion"].shape[2] if "confusion" in tally else self._target.classes
        return self._named(count) if self.classifies else ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the numbers that the columns of a table become; () for other data."""
        return () if self.trial.encoding is None else self.trial.encoding.features

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that it needs; () for other data."""
        from evenhand.data.tables.anew import needed

        return () if self.trial.encoding is None else needed(self.trial.encoding)

    def _named(self, count: int) -> tuple[Any, ...]:
        """The names of so many classes: texts, numbers or truth values, as in the table."""
        about = {} if self.trial.source is None else self.trial.source.about
        names: Sequence[str] = about.get("labels", ())
        label = self.trial.outcomes.get("label")
        if not names and count == 2 and label is not None and np.min(label, initial=0) < 0:
            return (-1, 1)
        return (*values_of(names), *range(len(names), count))

    def _decided(self, rows: Rows, output: Tensor, client: Any, group: Any, seed: Any) -> Any:
        """(N,) labels or numbers."""
        require_scores(output)
        target = self._target
        if target.kind == "number":
            return numbers(output, self.trial.encoding)
        if target.kind != "class":
            found = target.predict(output).numpy()
            return value_array(self._named(target.classes))[found] if self.classifies else found
        decision = self.trial.decision
        of = None
        if decision is not None and not decision.common:
            given = group if decision.by == "group" else client
            of = rows.codes(decision.by, given, decision.names, decision.by + "s with a threshold")
        codes = decide(output, decision, of, seed)
        width = 1 if output.ndim == 1 else output.shape[1]
        return value_array(self._named(max(width, 2)))[codes]

    def _owner(self, rows: Rows, client: Any, shared: bool) -> Ints | None:
        """(N,) the client whose own model predicts for each row, -1 for the shared model; None if
        there is only one model."""
        trial = self.trial
        if trial.personal is None:
            return None
        there = has_shared_model(trial)
        require(
            there or not shared,
            "{} has no shared model, only one for each client; leave out shared (--shared)",
            trial.method.label,
        )
        way = ", or use the shared model with shared=True (--shared)" if there else ""
        known = trial.names("client")
        return rows.codes("client", client, known, "clients with a model", shared, way)


def trained_model(
    trial: Trial, module: nn.Module | None = None, output: OutputFunction | None = None
) -> TrainedModel:
    """The trained model of a trial; see :meth:`evenhand.Study.model`."""
    if trial.folds:
        raise ValueError(
            f"this is a cross-validation with {len(trial.folds)} models of {trial.method.label},"
            " one for each fold; train it once on one split to get a model to use, or give the"
            f" directory of a fold, such as {trial.folds[0].folder.parent}"
        )
    if module is not None:
        require_kind("module", module, nn.Module, "torch.nn.Linear(4, 2)")
    return TrainedModel(trial, rebuilt(trial) if module is None else module, output)


def rebuilt(trial: Trial) -> nn.Module:
    """The network of a run, from its spec; its parameters are not the trained ones."""
    source = trial.source
    if source is None:
        raise ValueError("give module=, the network that was trained")
    spec, encoding = source.spec, trial.encoding
    name = spec.model.get("name")
    if "parameters" in spec.model or name not in MODELS:
        raise ValueError(
            f"the network of this run is a module of your own, {name}, which no directory holds:"
            " in Python, give module=, the network that was trained"
        )
    form = source.about.get("model")
    if form is None and encoding is not None:  # the run of an earlier version
        classes = len(encoding.label_names) if encoding.task == "classification" else 1
        form = {"shape": [len(encoding.features)], "outputs": classes}
    if form is None:
        require(
            spec.data.get("name") not in (PYTHON, NODES),
            "an earlier version wrote this run, without the shape of its samples; give module=, the"
            " network that was trained",
        )
        form = sample_form(spec.build_data())  # whatever the loss, as that version did
    return build_network(spec.model, form, spec.seed, spec.data)
