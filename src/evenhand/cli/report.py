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

    RUN are directories of runs, comparisons or sweeps with the same data; methods and seeds are put
    together. The page is one HTML file that needs no network.

    evenhand report runs/digits --out digits.html --figures pictures
    """
    with stopping_cleanly(quiet):
        import json

        from evenhand.page.report import report as write

        page, pictures, findings = write(
            runs,
            out,
            title=title,
            figures=figures,
            figure_format=figure_format,
            over=over,
            level=level,
            least=least,
            positive=positive,
            measure=measure,
        )
        size = page.stat().st_size
        if as_json:
            about = {"page": str(page), "bytes": size, "figures": list(map(str, pictures))}
            click.echo(json.dumps({**about, "sentences": list(findings.sentences)}, indent=2))
        elif not quiet:
            for sentence in findings.sentences:
                click.echo(sentence)
            drawn = f"; {len(pictures)} figures are in {figures}" if figures is not None else ""
            click.echo(f"The page is {page} ({size / 1e6:.1f} MB){drawn}")
        if open_page:
            click.launch(page.resolve().as_uri())
