"""evenhand report."""

from __future__ import annotations

import os
from pathlib import Path

import click

from evenhand.cli.options import number_options
from evenhand.cli.terminal import open_page, stopping_cleanly, without_collector


@click.command()
@click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write every figure to this directory.",
)
@click.option(
    "--figure-format",
    type=click.Choice(["png", "svg"]),
    default="png",
    show_default=True,
    help="Format of --figures.",
)
@click.option(
    "--tables",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write tables to this directory: CSV with mean and std over runs, and LaTeX.",
)
@number_options
@click.option("--title", help="Title of the report.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print what was written, and the answer, as JSON, and nothing else.",
)
@click.option("--open", "opened", is_flag=True, help="Open the report in a browser.")
@click.option("-v", "--verbose", is_flag=True, help="Print all details, not only the answer.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
def report(
    runs: tuple[Path, ...],
    out: Path,
    figures: Path | None,
    figure_format: str,
    tables: Path | None,
    over: str,
    level: float,
    least: int,
    positive: str | None,
    measure: str | None,
    title: str | None,
    as_json: bool,
    opened: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write an HTML report about runs: who gains, who pays, with intervals.

    RUN is the directory of a run, comparison or sweep. Several runs on the same data are compared
    with each other; runs on other data get a section of their own. The report is one file that
    needs no network.

    \b
    Examples:
      evenhand report runs/digits --out digits.html --open
      evenhand report runs/digits runs/adult --figures pictures --tables tables
      evenhand report runs/digits --measure balanced_accuracy --level 0.9
    """
    with stopping_cleanly(quiet), without_collector():
        import json

        from evenhand.page.report import report as write

        written = write(
            runs,
            out,
            title=title,
            figures=figures,
            figure_format=figure_format,
            tables=tables,
            over=over,
            level=level,
            least=least,
            positive=positive,
            measure=measure,
        )
        page, size = written.page, written.page.stat().st_size
        answers = [line for one in written.studies for line in one.answer.sentences]
        sentences = [
            line
            for findings in written.studies
            for line in (*findings.answer.lines(), *findings.sentences)
        ]
        if as_json:
            about = {
                "page": str(page),
                "bytes": size,
                "figures": list(map(str, written.figures)),
                "tables": list(map(str, written.tables)),
                "answer": answers,
                "next": [one.answer.command for one in written.studies],
            }
            click.echo(json.dumps({**about, "sentences": sentences}, indent=2))
        elif not quiet:
            for line in sentences if verbose else answers:
                click.echo(line)
            click.echo(f"\nReport:  {page} ({size / 1e6:.1f} MB)")
            if figures:
                click.echo(f"Figures: {figures}{os.sep} ({len(written.figures)} files)")
            if tables:
                click.echo(f"Tables:  {tables}{os.sep} ({len(written.tables)} files)")
        if opened:
            open_page(page)
