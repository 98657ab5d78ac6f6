"""evenhand benchmark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evenhand.cli.terminal import WITH_INTERVALS, results_console, stopping_cleanly

if TYPE_CHECKING:
    from rich.console import Console

    from evenhand.benchmarking.entry import Counter


@click.command()
@click.option(
    "--quick", is_flag=True, help="Use only federations that one CPU core finishes in minutes."
)
@click.option(
    "--federation",
    "federations",
    multiple=True,
    metavar="NAME",
    help="Use only this federation; repeat for several. --list shows all.",
)
@click.option(
    "-a",
    "--algorithm",
    "methods",
    multiple=True,
    metavar="METHOD",
    help=(
        "Run only this method of the suite, or your own method, mypackage:MyMethod[:KEY=VALUE,...],"
        " which is then ranked among the others. Repeat for several."
    ),
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=VALUE,...",
    help=(
        "Hyper-parameters of your own method to try; repeat for several. Step sizes are added until"
        " it has as many settings as the others."
    ),
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/benchmark"),
    show_default=True,
    help="Directory for the records. Running the same command again continues with it.",
)
@click.option(
    "--merge",
    "merged",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Import records from this directory, made on another machine; repeat for several.",
)
@click.option(
    "--list", "listing", is_flag=True, help="Show what is done and what is missing, and exit."
)
@click.option("--no-run", is_flag=True, help="Show existing records without running anything.")
@click.option("-y", "--yes", is_flag=True, help="Download missing data without asking.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML report."
)
@click.option(
    "--csv",
    "table",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all results as CSV.",
)
@click.option(
    "--svg",
    "drawing",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the gain over FedAvg for the worst 10 % of clients, by method and federation.",
)
@click.option(
    "--records",
    "lines",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write records in the package's format, one file per federation.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
def benchmark(
    quick: bool,
    federations: tuple[str, ...],
    methods: tuple[str, ...],
    grids: tuple[str, ...],
    out: Path,
    merged: tuple[Path, ...],
    listing: bool,
    no_run: bool,
    yes: bool,
    device: str,
    page: Path | None,
    table: Path | None,
    drawing: Path | None,
    lines: Path | None,
    quiet: bool,
) -> None:
    """Rank all methods, and your own, on a fixed suite of federations.

    Every method is tuned on validation data with the same number of settings, trained with five
    seeds and tested once. The package comes with records of its own methods, so only missing ones
    are run. New records go to runs/benchmark; after an interruption, run the same command again.

    \b
    Examples:
      evenhand benchmark --no-run
      evenhand benchmark --list
      evenhand benchmark --quick -a mypackage:MyMethod --grid q=0.1,1,10
      evenhand benchmark --quick --no-run --html benchmark.html
    """
    with stopping_cleanly(quiet):
        from evenhand import files
        from evenhand.benchmarking.entry import benchmark as run
        from evenhand.benchmarking.figure import picture
        from evenhand.benchmarking.page import benchmark_page
        from evenhand.benchmarking.store import write_lines

        console = results_console(quiet, WITH_INTERVALS)
        if not (listing or no_run or yes):
            _ask_before_downloading(quick, federations, methods, out)
        try:
            with _bar(quiet) as progress:
                found = run(
                    methods,
                    federations=federations,
                    quick=quick,
                    grid=grids,
                    out=out,
                    device=device,
                    run=not (listing or no_run),
                    merge=merged,
                    progress=progress,
                )
        except KeyboardInterrupt:
            click.echo("finished records are kept; run the same command to continue", err=True)
            raise
        for note in (*found.notes, *found.failed):
            click.echo(note, err=True)
        if listing:
            _list(console, quick, federations, out)
        else:
            found.show(console)
            if found.missing and not quiet:
                console.print(f"{len(found.missing)} records are missing; --list shows which.")
        if table is not None:
            files.write_rows(table, found.rows("results"))
        if page is not None:
            benchmark_page(found, page)
        if drawing is not None:
            files.write_atomic(drawing, picture(found).encode())
        if lines is not None:
            write_lines(lines, (one for records in found.records.values() for one in records))
        if found.failed:
            sys.exit(1)


def _ask_before_downloading(
    quick: bool, federations: tuple[str, ...], methods: tuple[str, ...], out: Path
) -> None:
    """Name the data that would be downloaded; in a terminal, ask first."""
    from evenhand.benchmarking import store
    from evenhand.benchmarking.suite import Suite
    from evenhand.data.storage.file import data_root
    from evenhand.datasets.catalogue import entry
    from evenhand.datasets.entry import FETCH

    suite, wanted = Suite.standard(), {}
    entries = suite.methods(list(methods), [])
    for bench in suite.chosen(federations, quick):
        units = [unit for one in entries if (unit := suite.unit(bench, one))]
        state = entry(bench.table["data"]["name"]).state(data_root())
        if state.kind == FETCH and any(store.known(out, unit) is None for unit in units):
            size = f" ({state.megabytes:g} MB)" if state.megabytes else ""
            wanted[bench.table["data"]["name"]] = size
    if not wanted:
        return
    listed = ", ".join(f"{name}{size}" for name, size in wanted.items())
    if sys.stdin.isatty():
        click.confirm(f"Download {listed}?", abort=True, err=True)
    else:
        click.echo(f"downloading {listed}", err=True)


@contextmanager
def _bar(quiet: bool) -> Iterator[Counter]:
    """Progress on standard error: what is being trained, the share done and the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from evenhand.cli.terminal import warnings_as_lines

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, quiet=quiet)
    hidden = quiet or not console.is_terminal  # bars are useless in a file
    with Progress(*columns, console=console, disable=hidden) as shown, warnings_as_lines(quiet):
        task = shown.add_task("", total=None, visible=False)
        last = ""

        def progress(done: float, total: int, text: str) -> None:
            nonlocal last
            shown.update(task, description=text, completed=done, total=total, visible=True)
            if hidden and not quiet and text != last:
                click.echo(f"{int(done) + 1} of {total}, {text}", err=True)
            last = text

        yield progress


