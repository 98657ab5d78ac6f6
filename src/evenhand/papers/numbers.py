"""The numbers that papers print, of one trained method: by the names that published.csv has.

========================  =========================================================
mean, pooled, worst10,    of the clients' accuracies; pooled is over all samples
best10, worst, best,
std, variance
client:NAME               the accuracy of a client
team:NAME                 the mean accuracy of the clients in a team (not pooled)
team gap                  the largest of these minus the smallest
team variance             their variance (of the population)
clients:NAME              how many clients a team has
images:NAME               the mean number of images of its clients, for whatever they are used
risk:NAME                 the mean loss of a group's samples
risk:worst, risk:best     the largest and the smallest of these
========================  =========================================================
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from evenhand.errors import SpecError
from evenhand.metrics import spread
from evenhand.metrics.teams import between_teams, team_means
from evenhand.studies.runs.trial import Floats, Trial

OVER_CLIENTS = {
    "mean": spread.mean,
    "worst10": spread.worst,
    "best10": spread.best,
    "worst": spread.smallest,
    "best": spread.largest,
    "std": spread.std,
    "variance": spread.variance,
}
# kept of every run, so that figures can show what tables do not
ALWAYS = ("mean", "pooled", "worst10", "best10", "worst", "best", "std", "variance")
HEADINGS = {
    "mean": "mean",
    "pooled": "all samples",
    "worst10": "worst 10 %",
    "best10": "best 10 %",
    "worst": "worst client",
    "best": "best client",
    "std": "std",
    "variance": "variance",
    "team gap": "gap",
    "risk:worst": "worst group's risk",
    "risk:best": "best group's risk",
}
SCALES = {"%": 100.0, "%²": 1e4, "Brier": 1.0, "count": 1.0}
COUNTS = ("clients", "images")


def unit_of(metric: str) -> str:
    """The unit that a number is printed in."""
    if metric.startswith("risk:"):
        return "Brier"
    if metric.partition(":")[0] in COUNTS:
        return "count"
    return "%²" if metric.endswith("variance") else "%"


def heading(metric: str) -> str:
    """A metric as the head of a column.

    >>> heading("worst10"), heading("client:Shirt"), heading("risk:Shirt")
    ('worst 10 %', 'Shirt', 'risk of Shirt')
    """
    kind, _, name = metric.partition(":")
    if metric in HEADINGS:
        return HEADINGS[metric]
    return f"{kind} of {name}" if kind in ("risk", *COUNTS) else name or kind


def numbers_of(trial: Trial, metrics: Iterable[str]) -> dict[str, float]:
    """The numbers of a method trained with one seed, in the units that they are printed in."""
    found = {}
    for metric in metrics:
        value = float(_number(trial, metric))
        found[metric] = value * SCALES[unit_of(metric)]
    return found


def _number(trial: Trial, metric: str) -> Floats | float:
    kind, _, name = metric.partition(":")
    accuracy = trial.column("accuracy", "client")
    if metric in OVER_CLIENTS:
        return OVER_CLIENTS[metric](accuracy)
    if metric == "pooled":
        return spread.pooled(accuracy, trial.column("count", "client"))
    if kind == "client":
        return _named(trial, "client", name, accuracy)
    if kind == "risk":
        risks = trial.column("loss", "group")
        if name in ("worst", "best"):
            return float(risks.max() if name == "worst" else risks.min())
        return _named(trial, "group", name, risks)
    names, codes = _teams(trial)
    if kind == "team" and name in names:
        return float(team_means(accuracy, codes)[names.index(name)])
    if kind in COUNTS and name in names:
        members = np.array(codes) == names.index(name)
        return float(members.sum() if kind == "clients" else _images(trial)[members].mean())
    if metric in ("team gap", "team variance"):
        apart = between_teams(accuracy, codes)
        return apart.gap if metric == "team gap" else apart.variance
    raise SpecError(f"unknown metric {metric!r}; the teams are {', '.join(names) or 'none'}")


def _teams(trial: Trial) -> tuple[list[str], list[int]]:
    """The names of the teams, and the number of each client's among them."""
    columns = trial.score_columns
    of = [team for team, by in zip(columns["team"], columns["by"], strict=True) if by == "client"]
    names = sorted(set(filter(None, of)))
    return names, [names.index(team) if team else -1 for team in of]


def _images(trial: Trial) -> Floats:
    """Of each client, in all parts."""
    of_parts = [trial.column(name, "client") for name in ("train_count", "count")]
    if trial.validation is not None:
        of_parts.append(trial.column("count", "client", "validation"))
    total: Floats = np.sum(of_parts, axis=0, dtype=np.float64)
    return total


def _named(trial: Trial, by: str, name: str, values: Floats) -> float:
    columns = trial.score_columns
    names = [
        str(one) for one, kind in zip(columns["name"], columns["by"], strict=True) if kind == by
    ]
    if name not in names:
        raise SpecError(f"there is no {by} {name!r}; there are {', '.join(names)}")
    return float(values[names.index(name)])
