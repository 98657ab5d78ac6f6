"""What methods are compared by, and how it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import SpecError
from evenhand.metrics import spread

Floats = NDArray[np.float64]

CLASSIFIED = ("accuracy", "balanced_accuracy", "recall", "specificity", "precision", "auc", "loss")
REGRESSED = ("error", "mae")
MEASURES = (*CLASSIFIED, *REGRESSED)


@dataclass(frozen=True)
class Measure:
    """What methods are compared by, and how it is written. A *merit* is larger where a model is
    better."""

    kind: str  # one of MEASURES
    name: str
    unit: str
    scale: float  # of a merit, as it is written
    digits: int
    percent: str
    words: tuple[str, str, str]  # of what, better, worse
    column: str = "accuracy"  # of the scores
    part: str = "test"  # of the data that it was taken on
    squared: bool = False  # whether the column holds means of squares, whose root is written
    positive: int | None = None  # the class that recall, specificity and precision are about

    @property
    def has_sample_intervals(self) -> bool:
        """Whether numbers across clients have intervals over samples: the model behind them is one
        of shares or of squared errors."""
        return bool(self.percent) or self.squared

    @property
    def of_shares(self) -> bool:
        """Whether a client's merit is the share of some of its samples that are judged rightly."""
        return self.kind == "accuracy" or self.of_one_class

    @property
    def of_one_class(self) -> bool:
        """Whether it is a share of the samples that have, or do not have, one label."""
        return self.kind in ("recall", "specificity") and self.positive is not None

    @property
    def gain(self) -> str:
        """The title of a table of gains; plus is better."""
        if self.percent:
            return f"Gain (+) or loss (-) of each {{}} against FedAvg, points of {self.name}"
        return (
            f"Gain (+) or loss (-) of each {{}} against FedAvg: how much smaller its {self.name} is"
            f"{self.unit}"
        )

    def merit(self, values: Floats) -> Floats:
        """Merits from a column of the scores."""
        if self.percent:
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


def _share(kind: str, column: str = "") -> Measure:
    name = {"auc": "AUC"}.get(kind, kind.replace("_", " "))
    words = (name, "lifts", "lowers")
    return Measure(kind, name, ", %", 100.0, 1, " %", words, column or kind)


ACCURACY = _share("accuracy")


def error_measure(scale: float, label: str = "") -> Measure:
    """The root of the mean squared error, in units of the label: ``scale`` of them are 1 in the
    model's output."""
    words = ("error", "lowers", "raises")
    unit, digits = f", in units of {label}" if label else "", _digits(scale)
    return Measure("error", "error (RMSE)", unit, scale, digits, "", words, "loss", squared=True)


def _digits(scale: float) -> int:
    return max(0, 3 - math.floor(math.log10(scale))) if scale < 1000 else 0


LOSS = Measure("loss", "loss", "", 1.0, 3, "", ("loss", "lowers", "raises"), "loss")


def measure_of(
    loss: str,
    label_scale: float,
    tested: bool,
    classifies: bool | None = None,
    label: str = "",
) -> Measure:
    """What a run with this loss is judged by: accuracy, or the error of a regression; on test data,
    or else on those trained with.

    ``classifies``: of a user's own loss, whether outputs are scores of classes; where they are not,
    the loss itself is all there is to judge by. ``label``: what a regression predicts.
    """
    if classifies is False:
        measure = LOSS
    else:
        measure = ACCURACY if loss != "mse" else error_measure(label_scale, label)
    return measure if tested else replace(measure, part="training")


def chosen_measure(
    default: Measure, kind: str, labels: tuple[str, ...], positive: str | None = None
) -> Measure:
    """The measure a person asked for; raises where these runs cannot be judged by it.

    ``labels``: of the classes; ``positive``: the one that rates are about, by default the last of
    two. Of more classes, recall and precision are means over the classes (macro).
    """
    if kind not in MEASURES:
        raise SpecError(f"there is no measure {kind!r}; choose one of {', '.join(MEASURES)}")
    offered = REGRESSED if default.squared else ("loss",) if default.kind == "loss" else CLASSIFIED
    if kind not in offered:
        raise SpecError(
            f"these runs cannot be judged by {kind}; choose one of {', '.join(offered)}"
        )
    if kind == default.kind:
        return default
    if kind == "mae":
        words = ("absolute error", "lowers", "raises")
        found = replace(
            default, kind=kind, name="mean absolute error", words=words, column="mae", squared=False
        )
        return found
    if kind == "loss":
        return replace(LOSS, part=default.part)
    if kind == "auc" and len(labels) != 2:
        raise SpecError(
            f"auc is for two classes, and there are {len(labels)}; use balanced_accuracy"
        )
    found = replace(_share(kind), part=default.part)
    if kind not in ("recall", "specificity", "precision"):
        return found
    code = labels.index(positive) if positive is not None else 1 if len(labels) == 2 else None
    if code is None:
        if kind == "specificity":
            raise SpecError("specificity is about one class; name it with --positive")
        return replace(found, name=f"mean {found.name} over classes")
    name = f"{found.name} of {labels[code]}"
    return replace(found, name=name, words=(name, *found.words[1:]), positive=code)
