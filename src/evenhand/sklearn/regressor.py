"""The regressor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from evenhand.errors import require
from evenhand.sklearn.base import FairEstimator
from evenhand.sklearn.inputs import Floats, Ints, Scale


class FairRegressor(RegressorMixin, FairEstimator):  # type: ignore[misc]
    """Train a regression fairly over clients, as a scikit-learn estimator.

    Parameters and attributes are those of :class:`FairClassifier`, with ``target_mean_`` and
    ``target_std_`` instead of ``classes_``. Losses inside the training, and in ``result_``, are
    those of the scaled target; predictions have the target's own unit.
    """

    _loss = "mse"
    _numeric = True

    def _target(self, y: NDArray[Any], order: Ints, offsets: Ints) -> tuple[NDArray[Any], int]:
        values = np.asarray(y, np.float64)
        self.target_mean_, self.target_std_ = 0.0, 1.0
        if self.standardise:
            scale = Scale.of(values[order, None], offsets, ["y"])
            self.target_mean_, self.target_std_ = float(scale.mean[0]), float(scale.std[0])
        return (values - self.target_mean_) / self.target_std_, 1

    def predict(self, X: Any, client: Any = None) -> Floats:
        """Return (N,) the prediction of each sample, in the target's unit.

        Args:
            X: the samples.
            client: (N,) the client of each sample, for methods that give each client its own model.
                Without it, the shared model predicts.
        """
        output = self._outputs(X, client)
        require(
            output.shape[1] == 1,
            "a regression needs a module with one output, this one has {}",
            output.shape[1],
        )
        return np.asarray(output[:, 0] * self.target_std_ + self.target_mean_)

    def score(self, X: Any, y: Any, sample_weight: Any = None, client: Any = None) -> float:
        """Return R squared over all samples."""
        found = r2_score(y, self.predict(X, client=client), sample_weight=sample_weight)
        return float(found)

    def _measures(self, y: NDArray[Any], predicted: NDArray[Any]) -> Mapping[str, float]:
        return {
            "mse": float(mean_squared_error(y, predicted)),
            "mae": float(mean_absolute_error(y, predicted)),
        }
