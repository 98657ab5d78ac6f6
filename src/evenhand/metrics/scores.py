"""From tallies to one row per client, group and team, and metrics across clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from evenhand.data.population import Population
from evenhand.data.texts import Repeated, Texts
from evenhand.metrics import calibration, rates, spread
from evenhand.metrics.counts import Counts
from evenhand.metrics.measuring import metric_keys, ratios
from evenhand.metrics.tallies import Tally, accuracy_of, pieces

Row = dict[str, Any]
Columns = dict[str, Any]  # equally long arrays or sequences of texts, by name
Floats = NDArray[np.float64]

KEPT = ("count", "train_count", "loss")  # columns that are there even without a value


def score_columns(tally: Tally, population: Population) -> Columns:
    """Columns of a table with a row for each client, group and team, from all tallies.

    A plain tally gives loss and, unless numbers are predicted, accuracy: with several labels per
    sample, the mean share of them that is right. A full one adds, for a classifier, balanced
    accuracy, precision and recall (of class 1; with more classes, their mean over the classes with
    samples, where a class that is never predicted has precision 0), specificity and auc for two
    classes, brier and calibration_error where outputs are probabilities; for a regression, rmse and
    mae, and mse where the loss is another error. Each metric has a column. A column without any
    value is left out. A client without samples has a count of 0 and NaN scores; a team pools the
    samples of its clients. If only sums over clients are known, one row for everyone replaces the
    rows of clients and teams.
    """
    by_client = len(tally["count"]) == population.clients
    levels = {name: _by_level(values, population, by_client) for name, values in tally.items()}

    def score(function: Callable[..., Floats], *names: str) -> Floats:
        """One number for every row; NaN without a table, or where it is not kept by client."""
        found, begin = np.full(sum(sizes), np.nan), 0
        kept = zip(*(levels.get(name, [None] * 3) for name in names), strict=True)
        for n, tables in zip(sizes, kept, strict=True):
            if all(table is not None for table in tables):
                for rows in pieces(n):
                    found[begin:][rows] = function(*(table[rows] for table in tables))
            begin += n
        return found

    team_names = population.team_names if by_client else ()
    sizes = (population.clients if by_client else 1, population.groups, len(team_names))
    kinds = ("client" if by_client else "everyone", "group", "team")
    names = population.all_names if by_client else ("everyone",)
    teams: Sequence[str] = Repeated("", sizes[0])
    if by_client and population.teams is not None:
        teams = [population.team_names[code] for code in population.teams.tolist()]
    columns: Columns = {
        "by": Texts(*map(Repeated, kinds, sizes)),
        "name": Texts(names, population.group_names, team_names),
        "team": Texts(teams, Repeated("", sum(sizes[1:]))),
        "train_count": _train_counts(population, by_client),
        "count": score(lambda count: count, "count").astype(np.int64),
        "accuracy": score(_mean, accuracy_of(tally), "count"),
        "loss": score(_mean, "loss", "count"),
    }
    if "confusion" in tally:
        columns["balanced_accuracy"] = score(rates.balanced_accuracy, "confusion")
        columns["precision"] = score(_precision, "confusion")
        columns["recall"] = score(_recall, "confusion")
        if tally["confusion"].shape[-2] == 2:
            columns["specificity"] = score(lambda table: rates.recall(table)[..., 0], "confusion")
            columns["auc"] = score(calibration.auc, "scored")
    if "scored" in tally:
        columns["brier"] = score(_mean, "brier", "count")
        # scores of a model without a Brier score are no probabilities
        needed = ("scored", "score", "brier")
        columns["calibration_error"] = score(
            lambda counts, sums, _: calibration.calibration_error(counts, sums), *needed
        )
    if "absolute" in tally:
        if "squared" in tally:
            columns["mse"] = score(_mean, "squared", "count")
        columns["rmse"] = np.sqrt(columns["mse" if "squared" in tally else "loss"])
        columns["mae"] = score(_mean, "absolute", "count")
    for name, (key, _) in metric_keys(tally).items():
        columns[name] = score(ratios, key)
    return {name: values for name, values in columns.items() if name in KEPT or _any(values)}


def _any(values: Sequence[Any] | Floats) -> bool:
    """Whether a column says anything."""
    return not isinstance(values, np.ndarray) or not bool(np.isnan(values).all())


def counts_of(tally: Tally, population: Population) -> Counts | None:
    """The confusion counts of a full tally; None without them, or if not kept by client."""
    table = tally.get("confusion")
    if table is None or len(table) != population.clients:
        return None
    labels = tuple(
        dict(enumerate(population.label_names)).get(label, str(label))
        for label in range(table.shape[2])
    )
    return Counts(
        table.astype(np.int64, copy=False),
        population.all_names,
        population.group_names or ("",),
        labels,
    )


def rows_of(columns: Columns) -> list[Row]:
    """A table as one mapping per row, with plain Python values."""
    plain = [
        values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values()
    ]
    return [dict(zip(columns, values, strict=True)) for values in zip(*plain, strict=True)]


def summary(values: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Mean, worst and best 10 %, worst client and standard deviation of one value per client.

    Larger values are better.

    Worst and best 10 % are means over floor(n/10) clients, at least one; the standard deviation is
    the population's. Clients without a value (NaN) are skipped.

    >>> summary([0.5, 1.0, 0.75, 0.75])
    {'mean': 0.75, 'worst10': 0.5, 'best10': 1.0, 'worst': 0.5, 'std': 0.1767766952966369}
    """
    return {name: float(value) for name, value in summaries(values).items()}


