"""Training, printing and reporting, shared by run, compare, sweep and resume."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.options import NUMBERS, adding, format_option
from evenhand.cli.progress import bars
from evenhand.cli.terminal import SHORT, WITH_INTERVALS, open_page, results_console
from evenhand.cli.tracking import check_trackers, track_option, trackers

if TYPE_CHECKING:
    from rich.console import Console

    from evenhand.studies.findings import Findings
    from evenhand.studies.runs.comparing import Planned
    from evenhand.studies.runs.executing import Ready
    from evenhand.studies.specs.spec import Spec
    from evenhand.training.fit import Progress as AfterRound

_VIEW = (
    *NUMBERS,
    format_option("in the run directory"),
    click.option(
        "-v", "--verbose", is_flag=True, help="Print all tables and details, not only the answer."
    ),
    click.option("--open", "opened", is_flag=True, help="Open the report in a browser."),
    click.option(
        "--no-report",
        "report",
        is_flag=True,
        flag_value=False,
        default=True,
        help="Do not write report.html.",
    ),
    track_option,
    click.option(
        "--json", "as_json", is_flag=True, help="Print all results as JSON, and nothing else."
    ),
)
_SEEDS = (
    click.option(
        "--seeds",
        metavar="N|LIST",
        help=(
            "The number of seeds, starting at --seed, or a list of seeds: 5 or 0,3,7.  [default:"
            " the spec's, or 3]"
        ),
    ),
    click.option(
        "--resplit",
        is_flag=True,
        default=None,
        help=(
            "Partition and split the data differently for each seed. By default all seeds share"
            " the same clients and samples."
        ),
    ),
    click.option(
        "--validation",
        type=click.FloatRange(0, 1, max_open=True),
        help=(
            "Share of each client's training samples to use for validation, if the data have no"
            " validation split."
        ),
    ),
)
REPORT = "report.html"  # in the run directory


seed_options = adding(_SEEDS)


@dataclass(frozen=True)
class View:
    """How results are analysed, printed and written."""

    over: str
    level: float
    least: int
    positive: str | None
    measure: str | None
    formats: tuple[str, ...]
    as_json: bool
    verbose: bool
    report: bool
    opened: bool
    tracked: tuple[str, ...] = ()

    @property
    def numbers(self) -> dict[str, Any]:
        """The arguments of :func:`evenhand.analyse`."""
        names = ("over", "level", "least", "positive", "measure")
        return {name: getattr(self, name) for name in names}


def view_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for analysis and output; the command gets them as ``view``."""

    @wraps(command)
    def call(**given: Any) -> Any:
        view = View(**{one.name: given.pop(one.name) for one in fields(View)})
        return command(view=view, **given)

    with_options: Callable[[Callable[..., Any]], Callable[..., Any]] = adding(_VIEW)
    return with_options(call)


def with_seeds(
    plan: Spec,
    seeds: str | None,
    resplit: bool | None,
    validation: float | None,
    folds: int | None = None,
) -> Spec:
    """The spec with these seeds. By default its own, or three; each fold has one."""
    import dataclasses

    from evenhand.errors import SpecError

    given: dict[str, Any] = {"resplit": resplit, "validation": validation, "folds": folds}
    if folds is not None and seeds is not None:
        raise SpecError(f"each of {folds} folds has a seed of its own; leave out --seeds {seeds}")
    if folds or (plan.folds and not plan.seeds):
        given["seeds"] = tuple(range(plan.seed, plan.seed + (folds or plan.folds)))
    elif seeds is not None or not plan.seeds:
        given["seeds"] = parse_seeds(seeds or "3", plan.seed)
    return dataclasses.replace(
        plan, **{key: value for key, value in given.items() if value is not None}
    )


def parse_seeds(text: str, first: int) -> tuple[int, ...]:
    """Seeds from a command line: a number of seeds, starting at ``first``, or a list.

    >>> parse_seeds("3", 0), parse_seeds("0,3,7", 0), parse_seeds("7,", 0)
    ((0, 1, 2), (0, 3, 7), (7,))
    """
    from evenhand.errors import SpecError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if (
        not parts
        or not all(part.isascii() and part.isdigit() for part in parts)
        or (text.strip() == "0")
    ):
        raise SpecError(f"cannot read --seeds {text!r}; give a number (5) or a list (0,3,7)")
    return tuple(map(int, parts)) if "," in text else tuple(range(first, first + int(text)))


@contextmanager
def begin(plan: Planned, out: Path | None) -> Iterator[Path]:
    """Lock a directory for a comparison and write its spec, so that it can be resumed."""
    from evenhand.studies.runs.directories import claim_comparison, new_directory

    with new_directory(out or Path("runs") / plan.spec.name, numbered=out is None) as directory:
        claim_comparison(plan.spec, directory)
        yield directory


def check_view(plan: Spec, view: View) -> None:
    """Raise, before hours of training, if results could not be shown as asked for."""
    from evenhand.errors import SpecError
    from evenhand.files import check_formats
    from evenhand.studies.specs.asked import check_numbers

    check_formats(view.formats)
    check_trackers(view.tracked)
    if view.opened and not view.report:
        raise SpecError("--open shows the report; leave out --no-report")
    check_numbers(plan, over=view.over, option="--over")


