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
@click.option("--quick", is_flag=True, help="Only federations that a CPU core finishes in minutes.")
@click.option(
    "--federation",
    "federations",
    multiple=True,
    metavar="NAME",
    help="Only this federation; repeat for several. --list names them.",
)
@click.option(
    "-a",
    "--algorithm",
    "methods",
    multiple=True,
    metavar="METHOD",
    help=(
        "Only this method of the suite; or a method of your own, mypackage:MyMethod[:key=value],"
        " placed among the others. Repeat for several."
    ),
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Values to try of your own method; step sizes fill them up to the suite's number.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/benchmark"),
    show_default=True,
    help="Where records are kept. The same command goes on with what is there.",
)
@click.option(
    "--merge",
    "merged",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Take over records from another machine's directory; repeat for several.",
)
@click.option(
    "--list", "listing", is_flag=True, help="Show what is done and what is missing; run nothing."
)
@click.option("--no-run", is_flag=True, help="Look at the records that are there; run nothing.")
@click.option("--device", default="auto", show_default=True, help="Where to train.")
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write a page."
)
@click.option(
    "--csv", "table", type=click.Path(dir_okay=False, path_type=Path), help="Write all numbers."
)
@click.option(
    "--svg",
    "drawing",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw gains over FedAvg for the worst 10 %, methods x federations.",
)
@click.option(
    "--records",
    "lines",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write records in the form that comes with the package, a file for each federation.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def benchmark(
    quick: bool,
    federations: tuple[str, ...],
    methods: tuple[str, ...],
    grids: tuple[str, ...],
    out: Path,
    merged: tuple[Path, ...],
    listing: bool,
    no_run: bool,
    device: str,
    page: Path | None,
    table: Path | None,
    drawing: Path | None,
    lines: Path | None,
    quiet: bool,
) -> None:
    """Compare every method on a fixed suite of federations.

    Every method is tuned with the same number of settings on validation data, trained with five
    seeds and tested once. Records that come with the package are not made again; what is made is
    kept in runs/benchmark, and the same command goes on with it.

    evenhand benchmark --quick -a mypackage:MyMethod --grid q=0.1,1,10
    """
    with stopping_cleanly(quiet):
        from evenhand import files
        from evenhand.benchmarking.entry import benchmark as run
        from evenhand.benchmarking.figure import picture
        from evenhand.benchmarking.page import benchmark_page
        from evenhand.benchmarking.store import write_lines

        console = results_console(quiet, WITH_INTERVALS)
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
            click.echo("what is done is kept; the same command goes on with the rest", err=True)
            raise
        for note in (*found.notes, *found.failed):
            click.echo(note, err=True)
        if listing:
            _list(console, quick, federations, out)
        else:
            found.show(console)
            if found.missing and not quiet:
                console.print(f"{len(found.missing)} units were not run; --list names them.")
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


@contextmanager
def _bar(quiet: bool) -> Iterator[Counter]:
    """Progress on standard error: units done, the time left, and what is being trained."""
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
    hidden = quiet or not console.is_terminal  # bars in a file say nothing
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
    """Federations, methods, what is done and what is missing."""
    from rich import box
    from rich.table import Table

    from evenhand.benchmarking import store
    from evenhand.benchmarking.suite import Suite
    from evenhand.data.storage.file import data_root
    from evenhand.datasets.catalogue import entry

    suite = Suite.standard()
    table = Table(box=box.SIMPLE)
    for heading in ("federation", "what it is", "quick", "data", "done", "minutes", "missing"):
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
            f"{seconds * (1 + suite.budget.settings / suite.budget.seeds) / 60:.1f}",
            "all" if not done else ", ".join(left) or "-",
        )
    console.print(table)
    console.print(f"Methods: {', '.join(suite.entries)}.", highlight=False)
