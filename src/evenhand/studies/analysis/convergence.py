"""Whether training ran long enough to compare methods."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenhand.studies.analysis.statistics import Floats
from evenhand.studies.runs.study import Study

# a method is still improving if, over the last third of the rounds, its loss falls by this share,
# or its mean accuracy rises by this much while the loss falls
FALL, RISE = 0.05, 0.01
FEWEST = 6  # evaluations needed for a trend


class Trend(NamedTuple):
    """The change over the last third of the rounds, from a straight line through evaluations."""

    loss: float  # relative: -0.1 is a tenth less
    mean: float  # of the mean accuracy over clients; NaN without a classifier
    rounds: int  # that the line spans

    @property
    def improving(self) -> bool:
        return self.loss < -FALL or (self.loss < 0 and self.mean > RISE)


def trend(study: Study, label: str) -> Trend | None:
    """The trend of a method, averaged over seeds; None with too few evaluations."""
    histories = [study.trials[label, seed].history_columns for seed in study.seeds]
    if any("loss" not in history for history in histories):
        return None
    rounds = np.asarray(histories[0]["round"], np.float64)
    loss, mean = (
        _average([history.get(name) for history in histories], len(rounds))
        for name in ("loss", "mean")
    )
    there = np.isfinite(loss)
    if there.sum() < FEWEST:
        return None
    last = there & (rounds >= rounds[there][-1] * 2 / 3)
    if last.sum() < 2:
        return None
    span = float(np.ptp(rounds[last]))
    of_loss, of_mean = (_slope(rounds[last], values[last]) * span for values in (loss, mean))
    size = float(np.abs(loss[last][0]))
    return Trend(of_loss / size if size else 0.0, of_mean, int(span))


def stopped_early(study: Study, label: str) -> str:
    """When and why a method was stopped before its last round; "" if it was not."""
    trials = [study.trials[label, seed] for seed in study.seeds]
    found = [trial.stopped for trial in trials if trial.stopped is not None]
    if not found:
        return ""
    first, last = min(one.round for one in found), max(one.round for one in found)
    when = f"{first}" if first == last else f"{first} to {last}"
    often = "" if len(trials) == 1 else f" in {len(found)} of {len(trials)} seeds"
    why = "" if len({one.reason for one in found}) == 1 else " (in the first of them)"
    text = f"{label} stopped after {when} of {found[0].rounds} rounds{often}"
    model = trials[0].restored if len(trials) == 1 else None
    kept = "" if model is None else f"; its model is the one after round {model}"
    return f"{text}: {found[0].reason}{why}{kept}."


def identical(study: Study, label: str, other: str) -> bool:
    """Whether two methods give the same result for every test sample and seed."""
    pairs = [(study.trials[label, seed], study.trials[other, seed]) for seed in study.seeds]
    return all(
        new.values is not None
        and old.values is not None
        and np.array_equal(new.values, old.values)
        and np.array_equal(new.score_columns["loss"], old.score_columns["loss"], equal_nan=True)
        for new, old in pairs
    )


def _average(columns: list[Floats | None], rounds: int) -> Floats:
    if any(column is None or len(column) != rounds for column in columns):
        return np.full(rounds, np.nan)
    return np.asarray(np.mean([np.asarray(column, np.float64) for column in columns], 0))


def _slope(x: Floats, y: Floats) -> float:
    return float(np.polyfit(x, y, 1)[0]) if np.isfinite(y).all() else float("nan")