def carry_out_run(ready: Ready, directory: Path, quiet: bool, view: View) -> None:
    """Train the methods of a run that are not finished, then write and print the results."""
    from functools import partial

    from evenhand.studies.runs.executing import execute

    ready = ready._replace(callbacks=trackers(view.tracked, directory))
    with _training(ready.spec, ready, quiet, view) as (console, watch):
        execute(ready, directory, partial(watch, ready.spec.seed))
    _conclude(directory, ready.spec, console, view)


def carry_out(
    plan: Planned, directory: Path, quiet: bool, view: View, tuning: Planned | None = None
) -> None:
    """Train the runs of a comparison or sweep that are not finished, then write and print the
    results.

    ``tuning``: the runs that choose each method's settings first.
    """
    from evenhand.studies.runs.comparing import execute_comparison
    from evenhand.studies.runs.tuning import tune
    from evenhand.training.provenance import ElsewhereWarning

    callbacks = trackers(view.tracked, directory)
    plan, tuning = plan.with_callbacks(callbacks), tuning and tuning.with_callbacks(callbacks)
    if tuning is not None:
        if not (quiet or view.as_json):
            points, methods = len(tuning.spec.methods), len(plan.spec.methods)
            click.echo(f"Tuning {methods} methods on validation data: {points} settings in total.")
        with bars(tuning.spec, quiet) as watch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some step sizes are too large on purpose
            warnings.simplefilter("default", ElsewhereWarning)
            plan = tune(plan, tuning, directory, watch)
    with _training(plan.spec, plan.first, quiet, view) as (console, watch):
        execute_comparison(plan, directory, watch)
    _conclude(directory, plan.spec, console, view)


@contextmanager
def _training(
    spec: Spec, first: Ready, quiet: bool, view: View
) -> Iterator[tuple[Console, Callable[..., AfterRound]]]:
    """The console for results and a progress bar; a table of the user's is summarised first."""
    from evenhand.studies.specs.asked import check_numbers
    from evenhand.studies.tables.data import show_data

    check_numbers(spec, first.federation.label_names, positive=view.positive, measure=view.measure)
    width = WITH_INTERVALS if view.verbose else SHORT
    console = results_console(quiet or view.as_json, width)
    show_data(console, first, view.verbose)
    with bars(spec, quiet) as watch:
        yield console, watch


def _conclude(directory: Path, spec: Spec, console: Console, view: View) -> None:
    """Analyse the results, write tables and the report, and print the answer."""
    from evenhand.engines import processes
    from evenhand.files import json_text, write_tables
    from evenhand.studies.findings import conclude
    from evenhand.studies.runs.study import Study
    from evenhand.training.manifest import renew

    if not processes.is_first():
        return
    findings = conclude(Study.load([directory]), spec, **view.numbers)
    tables = findings.tables()
    written = write_tables(directory, tables, view.formats)
    renew(directory, [path.name for path in written])
    if view.as_json:
        page = _report(findings, directory, view)
        found = {"directory": str(directory), "report": None if page is None else str(page)}
        click.echo(json_text({**found, **_about(findings), **tables}))
    else:
        findings.show(console=console, verbose=view.verbose)
        _show_privacy(console, findings)
        page = _report(findings, directory, view)  # the answer is printed, whatever happens here
        _show_places(console, findings, directory, page)
    if view.opened and page is not None:
        open_page(page)


def _show_privacy(console: Console, findings: Findings) -> None:
    """Print what private methods may claim."""
    from evenhand.studies.analysis.privacy_in_words import about_privacy

    for label in findings.study.labels:
        if line := about_privacy(findings.study, label):
            console.print(f"\n{line}", highlight=False, markup=False)


def _report(findings: Findings, directory: Path, view: View) -> Path | None:
    """Write the report into the run directory. It is not in the manifest: it can be made again with
    other options."""
    if not view.report:
        return None
    from evenhand.page.report import report

    try:
        return report(findings, directory / REPORT).page
    except ImportError as error:  # without plotly there is no report
        click.echo(f"no report: {error}", err=True)
        return None


def _show_places(console: Console, findings: Findings, directory: Path, page: Path | None) -> None:
    """Print where the results are, and what to run next."""
    command = findings.answer.command
    if page is not None and command.startswith("evenhand report "):
        command = ""  # done already
    lines = [f"Report: {page}"] if page is not None else []
    lines += [f"Tables: {directory}{os.sep}", *([f"Next:   {command}"] if command else [])]
    console.print("\n" + "\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _about(findings: Findings) -> dict[str, Any]:
    """What was compared, how, and the answer."""
    study, comparison, sweep = findings.study, findings.comparison, findings.sweep
    about = {
        "measure": study.measure.name,
        "part": study.measure.part,
        "methods": study.labels,
        "seeds": study.seeds,
        "answer": findings.answer.sentences,
        "next": findings.answer.command,
        "privacy": {
            label: found.to_json()
            for label in study.labels
            if (found := study.trials[label, study.seeds[0]].privacy) is not None
        },
        "intervals": {"over": comparison.over, "level": comparison.level},
    }
    if sweep is None:
        return about
    choice = {"rule": sweep.selection.rule, "chosen": sweep.choice.label, "reason": sweep.reason}
    return about | choice
