"""evenhand run and evenhand resume."""

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
from evenhand.cli.source import data_table, source_options

if TYPE_CHECKING:
    from rich.console import Console

    from evenhand.experiments.rundir import Outcome, Ready
    from evenhand.experiments.spec import Method

    Plan = tuple[Path, Ready]


WIDTH_IN_FILES = 110  # a pipe has no width, and rich would cut columns to fit 80

ALGORITHM_HELP = (
    "Run this method instead of the spec's; repeat for several. Example: -a qffl:q=2 -a fafl:alpha=0.3,local.lr=0.05,label=mild. "
    "A method that changes another one: -a fedprox:mu=0.1,inner=qffl,inner.q=2. FedAvg is added as the reference."
)


@click.command()
@click.argument("spec", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--data", metavar="NAME|FILE", help="A data set by name (NAME[:KEY=VALUE,...]), a CSV or Parquet table, or a LEAF directory.")
@source_options
@click.option("--model", metavar="NAME[:KEY=VALUE,...]", help="The model, such as linear, mlp:hidden=[64] or cnn; auto suits the data.")
@click.option("-a", "--algorithm", "algorithms", multiple=True, metavar="NAME[:KEY=VALUE,...]", help=ALGORITHM_HELP)
@click.option("--rounds", type=click.IntRange(min=1), help="Communication rounds.")
@click.option(
    "--clients",
    type=click.IntRange(min=2),
    help="Number of clients to deal the data to; of clients that the data come with, how many to draw.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of data split, initial model, cohorts and batch orders.")
@click.option("--engine", type=click.Choice(["auto", "loop", "vmap"]), help="One client at a time, or side by side; auto takes the faster.")
@click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, ...; by default a GPU if there is one.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Directory for the results.  [default: runs/NAME]")
@click.option("--no-reference", is_flag=True, help="Do not add FedAvg to methods given with --algorithm.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def run(
    spec: Path | None,
    data: str | None,
    model: str | None,
    algorithms: tuple[str, ...],
    rounds: int | None,
    clients: int | None,
    seed: int | None,
    engine: str | None,
    device: str | None,
    out: Path | None,
    no_reference: bool,
    quiet: bool,
    **source: Any,
) -> None:
    """Train with one or several methods and compare them.

    SPEC is a TOML file; without one and without --data, FedAvg and fair methods run on scikit-learn's digits, spread unfairly over
    20 clients. Options override the spec. Results go to runs/NAME: the spec, tables as CSV, models as safetensors.

    Your own table, one row per sample: evenhand run --data patients.csv --client hospital --label disease --group sex
    """

    def plan_run() -> Plan:
        import dataclasses

        from evenhand.experiments.rundir import check, new_directory
        from evenhand.experiments.spec import Spec, parse_method, parse_table

        table = data_table(data, **source)
        if spec:
            plan = Spec.load(spec)
        elif data:
            plan = Spec.for_data(Path(table["path"]).name.split(".")[0] if "path" in table else table["name"])
        else:
            plan = Spec.default()
        plan = dataclasses.replace(plan, data=table if data else plan.data | table)
        if algorithms:
            plan = plan.with_methods(parse_method(text) for text in algorithms)
            plan = plan if no_reference else plan.with_reference()
        given: dict[str, Any] = {"rounds": rounds, "seed": seed, "engine": engine, "device": device}
        given |= {"model": parse_table(model) if model else None, "data": {**plan.data, "clients": clients} if clients else None}
        plan = dataclasses.replace(plan, **{key: value for key, value in given.items() if value is not None})
        ready = check(plan)  # before a directory is made
        return new_directory(out or Path("runs") / plan.name, numbered=out is None), ready

    _carry_out(plan_run, quiet)


@click.command()
@click.argument("directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def resume(directory: Path, quiet: bool) -> None:
    """Go on with an interrupted run.

    RUN is its directory. The outcome is byte for byte that of a run that was never interrupted.
    """

    def plan_resume() -> Plan:
        from evenhand.experiments.rundir import check, load_spec

        return directory, check(load_spec(directory))

    _carry_out(plan_resume, quiet)


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
        directory, ready = plan()
        from evenhand.experiments.tables import show, show_data

        show_data(console, ready)
        show(console, _execute(ready, directory, console))
        console.print(f"Results are in {directory}", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        hint = f"; continue with: evenhand resume {shlex.quote(str(directory))}" if directory else ""
        click.echo(f"stopped{hint}", err=True)
        sys.exit(130)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError, evenhand.EvenhandError) as error:
        click.echo(f"evenhand: {error}", err=True)
        sys.exit(1)


def _execute(ready: Ready, directory: Path, console: Console) -> list[Outcome]:
    import warnings

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from evenhand.experiments.rundir import execute

    name, note = TextColumn("{task.description:12}"), TextColumn("{task.fields[note]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), note)
    with Progress(*columns, console=console, disable=console.quiet) as bars, warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: None if console.quiet else click.echo(f"warning: {message}", err=True)

        def watch(method: Method) -> Callable[[int, dict[str, Any]], None]:
            bar = bars.add_task(method.label, total=ready.spec.rounds, note="")

            def after_round(done: int, row: dict[str, Any]) -> None:
                note = f"worst 10 % {100 * row['worst10']:.1f}" if "worst10" in row else bars.tasks[bar].fields["note"]
                bars.update(bar, completed=done, note=note)

            return after_round

        return execute(ready, directory, watch)
