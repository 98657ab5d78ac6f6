"""Everything there is to say about a study: numbers, tables and words, for the command line and the
page alike."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from evenhand.errors import require_known
from evenhand.metrics.uncertainty import Interval
from evenhand.studies.analysis.answer import Answer, answer
from evenhand.studies.analysis.comparison import Comparison, Difference, compare
from evenhand.studies.analysis.evidence import Evidence
from evenhand.studies.analysis.gaps import gaps
from evenhand.studies.analysis.groups import GroupView, group_views
from evenhand.studies.analysis.ledger import Entry, ledger
from evenhand.studies.analysis.sweeping import Sweep
from evenhand.studies.analysis.words import sentences
from evenhand.studies.analysis.writing import listed
from evenhand.studies.runs.study import Study
from evenhand.studies.runs.tuning import Tuned, read_tuned
from evenhand.studies.specs.spec import Spec
from evenhand.studies.tables import methods as tables
from evenhand.studies.tables.notebook import MOST_ROWS, findings_html
from evenhand.studies.tables.sweeps import show_choice
from evenhand.studies.tables.tuning import show_tuning

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

MOST_RATES = 14  # rows of rates, of two lines each
WIDTH = 130  # columns of a text that goes to no terminal: tables with intervals are wide
# how a study is looked at where nothing else is asked for, see analyse()
NUMBERS: dict[str, Any] = {
    "over": "auto",
    "level": 0.95,
    "least": 10,
    "positive": None,
    "measure": None,
}


@dataclass(frozen=True, repr=False)
class Findings:
    """All numbers about a study; printed, they are the tables and sentences of the command line."""

    study: Study
    comparison: Comparison
    entries: Sequence[Entry]  # the harm ledger
    # by "group" and "team", then method, then kind
    gaps: Mapping[str, Mapping[str, Mapping[str, Interval]]]
    # by "group" and "team", then method: rates of each group, and the two that make a gap
    groups: Mapping[str, Mapping[str, GroupView]]
    answer: Answer  # all that in three sentences
    sentences: Sequence[str]  # and in more
    least: int  # fewer samples were not judged
    # the label that gaps in rates are about; None: of many labels, the one that differs most
    positive: str | None = None
    # how the point was chosen that is looked at here, beside the references
    sweep: Sweep | None = None
    tuned: Tuned | None = None  # how the settings of each method were chosen

    def __repr__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=WIDTH, force_jupyter=False))
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:  # for notebooks
        shown = self.study, self.comparison, self.entries, self.least, self.answer, self.sentences
        return findings_html(*shown)

    def show(self, console: Console) -> None:
        """Print everything, the answer first."""
        _show(console, self)

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

    def table(self, name: str) -> pd.DataFrame:
        """One of :meth:`tables`."""
        import pandas as pd

        tables = self.tables()
        require_known("table", name, tables)
        return pd.DataFrame(tables[name])

    def of(self, study: Study) -> Findings:
        """The same look at another study."""
        over = "auto" if self.comparison.over == "nothing" else self.comparison.over
        kind = self.study.measure.kind
        asked = None if kind == study.measure.kind else kind
        return analyse(study, over, self.comparison.level, self.least, self.positive, asked)

    def tables(self) -> dict[str, list[Row]]:
        """Rows of tables, by name: comparison, differences, ledger, gaps, clients; of a sweep, also
        sweep; of methods that diverged, diverged."""
        study, comparison = self.study, self.comparison
        found: dict[str, list[Row]] = {
            "sweep": [] if self.sweep is None else self.sweep.rows(),
            "tuning": [] if self.tuned is None else self.tuned.rows(),
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
    """Look at a study from all sides.

    Args:
        over: what intervals are over: "seeds+samples" (another training and other samples of
            these clients), "seeds" or "samples" alone, other "clients" like these, or "both" other
            clients and samples; "auto" is seeds+samples where there are two seeds, else samples.
        level: of the intervals.
        least: clients and groups with fewer test samples are not judged.
        positive: the label that rates are about; by default the last of two.
        measure: what "served" means: "accuracy", "balanced_accuracy", "recall", "specificity",
            "precision", "auc" or "loss" of a classifier, "error" or "mae" of a regression. By
            default accuracy, or the error.
    """
    study = measured(study.in_order(), measure, positive)
    comparison, entries = compare(study, over, level), ledger(study, level, least)
    between = {by: gaps(study, by, level, least, positive) for by in ("group", "team")}
    labels = study.first.counts.labels if study.first.counts is not None else ()
    views = {by: group_views(study, by, level, least, positive) for by in ("group", "team")}
    positive = labels[1] if positive is None and len(labels) == 2 else positive
    of_rates = _of_rates(study, views["group"], positive, level, least)
    evidence = Evidence(study, comparison, entries, views, least, of_rates)
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
    )


def _of_rates(
    study: Study, views: Mapping[str, GroupView], positive: str | None, level: float, least: int
) -> dict[str, Sequence[Entry]]:
    """What groups gain and lose in recall and specificity, where accuracy is the measure: with
    different base rates it does not say who is harmed."""
    if positive is None or study.measure.kind != "accuracy" or not views:
        return {}
    kinds = ("recall", "specificity")
    return {
        kind: ledger(study.measured_by(kind, positive), level, least, ("group",)) for kind in kinds
    }


def measured(study: Study, measure: str | None, positive: str | None) -> Study:
    """The study, judged by what was asked for."""
    return study if measure is None else study.measured_by(measure, positive)


def conclude(study: Study, spec: Spec, **numbers: Any) -> Findings:
    """:func:`analyse` what a spec was run for: all methods, or the point that a sweep chooses."""
    if not spec.select:
        found = analyse(study, **numbers)
        return found if study.root is None else replace(found, tuned=read_tuned(study.root))
    sweep = Sweep.of(measured(study, numbers.get("measure"), numbers.get("positive")), spec)
    found = analyse(sweep.final, **numbers)
    # what is next after a sweep is not another comparison of its points
    command = f"evenhand report {shlex.quote(str(study.root))}" if study.root is not None else ""
    return replace(found, sweep=sweep, answer=replace(found.answer, command=command))


def _show(console: Console, findings: Findings) -> None:
    """Print the answer; how settings were chosen; how methods compare, who gains and who loses,
    rates and gaps by "group" and "team", who counted for how much; and all that in words."""
    study, comparison = findings.study, findings.comparison
    for line in findings.answer.sentences:
        console.print(line, style="bold", highlight=False, markup=False)
    if findings.answer.command:  # on one line, to be copied
        console.print(f"Next: {findings.answer.command}", highlight=False, soft_wrap=True)
    console.print()
    if findings.sweep is not None:
        show_choice(console, findings.sweep)
    if findings.tuned is not None:
        show_tuning(console, findings.tuned)
    tables.show_table(console, tables.comparison_table(study, comparison))
    if legend := tables.legend(study, comparison):
        console.print("\n".join(legend) + "\n", style="dim", highlight=False)
    for by in study.kinds:
        count = len(study.names(by))
        if count > MOST_ROWS:
            console.print(
                f"{count} {by}s are too many for a table; ledger.csv has them all.",
                highlight=False,
            )
        elif count:
            table = tables.ledger_table(study, findings.entries, by, findings.least)
            tables.show_table(console, table)
    for by in ("group", "team"):
        if by in study.kinds:
            _show_groups(console, findings, by)
    weights = tables.weight_table(study)
    if weights.row_count:
        tables.show_table(console, weights)
    for line in findings.sentences:
        console.print(line, highlight=False, markup=False)


def _show_groups(console: Console, findings: Findings, by: str) -> None:
    study, views = findings.study, findings.groups.get(by, {})
    if not views:
        return
    bases = [label for label in (study.reference, study.alone) if label is not None]
    rates = tables.rate_table(views, by, bases, MOST_RATES)
    if rates is not None:
        tables.show_table(console, rates)
    apart = {
        label: kinds["calibration"]
        for label, kinds in findings.gaps.get(by, {}).items()
        if "calibration" in kinds
    }
    tables.show_table(console, tables.gap_table(views, apart, by))
    for line in left_out(findings, by):
        console.print(line, style="dim", highlight=False, markup=False)


def left_out(findings: Findings, by: str) -> list[str]:
    """Which groups or teams gaps leave out, since they have few samples for a rate."""
    first = next(iter(findings.groups[by].values()))
    few: dict[tuple[str, ...], list[str]] = {}
    for gap in first.gaps.values():
        if gap.left_out:
            few.setdefault(gap.left_out, []).append(gap.kind)
    return [
        f"{listed(kinds, 6).capitalize()} leave{'s' * (len(kinds) == 1)} out {listed(names, 8)}:"
        f" fewer than {findings.least} samples."
        for names, kinds in few.items()
    ]
