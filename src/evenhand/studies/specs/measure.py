"""What methods are compared by, and how it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evenhand.metrics import spread

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """What methods are compared by, and how it is written. A *merit* is larger where a model is
    better."""

    name: str
    unit: str
    scale: float  # of a merit, as it is written
    digits: int
    percent: str
    gain: str  # title of a table of gains
    words: tuple[str, str, str]  # of what, better, worse
    column: str = "accuracy"  # of the scores
    part: str = "test"  # of the data that it was taken on
    squared: bool = False  # whether the column holds means of squares, whose root is written

    @property
    def has_sample_intervals(self) -> bool:
        """Whether numbers across clients have intervals over samples: the model behind them is one
        of right predictions or of squared errors."""
        return self.column == "accuracy" or self.squared

    def merit(self, values: Floats) -> Floats:
        """Merits from a column of the scores."""
        if self.column == "accuracy":
            return values
        return -np.sqrt(values) if self.squared else -values

    def pooled(self, merits: Floats, counts: Floats) -> Floats:
        """(...) the merit of all samples together, from (..., n) merits of clients."""
        if not self.squared:
            return spread.pooled(merits, counts)
        return np.asarray(-np.sqrt(spread.pooled(merits**2, counts)))

    def show(self, merit: float) -> str:
        """A merit as it is written: errors are merits with a minus."""
        return "-" if math.isnan(merit) else f"{abs(self.scale * merit):.{self.digits}f}"

    @property
    def points(self) -> str:
        """What differences are called: points of accuracy, or nothing where the label's unit is not
        known."""
        return "points" if self.percent else ""


ACCURACY = Measure(
    "accuracy",
    ", %",
    100.0,
    1,
    " %",
    "Gain or loss of each {} against FedAvg, points of accuracy",
    ("accuracy", "lifts", "lowers"),
)


def error_measure(scale: float) -> Measure:
    """The root of the mean squared error, in units of the label: ``scale`` of them are 1 in the
    model's output."""
    digits = max(0, 3 - math.floor(math.log10(scale))) if scale < 1000 else 0
    title = "Decrease (+) or increase (-) of each {}'s error against FedAvg"
    return Measure(
        "error (RMSE)",
        "",
        scale,
        digits,
        "",
        title,
        ("error", "lowers", "raises"),
        column="loss",
        squared=True,
    )


LOSS = Measure(
    "loss",
    "",
    1.0,
    3,
    "",
    "Decrease (+) or increase (-) of each {}'s loss against FedAvg",
    ("loss", "lowers", "raises"),
    column="loss",
)


def measure_of(
    loss: str, label_scale: float, tested: bool, classifies: bool | None = None
) -> Measure:
    """What a run with this loss is judged by: accuracy, or the error of a regression; on test data,
    or else on those trained with.

    ``classifies``: of a user's own loss, whether outputs are scores of classes; where they are not,
    the loss itself is all there is to judge by.
    """
    if classifies is False:
        measure = LOSS
    else:
        measure = ACCURACY if loss != "mse" else error_measure(label_scale)
    return measure if tested else replace(measure, part="training")
