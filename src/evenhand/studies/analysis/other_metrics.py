"""How methods compare in the metrics of the user or the task.

A metric is analysed like the measure of the study: its merit is its value, or minus its value if
lower is better, and the merits of clients have the metrics, intervals, differences and gains that
accuracies have. Both methods of a difference saw the same samples, so it is paired.

What a sample contributes to a ratio comes from the delta method, see
:func:`evenhand.metrics.influence.ratio`. If values are 0 or 1, or every numerator is between 0 and
its denominator, the metric is a share, with the intervals of one. All others have means with nearly
normal errors, see :class:`evenhand.metrics.client_values.Means`: if a few values are much larger
than the rest, their intervals are too narrow for small clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenhand.metrics.measuring import are_shares, metric_keys
from evenhand.metrics.spread import tenth
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.comparison import Comparison, Difference, compare
from evenhand.studies.analysis.ledger import Entry, ledger
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.trial import Trial
from evenhand.studies.specs.measure import Measure, metric_measure

Row = dict[str, Any]

MOST_DIGITS = 6


@dataclass(frozen=True)
class MetricView:
    """A metric of the methods of a study."""

    study: Study  # measured by the metric
    comparison: Comparison
    entries: Sequence[Entry]

    @property
    def measure(self) -> Measure:
        """The metric as a measure."""
        return self.study.measure

    @property
    def name(self) -> str:
        """The name that the user or the task gave it."""
        return self.measure.name

    @property
    def better(self) -> str:
        """ "higher" or "lower"."""
        return "higher" if self.measure.higher else "lower"

    @property
    def sign(self) -> float:
        """What a merit is multiplied with to get the value."""
        return 1.0 if self.measure.higher else -1.0

    def text(self, value: float) -> str:
        """A value as text."""
        return "-" if math.isnan(value) else f"{value:.{self.measure.digits}f}"

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods."""
        return self.study.labels

    def value(self, label: str, statistic: str) -> Interval:
        """The metric itself over clients, with its interval."""
        found = self.comparison.rows[label][statistic]
        if self.measure.higher:
            return found
        return Interval(0.0 - found.value, 0.0 - found.high, 0.0 - found.low)

    def difference(self, label: str, statistic: str) -> Difference | None:
        """What a method gains compared with the reference; plus is better."""
        return self.comparison.differences.get(label, {}).get(statistic)

    def known(self, statistic: str) -> bool:
        """Whether any method has a value."""
        values = (self.comparison.rows[label][statistic].value for label in self.labels)
        return any(value == value for value in values)

    def rows(self) -> list[Row]:
        """A row per method and statistic."""
        found = []
        for label in self.labels:
            for statistic in filter(self.known, headings(self.study)):
                row: Row = {"metric": self.name, "better": self.better, "method": label}
                row |= {"statistic": statistic, **self.value(label, statistic)._asdict()}
                if (one := self.difference(label, statistic)) is not None:
                    row |= dict(zip(("gain", "gain_low", "gain_high"), one.interval, strict=True))
                    row |= {"p": one.p, "adjusted": one.adjusted}
                found.append(row)
        return found

    def gains(self) -> list[Row]:
        """A row per method and client, group and team; gains are plus where better."""
        return [
            {
                "metric": self.name,
                **entry._asdict(),
                "merit": self.sign * entry.merit,
                "reference": self.sign * entry.reference,
                "gain": entry.gain.value,
                "low": entry.gain.low,
                "high": entry.gain.high,
            }
            for entry in self.entries
        ]


def headings(study: Study) -> dict[str, str]:
    """Return the numbers over clients that are shown of a metric, with their headings."""
    worst = "worst client" if tenth(max(1, study.clients)) == 1 else "worst 10 %"
    return {"mean": "mean", "worst10": worst}


def metrics_of(study: Study) -> tuple[str, ...]:
    """Return the names of the metrics that all methods to compare have."""
    held = [
        [name for name in metric_keys(trial.tally) if name in trial.score_columns]
        for trial in _trials(study)
    ]
    return tuple(name for name in (held[0] if held else ()) if all(name in one for one in held))


def measured_by_metric(study: Study, name: str) -> Study:
    """Return the same runs with one of their metrics as the measure."""
    trials = _trials(study)
    key = metric_keys(trials[0].tally)[name][0]
    stored = [trial.outcomes.get(key) for trial in trials]
    sampled = study.sampled and all(one is not None for one in stored)
    share = sampled and all(are_shares(one) for one in stored if one is not None)
    measure = metric_measure(name, key, study.measure.part, share, sampled)
    return replace(study, measure=replace(measure, digits=3 if share else _digits(trials, name)))


def _digits(trials: Sequence[Trial], name: str) -> int:
    """Digits after the point that leave three or four in the largest value."""
    values = np.abs(np.concatenate([np.ravel(trial.score_columns[name]) for trial in trials]))
    largest = max(values[np.isfinite(values)], default=1.0)
    return min(MOST_DIGITS, max(0, 2 - math.floor(math.log10(largest)))) if largest > 0 else 3


def _trials(study: Study) -> list[Trial]:
    return [trial for (label, _), trial in study.trials.items() if label in study.labels]


def metric_views(
    study: Study, over: str = "auto", level: float = 0.95, least: int = 10
) -> dict[str, MetricView]:
    """Every metric that all methods have, by name.

    Args:
        over: what the intervals of the study's comparison are over.
        level: of the intervals.
        least: clients and groups with fewer samples are not tested.
    """
    found = {}
    for name in metrics_of(study):
        one = measured_by_metric(study, name)
        by_seeds = over in ("seeds", "splits") or one.measure.has_sample_intervals
        chosen = over if by_seeds and over != "nothing" else "auto"
        found[name] = MetricView(one, compare(one, chosen, level), ledger(one, level, least))
    return found


def metric_tables(views: Mapping[str, MetricView]) -> dict[str, list[Row]]:
    """Return the rows of all metrics, and gains in them."""
    return {
        "metrics": [row for view in views.values() for row in view.rows()],
        "metric_gains": [row for view in views.values() for row in view.gains()],
    }
