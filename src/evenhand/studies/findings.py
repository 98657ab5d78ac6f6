"""What a study shows, as an answer, metrics and tables, for the command line and the report."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from evenhand.errors import require_known
from evenhand.metrics.local_gaps import LocalGaps
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.answer import MOST, Answer, answer
from evenhand.studies.analysis.comparison import (
    Comparison,
    compare,
    comparison_rows,
    difference_rows,
)
from evenhand.studies.analysis.evidence import Evidence
from evenhand.studies.analysis.gaps import gaps
from evenhand.studies.analysis.groups import GroupView, group_views
from evenhand.studies.analysis.ledger import Entry, ledger
from evenhand.studies.analysis.local import local_rows, local_views
from evenhand.studies.analysis.other_metrics import (
    MetricView,
    metric_tables,
    metric_views,
)
from evenhand.studies.analysis.sweeping import Sweep
from evenhand.studies.analysis.words import sentences
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.tuning import Tuned, read_tuned
from evenhand.studies.specs.spec import Spec
from evenhand.studies.tables import methods as tables
from evenhand.studies.tables.brief import NARROW, show_brief
from evenhand.studies.tables.groups import excluded_lines, show_groups
from evenhand.studies.tables.local import show_local
from evenhand.studies.tables.notebook import findings_html
from evenhand.studies.tables.other_metrics import metrics_table, show_metrics
from evenhand.studies.tables.sweeps import show_choice
from evenhand.studies.tables.tuning import edge_warnings, show_tuning

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

MORE = (
    "More: .show(verbose=True) prints all tables, .table(name) returns one of them,\n"
    ".tables() has them by name, and eh.report(findings) writes the report."
)
# the defaults of analyse()
NUMBERS: dict[str, Any] = {
    "over": "auto",
    "level": 0.95,
    "least": 10,
    "positive": None,
    "measure": None,
}


@dataclass(frozen=True, repr=False)
class Findings:
    """What a study shows; printed, the answer and a short table, as on the command line."""

    study: Study
    comparison: Comparison
    entries: Sequence[Entry]  # the harm ledger
    # by "group" and "team", then method, then kind
    gaps: Mapping[str, Mapping[str, Mapping[str, Interval]]]
    # by "group" and "team", then method: rates of each group, and the gaps between them
    groups: Mapping[str, Mapping[str, GroupView]]
    answer: Answer  # at most three sentences
    sentences: Sequence[str]  # the details
    least: int  # clients and groups with fewer test samples are not evaluated
    # the label that rates are about; None: of more than two labels, the one that differs most
    positive: str | None = None
    sweep: Sweep | None = None  # how the point compared with the references was chosen
    tuned: Tuned | None = None  # how the settings of each method were chosen
    # gaps between groups within clients, by method, then kind
    local: Mapping[str, Mapping[str, LocalGaps]] = field(default_factory=dict)
    # metrics of the user or the task, by name
    metrics: Mapping[str, MetricView] = field(default_factory=dict)

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(
            console=Console(file=text, width=NARROW, force_jupyter=False, force_terminal=False)
        )
        return f"{text.getvalue().rstrip()}\n\n{MORE}"

    def _repr_html_(self) -> str:  # for notebooks
        shown = self.study, self.comparison, self.entries, self.least, self.answer, self.sentences
        views = list(self.metrics.values())
        return findings_html(*shown, [metrics_table(views, True)] if views else [])

    @property
    def headline(self) -> tuple[str, ...]:
        """The answer in at most three sentences; after a sweep, the first says what was chosen."""
        chosen = () if self.sweep is None else (f"Chosen on validation data: {self.sweep.reason}",)
        return (*chosen, *self.answer.sentences)[:MOST]

    def show(self, *, verbose: bool = False, console: Console | None = None) -> None:
        """Print the answer and a short table; if ``verbose``, all tables and sentences."""
        console = Console() if console is None else console
        for line in self.answer.sentences if verbose else self.headline:
            console.print(line, style="bold", highlight=False, markup=False)
        if verbose:
            self._show_all(console)
            return
        warnings = [] if self.tuned is None else edge_warnings(self.tuned)
        warnings += [] if self.sweep is None else self.sweep.at_edge
        for line in warnings:
            console.print(line, highlight=False, markup=False)
        console.print()
        show_brief(console, self.study, self.comparison, self.groups.get("group", {}))
        show_metrics(console, self.metrics, self.study.kinds, verbose=False)

    def _show_all(self, console: Console) -> None:
        study, comparison = self.study, self.comparison
        console.print()
        if self.sweep is not None:
            show_choice(console, self.sweep)
        if self.tuned is not None:
            show_tuning(console, self.tuned)
        tables.show_table(console, tables.comparison_table(study, comparison))
        if legend := tables.legend(study, comparison):
            console.print("\n".join(legend) + "\n", style="dim", highlight=False)
        show_metrics(console, self.metrics, study.kinds, verbose=True)
        for by in study.kinds:
            tables.show_ledger(console, study, self.entries, by, self.least)
        bases = [label for label in (study.reference, study.alone) if label is not None]
        for by in ("group", "team"):
            views = self.groups.get(by, {})
            if by in study.kinds and views:
                show_groups(console, views, self.gaps.get(by, {}), by, bases, self.least)
            if by == "group" and self.local:
                show_local(console, views, self.local, bases, self.least)
        weights = tables.weight_table(study)
        if weights.row_count:
            tables.show_table(console, weights)
        for line in self.sentences:
            console.print(line, highlight=False, markup=False)

    @property
    def clients(self) -> str:
        """The number of clients, in words."""
        found = self.study.clients
        summed = [trial.over_clients for trial in self.study.trials.values() if trial.over_clients]
        heard = min((int(numbers["clients"]) for numbers in summed), default=found)
        # the others have no test samples, or did not answer the last evaluation
        of = f"{heard:,} of " if heard < found else ""
        return f"{of}{found:,} client{'s' * (found != 1)}"

    def number(self, merit: float) -> str:
        """A merit with its unit."""
        return f"{self.study.measure.show(merit)}{self.study.measure.percent}"

    def table(self, name: str) -> pd.DataFrame:
        """One of :meth:`tables`, as a DataFrame."""
        import pandas as pd

        tables = self.tables()
        require_known("table", name, tables)
        return pd.DataFrame(tables[name])

    def of(self, study: Study) -> Findings:
        """The same analysis of another study."""
        over = "auto" if self.comparison.over == "nothing" else self.comparison.over
        kind = self.study.measure.kind
        asked = None if kind == study.measure.kind else kind
        return analyse(study, over, self.comparison.level, self.least, self.positive, asked)

    def tables(self) -> dict[str, list[Row]]:
        """Rows of tables, by name: comparison, differences, ledger, gaps and clients; with groups
        also local_gaps, with metrics also metrics and metric_gains, after a sweep also sweep, after
        tuning also tuning, and diverged if a method diverged."""
        study, comparison = self.study, self.comparison
        found: dict[str, list[Row]] = {
            "sweep": [] if self.sweep is None else self.sweep.rows(),
            "tuning": [] if self.tuned is None else self.tuned.rows(),
            "comparison": comparison_rows(comparison),
            "differences": difference_rows(comparison),
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
            "local_gaps": [
                {"method": label, **row}
                for label, kinds in self.local.items()
                for row in local_rows(self.groups["group"][label].gaps, kinds)
            ],
            **metric_tables(self.metrics),
            "diverged": [
                {"method": one.label, "seed": seed, "round": one.round}
                for one in study.diverged
                for seed in one.seeds
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
    measure: str | None = None,
) -> Findings:
    """Compare the methods of a study: an answer, metrics with intervals, gains, losses and gaps.

    Args:
        over: what intervals allow for: "seeds+samples" (another training run and other test samples
            of these clients), only "seeds" or only "samples", other "clients" like these, or "both"
            other clients and samples. "auto" is "seeds+samples" with two seeds or more, else
            "samples".
        level: the confidence level of the intervals.
        least: clients and groups with fewer test samples are not evaluated.
        positive: the label that rates are about; by default the second of two.
        measure: "accuracy", "balanced_accuracy", "recall", "specificity", "precision", "auc" or
            "loss" for a classifier, "error" or "mae" for a regression. By default "accuracy" or
            "error".
    """
    study = measured(study.in_order(), measure, positive)
    comparison, entries = compare(study, over, level), ledger(study, level, least)
    between = {by: gaps(study, by, level, least, positive) for by in ("group", "team")}
    labels = study.first.counts.labels if study.first.counts is not None else ()
    views = {by: group_views(study, by, level, least, positive) for by in ("group", "team")}
    positive = labels[1] if positive is None and len(labels) == 2 else positive
    of_rates = _of_rates(study, views["group"], positive, level, least)
    local = local_views(study, level, least, positive)
    evidence = Evidence(study, comparison, entries, views, least, of_rates, local)
    return Findings(
        study,
        comparison,
        entries,
        between,
        views,
        answer(evidence),
        sentences(evidence),
        least,
        positive,
        local=local,
        metrics=metric_views(study, comparison.over, level, least),
    )


def _of_rates(
    study: Study, views: Mapping[str, GroupView], positive: str | None, level: float, least: int
) -> dict[str, Sequence[Entry]]:
    """Gains and losses of groups in recall and specificity, if accuracy is the measure: accuracy
    hides who is harmed when base rates differ."""
    if positive is None or study.measure.kind != "accuracy" or not views:
        return {}
    kinds = ("recall", "specificity")
    return {
        kind: ledger(study.measured_by(kind, positive), level, least, ("group",)) for kind in kinds
    }


def measured(study: Study, measure: str | None, positive: str | None) -> Study:
    """The study, evaluated with this measure."""
    return study if measure is None else study.measured_by(measure, positive)


def conclude(study: Study, spec: Spec, **numbers: Any) -> Findings:
    """:func:`analyse` all methods of a spec, or the point chosen by its sweep."""
    if not spec.select:
        found = analyse(study, **numbers)
        return found if study.root is None else replace(found, tuned=read_tuned(study.root))
    sweep = Sweep.of(measured(study, numbers.get("measure"), numbers.get("positive")), spec)
    found = analyse(sweep.final, **numbers)
    # after a sweep, another comparison of its points makes no sense
    command = f"evenhand report {shlex.quote(str(study.root))}" if study.root is not None else ""
    return replace(found, sweep=sweep, answer=replace(found.answer, command=command))


def left_out(findings: Findings, by: str) -> list[str]:
    """Which groups or teams are excluded from gaps because they have too few samples."""
    return excluded_lines(findings.groups[by], findings.least)
