"""The command line. Thin: it reads options, calls the library and prints.

Nothing heavy is imported before a command runs, so that ``evenhand --help`` answers at once.
"""

from __future__ import annotations

import click

import evenhand
from evenhand.cli.audit import audit
from evenhand.cli.benchmark import benchmark
from evenhand.cli.compare import compare
from evenhand.cli.data import data
from evenhand.cli.describe import describe
from evenhand.cli.flower import flower
from evenhand.cli.options import examples
from evenhand.cli.report import report
from evenhand.cli.reproduce import reproduce
from evenhand.cli.run import resume, run
from evenhand.cli.spec import spec
from evenhand.cli.sweep import sweep
from evenhand.cli.terminal import Commands
from evenhand.cli.verify import verify


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(evenhand.__version__, "--version", prog_name="evenhand")
def main(debug: bool) -> None:
    """Fair federated learning: train with fair methods and see who gains and who pays."""


@main.command(epilog=examples("evenhand algorithms", "evenhand algorithms fafl"))
@click.argument("name", required=False)
def algorithms(name: str | None) -> None:
    """List the methods, or print the page of one.

    NAME is a method's name as in --algorithm; without it all are listed with one line each, and
    with what the server sees of the clients.
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
        "\nThe server sees: sums, over clients alone, so the method is fit for secure sums; single,"
        " something of each client;"
    )
    click.echo(
        "either, as settings, teams or the inner method have it. The method's page says what."
    )


main.add_command(run)
main.add_command(flower)
main.add_command(compare)
main.add_command(benchmark)
main.add_command(sweep)
main.add_command(resume)
main.add_command(report)
main.add_command(reproduce)
main.add_command(verify)
main.add_command(audit)
main.add_command(spec)
main.add_command(data)
data.add_command(describe)
