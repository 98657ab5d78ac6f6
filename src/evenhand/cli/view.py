"""How runs, comparisons and sweeps are carried out and shown: shared by run, compare, sweep and
resume."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.options import NUMBERS, adding, format_option
from evenhand.cli.progress import bars
from evenhand.cli.terminal import WITH_INTERVALS, results_console

if TYPE_CHECKING:
    from rich.console import Console

    from evenhand.studies.findings import Findings
    from evenhand.studies.runs.comparing import Planned
    from evenhand.studies.runs.executing import Ready
    from evenhand.studies.specs.spec import Spec
    from evenhand.training.fit import Progress as AfterRound

_VIEW = (
    *NUMBERS,
    format_option("are written beside the runs"),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print all numbers as JSON for programs, and nothing else.",
    ),
)
_SEEDS = (
    click.option(
        "--seeds",
        metavar="N|LIST",
        help="How many seeds, from --seed on, or which: 5 or 0,3,7.  [default: the spec's, or 3]",
    ),
    click.option(
        "--resplit",
        is_flag=True,
        default=None,
        help="Deal the data anew with each seed; else all seeds have the same clients and samples.",
    ),
    click.option(
        "--validation",
        type=click.FloatRange(0, 1, max_open=True),
        help=(
            "Share of each client's training samples to set aside, where the data have no"
            " validation part."
        ),
    ),
)


seed_options = adding(_SEEDS)


@dataclass(frozen=True)
class View:
    """How results are to be shown."""

    over: str
    level: float
    least: int
    positive: str | None
    measure: str | None
    formats: tuple[str, ...]
    as_json: bool


def view_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how results are shown; the command gets them as ``view``."""

    @wraps(command)
    def call(
        over: str,
        level: float,
        least: int,
        positive: str | None,
        measure: str | None,
        formats: tuple[str, ...],
        as_json: bool,
        **others: Any,
    ) -> Any:
        return command(view=View(over, level, least, positive, measure, formats, as_json), **others)

    with_options: Callable[[Callable[..., Any]], Callable[..., Any]] = adding(_VIEW)
    return with_options(call)


def with_seeds(
    plan: Spec,
    seeds: str | None,
    resplit: bool | None,
    validation: float | None,
    folds: int | None = None,
) -> Spec:
    """The spec with these seeds; without any, its own, or three. Each fold has one."""
    import dataclasses

    from evenhand.errors import SpecError

    given: dict[str, Any] = {"resplit": resplit, "validation": validation, "folds": folds}
    if folds is not None and seeds is not None:
        raise SpecError(
            f"each of {folds} folds is trained with a seed of its own; leave out --seeds {seeds}"
        )
    if folds or (plan.folds and not plan.seeds):
        given["seeds"] = tuple(range(plan.seed, plan.seed + (folds or plan.folds)))
    elif seeds is not None or not plan.seeds:
        given["seeds"] = parse_seeds(seeds or "3", plan.seed)
    return dataclasses.replace(
        plan, **{key: value for key, value in given.items() if value is not None}
    )


def parse_seeds(text: str, first: int) -> tuple[int, ...]:
    """Seeds from a command line: how many, from ``first`` on, or a list.

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
        raise SpecError(f"cannot read --seeds {text!r}; give how many (5) or which ones (0,3,7)")
    return tuple(map(int, parts)) if "," in text else tuple(range(first, first + int(text)))


@contextmanager
def begin(plan: Planned, out: Path | None) -> Iterator[Path]:
    """Work alone in a directory for a comparison, with its spec in it, so that it can be resumed
    from now on."""
    from evenhand.studies.runs.directories import claim_comparison, new_directory

    with new_directory(out or Path("runs") / plan.spec.name, numbered=out is None) as directory:
        claim_comparison(plan.spec, directory)
        yield directory


def check_view(plan: Spec, view: View) -> None:
    """Raise where results could not be shown as asked for; before hours of training."""
    from evenhand.files import check_formats
    from evenhand.studies.specs.asked import check_numbers

    check_formats(view.formats)
    check_numbers(plan, over=view.over, option="--over")


def carry_out_run(ready: Ready, directory: Path, quiet: bool, view: View) -> None:
    """Train what is not trained yet of a single run, then write and print the tables."""
    from functools import partial

    from evenhand.studies.runs.executing import execute

    with _training(ready.spec, ready, quiet, view) as (console, watch):
        execute(ready, directory, partial(watch, ready.spec.seed))
    _conclude(directory, ready.spec, console, view)


def carry_out(
    plan: Planned, directory: Path, quiet: bool, view: View, tuning: Planned | None = None
) -> None:
    """Train what is not trained yet of a comparison or sweep, then write and print the tables.

    ``tuning``: the runs that settings are chosen with first.
    """
    from evenhand.studies.runs.comparing import execute_comparison
    from evenhand.studies.runs.tuning import tune
    from evenhand.training.provenance import ElsewhereWarning

    if tuning is not None:
        if not (quiet or view.as_json):
            points, methods = len(tuning.spec.methods), len(plan.spec.methods)
            click.echo(f"Tuning {methods} methods on validation data: {points} settings in all.")
        with bars(tuning.spec, quiet) as watch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some step sizes are meant to be too large
            warnings.simplefilter("default", ElsewhereWarning)
            plan = tune(plan, tuning, directory, watch)
    with _training(plan.spec, plan.first, quiet, view) as (console, watch):
        execute_comparison(plan, directory, watch)
    _conclude(directory, plan.spec, console, view)


@contextmanager
def _training(
    spec: Spec, first: Ready, quiet: bool, view: View
) -> Iterator[tuple[Console, Callable[..., AfterRound]]]:
    """Where to print, and what shows progress; says first what was read."""
    from evenhand.studies.specs.asked import check_numbers
    from evenhand.studies.tables.data import show_data

    check_numbers(spec, first.federation.label_names, positive=view.positive, measure=view.measure)
    console = results_console(quiet or view.as_json, WITH_INTERVALS)
    show_data(console, first)
    with bars(spec, quiet) as watch:
        yield console, watch


def _conclude(directory: Path, spec: Spec, console: Console, view: View) -> None:
    """Write and print what came out."""
    from evenhand.engines import processes
    from evenhand.files import json_text, write_tables
    from evenhand.studies.findings import conclude
    from evenhand.studies.runs.study import Study
    from evenhand.training.manifest import renew

    if not processes.is_first():
        return
    findings = conclude(
        Study.load([directory]),
        spec,
        over=view.over,
        level=view.level,
        least=view.least,
        positive=view.positive,
        measure=view.measure,
    )
    tables = findings.tables()
    written = write_tables(directory, tables, view.formats)
    renew(directory, [path.name for path in written])
    if view.as_json:
        click.echo(json_text({"directory": str(directory), **_about(findings), **tables}))
        return
    findings.show(console)
    console.print(f"Results are in {directory}", highlight=False, soft_wrap=True)


def _about(findings: Findings) -> dict[str, Any]:
    """What the numbers are of."""
    study, comparison, sweep = findings.study, findings.comparison, findings.sweep
    about = {
        "measure": study.measure.name,
        "part": study.measure.part,
        "methods": study.labels,
        "seeds": study.seeds,
        "answer": findings.answer.sentences,
        "next": findings.answer.command,
        "intervals": {"over": comparison.over, "level": comparison.level},
    }
    if sweep is None:
        return about
    choice = {"rule": sweep.selection.rule, "chosen": sweep.choice.label, "reason": sweep.reason}
    return about | choice