def summary_of(
    columns: Columns, tally: Mapping[str, Any], over_clients: Mapping[str, float] | None = None
) -> dict[str, float]:
    """:func:`summary` of the clients' accuracy; without one, of the first metric.

    Without metrics, it is that of the loss, whose worst are the largest.

    Args:
        columns: the scores.
        tally: the sums behind them.
        over_clients: metrics over clients, if the server only saw sums.
    """
    metrics = metric_keys(tally)
    classifies = bool(accuracy_of(tally)) or "loss" not in tally
    name = "accuracy" if classifies else next(iter(metrics), "loss")
    if over_clients is not None:
        mean = {} if classifies else {"mean": over_clients.get(name, np.nan)}
        return {kind: float({**over_clients, **mean}.get(kind, np.nan)) for kind in summary([])}
    clients = np.fromiter((kind == "client" for kind in columns["by"]), bool)
    if name not in columns:
        return summary([])
    values = np.asarray(columns[name], np.float64)[clients]
    if name == "loss" or (name in metrics and metrics[name][1] == "lower"):
        return {kind: v if kind == "std" else 0.0 - v for kind, v in summary(-values).items()}
    return summary(values)


def summaries(values: ArrayLike) -> dict[str, Floats]:
    """:func:`summary` of (..., n) values: (...) by name."""
    kinds = {
        "mean": spread.mean,
        "worst10": spread.worst,
        "best10": spread.best,
        "worst": spread.smallest,
        "std": spread.std,
    }
    given = spread.Together(values)  # sorted once
    return {name: function(given) for name, function in kinds.items()}


def _by_level(
    values: NDArray[Any], population: Population, by_client: bool
) -> list[NDArray[Any] | None]:
    """Sums by client, group and team of (n, A, ...).

    Those by client and team are None for a table (1, A, ...) kept by group alone. Without
    ``by_client``, everyone together is the only client, and there are no teams.
    """
    by_group = values.sum(0)[: population.groups]
    # a single group is not copied
    by_row = values[:, 0] if values.shape[1] == 1 else values.sum(1)
    if not by_client:
        return [by_row, by_group, by_row[:0]]
    if len(values) != population.clients:
        return [None, by_group, None]
    of_clients = torch.from_numpy(by_row)
    by_team = torch.zeros(len(population.team_names), *of_clients.shape[1:], dtype=of_clients.dtype)
    if population.teams is not None:
        by_team.index_add_(0, population.teams, of_clients)
    return [of_clients.numpy(), by_group, by_team.numpy()]


def _train_counts(population: Population, by_client: bool) -> NDArray[np.int64]:
    """Training samples by client, group and team; in total and by group without ``by_client``."""
    sizes, by_group = population.sizes("train"), population.census().group_counts
    groups, teams = (
        torch.zeros(len(names), dtype=torch.int64)
        for names in (population.group_names, population.team_names)
    )
    if by_group is not None:
        groups = by_group.sum(0)
    if population.teams is not None:
        teams.index_add_(0, population.teams, sizes)
    return torch.cat([sizes, groups, teams] if by_client else [sizes.sum()[None], groups]).numpy()


def _mean(total: Floats, count: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as meant
        return np.asarray(total / count)


def _precision(table: NDArray[np.int64]) -> Floats:
    rate = rates.precision(table)
    return rate[..., 1] if table.shape[-2] == 2 else _macro(np.nan_to_num(rate), table)


def _recall(table: NDArray[np.int64]) -> Floats:
    rate = rates.recall(table)
    return rate[..., 1] if table.shape[-2] == 2 else _macro(np.nan_to_num(rate), table)


def _macro(rate: Floats, table: NDArray[np.int64]) -> Floats:
    """The mean over the classes that have samples."""
    there = table.sum(-1) > 0
    return _mean((rate * there).sum(-1), there.sum(-1))
