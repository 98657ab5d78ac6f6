"""Runs that diverged: their losses are not finite or absurdly large, so they are excluded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evenhand.metrics.tallies import accuracy_of
from evenhand.studies.runs.trial import Floats, Trial

# the mean loss of a classifier, or the squared error relative to always predicting the mean, above
# which a run counts as diverged
ABSURD_LOSS, ABSURD_ERROR = 1e9, 1e6
HUGE = 1e30  # the same for any other loss


class Diverged(NamedTuple):
    """A method whose training diverged."""

    label: str
    seeds: tuple[int, ...]  # with which it diverged
    of: int  # how many seeds it was trained with
    round: int | None  # the first that shows it; None without evaluations


def find_diverged(
    trials: Mapping[tuple[str, int], Trial], labels: Sequence[str], seeds: Sequence[int]
) -> tuple[Diverged, ...]:
    """The methods that diverged with any of the seeds."""
    found: list[Diverged] = []
    for label in labels:
        bad = tuple(seed for seed in seeds if has_diverged(trials[label, seed]))
        if bad:
            rounds = [first_round(trials[label, seed]) for seed in bad]
            first = min((known for known in rounds if known is not None), default=None)
            found.append(Diverged(label, bad, len(seeds), first))
    return tuple(found)


def has_diverged(trial: Trial) -> bool:
    """Whether the loss of any client with test samples is not finite or absurdly large."""
    loss, limit = _losses(trial), _limit(trial)
    return bool((~np.isfinite(loss) | (loss > limit)).any())


def first_round(trial: Trial) -> int | None:
    """The first round that shows divergence: by the loss, else by updates that were skipped."""
    history = trial.history_columns
    if "round" not in history:
        return None
    rounds = np.asarray(history["round"], np.float64)
    loss, asked, answered = (
        np.asarray(history.get(key, np.full(len(rounds), np.nan)), np.float64)
        for key in ("loss", "asked", "answered")
    )
    for shown in (loss > _limit(trial), answered < asked):  # an infinite loss is above any limit
        if shown.any():
            return int(rounds[shown][0])
    return None


def _losses(trial: Trial) -> Floats:
    """Of each client with samples, or of everyone; for a regression, also the squared error."""
    by = "client" if trial.by_client else "everyone"
    counts = trial.column("count", by)
    columns = trial.score_columns
    # without a loss, a classifier without an accuracy has diverged
    found = [trial.column("loss", by) if "loss" in columns else 0 * trial.column("accuracy", by)]
    if "rmse" in columns:
        with np.errstate(over="ignore"):
            found.append(trial.column("rmse", by) ** 2)
    return np.asarray(np.stack(found)[:, counts > 0])


def _limit(trial: Trial) -> float:
    if trial.counts is not None or accuracy_of(trial.tally):
        return ABSURD_LOSS
    label = trial.outcomes.get("label")
    if trial.guess is None or label is None or "rmse" not in trial.score_columns:
        return HUGE
    error = float(np.mean((np.asarray(label, np.float64) - trial.guess[1]) ** 2))
    return ABSURD_ERROR * error if error > 0 else HUGE
