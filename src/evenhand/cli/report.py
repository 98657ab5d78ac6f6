"""evenhand report."""

from __future__ import annotations

from pathlib import Path

import click

from evenhand.cli.options import number_options
from evenhand.cli.terminal import stopping_cleanly


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
    help="The page to write.",
)
@click.option(
    "--figures",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write every figure there, too, as a file of its own.",
)
@click.option(
    "--figure-format",
    type=click.Choice(["png", "svg"]),
    default="png",
    show_default=True,
    help="Of --figures.",
)
@click.option(
    "--tables",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the numbers there, too: CSV with mean and std over runs, and a LaTeX table.",
)
@number_options
@click.option("--title", help="Of the page.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print what was written and the summary as JSON for programs, and nothing else.",
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
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
    open_page: bool,
    quiet: bool,
) -> None:
    """Write a page about runs: who gains, who pays, with intervals.

    RUN are directories of runs, comparisons or sweeps. Those with the same data are put together;
    others get a section of their own. The page is one HTML file that needs no network.

    evenhand report runs/digits --out digits.html --figures pictures
    """
    with stopping_cleanly(quiet):
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
                "answer": [line for one in written.studies for line in one.answer.sentences],
                "next": [one.answer.command for one in written.studies],
            }
            click.echo(json.dumps({**about, "sentences": sentences}, indent=2))
        elif not quiet:
            for sentence in sentences:
                click.echo(sentence)
            drawn = f"; {len(written.figures)} figures are in {figures}" if figures else ""
            listed = f"; {len(written.tables)} tables are in {tables}" if tables else ""
            click.echo(f"The page is {page} ({size / 1e6:.1f} MB){drawn}{listed}")
        if open_page:
            click.launch(page.resolve().as_uri())
