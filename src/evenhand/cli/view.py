"""How runs, comparisons and sweeps are carried out and shown: shared by run, compare, sweep and
resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenhand.cli.terminal import WITH_INTERVALS, bars, results_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from evenhand.studies.comparing import Planned
    from evenhand.studies.directories import Ready
    from evenhand.studies.findings import Findings
    from evenhand.studies.spec import Spec
    from evenhand.studies.study import Study
    from evenhand.studies.sweeping import Sweep

LEVEL = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Of the intervals.",
)
_NUMBERS = (
    click.option(
        "--over",
        type=click.Choice(["auto", "seeds", "samples", "clients", "both"]),
        default="auto",
        show_default=True,
        help="What intervals are over; auto: seeds where there are at least two, else samples.",
    ),
    LEVEL,
    click.option(
        "--least",
        type=click.IntRange(min=0),
        default=10,
        show_default=True,
        help="Do not judge clients and groups with fewer test samples.",
    ),
    click.option(
        "--positive",
        metavar="LABEL",
        help="The label that gaps in rates are about.  [default: the last of two]",
    ),
)


def format_option(which: str) -> Callable[..., Any]:
    """--format; ``which`` says of what tables."""
    kinds, text = (
        click.Choice(["csv", "parquet", "json"]),
        f"Of the tables that {which}; repeat for several.",
    )
    return click.option(
        "--format",
        "formats",
        type=kinds,
        multiple=True,
        default=("csv",),
        show_default=True,
        help=text,
    )


_VIEW = (
    *_NUMBERS,
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


def _adding(options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


number_options, seed_options = _adding(_NUMBERS), _adding(_SEEDS)


@dataclass(frozen=True)
class View:
    """How results are to be shown."""

    over: str
    level: float
    least: int
    positive: str | None
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
        formats: tuple[str, ...],
        as_json: bool,
        **others: Any,
    ) -> Any:
        return command(view=View(over, level, least, positive, formats, as_json), **others)

    adding: Callable[[Callable[..., Any]], Callable[..., Any]] = _adding(_VIEW)
    return adding(call)


def with_seeds(
    plan: Spec, seeds: str | None, resplit: bool | None, validation: float | None
) -> Spec:
    """The spec with these seeds; without any, its own, or three."""
    import dataclasses

    given: dict[str, Any] = {"resplit": resplit, "validation": validation}
    if seeds is not None or not plan.seeds:
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


def begin(plan: Planned, out: Path | None) -> Path:
    """A directory of its own for a comparison, with its spec in it, so that it can be resumed from
    now on."""
    from evenhand.studies.comparing import claim
    from evenhand.studies.directories import new_directory

    directory = new_directory(out or Path("runs") / plan.spec.name, numbered=out is None)
    claim(plan.spec, directory)
    return directory


def check_view(plan: Spec, view: View) -> None:
    """Raise where results could not be shown as asked for; before hours of training."""
    from evenhand.errors import SpecError
    from evenhand.files import check_formats

    check_formats(view.formats)
    if view.over == "seeds" and len(plan.seeds) < 2:
        raise SpecError(
            "intervals over seeds need at least two of them; leave --over out, or run evenhand"
            " compare --seeds 3"
        )
    if plan.resplit and view.over not in ("auto", "seeds"):
        raise SpecError(
            "data that are dealt anew with each seed have other samples with each; use --over"
            f" seeds in place of {view.over}"
        )


def check_positive(ready: Ready, positive: str | None) -> None:
    """Raise where there is no such label."""
    from evenhand.errors import SpecError, unknown

    known = ready.federation.label_names
    if positive is not None and known and positive not in known:
        raise SpecError(unknown("label", positive, known))


def carry_out_run(ready: Ready, directory: Path, quiet: bool, view: View) -> None:
    """Train what is not trained yet of a single run, then write and print the tables."""
    from functools import partial

    from evenhand.engines import processes
    from evenhand.studies.directories import execute
    from evenhand.studies.study import Study
    from evenhand.studies.tables import show_data

    check_positive(ready, view.positive)
    console = results_console(quiet or view.as_json, WITH_INTERVALS)
    show_data(console, ready)
    with bars(ready.spec, quiet) as watch:
        execute(ready, directory, partial(watch, ready.spec.seed))
    if processes.is_first():
        _conclude(Study.load([directory]), directory, console, view)


def carry_out(plan: Planned, directory: Path, quiet: bool, view: View) -> None:
    """Train what is not trained yet of a comparison or sweep, then write and print the tables."""
    from evenhand.engines import processes
    from evenhand.studies.comparing import execute_comparison
    from evenhand.studies.study import Study
    from evenhand.studies.sweeping import Sweep
    from evenhand.studies.tables import show_data

    check_positive(plan.first, view.positive)
    console = results_console(quiet or view.as_json, WITH_INTERVALS)
    show_data(console, plan.first)
    with bars(plan.spec, quiet) as watch:
        execute_comparison(plan, directory, watch)
    if processes.is_first():
        study = Study.load([directory])
        _conclude(
            study,
            directory,
            console,
            view,
            Sweep.of(study, plan.spec) if plan.spec.select else None,
        )


def _conclude(
    study: Study, directory: Path, console: Console, view: View, sweep: Sweep | None = None
) -> None:
    """Write and print what came out."""
    from evenhand.files import json_text, write_tables
    from evenhand.studies.findings import analyse
    from evenhand.studies.tables import show_study

    findings = analyse(
        study if sweep is None else sweep.final, view.over, view.level, view.least, view.positive
    )
    tables = ({} if sweep is None else {"sweep": sweep.rows()}) | findings.tables()
    write_tables(directory, tables, view.formats)
    if view.as_json:
        choice = (
            {}
            if sweep is None
            else {
                "rule": sweep.selection.rule,
                "chosen": sweep.choice.label,
                "reason": sweep.reason,
            }
        )
        click.echo(json_text({"directory": str(directory), **_about(findings), **choice, **tables}))
        return
    if sweep is not None:
        _show_choice(console, sweep)
    show_study(console, findings)
    console.print(f"Results are in {directory}", highlight=False, soft_wrap=True)


def _about(findings: Findings) -> dict[str, Any]:
    """What the numbers are of."""
    study, comparison = findings.study, findings.comparison
    return {
        "measure": study.measure.name,
        "part": study.measure.part,
        "methods": study.labels,
        "seeds": study.seeds,
        "intervals": {"over": comparison.over, "level": comparison.level},
    }


def _show_choice(console: Console, sweep: Sweep) -> None:
    """Print every point on validation data, and which one is chosen and why."""
    from evenhand.studies.selection import FAIRNESS

    console.print(_points(sweep))
    number = {"worst10": "worst 10 %", "min": "worst", "std": "std"}[FAIRNESS[sweep.selection.rule]]
    if sweep.dominated:
        text = (
            f"dominated: another point is at least as good in mean and {number}, and better in one"
            " of them."
        )
        console.print(text, style="dim", highlight=False)
    console.print(
        f"Rule {sweep.selection.rule}: {sweep.selection.stated}.", highlight=False, markup=False
    )
    console.print(sweep.reason, highlight=False, markup=False)


def _points(sweep: Sweep) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    measure, seeds = sweep.measure, len(sweep.study.seeds)
    means = f", means over {seeds} seeds" if seeds > 1 else ""
    title = f"Validation {measure.name} across clients{measure.unit}{means}"
    table = Table(title=title, box=box.SIMPLE, title_justify="left", padding=(0, 0, 0, 1))
    table.add_column("point", no_wrap=True, overflow="fold")
    for heading in ("mean", "worst 10 %", "worst", "std", "variance"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for label, point in sweep.validation.items():
        chosen = label == sweep.choice.label
        notes = (
            ["chosen"] * chosen
            + ["reference"] * (label in (sweep.reference, sweep.study.alone))
            + ["dominated"] * (label in sweep.dominated)
        )
        cells = [measure.show(point[name]) for name in ("mean", "worst10", "min", "std")]
        cells.append(
            "-"
            if point["variance"] != point["variance"]
            else f"{measure.scale**2 * point['variance']:.{measure.digits}f}"
        )
        table.add_row(
            escape(label),
            *cells,
            ", ".join(notes),
            style="bold" if chosen else "dim" if label in sweep.dominated else "",
        )
    return table
