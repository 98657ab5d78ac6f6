"""The merit of each client, group or team in a trial, and of each sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenhand.errors import RunError
from evenhand.metrics import calibration, influence, rates
from evenhand.metrics.influence import Judgement
from evenhand.metrics.measuring import ratios
from evenhand.studies.runs.trial import Floats, Ints, Trial
from evenhand.studies.specs.measure import METRIC, Measure


def merits(trial: Trial, measure: Measure, by: str, part: str, teams: Ints) -> Floats:
    """The merit of each client, group or team, larger is better; NaN without samples.

    ``teams``: (n,) the code of each client's team, -1 for none.
    """
    column = _column(trial, measure, part)
    if by == "team" and measure.kind == METRIC and "team" not in trial.score_columns["by"]:
        return _of_teams(trial, measure, teams)
    if column is not None:
        if by == "team" and "team" not in trial.score_columns["by"]:
            return measure.merit(_team_means(trial, column, part, teams))
        return measure.merit(trial.column(column, by, part))
    tables = _tables(trial, by, teams) if part == "test" else None
    if tables is None:
        raise RunError(
            f"{trial.folder} has no counts of predictions on {part} data, which {measure.name}"
            " needs; use accuracy or balanced_accuracy"
        )
    return _of_tables(tables, measure)


def of_everyone(trial: Trial, measure: Measure) -> Floats | None:
    """The merit over the samples of all clients, for measures that are no means over samples; NaN
    if unknown."""
    if measure.kind == METRIC:
        sums = trial.tally.get(measure.key)
        value = np.asarray(np.nan) if sums is None else ratios(sums.sum((0, 1)))
        return measure.merit(value)
    if measure.kind == "auc":
        scored = trial.tally.get("scored")
        return np.asarray(np.nan if scored is None else calibration.auc(scored.sum((0, 1))))
    if measure.kind not in ("balanced_accuracy", "precision", "recall") or measure.of_one_class:
        return None
    if trial.counts is None:
        return np.asarray(np.nan)
    table = trial.counts.table.sum((0, 1))
    if measure.kind == "precision":
        rate = rates.precision(table)
        if measure.positive is not None:
            return np.asarray(rate[measure.positive])
        return np.asarray(np.nan_to_num(rate)[table.sum(-1) > 0].mean())
    return rates.balanced_accuracy(table)


def sizes(trial: Trial, measure: Measure, by: str, teams: Ints) -> Ints:
    """How many samples the merit of each client, group or team is based on."""
    if measure.of_one_class:
        tables = _tables(trial, by, teams)
        if tables is not None:
            mine = tables[..., measure.positive, :].sum(-1)
            return np.asarray(mine if measure.kind == "recall" else tables.sum((-2, -1)) - mine)
    if by == "team" and "team" not in trial.score_columns["by"]:
        return _sums(trial.column("count", "client"), teams).astype(np.int64)
    return trial.column("count", by).astype(np.int64)


def guessed(trial: Trial, measure: Measure, cell: Ints | None, cells: int) -> Floats | None:
    """(cells,) the clients' merits if the most frequent training label, or the mean, were always
    predicted; None if unknown."""
    label = trial.outcomes.get("label")
    if trial.guess is None or label is None or cell is None:
        return None
    if measure.kind not in ("accuracy", "error"):
        return None
    common, mean = trial.guess
    values = (label == common) if measure.percent else (label - mean) ** 2
    with np.errstate(invalid="ignore"):
        means = np.bincount(cell, values, cells) / np.bincount(cell, minlength=cells)
    return measure.merit(means)


def sample_merits(trial: Trial, measure: Measure, cell: Ints, cells: int) -> Floats | None:
    """(N,) values of samples whose mean over a cell is its merit (for a root, minus the mean
    square); larger is better. NaN for samples that do not count; None if values were not kept.

    ``cell``: (N,) the client, group or team of each sample, -1 for none.
    """
    if trial.values is None:
        return None
    if measure.kind == METRIC:
        stored = trial.outcomes.get(measure.key)
        if stored is None:
            return None
        values, member = np.full(len(cell), np.nan), np.flatnonzero(cell >= 0)
        values[member] = measure.merit(influence.ratio(stored[member], cell[member], cells))
        return values
    if measure.kind in ("accuracy", "error"):
        return trial.values if measure.percent else -trial.values
    if measure.kind == "mae":
        return -np.sqrt(trial.values)
    if measure.kind == "loss":
        # without a classifier, values are losses
        kept = trial.outcomes.get("loss", trial.values if trial.counts is None else None)
        return None if kept is None else -kept
    judged = _judgement(trial)
    if judged is None:
        return None
    values, member = np.full(len(cell), np.nan), np.flatnonzero(cell >= 0)
    judged, inside = judged.at(member), cell[member]
    if measure.of_one_class and measure.positive is not None:
        found, rows = influence.of_class(judged, measure.positive, measure.kind == "specificity")
        values[member[rows]] = found
    elif measure.kind == "auc":
        values[member] = influence.auc(judged, inside, cells)
    elif measure.kind == "precision":
        values[member] = influence.precision(judged, inside, cells, measure.positive)
    else:
        values[member] = influence.balanced_accuracy(judged, inside, cells)
    return values


def _judgement(trial: Trial) -> Judgement | None:
    found = trial.outcomes
    if not all(name in found for name in ("label", "prediction", "score")):
        return None
    label: Any = np.asarray(found["label"])
    # two classes may be labelled -1 and 1
    codes = (label > 0) if label.dtype.kind == "f" or label.min(initial=0) < 0 else label
    return Judgement(codes.astype(np.int64), found["prediction"].astype(np.int64), found["score"])


def _column(trial: Trial, measure: Measure, part: str) -> str | None:
    """The column of scores with the measure; None if it must be computed from counts."""
    columns = trial.score_columns if part == "test" else trial.validation
    if measure.positive is None:
        return measure.column
    other = {"recall": "specificity", "specificity": "recall"}.get(measure.kind, "")
    two = trial.counts is not None and len(trial.counts.labels) == 2
    column = measure.kind if measure.positive == 1 else other
    return column if two and columns is not None and column in columns else None


def _of_tables(tables: Ints, measure: Measure) -> Floats:
    positive = measure.positive
    if measure.kind == "precision":
        return rates.precision(tables)[..., positive]
    if measure.kind == "recall":
        return rates.recall(tables)[..., positive]
    return 1 - rates.false_positive_rate(tables)[..., positive]


def _tables(trial: Trial, by: str, teams: Ints) -> Ints | None:
    """(K, C, C + 1) counts of each client, group or team."""
    if trial.counts is None:
        return None
    if by == "group":
        return trial.counts.by_group
    if by == "team":
        names = [str(code) for code in range(int(teams.max(initial=-1)) + 1)]
        return trial.counts.with_groups(names, teams).by_group
    return trial.counts.by_client


def _team_means(trial: Trial, column: str, part: str, teams: Ints) -> Floats:
    values, counts = (trial.column(name, "client", part) for name in (column, "count"))
    with np.errstate(invalid="ignore"):
        return _sums(np.where(counts > 0, values, 0.0) * counts, teams) / _sums(counts, teams)


def _of_teams(trial: Trial, measure: Measure, teams: Ints) -> Floats:
    """A metric's merit of each team, from the sums of its clients."""
    sums = trial.tally[measure.key].sum(1)  # (n, 2, L)
    found = np.zeros((int(teams.max(initial=-1)) + 1, *sums.shape[1:]))
    np.add.at(found, teams[teams >= 0], sums[teams >= 0])
    return measure.merit(ratios(found))


def _sums(values: Floats, teams: Ints) -> Floats:
    """Sums over the clients of each team."""
    member = teams >= 0
    size = int(teams.max(initial=-1)) + 1
    return np.bincount(teams[member], weights=values[member], minlength=size).astype(np.float64)
