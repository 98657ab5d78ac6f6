"""The command line. Thin: it reads options, calls the library and prints.

Nothing heavy is imported before a command runs, so that ``evenhand --help`` answers at once.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import evenhand

if TYPE_CHECKING:
    from rich.console import Console

    from evenhand.experiments.rundir import Outcome, Ready
    from evenhand.experiments.spec import Method, Spec

    Plan = tuple[Spec, Path, Ready]


WIDTH_IN_FILES = 110  # a pipe has no width, and rich would cut columns to fit 80

ALGORITHM_HELP = (
    "Run this method instead of the spec's; repeat for several. Example: -a qffl:q=2 -a fafl:alpha=0.3,local.lr=0.05,label=mild. "
    "A method that changes another one: -a fedprox:mu=0.1,inner=qffl,inner.q=2. FedAvg is added as the reference."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(evenhand.__version__, "--version", prog_name="evenhand")
def main() -> None:
    """Fair federated learning: train with fair methods and see who gains and who pays."""


@main.command()
@click.argument("spec", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("-a", "--algorithm", "algorithms", multiple=True, metavar="NAME[:KEY=VALUE,...]", help=ALGORITHM_HELP)
@click.option("--rounds", type=click.IntRange(min=1), help="Communication rounds.")
@click.option("--clients", type=click.IntRange(min=2), help="Number of clients the data are spread over.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of data split, initial model, cohorts and batch orders.")
@click.option("--engine", type=click.Choice(["auto", "loop", "vmap"]), help="One client at a time, or side by side; auto takes the faster.")
@click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, ...; by default a GPU if there is one.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Directory for the results.  [default: runs/NAME]")
@click.option("--no-reference", is_flag=True, help="Do not add FedAvg to methods given with --algorithm.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def run(
    spec: Path | None,
    algorithms: tuple[str, ...],
    rounds: int | None,
    clients: int | None,
    seed: int | None,
    engine: str | None,
    device: str | None,
    out: Path | None,
    no_reference: bool,
    quiet: bool,
) -> None:
    """Train with one or several methods and compare them.

    SPEC is a TOML file; without one, FedAvg and fair methods run on scikit-learn's digits, spread unfairly over 20 clients. Options
    override the spec. Results go to runs/NAME: the spec, tables as CSV, models as safetensors.
    """

    def plan_run() -> Plan:
        import dataclasses

        from evenhand.experiments.rundir import check, new_directory
        from evenhand.experiments.spec import Spec, parse_method

        plan = Spec.load(spec) if spec else Spec.default()
        if algorithms:
            plan = plan.with_methods(parse_method(text) for text in algorithms)
            plan = plan if no_reference else plan.with_reference()
        given: dict[str, Any] = {"rounds": rounds, "seed": seed, "engine": engine, "device": device}
        plan = dataclasses.replace(plan, **{key: value for key, value in given.items() if value is not None})
        if clients is not None:
            plan = dataclasses.replace(plan, data={**plan.data, "clients": clients})
        ready = check(plan)  # before a directory is made
        return plan, new_directory(out or Path("runs") / plan.name, numbered=out is None), ready

    _carry_out(plan_run, quiet)


@main.command()
@click.argument("directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def resume(directory: Path, quiet: bool) -> None:
    """Go on with an interrupted run.

    RUN is its directory. The outcome is byte for byte that of a run that was never interrupted.
    """

    def plan_resume() -> Plan:
        from evenhand.experiments.rundir import check, load_spec

        spec = load_spec(directory)
        return spec, directory, check(spec)

    _carry_out(plan_resume, quiet)


@main.command()
@click.argument("name", required=False)
def algorithms(name: str | None) -> None:
    """List the methods, or print the page of one.

    NAME is a method's name as in --algorithm; without it all are listed with one line each.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from evenhand.experiments.methods import one_line, page

    console = Console()
    try:
        if name is not None:
            text = page(name)
            if console.is_terminal:
                console.print(Markdown(text))
            else:
                click.echo(text)
            return
        lines = one_line()
    except evenhand.EvenhandError as error:
        click.echo(f"evenhand: {error}", err=True)
        sys.exit(1)
    width = max(map(len, lines))
    for method, line in lines.items():
        click.echo(f"{method:{width}}  {line}")


def _carry_out(plan: Callable[[], Plan], quiet: bool) -> None:
    """Run a plan with progress bars and print its tables; turn errors into one line and an exit code."""
    from rich.console import Console

    if quiet:
        logging.getLogger("evenhand").setLevel(logging.ERROR)
    console = Console(quiet=quiet)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(quiet=quiet, width=WIDTH_IN_FILES)
    directory: Path | None = None
    try:
        spec, directory, ready = plan()
        outcomes = _execute(spec, directory, ready, console)
        from evenhand.experiments.tables import show

        show(console, outcomes)
        console.print(f"Results are in {directory}", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        hint = f"; continue with: evenhand resume {shlex.quote(str(directory))}" if directory else ""
        click.echo(f"stopped{hint}", err=True)
        sys.exit(130)
    except (ValueError, TypeError, OSError, RuntimeError, evenhand.EvenhandError) as error:
        click.echo(f"evenhand: {error}", err=True)
        sys.exit(1)


def _execute(spec: Spec, directory: Path, ready: Ready, console: Console) -> list[Outcome]:
    import warnings

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from evenhand.experiments.rundir import execute

    name, note = TextColumn("{task.description:12}"), TextColumn("{task.fields[note]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), note)
    with Progress(*columns, console=console, disable=console.quiet) as bars, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: None if console.quiet else click.echo(f"warning: {message}", err=True)

        def watch(method: Method) -> Callable[[int, dict[str, Any]], None]:
            bar = bars.add_task(method.label, total=spec.rounds, note="")

            def after_round(done: int, row: dict[str, Any]) -> None:
                note = f"worst 10 % {100 * row['worst10']:.1f}" if "worst10" in row else bars.tasks[bar].fields["note"]
                bars.update(bar, completed=done, note=note)

            return after_round

        return execute(spec, directory, watch, ready)


if __name__ == "__main__":
    main()
