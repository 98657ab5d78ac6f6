"""Scorers that look at the worst-served clients or groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.metrics import accuracy_score, mean_squared_error
from sklearn.utils.metadata_routing import MetadataRequest, get_routing_for_object

from evenhand.errors import require_choice
from evenhand.metrics.scores import summary
from evenhand.sklearn.inputs import coded, labels_of

Metric = Callable[[NDArray[Any], NDArray[Any]], float]
# how values of clients become one score, and its sign: a scorer's larger values are better
OVER = {"mean": 1, "worst10": 1, "worst": 1, "best10": 1, "std": -1}


def scorer(over: str = "worst10", metric: Metric | None = None, by: str = "client") -> Scorer:
    """Return a scorer for ``GridSearchCV`` and the like that compares clients or groups.

    It needs ``sklearn.set_config(enable_metadata_routing=True)``, and ``client=`` (or ``group=``)
    among the metadata. It asks for them by itself.

    Args:
        over: "worst10" (mean of the worst tenth of the clients, at least one), "worst", "mean" (in
            which every client counts the same), "best10", or "std" (negative, so that larger is
            better).
        metric: a function ``(y_true, y_pred)`` of one client's samples, where larger is better; by
            default the accuracy, or for regression the negative mean squared error.
        by: "client" or "group".
    """
    return Scorer(over, metric, by)


class Scorer:
    """A summary of one metric over clients or groups; see :func:`scorer`."""

    def __init__(self, over: str, metric: Metric | None, by: str) -> None:
        require_choice("over", over, tuple(OVER))
        require_choice("by", by, ("client", "group"))
        if metric is not None and not callable(metric):
            raise TypeError(f"metric must be a function (y_true, y_pred), got {metric!r}")
        self.over, self.metric, self.by = over, metric, by
        self._request = MetadataRequest(owner=repr(self))
        # the client also says whose model predicts
        self.set_score_request(**dict.fromkeys({by, "client"}, True))

    def set_score_request(self, **requests: bool | str | None) -> Self:
        """Ask for metadata under another name, such as ``client="site"``."""
        for param, alias in requests.items():
            self._request.score.add_request(param=param, alias=alias)
        return self

    def get_metadata_routing(self) -> MetadataRequest:
        """Return what scikit-learn should pass on."""
        return self._request

    def __call__(
        self, estimator: Any, X: Any, y: Any, *, client: Any = None, group: Any = None
    ) -> float:
        """Return the score of a fitted estimator."""
        labels = labels_of(self.by, X, {"client": client, "group": group}[self.by])
        if labels is None:
            raise ValueError(
                f"{self!r} got no {self.by}: call sklearn.set_config(enable_metadata_routing=True)"
                f" and pass {self.by}= to fit, or in params="
            )
        routing = get_routing_for_object(estimator)
        own = client is not None and bool(routing.consumes("predict", ["client"]))
        predicted = estimator.predict(X, client=client) if own else estimator.predict(X)
        names, codes = coded(labels)
        metric = self.metric or (accuracy_score if is_classifier(estimator) else _negative_mse)
        truth = np.asarray(y)
        chosen = [codes == code for code in range(len(names))]
        values = [float(metric(truth[one], predicted[one])) for one in chosen]
        return OVER[self.over] * summary(values)[self.over]

    def __repr__(self) -> str:
        metric = "" if self.metric is None else f", metric={self.metric!r}"
        by = "" if self.by == "client" else f", by={self.by!r}"
        return f"scorer({self.over!r}{metric}{by})"


def _negative_mse(y_true: NDArray[Any], y_pred: NDArray[Any]) -> float:
    return -float(mean_squared_error(y_true, y_pred))
