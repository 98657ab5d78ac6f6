"""evenhand card."""

from __future__ import annotations

from pathlib import Path

import click

from evenhand.cli.options import number_options
from evenhand.cli.terminal import open_page, stopping_cleanly


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--method", metavar="LABEL", help="The method; may be left out if the run has one method."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("card"),
    show_default=True,
    help="A directory for README.md and card.html, or a file: .md or .html.",
)
@click.option("--purpose", metavar="TEXT", default="", help="What the model is for.")
@click.option(
    "--license", metavar="NAME", default="", help="The model's licence, such as apache-2.0."
)
@number_options
@click.option("--open", "opened", is_flag=True, help="Open the card in a browser.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
def card(
    run: Path,
    method: str | None,
    out: Path,
    purpose: str,
    license: str,
    over: str,
    level: float,
    least: int,
    positive: str | None,
    measure: str | None,
    opened: bool,
    quiet: bool,
) -> None:
    """Write the model card of a trained model, as Markdown and HTML.

    RUN is the directory of a run, comparison or sweep. The card says what the model predicts, what
    it was trained on and how, how well it serves each client and group, what the server saw, what
    was not tested, and how to use it. The Markdown starts with the front matter of a model hub.

    \b
    Examples:
      evenhand card runs/patients --method qffl --purpose "Triage, never without a nurse."
      evenhand card runs/patients --method qffl --out card.html --open
    """
    with stopping_cleanly(quiet):
        from evenhand.page.card.writing import card as write

        made = write(
            run,
            out,
            method=method,
            purpose=purpose,
            license=license,
            over=over,
            level=level,
            least=least,
            positive=positive,
            measure=measure,
        )
        if not quiet:
            for file in made.files:
                click.echo(f"Card: {file}")
        if opened:
            open_page(made.files[-1])
