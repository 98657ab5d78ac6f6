"""The command line: it reads options, calls the library and prints.

Commands import torch and other heavy packages only when they run, so that ``evenhand --help`` is
fast.
"""

from __future__ import annotations

import os

import click

# NumPy's products here are small: two threads would mostly wait for each other. With one, results
# also do not depend on the number of cores. It is read when NumPy is imported, by a command.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import evenhand
from evenhand.cli.audit import audit
from evenhand.cli.benchmark import benchmark
from evenhand.cli.card import card
from evenhand.cli.compare import compare
from evenhand.cli.data import data
from evenhand.cli.describe import describe
from evenhand.cli.export import export
from evenhand.cli.flower import flower
from evenhand.cli.predict import predict
from evenhand.cli.privacy import privacy
from evenhand.cli.report import report
from evenhand.cli.reproduce import reproduce
from evenhand.cli.run import resume, run
from evenhand.cli.spec import spec
from evenhand.cli.sweep import sweep
from evenhand.cli.terminal import Commands
from evenhand.cli.thresholds import thresholds
from evenhand.cli.verify import verify

SECTIONS = {
    "Train and compare": ("run", "compare", "sweep", "resume"),
    "Look at results": ("report", "audit", "verify", "thresholds"),
    "Use a trained model": ("predict", "export", "card"),
    "Data and methods": ("data", "algorithms", "privacy", "spec"),
    "Real federations": ("flower",),
    "Benchmarks and papers": ("benchmark", "reproduce"),
}


@click.group(
    cls=Commands, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(evenhand.__version__, "--version", prog_name="evenhand")
def main(debug: bool) -> None:
    """Fair federated learning: train with fair methods, and see who gains and who pays.

    \b
    Start here:
      evenhand run                   compare FedAvg with fair methods on example data
      evenhand run --data patients.csv --client hospital --label disease
      evenhand run --help            all options of a command
    """


@main.command()
@click.argument("name", required=False)
def algorithms(name: str | None) -> None:
    """List the methods, or explain one of them.

    NAME is the name of a method, as in --algorithm; module:Class is one of your own. Without it,
    the list shows one line per method and what the server sees: sums over clients, or single
    clients.

    \b
    Examples:
      evenhand algorithms
      evenhand algorithms qffl
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from evenhand.studies.methods import kinds, one_line, page

    console = Console()
    if name is not None:
        text = page(name)
        if console.is_terminal:
            console.print(Markdown(text))
        else:
            click.echo(text)
        return
    lines, seen = one_line(), kinds()
    width = max(map(len, lines))
    for method, line in lines.items():
        click.echo(f"{method:{width}}  {seen[method]:6}  {line}")
    click.echo(
        "\nThe server sees: sums, only sums over clients, so the method works with masked sums;"
    )
    click.echo(
        "single, something from each client; either, which depends on its settings, on teams or on"
        " the inner method."
    )
    click.echo("evenhand algorithms NAME says what exactly.")


main.add_command(run)
main.add_command(flower)
main.add_command(compare)
main.add_command(benchmark)
main.add_command(sweep)
main.add_command(resume)
main.add_command(predict)
main.add_command(privacy)
main.add_command(report)
main.add_command(reproduce)
main.add_command(verify)
main.add_command(audit)
main.add_command(thresholds)
main.add_command(export)
main.add_command(card)
main.add_command(spec)
main.add_command(data)
data.add_command(describe)