def _list(console: Console, quick: bool, federations: tuple[str, ...], out: Path) -> None:
    """Print the federations, what is done, what is missing, and the time it takes."""
    from rich import box
    from rich.table import Table

    from evenhand.benchmarking import store
    from evenhand.benchmarking.suite import Suite
    from evenhand.data.storage.file import data_root
    from evenhand.datasets.catalogue import entry

    suite = Suite.standard()
    table = Table(box=box.SIMPLE)
    for heading in ("federation", "what it is", "quick", "data", "done", "min/method", "missing"):
        table.add_column(heading)
    for bench in suite.chosen(federations, quick):
        units = [unit for one in suite.entries.values() if (unit := suite.unit(bench, one))]
        records = {unit.entry.label: store.known(out, unit) for unit in units}
        done = [record for record in records.values() if record is not None]
        left = [label for label, record in records.items() if record is None]
        seconds = sum(len(record.seeds) * (record.seconds or 0) for record in done)
        table.add_row(
            bench.name,
            bench.title,
            "yes" if bench.quick else "no",
            entry(bench.table["data"]["name"]).state(data_root()).kind,
            f"{len(done)} of {len(units)}",
            _minutes(seconds * (1 + suite.budget.settings / suite.budget.seeds), len(done)),
            "all" if not done else ", ".join(left) or "-",
        )
    console.print(table)
    console.print(f"Methods: {', '.join(suite.entries)}.", highlight=False)
    console.print(
        "min/method: minutes to tune and train one method, on the machine that made the records.",
        highlight=False,
    )


def _minutes(seconds: float, methods: int) -> str:
    return f"{seconds / 60 / methods:.1f}" if methods else "?"
