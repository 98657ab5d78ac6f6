"""What the classifier and the regressor share: parameters, training, and outputs of the models."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.algorithms.fedavg import FedAvg
from evenhand.cohort import Cohort
from evenhand.data.federation import Federation
from evenhand.engines import Engine
from evenhand.errors import brief, require, require_kind, require_number, require_whole
from evenhand.local import LocalSolver
from evenhand.losses import LossFunction
from evenhand.sklearn.inputs import (
    Floats,
    Ints,
    Labels,
    Scale,
    clients_of,
    coded,
    codes_of,
    frame_of,
    labels_of,
    table_like,
    validated,
    without,
)
from evenhand.sklearn.networks import Builder, network_of
from evenhand.sklearn.parameters import inner_parameters, split, with_parameters
from evenhand.training.fit import fit
from evenhand.training.predicting import filled, outputs
from evenhand.training.result import Result
from evenhand.training.settings import DEFAULTS, Settings

EVERYONE = "everyone"  # the one client of data without clients
STANDARD: dict[str, Any] = {
    "algorithm": FedAvg(),
    "local": DEFAULTS["local"],
    "cohort": DEFAULTS["cohort"],
}


class FairEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators; see :class:`FairClassifier`."""

    # scikit-learn passes these on without being asked, if metadata routing is enabled
    __metadata_request__fit: ClassVar = {"client": True, "group": True}
    __metadata_request__predict: ClassVar = {"client": True}
    __metadata_request__score: ClassVar = {"client": True}

    _loss: ClassVar[str]  # unless the user chooses one
    _numeric: ClassVar[bool]  # whether labels are numbers
    result_: Result

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        rounds: int = 100,
        *,
        module: str | nn.Module | Builder | None = None,
        local: LocalSolver | None = None,
        cohort: Cohort | None = None,
        loss: str | LossFunction | None = None,
        weights: str = "data",
        standardise: bool = True,
        validation: float = 0.0,
        random_state: int | np.random.RandomState | None = 0,
        engine: str | Engine = "auto",
        device: str | torch.device | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.rounds = rounds
        self.module = module
        self.local = local
        self.cohort = cohort
        self.loss = loss
        self.weights = weights
        self.standardise = standardise
        self.validation = validation
        self.random_state = random_state
        self.engine = engine
        self.device = device

    # ---- parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; with ``deep`` also those of the method, the local solver and the
        cohort, such as ``algorithm__q`` and ``local__lr``."""
        found: dict[str, Any] = super().get_params(deep)
        if deep:
            for name in STANDARD:
                found |= inner_parameters(name, self._chosen(name))
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also those of the method, the local solver and the cohort."""
        direct: dict[str, Any] = {}
        inner: dict[str, dict[str, Any]] = defaultdict(dict)
        for key, value in params.items():
            name, rest = split(key)
            if rest and name in STANDARD:
                inner[name][rest] = value
            else:
                direct[key] = value
        super().set_params(**direct)
        for name, changes in inner.items():
            setattr(self, name, with_parameters(name, self._chosen(name), changes))
        return self

    def _chosen(self, name: str) -> Any:
        value = getattr(self, name)
        return STANDARD[name] if value is None else value

    def __getstate__(self) -> dict[str, Any]:
        # a pickled model is for predicting: it holds no samples, and nothing about single ones
        state = dict(super().__getstate__())
        if "result_" in state:
            state["result_"] = dataclasses.replace(state["result_"], origin=None, outcomes={})
        return state

    # ---- training

    @abstractmethod
    def _target(self, y: NDArray[Any], order: Ints, offsets: Ints) -> tuple[NDArray[Any], int]:
        """Return what the network learns for each sample, and its number of outputs."""

    def fit(self, X: Any, y: Any, client: Any = None, group: Any = None) -> Self:
        """Train on the samples of all clients.

        Args:
            X: (N, features) numbers without gaps: an array, or a table of pandas or polars.
            y: (N,) labels.
            client: (N,) the client of each sample, or the name of a column of ``X``, which is then
                no feature. Without it, all samples belong to one client.
            group: (N,) the group of each sample, or the name of a column of ``X``, which is then no
                feature. To keep a column as a feature, pass its values.
        """
        labels = {"client": client, "group": group}
        taken = {name: value if isinstance(value, str) else None for name, value in labels.items()}
        owners, groups = (labels_of(name, X, value) for name, value in labels.items())
        X = without(X, taken.values())
        X, y = validated(self, X, y=y, y_numeric=self._numeric)
        if owners is None:
            owners = np.full(len(X), EVERYONE)
        self.client_column_, self.group_column_ = taken["client"], taken["group"]
        self.clients_, codes = coded(owners)
        order = np.argsort(codes, kind="stable")
        offsets = np.searchsorted(codes[order], np.arange(len(self.clients_) + 1))
        target, outputs = self._target(y, order, offsets)
        self._measure(X[order], offsets)
        seed = self._seed()
        require_number("validation", self.validation, "[0, 1)", "a share of each client's samples")
        network = network_of(self.module, X.shape[1], outputs, seed)
        algorithm = self._chosen("algorithm")
        require_kind("algorithm", algorithm, Algorithm, "AFL()")
        clients = clients_of(self.clients_, order, offsets, self._scaled(X), target, groups)
        federation = dataclasses.replace(
            Federation.from_arrays(clients),
            label_names=tuple(map(str, getattr(self, "classes_", ()))),
        ).with_validation(self.validation, seed)
        self.result_ = fit(network, federation, algorithm, settings=self._settings(seed))
        self.module_ = filled(network, self.result_.params)
        before = network.state_dict()
        self._shares = self.result_.personal is None or any(
            not torch.equal(value, before[name].cpu())
            for name, value in self.result_.params.items()
        )
        self.n_iter_ = self.rounds
        return self

    def _seed(self) -> int:
        given = self.random_state
        if isinstance(given, Integral):
            require_whole("random_state", given, 0)
            return int(given)
        return int(check_random_state(given).randint(2**31 - 1))

    def _settings(self, seed: int) -> Settings:
        return Settings(
            loss=self._loss if self.loss is None else self.loss,
            rounds=self.rounds,
            local=self._chosen("local"),
            cohort=self._chosen("cohort"),
            seed=seed,
            engine=self.engine,
            weights=self.weights,
            device=self.device,
        )

    def _measure(self, X: Floats, offsets: Ints) -> None:
        """Set the means and standard deviations that features are scaled by."""
        given, columns = self.standardise, X.shape[1]
        require(isinstance(given, bool), "standardise must be True or False, got {!r}", given)
        self.feature_mean_, self.feature_std_ = np.zeros(columns), np.ones(columns)
        if given:
            names = [
                f"feature {name}" for name in getattr(self, "feature_names_in_", range(columns))
            ]
            self.feature_mean_, self.feature_std_ = Scale.of(X, offsets, names)

    def _scaled(self, X: Floats) -> Floats:
        return np.asarray((X - self.feature_mean_) / self.feature_std_)

    # ---- predictions

    def _outputs(self, X: Any, client: Any) -> Floats:
        """(N, outputs) of the model that serves each sample."""
        check_is_fitted(self, "result_")
        owners = self._owners(X, client)
        features = getattr(self, "feature_names_in_", ())
        taken = (self.client_column_, self.group_column_, client)
        X = without(X, [name for name in taken if isinstance(name, str) and name not in features])
        X = validated(self, X, reset=False)
        personal = self.result_.personal
        if personal is None or owners is None:
            require(
                self._shares,
                "{} trains no shared model: pass client=, one label per sample",
                type(self.result_.algorithm).__name__,
            )
            params, codes = [self.result_.params], np.zeros(len(X), np.int64)
        else:
            params, codes = personal, codes_of(owners, self.clients_)
            if (codes < 0).any():
                strange = owners[codes < 0][0]
                shared = "; predict without client to use the shared model" if self._shares else ""
                raise ValueError(
                    f"client {brief(strange)} was not in the training data, so it has no model of"
                    f" its own{shared}"
                )
        owned = [(params[code], np.flatnonzero(codes == code)) for code in np.unique(codes)]
        found = outputs(self.module_, owned, torch.from_numpy(self._scaled(X)))
        return found.reshape(len(X), -1).double().numpy()

    def _owners(self, X: Any, client: Any) -> Labels | None:
        """The client of each sample, if it is given or in its column of ``X``."""
        if client is None and self.client_column_ is not None:
            frame = frame_of(X)
            if frame is not None and self.client_column_ in frame.columns:
                client = self.client_column_
        return labels_of("client", X, client)

    # ---- scores

    @abstractmethod
    def predict(self, X: Any, client: Any = None) -> NDArray[Any]:
        """Predict the label of each sample."""

    @abstractmethod
    def _measures(self, y: NDArray[Any], predicted: NDArray[Any]) -> Mapping[str, float]:
        """The columns of a table of scores, for one client or group."""

    def score_by_client(self, X: Any, y: Any, client: Any = None) -> Any:
        """Return a table with a row per client: number of samples and scores.

        It is a table of the library that ``X`` is from, of pandas for an array. ``client`` may be
        left out if ``X`` has the column of clients that ``fit`` was told.
        """
        check_is_fitted(self, "result_")
        owners = self._owners(X, client)
        return self._scores_by("client", X, y, owners, client)

    def score_by_group(self, X: Any, y: Any, group: Any = None, client: Any = None) -> Any:
        """Return a table with a row per group; see :meth:`score_by_client`.

        ``client`` is for methods that give each client a model of its own.
        """
        check_is_fitted(self, "result_")
        frame = frame_of(X)
        if group is None and frame is not None and self.group_column_ in frame.columns:
            group = self.group_column_
        return self._scores_by("group", X, y, labels_of("group", X, group), client)

    def _scores_by(self, what: str, X: Any, y: Any, labels: Labels | None, client: Any) -> Any:
        require(labels is not None, "pass {}=, one label per sample", what)
        assert labels is not None
        names, codes = coded(labels)
        predicted = self.predict(X, client=client)
        truth = column_or_1d(np.asarray(y))
        require(len(truth) == len(codes), "y has {} labels for {} samples", len(truth), len(codes))
        chosen = [codes == code for code in range(len(names))]
        rows = [self._measures(truth[one], predicted[one]) for one in chosen]
        counts = {what: names.tolist(), "samples": [int(one.sum()) for one in chosen]}
        return table_like(X, counts | {name: [row[name] for row in rows] for name in rows[0]})
