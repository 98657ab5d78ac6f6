"""Everything there is to say about a study: numbers, tables and words, for the command line and the
page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis import Comparison, Difference, Entry, compare, gaps, ledger
from evenhand.studies.study import Study
from evenhand.studies.words import sentences

Row = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """All numbers about a study."""

    study: Study
    comparison: Comparison
    entries: Sequence[Entry]  # the harm ledger
    # by "group" and "team", then method, then kind
    gaps: Mapping[str, Mapping[str, Mapping[str, Interval]]]
    sentences: Sequence[str]  # all that in words
    least: int  # fewer samples were not judged
    # the label that gaps in rates are about; None: of many labels, the one that differs most
    positive: str | None = None

    @property
    def clients(self) -> str:
        """How many clients, in words."""
        found = self.study.clients
        summed = [trial.over_clients for trial in self.study.trials.values() if trial.over_clients]
        heard = min((int(numbers["clients"]) for numbers in summed), default=found)
        # the others have no test samples, or gave no last answer
        of = f"{heard:,} of " if heard < found else ""
        return f"{of}{found:,} client{'s' * (found != 1)}"

    def number(self, merit: float) -> str:
        """A merit with its unit."""
        return f"{self.study.measure.show(merit)}{self.study.measure.percent}"

    def left_out(self, by: str) -> list[str]:
        """Groups or teams that gaps leave out, since they have few samples."""
        return [
            name
            for name, count in zip(self.study.names(by), self.study.sizes(by), strict=True)
            if count < max(1, self.least)
        ]

    def tables(self) -> dict[str, list[Row]]:
        """Rows of tables, by name: comparison, differences, ledger, gaps, clients."""
        study, comparison = self.study, self.comparison
        found: dict[str, list[Row]] = {
            "comparison": [
                {
                    "method": label,
                    "statistic": name,
                    **interval._asdict(),
                    "best": comparison.best.get(name) == label,
                }
                for label, row in comparison.rows.items()
                for name, interval in row.items()
            ],
            "differences": [
                {
                    "method": label,
                    "statistic": name,
                    **one.interval._asdict(),
                    **{key: getattr(one, key) for key in Difference._fields[1:]},
                }
                for label, row in comparison.differences.items()
                for name, one in row.items()
            ],
            "ledger": [
                {
                    **entry._asdict(),
                    "gain": entry.gain.value,
                    "low": entry.gain.low,
                    "high": entry.gain.high,
                }
                for entry in self.entries
            ],
            "gaps": [
                {"by": by, "method": label, "kind": kind, **interval._asdict()}
                for by, methods in self.gaps.items()
                for label, kinds in methods.items()
                for kind, interval in kinds.items()
            ],
            "clients": [
                {
                    "method": label,
                    "seed": seed,
                    "client": name,
                    "team": team,
                    "samples": count,
                    study.measure.column: value,
                }
                for label in (() if study.sums_only else study.labels)
                for seed in study.seeds
                for name, team, count, value in zip(
                    study.names("client"),
                    study.teams,
                    study.sizes(seed=seed).tolist(),
                    study.column(label, seed, study.measure.column).tolist(),
                    strict=True,
                )
            ],
        }
        return {name: rows for name, rows in found.items() if rows}


def analyse(
    study: Study,
    over: str = "auto",
    level: float = 0.95,
    least: int = 10,
    positive: str | None = None,
) -> Findings:
    """Look at a study from all sides; arguments as in :func:`compare`, :func:`ledger` and
    :func:`gaps`."""
    study = study.in_order()
    comparison, entries = compare(study, over, level), ledger(study, level, least)
    between = {by: gaps(study, by, level, least, positive) for by in ("group", "team")}
    labels = study.first.counts.labels if study.first.counts is not None else ()
    positive = labels[1] if positive is None and len(labels) == 2 else positive
    return Findings(
        study,
        comparison,
        entries,
        between,
        sentences(study, comparison, entries, least),
        least,
        positive,
    )
