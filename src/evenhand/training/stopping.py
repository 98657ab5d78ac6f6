"""Early stopping: end a run when a metric on validation data no longer improves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evenhand.errors import (
    require_choice,
    require_kind,
    require_known,
    require_number,
    require_whole,
)
from evenhand.metrics.metric import WORST
from evenhand.metrics.round_gaps import GAPS
from evenhand.training.callbacks import Callback, Moment, RunInfo

MODES = ("auto", "max", "min")
SMALLER = ("loss", "std", *GAPS)  # metrics of which smaller is better
METRICS = ("mean", "worst10", "best10", "worst", "worst_group", *SMALLER)
COLUMN = "val_{}"  # of the history


class Progress(NamedTuple):
    """What a row of evaluations says."""

    best: float  # NaN before the first number
    improved: bool  # whether the last evaluation is the best
    waited: int  # evaluations without improvement since the best, or since patience ended


def progress_of(values: Sequence[float], sign: int, patience: int, min_delta: float) -> Progress:
    """Return how far a metric has come.

    >>> progress_of([0.5, 0.7, 0.6, 0.7], sign=1, patience=5, min_delta=0.0)
    Progress(best=0.7, improved=False, waited=2)

    Args:
        values: one number for each evaluation; NaN is no improvement.
        sign: 1 if larger is better, else -1.
        patience, min_delta: see ``EarlyStopping``.
    """
    best, improved, waited = math.nan, False, 0
    for value in values:
        if waited == patience:  # the run was stopped here, and then given more rounds
            waited = 0
        improved = not math.isnan(value) and (math.isnan(best) or sign * (value - best) > min_delta)
        best, waited = (value, 0) if improved else (best, waited + 1)
    return Progress(best, improved, waited)


@dataclass(frozen=True)
class EarlyStopping(Callback):
    """Stop when a metric on validation data has not improved for some evaluations.

    The clients' models are evaluated on their validation data whenever the history is evaluated
    (``eval_every``), and the history gets these numbers as ``val_worst10`` and so on.

    Args:
        metric: what to watch: "mean", "worst10", "best10", "worst", "std" (accuracy over clients),
            "loss", "worst_group", "selection_gap", "tpr_gap" or "fpr_gap" (gaps between groups), or
            one of the run's other metrics, such as "top5" or "top5_worst10".
        patience: evaluations without improvement after which training stops.
        min_delta: the least change that counts as an improvement.
        mode: whether "max" or "min" is better; "auto" knows it for every metric.
        restore_best: return the model of the best evaluation, not the last one. The server's state
            and the clients' memories of that round are kept on the CPU.
    """

    metric: str = "worst10"
    patience: int = 5
    min_delta: float = 0.0
    mode: str = "auto"
    restore_best: bool = True

    def __post_init__(self) -> None:
        require_kind("metric", self.metric, str, '"worst10"')
        require_whole("patience", self.patience, 1)
        require_number("min_delta", self.min_delta, "[0, inf)")
        require_choice("mode", self.mode, MODES)
        if not isinstance(self.restore_best, bool):
            raise ValueError(f"restore_best must be True or False, got {self.restore_best!r}")

    def sign(self, run: RunInfo) -> int:
        """1 if a larger metric is better, else -1."""
        if self.mode != "auto":
            return -1 if self.mode == "min" else 1
        own = run.better.get(self.metric.removesuffix(WORST))
        return -1 if self.metric in SMALLER or own == "lower" else 1

    def check(self, run: RunInfo) -> None:
        federation = run.federation
        if not federation.has("val"):
            raise ValueError(
                "EarlyStopping needs validation data, and these clients have none; set some aside"
                " with federation.with_validation(0.2), or with validation = 0.2 in a spec"
            )
        own = [name for metric in run.better for name in (metric, metric + WORST)]
        require_known("metric", self.metric, (*METRICS, *own))
        columns = [COLUMN.format(name) for name in (*METRICS, *own)]
        taken = next((name for name in own if name in columns), None)
        if taken is not None:
            raise ValueError(
                f"EarlyStopping writes a column {taken!r} to the history; rename that metric"
            )
        if self.metric not in ("loss", *own) and not run.classifies:
            raise ValueError(
                f'EarlyStopping("{self.metric}") needs a classifier; use EarlyStopping("loss")'
            )
        if self.metric in GAPS and run.classes != 2:
            raise ValueError(
                f'EarlyStopping("{self.metric}") needs a classifier of two classes; watch'
                ' "worst_group"'
            )
        if self.metric in ("worst_group", *GAPS) and federation.groups < 2:
            raise ValueError(
                f'EarlyStopping("{self.metric}") needs at least two groups; watch "worst10", the'
                " tenth of the clients with the lowest accuracy"
            )
        if self.restore_best and not run.keeps:
            raise ValueError(
                f"restore_best=True cannot restore what clients of {run.label} remember, because"
                " they do not send it; use restore_best=False"
            )

    def on_round_end(self, moment: Moment) -> None:
        if not moment.evaluated:
            return
        numbers = moment.scores("val")
        column = COLUMN.format(self.metric)
        if self.metric not in numbers:  # nobody has answered, or a group has no such samples now
            known = any(column in row for row in moment.history)
            if not known and not math.isnan(numbers["loss"]):
                raise ValueError(
                    f'"{self.metric}" is not known for this run; watch {", ".join(numbers)}'
                )
            numbers[self.metric] = math.nan
        moment.record(**{COLUMN.format(name): value for name, value in numbers.items()})
        values = [float(row[column]) for row in moment.history if column in row]
        now = progress_of(values, self.sign(moment.run), self.patience, self.min_delta)
        if now.improved and self.restore_best:
            moment.keep()
        if now.waited == self.patience:
            times = "one evaluation" if self.patience == 1 else f"{self.patience} evaluations"
            moment.stop(f"{self.metric} on validation data did not improve for {times}")
