"""Metrics of a user or of a task: sums over samples, so that clients and groups add."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from evenhand.errors import require_choice

# (output, y) -> the values of B samples, or their numerators and denominators
MetricFunction = Callable[[Tensor, Tensor], "Tensor | tuple[Tensor, Tensor]"]

BETTER = ("higher", "lower")
# what a name in the history ends with for the mean over the worst 10 % of clients
WORST = "_worst10"
# columns of scores and history, and kinds of measures; a method may add others to the history
TAKEN = frozenset(
    (
        *("by", "name", "team", "train_count", "count", "accuracy", "loss", "balanced_accuracy"),
        *("precision", "recall", "specificity", "auc", "brier", "calibration_error", "rmse"),
        *("mae", "error", "shared_accuracy", "shared_loss", "round", "lr", "asked", "answered"),
        *("left_out", "void", "scores_after", "mean", "worst10", "best10", "worst", "std"),
        *(
            "worst_group",
            "selection_gap",
            "tpr_gap",
            "fpr_gap",
            "method",
            "seed",
            "client",
            "group",
            "samples",
            "statistic",
            "label",
        ),
        *("value", "prediction", "score", "guess", "correct", "best", "better", "mse"),
    )
)


@dataclass(frozen=True)
class Metric:
    """A number of a model's outputs: a sum over samples divided by another sum, so that clients and
    groups add.

    Args:
        function: takes the outputs and labels of B samples and returns (B,) values, whose mean is
            the metric; or numerators and denominators, each (B,) or (B, L), whose sums are divided.
            With L entries, such as labels or classes, the metric is the mean over the entries whose
            summed denominator is not 0. What it returns for a sample must not depend on the others.
        better: whether "higher" or "lower" values are better.
    """

    function: MetricFunction
    better: str = "higher"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                "a metric needs a function (output, y) -> (B,) values, got"
                f" {type(self.function).__name__}"
            )
        require_choice("better", self.better, BETTER)


def named_metrics(given: Mapping[str, Metric | MetricFunction] | None) -> dict[str, Metric]:
    """Return metrics by name, with functions as metrics; raise if a name cannot be a column."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            'metrics must be functions by name, such as metrics={"top5": top5}, got'
            f" {type(given).__name__}"
        )
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"{name!r} cannot be the name of a metric; use letters, digits and _, such as top5"
            )
        if name in TAKEN or (name.endswith(WORST) and name.removesuffix(WORST) in given):
            raise ValueError(f"metric {name!r} has the name of another column; rename it")
    for name, value in given.items():
        if not isinstance(value, Metric) and not callable(value):
            raise TypeError(
                f"metric {name!r} must be a function (output, y) -> (B,) values, or an"
                f" evenhand.Metric, got {type(value).__name__}"
            )
    return {
        name: value if isinstance(value, Metric) else Metric(value) for name, value in given.items()
    }
