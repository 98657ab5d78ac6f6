"""What differential privacy costs whom: private runs of one method by epsilon, and the same method
without privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from evenhand.algorithms.naming import Table, algorithm_table, label_of
from evenhand.errors import SpecError
from evenhand.metrics.spread import tenth
from evenhand.privacy.record import shown
from evenhand.studies.analysis.comparison import Comparison
from evenhand.studies.analysis.ledger import Entry, entries_of
from evenhand.studies.analysis.privacy_in_words import privacy_of
from evenhand.studies.analysis.writing import amount, named, size, whose
from evenhand.studies.runs.study import Study
from evenhand.studies.specs.method import Method, build_algorithm

PRIVATE = "private"  # the name of evenhand.Private in a spec
VARIED = ("epsilon", "noise", "secret")  # its settings that differ along a series


class Level(NamedTuple):
    """How private a method was with all of its seeds."""

    label: str
    epsilon: float  # infinite without noise
    clipped: bool  # whether contributions were bounded

    @property
    def name(self) -> str:
        """How a table's heading calls it."""
        if math.isfinite(self.epsilon):
            return f"\u03b5 = {shown(self.epsilon)}"
        return "no noise" if self.clipped else "no privacy"

    @property
    def words(self) -> str:
        """How a sentence calls it."""
        if math.isfinite(self.epsilon):
            return f"epsilon = {shown(self.epsilon)}"
        return "clipping without noise" if self.clipped else "training without privacy"


class Series(NamedTuple):
    """One method at several levels of privacy, the most private first."""

    name: str
    levels: tuple[Level, ...]


def privacy_series(study: Study) -> list[Series]:
    """Every method that was trained with at least one epsilon and at another level of privacy."""
    plain: dict[str, str] = {}  # label by method
    private: dict[tuple[str, str], list[Level]] = {}
    inner: dict[tuple[str, str], tuple[Table, Table]] = {}
    for label in study.labels:
        method = study.method(label)
        record, parts = privacy_of(study, label), _parted(_normal(method))
        if record is None or parts is None:
            plain.setdefault(_key(_normal(method), method), label)
            continue
        epsilon = math.inf if record.noise == 0 else record.epsilon
        if epsilon is not None:  # it has one
            key = (_key(parts[0], method), repr(sorted(parts[1].items())))
            private.setdefault(key, []).append(Level(label, epsilon, clipped=True))
            inner[key] = parts
    found = []
    for key, levels in private.items():
        free = plain.get(key[0])
        name = _spoken(inner[key][0]) if free is None else named(study, free)
        name += _differing(inner[key][1], [own for k, (_, own) in inner.items() if k[0] == key[0]])
        whole = sorted(levels, key=lambda level: level.epsilon)
        whole += [] if free is None else [Level(free, math.inf, clipped=False)]
        if len(whole) > 1 and math.isfinite(whole[0].epsilon):
            found.append(Series(name, tuple(whole)))
    return found


def costs(study: Study, series: Series, level: float, least: int) -> list[Entry]:
    """What every group, or else team, gains at the smallest epsilon, compared with the last level;
    without intervals if results of single samples are not known."""
    by = groups_of(study)
    if by is None:
        return []
    strict, free = series.levels[0].label, series.levels[-1].label
    return entries_of(study, strict, free, by, level, least)


def groups_of(study: Study) -> str | None:
    """Whether to look at groups or at teams; None if there are neither."""
    return next((by for by in ("group", "team") if len(study.names(by)) > 1), None)


def worst_clients(study: Study) -> tuple[str, str]:
    """The statistic of the clients served worst, and its name."""
    few = tenth(max(1, study.clients)) == 1
    return ("min", "worst client") if few else ("worst10", "worst 10 % of clients")


def about_costs(study: Study, comparison: Comparison, series: Series, least: int) -> str:
    """Who pays most for privacy, in a sentence."""
    strict, free = series.levels[0], series.levels[-1]
    what, _, worse = study.measure.words
    rows, (statistic, worst) = comparison.rows, worst_clients(study)

    def moved(name: str) -> float:
        return rows[strict.label][name].value - rows[free.label][name].value

    entries = costs(study, series, comparison.level, least)
    judged = [one for one in entries if one.samples >= least and one.gain.value < 0]
    harmed = [one for one in judged if one.verdict == "harmed" or math.isnan(one.gain.low)]
    if harmed:
        most = min(harmed, key=lambda one: one.gain.value)
        who = f"{worse} the {what} of {whose(most)} most, by {size(study, most.gain)}"
    elif entries:
        who = f"changes the {what} of no {entries[0].by} for the worse, as far as can be told"
    elif math.isnan(moved(statistic)):
        return ""
    else:
        who = _moved(study, f"the {what} of the {worst}", moved(statistic))
    mean = moved("mean")
    rest = "" if math.isnan(mean) else f"; it {_moved(study, 'the mean over clients', mean)}"
    return f"{series.name}: compared with {free.words}, {strict.words} {who}{rest}."


def _moved(study: Study, what: str, change: float) -> str:
    _, better, worse = study.measure.words
    return f"{worse if change < 0 else better} {what} by {amount(study, abs(change))}"


def _normal(method: Method) -> Table:
    """A method's table without default values, where its class is one of evenhand's."""
    table = {"name": method.name, **method.parameters}
    try:
        return algorithm_table(build_algorithm(table))
    except (SpecError, ValueError, TypeError):  # a user's own class is never imported here
        return table


def _parted(table: Table) -> tuple[Table, Table] | None:
    """A method without its ``Private``, and the settings of that; None if it has none."""
    inner: Any = table.get("inner", "fedavg")
    inner = dict(inner) if isinstance(inner, Mapping) else {"name": inner}
    if table["name"] == PRIVATE:
        kept = {key: value for key, value in table.items() if key not in ("name", "inner", *VARIED)}
        return inner, kept
    found = _parted(inner) if "inner" in table else None
    return None if found is None else ({**table, "inner": found[0]}, found[1])


def _key(table: Table, method: Method) -> str:
    return repr((sorted(table.items(), key=lambda item: item[0]), sorted(method.local.items())))


def _spoken(table: Table) -> str:
    """A method as on the command line: fafl:alpha=0.3."""
    settings = ",".join(
        f"{key}={_spoken(value) if isinstance(value, dict) else value}"
        for key, value in table.items()
        if key != "name"
    )
    return label_of(table["name"]) + (f":{settings}" if settings else "")


def _differing(own: Table, all_: list[Table]) -> str:
    """The settings in which a series differs from others of the same method: ", clip=0.3"."""
    return "".join(
        f", {key}={value}"
        for key, value in own.items()
        if any(repr(table.get(key)) != repr(value) for table in all_)
    )
