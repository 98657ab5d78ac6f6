"""The measure that methods are compared by, and how it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evenhand.errors import SpecError, require_known
from evenhand.metrics import spread

Floats = NDArray[np.float64]

CLASSIFIED = ("accuracy", "balanced_accuracy", "recall", "specificity", "precision", "auc", "loss")
REGRESSED = ("error", "mae")
OTHERS = ("accuracy", "loss")  # of models that predict levels, or several labels per sample
MEASURES = (*CLASSIFIED, *REGRESSED)
METRIC, HIGHER = "metric", "higher:"  # a metric of the user or the task; how the keys of some begin


@dataclass(frozen=True)
class Measure:
    """The measure that methods are compared by, and how it is written. A *merit* is larger for a
    better model."""

    kind: str  # one of MEASURES, or METRIC
    name: str
    unit: str
    scale: float  # from a merit to the written value
    digits: int
    percent: str
    words: tuple[str, str, str]  # noun, verb for better, verb for worse
    column: str = "accuracy"  # of the scores
    part: str = "test"  # the split it is computed on
    squared: bool = False  # whether the column holds mean squares, written as their root
    positive: int | None = None  # the positive class of recall, specificity and precision
    whole: bool = True  # whether samples are right or wrong; False for shares of their labels
    offered: tuple[str, ...] = CLASSIFIED  # the measures that these runs have
    key: str = ""  # of a metric in tallies and outcomes
    share: bool = False  # whether the values of a metric are shares, from 0 to 1
    sampled: bool = False  # whether numerators and denominators of a metric's samples are known

    @property
    def has_sample_intervals(self) -> bool:
        """Whether metrics across clients have intervals over samples, which are for shares, squared
        errors and metrics."""
        return bool(self.percent) or self.squared or self.sampled

    @property
    def higher(self) -> bool:
        """Whether larger values are better."""
        return bool(self.percent) or self.key.startswith(HIGHER)

    @property
    def bounded(self) -> bool:
        """Whether a merit is a share, or minus one."""
        return bool(self.percent) or self.share

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest possible merit."""
        if self.key and not self.share:
            return -math.inf, math.inf
        if self.higher:
            return 0.0, 1.0
        return (-1.0 if self.share else -math.inf), 0.0

    @property
    def of_shares(self) -> bool:
        """Whether a client's merit is the share of (some of) its samples predicted correctly."""
        return (self.kind == "accuracy" and self.whole) or self.of_one_class

    @property
    def of_one_class(self) -> bool:
        """Whether it is a share of the samples with, or without, one label."""
        return self.kind in ("recall", "specificity") and self.positive is not None

    @property
    def gain(self) -> str:
        """The title of a table of gains; plus is better."""
        if self.percent:
            return f"Gain (+) or loss (-) of each {{}} compared with FedAvg, points of {self.name}"
        return (
            f"Gain (+) or loss (-) of each {{}} compared with FedAvg: how much smaller its"
            f" {self.name} is{self.unit}"
        )

    def merit(self, values: Floats) -> Floats:
        """Merits from a column of the scores."""
        if self.higher:
            return values
        return -np.sqrt(values) if self.squared else -values

    def pooled(self, merits: Floats, counts: Floats) -> Floats:
        """(...) the merit of all samples together, from (..., n) merits of clients."""
        if not self.squared:
            return spread.pooled(merits, counts)
        return np.asarray(-np.sqrt(spread.pooled(merits**2, counts)))

    def show(self, merit: float) -> str:
        """A merit as text; an error is a merit with a minus."""
        return "-" if math.isnan(merit) else f"{abs(self.scale * merit):.{self.digits}f}"

    @property
    def points(self) -> str:
        """The unit of differences: points for shares, else nothing."""
        return "points" if self.percent else ""


def _share(kind: str, column: str = "") -> Measure:
    name = {"auc": "AUC"}.get(kind, kind.replace("_", " "))
    words = (name, "raises", "lowers")
    return Measure(kind, name, ", %", 100.0, 1, " %", words, column or kind)


ACCURACY = _share("accuracy")


def error_measure(scale: float, label: str = "") -> Measure:
    """The root mean squared error in units of the label; ``scale``: what 1 in the model's output is
    in these units."""
    words = ("error", "lowers", "raises")
    unit, digits = f", in units of {label}" if label else "", _digits(scale)
    return Measure(
        *("error", "error (RMSE)", unit, scale, digits, "", words, "loss"),
        squared=True,
        offered=REGRESSED,
    )


def _digits(scale: float) -> int:
    return max(0, 3 - math.floor(math.log10(scale))) if scale < 1000 else 0


LOSS = Measure(
    *("loss", "loss", "", 1.0, 3, "", ("loss", "lowers", "raises"), "loss"), offered=("loss",)
)


# by named loss of numbers, the column of scores with mean squared errors
SQUARES = {"mse": "loss", "huber": "mse"}


def metric_measure(name: str, key: str, part: str, share: bool, sampled: bool) -> Measure:
    """A metric of the user or the task, whose sums are ``key`` in tallies."""
    words = (name, "raises", "lowers") if key.startswith(HIGHER) else (name, "lowers", "raises")
    return Measure(
        METRIC, name, "", 1.0, 3, "", words, name, part, key=key, share=share, sampled=sampled
    )


def measure_of(
    loss: str,
    label_scale: float,
    tested: bool,
    kind: str | None = None,
    label: str = "",
) -> Measure:
    """The default measure of a run with this loss: accuracy, or the error of a regression; on test
    data if there are any, else on training data.

    ``kind``: what models predict, see :mod:`evenhand.targets`; None if it is unknown. For numbers
    with a user's own loss, the measure is the loss itself. ``label``: what a regression predicts.
    """
    if loss in SQUARES:
        measure = replace(error_measure(label_scale, label), column=SQUARES[loss])
    elif kind == "number":
        measure = LOSS
    else:
        shares = kind in ("labels", "positions")
        offered = CLASSIFIED if kind in ("class", None) else OTHERS
        measure = replace(ACCURACY, whole=not shares, offered=offered)
    return measure if tested else replace(measure, part="training")


def chosen_measure(
    default: Measure, kind: str, labels: tuple[str, ...], positive: str | None = None
) -> Measure:
    """The measure that the user chose; raises if these runs do not have it.

    ``labels``: of the classes; ``positive``: the positive one, by default the second of two. With
    more classes, recall and precision are means over the classes (macro).
    """
    if kind not in MEASURES:
        raise SpecError(f"there is no measure {kind!r}; choose one of {', '.join(MEASURES)}")
    if kind not in default.offered:
        offered = ", ".join(default.offered)
        raise SpecError(f"these runs have no measure {kind!r}; choose one of {offered}")
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
        raise SpecError(f"auc needs two classes, not {len(labels)}; use balanced_accuracy")
    found = replace(_share(kind), part=default.part)
    if kind not in ("recall", "specificity", "precision"):
        return found
    if positive is not None:
        require_known("positive label", positive, labels)
    code = labels.index(positive) if positive is not None else 1 if len(labels) == 2 else None
    if code is None:
        if kind == "specificity":
            raise SpecError("specificity needs a positive class; name it with --positive")
        return replace(found, name=f"mean {found.name} over classes")
    name = f"{found.name} of {labels[code]}"
    return replace(found, name=name, words=(name, *found.words[1:]), positive=code)
