"""The classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from evenhand import losses
from evenhand.sklearn.base import FairEstimator
from evenhand.sklearn.inputs import Floats, Ints

MARGINS = ("hinge", "hinge_sum")  # losses whose scores are no probabilities


def _has_probabilities(estimator: FairClassifier) -> bool:
    return not (isinstance(estimator.loss, str) and estimator.loss in MARGINS)


class FairClassifier(ClassifierMixin, FairEstimator):  # type: ignore[misc]
    """Train a classifier fairly over clients, as a scikit-learn estimator.

    The clients are simulated on this machine, as :func:`evenhand.fit` does.

    Args:
        algorithm: the method, such as ``AFL()``; None for ``FedAvg()``. Its hyper-parameters are
            parameters too: ``algorithm__q``, or ``algorithm__inner__q`` for a wrapped method.
        rounds: number of communication rounds.
        module: the network: "linear" (or None), "mlp", a ``torch.nn.Module`` that training starts
            from, or a function ``(n_features, n_outputs) -> Module``. Named networks compute in
            float64.
        local: the local solver; by default SGD with lr 0.1, one epoch, batches of 32. Its settings
            are parameters too, such as ``local__lr``.
        cohort: how the clients of a round are chosen; by default all of them.
        loss: a loss of :class:`evenhand.Settings`; None for "cross_entropy", or "mse" for
            regression.
        weights: base weights of the clients: "data" or "uniform".
        standardise: scale features, and the target of a regression, to mean 0 and standard
            deviation 1, which are computed from sums over clients.
        validation: share of each client's samples to hold out from training, for methods and
            thresholds that need validation data.
        random_state: of initial parameters, cohorts and batches; None draws a new one in each fit.
        engine: "auto", "loop", "vmap", or an engine object.
        device: where to train, such as "cuda".

    Attributes:
        result_: the :class:`evenhand.Result` of the training.
        module_: the trained shared network.
        classes_: the classes.
        clients_: the clients, in the order of ``result_``.
        client_column_: the column of X that held the clients, or None.
        group_column_: the column of X that held the groups, or None.
        feature_mean_: of the features over all clients; zeros without ``standardise``.
        feature_std_: their standard deviations; ones without ``standardise``.
        n_features_in_: number of features.
        feature_names_in_: names of the features, if X is a table with text names.
        n_iter_: number of rounds.
    """

    __metadata_request__predict_proba: ClassVar = {"client": True}
    __metadata_request__decision_function: ClassVar = {"client": True}

    _loss = "cross_entropy"
    _numeric = False

    def _target(self, y: NDArray[Any], order: Ints, offsets: Ints) -> tuple[NDArray[Any], int]:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise ValueError(f"y has one class only, {only!r}; a classifier needs two or more")
        loss = losses.unwrapped(losses.resolve(self._loss if self.loss is None else self.loss))
        others = {losses.ordinal: "ordered levels", **dict.fromkeys(losses.REGRESSING, "numbers")}
        if loss in others:
            raise ValueError(
                f"loss {loss.__name__!r} predicts {others[loss]}, and FairClassifier classes; use"
                " another, such as 'cross_entropy'"
            )
        two = len(self.classes_) == 2
        return codes, 1 if two and loss is losses.bce else len(self.classes_)

    def decision_function(self, X: Any, client: Any = None) -> Floats:
        """Return scores: (N, classes), or with two classes (N,), positive for the second class.

        Args:
            X: the samples.
            client: (N,) the client of each sample, for methods that give each client its own model.
        """
        output = self._outputs(X, client)[:, : len(self.classes_)]
        if len(self.classes_) > 2:
            return output
        return output[:, 0] if output.shape[1] == 1 else output[:, 1] - output[:, 0]

    def predict(self, X: Any, client: Any = None) -> NDArray[Any]:
        """Return (N,) the predicted class of each sample.

        Args:
            X: the samples.
            client: (N,) the client of each sample, for methods that give each client its own model.
                Without it, the shared model predicts.
        """
        score = self.decision_function(X, client)
        codes = score.argmax(1) if score.ndim == 2 else (score > 0).astype(np.int64)
        return np.asarray(self.classes_[codes])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, client: Any = None) -> Floats:
        """Return (N, classes) probabilities; not with hinge losses. See :meth:`predict`."""
        score = self.decision_function(X, client)
        if score.ndim == 2:
            return np.asarray(softmax(score, axis=1))
        return np.stack([expit(-score), expit(score)], axis=1)

    def score(self, X: Any, y: Any, sample_weight: Any = None, client: Any = None) -> float:
        """Return the accuracy over all samples."""
        found = accuracy_score(y, self.predict(X, client=client), sample_weight=sample_weight)
        return float(found)

    def _measures(self, y: NDArray[Any], predicted: NDArray[Any]) -> Mapping[str, float]:
        return {"accuracy": float(accuracy_score(y, predicted))}
