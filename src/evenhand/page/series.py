"""The data of the figures, thinned so that any number of clients and rounds can be drawn."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evenhand.studies.runs.study import Study
from evenhand.studies.specs.measure import Measure

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_POINTS = 200  # of a curve; a screen shows no more
MOST_ROWS, MOST_ROUNDS = 50, 100  # of the figure of weights


def shown(measure: Measure, merits: Floats | float) -> Floats:
    """Merits as shown: shares in percent, or errors, which are merits with a minus."""
    return np.asarray(
        measure.scale * np.asarray(merits, np.float64) * (1 if measure.percent else -1)
    )


def thinned(count: int, most: int) -> Ints:
    """At most ``most`` of ``count`` indices, evenly spaced, including the first and the last.

    >>> thinned(5, 10).tolist(), thinned(9, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 4, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def client_merits(study: Study, label: str) -> Floats:
    """A merit per client, averaged over seeds; if data differ between seeds, those of all seeds in
    a row."""
    merits = [study.merits(label, seed) for seed in study.seeds]
    return np.mean(merits, axis=0) if study.same_data else np.concatenate(merits)


def density(values: Floats, points: int = 100) -> tuple[Floats, Floats]:
    """A Gaussian kernel density (Scott's width): values between the smallest and the largest, and
    the density there."""
    at = np.linspace(values.min(), values.max(), points)
    if at[0] == at[-1]:
        return at, np.ones(points)
    width = values.std(ddof=1) * len(values) ** -0.2
    near = np.exp(-(((at[:, None] - values) / width) ** 2) / 2)
    return at, np.asarray(near.mean(1) / (width * np.sqrt(2 * np.pi)), np.float64)


class Curve(NamedTuple):
    """Merits of the clients from the worst to the best served."""

    percent: Floats  # of the clients served worse
    merit: Floats


def curve(study: Study, label: str, most: int = MOST_POINTS) -> Curve:
    """Sort the clients of each seed and average clients of the same rank, so that the lowest tenth
    of the curve is the mean worst 10 %."""
    rows = [
        merits[~np.isnan(merits)] for merits in (study.merits(label, seed) for seed in study.seeds)
    ]
    clients = max((len(row) for row in rows), default=0)
    percent = np.linspace(0, 100, min(clients, most)) if clients > 1 else np.zeros(clients)
    there = [np.percentile(row, percent) for row in rows if len(row)]
    return Curve(percent, np.mean(there, axis=0) if there else np.empty(0))


class Learning(NamedTuple):
    """A column of the history over rounds: mean, minimum and maximum over seeds."""

    rounds: Ints
    mean: Floats
    low: Floats
    high: Floats


def learning(study: Study, label: str, column: str, most: int = MOST_POINTS) -> Learning | None:
    """A column at the rounds at which every seed was evaluated; None if it is missing."""
    histories = [study.trials[label, seed].history_columns for seed in study.seeds]
    if not histories or any(column not in history for history in histories):
        return None
    length = min(len(history["round"]) for history in histories)
    # (S, T)
    values = np.stack([np.asarray(history[column], np.float64)[:length] for history in histories])
    at = np.flatnonzero(~np.isnan(values).any(0))
    if not len(at):
        return None
    at = at[thinned(len(at), most)]
    values = values[:, at]
    # scores may belong to the model at the start of a round
    after = histories[0].get("scores_after", histories[0]["round"])
    rounds = np.asarray(after)[at].astype(np.int64)
    return Learning(rounds, values.mean(0), values.min(0), values.max(0))


class Weights(NamedTuple):
    """Effective weights of clients over rounds, in multiples of an equal share, the worst-served
    first."""

    rounds: Ints  # (T,)
    rows: tuple[str, ...]  # a client, or several clients with similar merits
    share: Floats  # (rows, T)
    served_by: str  # the method whose merits sort the clients


def weights(
    study: Study, label: str, most_rows: int = MOST_ROWS, most_rounds: int = MOST_ROUNDS
) -> Weights | None:
    """Weights averaged over seeds. Clients are sorted by their merit with FedAvg (without it, with
    the method itself); many clients are averaged in bins."""
    trials = [study.trials[label, seed] for seed in study.seeds]
    if not study.same_data:
        trials = trials[:1]  # clients differ between seeds
    if not trials or any(trial.weights is None or trial.weight_rounds is None for trial in trials):
        return None
    rounds = np.asarray(trials[0].weight_rounds)
    same = [
        np.asarray(trial.weights)
        for trial in trials
        if np.array_equal(np.asarray(trial.weight_rounds), rounds)
    ]
    at = thinned(len(rounds), most_rounds)
    share = np.mean([found[at] for found in same], axis=0).T  # (n, T)
    clients = len(share)
    served_by = study.reference or label
    merits = np.mean([study.merits(served_by, trial.seed) for trial in trials], axis=0)
    order = np.argsort(merits, kind="stable")  # NaN (no test data) comes last
    bins = np.array_split(order, min(clients, most_rows))
    names = study.names("client")
    rows = tuple(names[found[0]] if len(found) == 1 else "" for found in bins)
    if clients > most_rows:
        ends = np.cumsum([0, *map(len, bins)])
        rows = tuple(f"clients {first + 1} to {last}" for first, last in pairwise(ends.tolist()))
    return Weights(
        rounds[at], rows, np.stack([clients * share[found].mean(0) for found in bins]), served_by
    )


class GroupWeights(NamedTuple):
    """Weights of groups over rounds."""

    rounds: Ints  # (T,)
    share: Floats  # (T, A), rows sum to one


def group_weights(study: Study, label: str) -> GroupWeights | None:
    """Weights averaged over seeds; None if the method has no weights of groups."""
    columns = [f"group_weight_{place}" for place in range(len(study.names("group")))]
    found = [learning(study, label, column, MOST_ROUNDS) for column in columns]
    lines = [one for one in found if one is not None]
    if not lines or len(lines) < len(columns):
        return None
    weight = np.stack([one.mean for one in lines], axis=1)
    return GroupWeights(lines[0].rounds, weight / weight.sum(1, keepdims=True))
